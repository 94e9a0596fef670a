"""CPUEvict: evicts pods of a node whose CPU is short, by the satisfaction of best-effort pods, by requests or by usage.

The behaviour is koordlet's (cpu_evict.go); it reads `spec.resourceUsedThresholdWithBE` of the node's NodeSLO. The
features are BECPUEvict (best-effort pods that get too little of what they request), CPUAllocatableEvict (requests of
pods up to a priority) and CPUEvict (usage of pods up to a priority), in this order.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.agent.qos_manager.evictions import (
    EvictionCandidate,
    EvictionTask,
    PriorityOrder,
    ReleaseTarget,
    allocatable_release,
    batch_cpu_of,
    eviction_allowed,
    usage_percent,
    usage_release,
    used_or_none,
)
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import canonical_amount
from koordpolicy.engine.framework.qos import Readings
from koordpolicy.engine.kubernetes.vocabulary import BATCH_CPU, BE, raw_qos_class

from ..eviction_strategy import (
    NOT_CONFIGURED,
    EvictionArgs,
    EvictionStrategy,
    SettingError,
    ThresholdSection,
    check_lower,
    check_usage_priority,
    read_request_bounds,
    reason_of,
)

BE_CPU_EVICT: Final = "BECPUEvict"
CPU_ALLOCATABLE_EVICT: Final = "CPUAllocatableEvict"
CPU_EVICT: Final = "CPUEvict"
FEATURES: Final = (BE_CPU_EVICT, CPU_ALLOCATABLE_EVICT, CPU_EVICT)

_COOL_SECONDS: Final = 20.0
_LESS: Final = 2
"""Percent: the default of the lower bound of usage is that much below the threshold."""
_MOST_LOWER: Final = 60
_MOST_UPPER: Final = 100
_DEFAULT_USAGE: Final = 90
_ONE_CPU: Final = 1000
_UNIT: Final = 1000
_BY_ALLOCATABLE: Final = "evictByAllocatable"
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SatisfactionBounds:
    """The settings of BECPUEvict, in percent: pods are evicted from `lower` up to `upper` satisfaction.

    Satisfaction is what the best-effort tier may use, as a share of what it requests; `usage` is the least usage of
    what it may use.
    """

    lower: int
    upper: int
    usage: int = _DEFAULT_USAGE

    @staticmethod
    def of(section: ThresholdSection) -> SatisfactionBounds:
        """Read the settings; raise `SettingError` if they are invalid."""
        if not section.present:
            raise SettingError(NOT_CONFIGURED)
        lower = section.number("cpuEvictBESatisfactionLowerPercent")
        upper = section.number("cpuEvictBESatisfactionUpperPercent")
        if lower is None or upper is None:
            raise SettingError(
                "CPUEvictBESatisfactionLowerPercent or CPUEvictBESatisfactionUpperPercent not config")
        if not 0 < lower <= _MOST_LOWER:
            raise SettingError(f"CPUEvictBESatisfactionLowerPercent({lower}) is not valid! must (0,{_MOST_LOWER}]")
        if not 0 < upper < _MOST_UPPER:
            raise SettingError(f"CPUEvictBESatisfactionUpperPercent({upper}) is not valid,must (0,{_MOST_UPPER})")
        if upper < lower:
            raise SettingError(
                f"CPUEvictBESatisfactionUpperPercent({upper}) < CPUEvictBESatisfactionLowerPercent({lower})")
        usage = section.number("cpuEvictBEUsageThresholdPercent")
        return SatisfactionBounds(lower, upper, _DEFAULT_USAGE if usage is None else usage)

    def is_used(self, used: float, limit: float) -> bool:
        """Return whether the best-effort tier uses what it may; always, if that is less than one CPU."""
        if limit <= 0:
            return False
        return limit < _ONE_CPU or used / limit >= self.usage / 100

    def release(self, request: float, limit: float) -> int:
        """Return the request to release, in milli-cores, so that the rest is satisfied up to `upper`."""
        if request <= 0:
            return 0
        rate = limit / request
        if rate > self.lower / 100:
            return 0
        return max(int(request * (self.upper / 100 - rate)), 0)


@dataclass(frozen=True, slots=True)
class BestEffortCPU:
    """CPU of the best-effort tier, in milli-cores, over some time; `count` is the smallest number of samples."""

    used: float = 0
    request: float = 0
    limit: float = 0
    count: int = 0


def satisfaction_release(
    bounds: SatisfactionBounds, average: BestEffortCPU, current: BestEffortCPU, *, window: int, interval: float,
) -> int:
    """Return the batch CPU to release, in milli-cores: the smaller amount of the window's average and of now.

    0 if less than a third of the window was measured. `window` is that of the average, `interval` the time between two
    collections, both in seconds.
    """
    if average.count * interval < window // 3 or not bounds.is_used(average.used, average.limit):
        return 0
    amount = bounds.release(average.request, average.limit)
    if amount <= 0 or not bounds.is_used(current.used, current.limit):
        return 0
    if (current.request, current.limit) == (average.request, average.limit):
        return amount
    return min(amount, bounds.release(current.request, current.limit))


def allocatable_batch_cpu(node: Mapping[str, Any]) -> int:
    """Return the node's allocatable batch CPU, in milli-cores: 1 instead of 0, and -1 if there is none."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    if BATCH_CPU not in allocatable:
        return -1
    amount = canonical_amount(BATCH_CPU, allocatable[BATCH_CPU], f"status.allocatable.{BATCH_CPU}")
    return -1 if amount < 0 else amount or 1


def usage_bounds(section: ThresholdSection) -> tuple[int, int, int]:
    """Return threshold and lower bound of usage, in percent, and the priority up to which pods are evicted.

    Raises:
        SettingError: they are invalid.
    """
    if not section.present:
        raise SettingError(NOT_CONFIGURED)
    threshold = section.number("cpuEvictThresholdPercent")
    if threshold is None:
        raise SettingError("CPUEvictThresholdPercent not config")
    if threshold < 0:
        raise SettingError(f"threshold percent({threshold}) should greater than 0")
    given = section.number("cpuEvictLowerPercent")
    lower = threshold - _LESS if given is None else given
    check_lower(lower, threshold)
    return threshold, lower, check_usage_priority(section)


def request_bounds(section: ThresholdSection) -> tuple[int, int, int]:
    """Return threshold, lower bound and priority of CPUAllocatableEvict; see `read_request_bounds`."""
    return read_request_bounds(section, "cpu", CPU_ALLOCATABLE_EVICT, "equal or greater")


def check_settings(feature: str, section: ThresholdSection) -> None:
    """Raise `SettingError` if the settings of a feature are missing or invalid."""
    if feature == BE_CPU_EVICT:
        SatisfactionBounds.of(section)
    elif feature == CPU_EVICT:
        usage_bounds(section)
    else:
        request_bounds(section)


def request_release(
    requested: Mapping[str, int], allocatable: Mapping[str, Any], threshold: int, lower: int,
) -> dict[str, int]:
    """Return the CPU requests to release, by resource; plain `cpu` a thousandfold, as koordlet computes it."""

    def excess(resource: str, amount: int, available: int) -> int:
        found = int(amount - lower / 100 * available)
        return found * _UNIT if resource == "cpu" else found

    return allocatable_release(requested, allocatable, threshold, excess)


def best_effort_candidates(readings: Readings) -> tuple[EvictionCandidate, ...]:
    """Return the pods with the label BE whose eviction policy allows BECPUEvict, in order.

    Lower `spec.priority` first, if both have one; then larger usage as a share of the requested batch CPU.
    """
    found = [
        EvictionCandidate(pod, used_or_none(pod, "cpu", readings) or 0, batch_cpu_of(pod))
        for pod in readings.pods
        if raw_qos_class(pod.object) == BE and eviction_allowed(pod.object, BE_CPU_EVICT)
    ]
    return tuple(sorted(found, key=functools.cmp_to_key(_compared)))


def usage_share(candidate: EvictionCandidate) -> float:
    """Return a candidate's usage as a share of its request; 0 without a request."""
    return candidate.used / candidate.requested if candidate.requested > 0 else 0.0


def _compared(one: EvictionCandidate, other: EvictionCandidate) -> int:
    first, second = ((each.pod.object.get("spec") or {}).get("priority") for each in (one, other))
    if first is None or second is None or first == second:
        return (usage_share(other) > usage_share(one)) - (usage_share(other) < usage_share(one))
    return -1 if first < second else 1


class CPUEvict(EvictionStrategy):
    """The strategy, with the time of the last eviction on each node."""

    name = "CPUEvict"
    resource = "cpu"
    features = FEATURES
    cool_seconds = _COOL_SECONDS
    waits_first = True

    def node_percent(self, readings: Readings, capacity: int) -> int:
        """Return the node's average usage over a collection interval in whole percent of its capacity."""
        return usage_percent(_node_usage(readings), capacity)

    def task(self, feature: str, section: ThresholdSection, readings: Readings, capacity: int) -> EvictionTask | None:
        """Return the feature's task, or None if nothing is to be released."""
        reason = reason_of(feature)
        if feature == BE_CPU_EVICT:
            amount = _satisfaction_release(section, readings)
            if not amount:
                return None
            return EvictionTask(
                reason, best_effort_candidates(readings), {BATCH_CPU: amount}, ReleaseTarget.REQUESTS,
                lambda candidate: {BATCH_CPU: batch_cpu_of(candidate.pod)}, feature)
        if feature == CPU_ALLOCATABLE_EVICT:
            return self.task_by_requests(feature, readings, request_bounds(section), request_release)
        threshold, lower, priority = usage_bounds(section)
        hard = self.hard_threshold(readings, threshold)
        amount = usage_release(_node_usage(readings), capacity, threshold, lower)
        if not amount:
            return None
        order = PriorityOrder(feature, "cpu", priority, ReleaseTarget.USAGE)
        return EvictionTask(
            reason, order.candidates(readings), {"cpu": amount}, ReleaseTarget.USAGE,
            lambda candidate: {"cpu": candidate.used}, feature, self.is_past(hard, readings, capacity))


def _node_usage(readings: Readings) -> float:
    return readings.node_usage("cpu", "avg", readings.collect_interval)


def _satisfaction_release(section: ThresholdSection, readings: Readings) -> int:
    bounds = SatisfactionBounds.of(section)
    interval = readings.collect_interval / _SECOND
    window = max(int(interval), section.number("cpuEvictTimeWindowSeconds") or 0)
    average = _best_effort_cpu(readings, "avg", window * _SECOND or readings.collect_interval)
    current = _best_effort_cpu(readings, "last", 2 * readings.collect_interval)
    if section.text("cpuEvictPolicy") == _BY_ALLOCATABLE:
        limit = allocatable_batch_cpu(readings.node)
        average = BestEffortCPU(average.used, average.request, limit, average.count)
        current = BestEffortCPU(current.used, current.request, limit, current.count)
    return satisfaction_release(bounds, average, current, window=window, interval=interval)


def _best_effort_cpu(readings: Readings, statistic: str, window: int) -> BestEffortCPU:
    """Return the CPU of the best-effort tier over a window; a part that was not measured is 0."""

    def read(allocation: str) -> tuple[float, int]:
        try:
            value = readings.best_effort_cpu(allocation, statistic, window)
        except EvaluationError:
            return 0.0, 0
        return value, int(readings.best_effort_cpu(allocation, "count", window))

    (used, one), (request, two), (limit, three) = map(read, ("usage", "request", "realLimit"))
    return BestEffortCPU(used, request, limit, min(one, two, three))


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments; raise `ValueError` if they are invalid."""
    EvictionArgs.of(args, FEATURES, _COOL_SECONDS)
    return args


def make(args: Mapping[str, Any], handle: object) -> CPUEvict:
    """Make the strategy for one profile."""
    return CPUEvict(args, handle)
