"""memoryEvict: evicts pods of a node that runs short of memory, by usage or by the requests of lower bands.

The behaviour is koordlet's (memory_evict.go); it reads `spec.resourceUsedThresholdWithBE` of the node's NodeSLO. The
features are BEMemoryEvict (best-effort pods), MemoryAllocatableEvict (requests of pods up to a priority) and
MemoryEvict (usage of pods up to a priority), in this order.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.agent.qos_manager.evictions import (
    EvictionCandidate,
    EvictionTask,
    PriorityOrder,
    ReleaseTarget,
    allocatable_release,
    eviction_allowed,
    request_of,
    usage_percent,
    usage_release,
    used_or_none,
)
from koordpolicy.engine.framework.qos import Readings
from koordpolicy.engine.kubernetes.vocabulary import BE, raw_qos_class

from ..eviction_strategy import (
    EvictionArgs,
    EvictionStrategy,
    SettingError,
    ThresholdSection,
    check_lower,
    check_usage_priority,
    read_request_bounds,
    reason_of,
)

BE_MEMORY_EVICT: Final = "BEMemoryEvict"
MEMORY_ALLOCATABLE_EVICT: Final = "MemoryAllocatableEvict"
MEMORY_EVICT: Final = "MemoryEvict"
FEATURES: Final = (BE_MEMORY_EVICT, MEMORY_ALLOCATABLE_EVICT, MEMORY_EVICT)

_COOL_SECONDS: Final = 4.0
_LESS: Final = 2
"""Percent: the default of the lower bound is that much below the threshold."""
_USAGE_FACTOR: Final = 1000
"""koordlet counts the usage of candidates by priority a thousandfold, so that MemoryEvict evicts one pod at a time."""


def usage_bounds(section: ThresholdSection, feature: str) -> tuple[int, int]:
    """Return threshold and lower bound of usage, in percent; raise `SettingError` if they are invalid."""
    if not section.present:
        raise SettingError("resourceThresholdStrategy not config")
    threshold = section.number("memoryEvictThresholdPercent")
    if threshold is None:
        raise SettingError("threshold percent is nil")
    if threshold < 0:
        raise SettingError(f"threshold percent({threshold}) should equal or greater than 0")
    given = section.number("memoryEvictLowerPercent")
    lower = threshold - _LESS if given is None else given
    check_lower(lower, threshold)
    if feature == MEMORY_EVICT:
        check_usage_priority(section)
    return threshold, lower


def request_bounds(section: ThresholdSection) -> tuple[int, int, int]:
    """Return threshold, lower bound and priority of MemoryAllocatableEvict; see `read_request_bounds`."""
    return read_request_bounds(section, "memory", MEMORY_ALLOCATABLE_EVICT, "greater")


def check_settings(feature: str, section: ThresholdSection) -> None:
    """Raise `SettingError` if the settings of a feature are missing or invalid."""
    if feature == MEMORY_ALLOCATABLE_EVICT:
        request_bounds(section)
    else:
        usage_bounds(section, feature)


def request_release(
    requested: Mapping[str, int], allocatable: Mapping[str, Any], threshold: int, lower: int,
) -> dict[str, int]:
    """Return the memory requests to release, by resource."""
    return allocatable_release(
        requested, allocatable, threshold,
        lambda _, amount, available: int((amount / available - lower / 100) * available),
    )


def best_effort_candidates(readings: Readings) -> tuple[EvictionCandidate, ...]:
    """Return the pods with the label BE whose eviction policy allows BEMemoryEvict, in order.

    Lower `spec.priority` first, if both have one; then larger usage, and pods that were not measured last, by name in
    descending order.
    """
    found = [
        EvictionCandidate(pod, used_or_none(pod, "memory", readings) or 0, request_of(pod, "memory")[1])
        for pod in readings.pods
        if raw_qos_class(pod.object) == BE and eviction_allowed(pod.object, BE_MEMORY_EVICT)
    ]
    return tuple(sorted(found, key=functools.cmp_to_key(_compared)))


def _compared(one: EvictionCandidate, other: EvictionCandidate) -> int:
    first, second = (_priority(each) for each in (one, other))
    if first is not None and second is not None and first != second:
        return first - second
    if one.used or other.used:
        return other.used - one.used
    return (other.pod.name > one.pod.name) - (other.pod.name < one.pod.name)


def _priority(candidate: EvictionCandidate) -> int | None:
    priority: int | None = (candidate.pod.object.get("spec") or {}).get("priority")
    return priority


class MemoryEvict(EvictionStrategy):
    """The strategy, with the time of the last eviction on each node."""

    name = "memoryEvict"
    resource = "memory"
    features = FEATURES
    cool_seconds = _COOL_SECONDS
    waits_first = False

    def node_percent(self, readings: Readings, capacity: int) -> int:
        """Return the node's last usage in whole percent of its capacity."""
        return usage_percent(readings.node_usage("memory"), capacity)

    def task(self, feature: str, section: ThresholdSection, readings: Readings, capacity: int) -> EvictionTask | None:
        """Return the feature's task, or None if nothing is to be released."""
        if feature == MEMORY_ALLOCATABLE_EVICT:
            return self.task_by_requests(feature, readings, request_bounds(section), request_release, _USAGE_FACTOR)
        threshold, lower = usage_bounds(section, feature)
        hard = self.hard_threshold(readings, threshold)
        amount = usage_release(readings.node_usage("memory"), capacity, threshold, lower)
        if not amount:
            return None
        if feature == BE_MEMORY_EVICT:
            candidates = best_effort_candidates(readings)
        else:
            order = PriorityOrder(
                feature, "memory", check_usage_priority(section), ReleaseTarget.USAGE, _USAGE_FACTOR)
            candidates = order.candidates(readings)
        return EvictionTask(
            reason_of(feature), candidates, {"memory": amount}, ReleaseTarget.USAGE,
            lambda candidate: {"memory": candidate.used}, feature, self.is_past(hard, readings, capacity))


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments; raise `ValueError` if they are invalid."""
    EvictionArgs.of(args, FEATURES, _COOL_SECONDS)
    return args


def make(args: Mapping[str, Any], handle: object) -> MemoryEvict:
    """Make the strategy for one profile."""
    return MemoryEvict(args, handle)
