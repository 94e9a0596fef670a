"""The evictions of the QoS manager: candidates and their order, amounts to release, and the execution of tasks.

These are pure functions, shared by the strategies CPUEvict and memoryEvict, by documents and by tests; the arithmetic
is koordlet's (plugins/util/evict.go, cpu_evict.go, memory_evict.go). Amounts are in canonical units: cpu in
milli-cores, all else in base units. `evictor.py` carries out what they choose.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.framework.qos import Evictions, Readings
from koordpolicy.engine.kubernetes.vocabulary import (
    BATCH,
    BATCH_CPU,
    DEFAULT_PRIORITIES,
    EVICTION_ENABLED_LABEL,
    EVICTION_POLICY_ANNOTATION,
    EVICTION_PRIORITY_ANNOTATION,
    MID,
    SUB_PRIORITY_LABEL,
    resource_name,
)

LEAVING_FOR: Final = 120_000_000_000
"""The time for which an evicted pod counts as leaving, in nanoseconds (as in koordlet's evictor)."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)

Amounts: TypeAlias = Mapping[str, int]
"""Amounts by resource name."""


class ReleaseTarget(enum.StrEnum):
    """The measure by which a task counts what an eviction releases."""

    USAGE = "podUsed"
    REQUESTS = "podResourceRequest"


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """A pod that a task may evict; `used` and `requested` are of the strategy's resource, as the task counts them."""

    pod: PodInfo
    used: int = 0
    requested: int = 0


@dataclass(frozen=True, slots=True)
class EvictionTask:
    """The eviction of candidates in order, until `to_release` is released of `target`.

    `contribution` returns the amounts that the eviction of a candidate releases. With `past_budget`, evictions are
    carried out although a PodDisruptionBudget refuses them.
    """

    reason: str
    candidates: tuple[EvictionCandidate, ...]
    to_release: Amounts
    target: ReleaseTarget
    contribution: Callable[[EvictionCandidate], Amounts]
    feature: str = ""
    past_budget: bool = False


@dataclass(frozen=True, slots=True)
class ChosenEviction:
    """A candidate that a task evicts, with the amounts that it releases of the task's target."""

    task: EvictionTask
    candidate: EvictionCandidate
    releases: Amounts


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The result of the tasks of one round: the evictions in order, and all amounts released, by target.

    The amounts include those of pods that were already leaving.
    """

    evictions: tuple[ChosenEviction, ...] = ()
    released: Mapping[ReleaseTarget, Amounts] = field(default_factory=dict)


def execute_tasks(
    tasks: Sequence[EvictionTask], is_leaving: Callable[[PodInfo], bool],
    evict: Callable[[EvictionTask, EvictionCandidate], bool],
) -> ExecutionResult:
    """Execute the tasks of one round in order (KillAndEvictPods).

    What one task releases counts for later ones of the same target, so that of each pod the largest contribution to a
    target counts, not the sum. A pod that is leaving counts and is not evicted again; if `evict` returns False, the
    next candidate takes its place. A candidate that contributes nothing is evicted when its turn comes.
    """
    released: dict[ReleaseTarget, dict[str, int]] = {}
    counted: list[EvictionTask] = []
    for task in tasks:
        if any(amount > 0 for amount in task.to_release.values()):
            released.setdefault(task.target, {})
        if task.to_release and task.target in released:
            counted.append(task)
    handled: set[str] = set()
    chosen: list[ChosenEviction] = []
    for task in tasks:
        if _is_covered(task, released):
            continue
        for candidate in task.candidates:
            pod = candidate.pod
            if pod.key in handled:
                continue
            if not is_leaving(pod):
                if not evict(task, candidate):
                    continue
                own = _contributions(candidate, counted).get(task.target, {})
                chosen.append(ChosenEviction(task, candidate, own))
            handled.add(pod.key)
            for target, amounts in _contributions(candidate, counted).items():
                of_target = released[target]
                for resource, amount in amounts.items():
                    of_target[resource] = of_target.get(resource, 0) + amount
            if _is_covered(task, released):
                break
    return ExecutionResult(tuple(chosen), released)


def _is_covered(task: EvictionTask, released: Mapping[ReleaseTarget, Amounts]) -> bool:
    done = released.get(task.target, {})
    return all(amount <= done.get(resource, 0) for resource, amount in task.to_release.items())


def _contributions(
    candidate: EvictionCandidate, tasks: Sequence[EvictionTask],
) -> dict[ReleaseTarget, dict[str, int]]:
    found: dict[ReleaseTarget, dict[str, int]] = {}
    for task in tasks:
        of_target = found.setdefault(task.target, {})
        for resource, amount in task.contribution(candidate).items():
            of_target[resource] = max(amount, of_target.get(resource, amount))
    return found


# Pods


def eviction_id(pod: PodInfo) -> str:
    """Return the id of a pod in `Evictions`: its UID, or its key if it has none."""
    return pod.uid or pod.key


def is_terminating(pod: PodInfo) -> bool:
    """Return whether the pod is being deleted already."""
    return bool((pod.object.get("metadata") or {}).get("deletionTimestamp"))


def is_active(pod: PodInfo) -> bool:
    """Return whether the pod's phase is Pending or Running."""
    return (pod.object.get("status") or {}).get("phase") in ("Pending", "Running")


def eviction_allowed(pod: Mapping[str, Any], policy: str) -> bool:
    """Return whether the pod's eviction policy allows an eviction by that feature: it names the feature, or the pod has
    none. An annotation that is not a JSON list of strings allows nothing.
    """
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if EVICTION_POLICY_ANNOTATION not in annotations:
        return True
    try:
        allowed = json.loads(annotations[EVICTION_POLICY_ANNOTATION])
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(allowed, list) and all(isinstance(each, str) for each in allowed) and policy in allowed


def priority_or_default(pod: PodInfo) -> int | None:
    """Return `spec.priority`, or if there is none or it is 0, the default of the pod's band; None without a band."""
    return pod.priority or DEFAULT_PRIORITIES.get(pod.priority_band)


def request_of(pod: PodInfo, resource: str) -> tuple[str, int]:
    """Return a pod's request of `cpu` or `memory`: the resource's name in the pod's band, and the amount.

    Batch and mid pods have their own resource names, summed over containers and sidecars; all others follow Kubernetes'
    rule.
    """
    if pod.priority_band not in (BATCH, MID):
        return resource, pod.requests[resource]
    return band_request(pod.object, pod.priority_band, resource)


def band_request(pod: Mapping[str, Any], band: str, resource: str) -> tuple[str, int]:
    """Return the request of a batch or mid pod: the resource's name in the band, and the amount."""
    name = resource_name(resource, band)
    return name, _sum_of_requests(pod, name)


def batch_cpu_of(pod: PodInfo) -> int:
    """Return a pod's requests of batch CPU, in milli-cores, whatever its band."""
    return _sum_of_requests(pod.object, BATCH_CPU)


def _sum_of_requests(pod: Mapping[str, Any], name: str) -> int:
    """Return the requests of all containers and sidecars; amounts below 0 count as 0."""
    spec = pod.get("spec") or {}
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    amounts = [
        canonical_amount(name, ((each.get("resources") or {}).get("requests") or {}).get(name, "0"), name)
        for each in (*(spec.get("containers") or ()), *sidecars)
    ]
    return sum(max(amount, 0) for amount in amounts)


def used_or_none(pod: PodInfo, resource: str, readings: Readings) -> int | None:
    """Return the pod's last measured usage; None if it was not measured."""
    try:
        return int(readings.pod_usage(pod.key, resource))
    except EvaluationError:
        return None


# Candidates by priority


@dataclass(frozen=True, slots=True)
class PriorityOrder:
    """The candidates of a feature that evicts by priority: those up to `threshold`, with ties by usage or request.

    `usage_factor` multiplies the usage of candidates: koordlet's memoryEvict counts a thousandfold.
    """

    feature: str
    resource: str
    """`cpu` or `memory`."""
    threshold: int
    ties: ReleaseTarget
    usage_factor: int = 1

    def candidates(self, readings: Readings) -> tuple[EvictionCandidate, ...]:
        """Return the candidates in order: lower eviction priority first, then lower priority, then lower sub-priority,
        then larger usage or request.

        A candidate is active, its eviction policy allows the feature, it has the label `eviction-enabled`, and its
        usage was measured.
        """
        found: list[tuple[tuple[int, int, int, int], EvictionCandidate]] = []
        for pod in readings.pods:
            priority = priority_or_default(pod)
            if priority is None or priority > self.threshold or not is_active(pod):
                continue
            if _labels(pod).get(EVICTION_ENABLED_LABEL) != "true" or not eviction_allowed(pod.object, self.feature):
                continue
            used = used_or_none(pod, self.resource, readings)
            if used is None:
                continue
            candidate = EvictionCandidate(pod, used * self.usage_factor, request_of(pod, self.resource)[1])
            tie = candidate.used if self.ties is ReleaseTarget.USAGE else candidate.requested
            found.append(((_eviction_priority(pod), priority, _sub_priority(pod, priority), -tie), candidate))
        return tuple(candidate for _, candidate in sorted(found, key=lambda each: each[0]))


def _labels(pod: PodInfo) -> Mapping[str, Any]:
    return (pod.object.get("metadata") or {}).get("labels") or {}


def _eviction_priority(pod: PodInfo) -> int:
    annotations = (pod.object.get("metadata") or {}).get("annotations") or {}
    return _integer(annotations.get(EVICTION_PRIORITY_ANNOTATION), _INT32, 0)


def _sub_priority(pod: PodInfo, default: int) -> int:
    return _integer(_labels(pod).get(SUB_PRIORITY_LABEL), _INT64, default)


def _integer(text: object, bounds: range, default: int) -> int:
    """Return the decimal integer of a text as Go's `strconv.ParseInt` reads it; else `default`."""
    if not isinstance(text, str) or len(text) > 20 or _INTEGER.fullmatch(text) is None:
        return default
    number = int(text)
    return number if number in bounds else default


# Amounts to release


def usage_release(used: float, capacity: int, threshold: int, lower: int) -> int:
    """Return the amount to release of a node with that usage: down to `lower` percent of its capacity.

    0 if the usage in whole percent is below `threshold`. `capacity` is above 0.
    """
    percent = usage_percent(used, capacity)
    return capacity * (percent - lower) // 100 if percent >= threshold else 0


def usage_percent(used: float, capacity: int) -> int:
    """Return a usage in whole percent of the capacity, rounded down."""
    return int(used) * 100 // capacity


PriorityRequest: TypeAlias = tuple[int | None, str, int]
"""A pod's priority, and its request: the resource's name in the pod's band, and the amount."""


def priority_request(pod: PodInfo, resource: str) -> PriorityRequest:
    """Return the priority of a pod, its own or its band's, with its request of `cpu` or `memory`."""
    return priority_or_default(pod), *request_of(pod, resource)


def requested_up_to(requests: Iterable[PriorityRequest], threshold: int) -> dict[str, int]:
    """Return the sums of the requests of all pods up to a priority, by the resource names of their bands.

    Inactive pods count too, as in koordlet.
    """
    total: dict[str, int] = {}
    for priority, name, amount in requests:
        if priority is not None and priority <= threshold:
            total[name] = total.get(name, 0) + amount
    return total


def allocatable_release(
    requested: Amounts, allocatable: Mapping[str, Any], threshold: int, excess: Callable[[str, int, int], int],
) -> dict[str, int]:
    """Return the requests to release by resource, for those above `threshold` percent of the allocatable.

    Without an allocatable, or with 0, that is the whole request. `excess(resource, requested, allocatable)` returns
    the amount above the lower bound.
    """
    found = {}
    for resource, amount in requested.items():
        available = canonical_amount(resource, allocatable.get(resource, "0"), f"status.allocatable.{resource}")
        if available == 0:
            found[resource] = amount
        elif amount / available > threshold / 100:
            found[resource] = excess(resource, amount, available)
    return found


def request_contribution(resource: str, released: Iterable[str]) -> Callable[[EvictionCandidate], Amounts]:
    """Return the contribution to a release of requests: those of batch and mid pods whose resource is to be released.

    All other pods contribute nothing.
    """
    names = frozenset(released)

    def contribution(candidate: EvictionCandidate) -> Amounts:
        pod = candidate.pod
        name, amount = request_of(pod, resource)
        return {name: amount} if pod.priority_band in (BATCH, MID) and name in names else {}

    return contribution


# Memory of evictions


@dataclass(slots=True)
class EvictionMemory:
    """The pods that were evicted within the last two minutes, by `eviction_id`, with the time in nanoseconds.

    For rounds without a cluster, in which every eviction succeeds.
    """

    times: dict[str, int] = field(default_factory=dict)

    def note(self, evicted: Iterable[str], now: int) -> None:
        """Record evictions."""
        self.times |= dict.fromkeys(evicted, now)

    def view(self, now: int) -> Evictions:
        """Return the evictions as readings have them."""
        self.times = {each: time for each, time in self.times.items() if now - time < LEAVING_FOR}
        return Evictions(frozenset(self.times))
