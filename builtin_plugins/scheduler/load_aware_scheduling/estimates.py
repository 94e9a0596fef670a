"""Estimated usage of nodes: the measured usage, and the estimated usage of recently placed pods.

The behaviour is Koordinator's (pkg/scheduler/plugins/loadaware, its estimator and pod-assign cache). Amounts are
canonical integers (cpu in milli-cores, all others in base units), vectors are in the order of the resources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from koordpolicy.engine.cluster.objects.metrics import NANOSECONDS, NodeMetric, nanoseconds
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList, resource_list
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.documents import parse_duration
from koordpolicy.engine.kubernetes.vocabulary import (
    BATCH_CPU,
    BATCH_MEMORY,
    PROD,
    RAW_ALLOCATABLE_ANNOTATION,
    resource_name,
)

from .args import LoadAwareArgs, seconds_of

NEVER: Final = -(2**62)
"""The update time of a metric without one."""

FACTORS_ANNOTATION: Final = "scheduling.koordinator.sh/load-estimated-scaling-factors"
AFTER_SCHEDULED_ANNOTATION: Final = "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled"
AFTER_INITIALIZED_ANNOTATION: Final = "scheduling.koordinator.sh/load-estimated-seconds-after-initialized"

_UNREQUESTED: Final[Mapping[str, int]] = {
    "cpu": 250, BATCH_CPU: 250, "memory": 200 * 1024 * 1024, BATCH_MEMORY: 200 * 1024 * 1024,
}

Vector = tuple[int, ...]


class Query(NamedTuple):
    """A selector of a node's usage: that of its prod pods, a statistic over a duration (ns), or the latest."""

    prod: bool = False
    statistic: str = ""
    duration: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Assigned:
    """A pod on a node. Times in nanoseconds; `noticed` is when it was first seen there.

    `estimate` is None if the pod has none; until `deadline` (0: none) the estimate counts even if the pod is measured.
    """

    pod: PodInfo
    noticed: int
    timestamp: int
    estimate: Vector | None
    deadline: int


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredUsage:
    """The content of a NodeMetric as vectors."""

    metric: NodeMetric
    updated: int
    usage: Vector | None
    system: Vector
    pods: Mapping[str, Vector]
    prod_pods: frozenset[str]
    aggregated: Mapping[tuple[str, int], Vector]
    """The usage by statistic and duration in ns; 0 is the longest."""


@dataclass(slots=True, eq=False)
class _Node:
    pods: dict[str, Assigned] = field(default_factory=dict)
    measured: MeasuredUsage | None = None
    totals: dict[Query, list[int]] = field(default_factory=dict)
    """The usage by query, with these pods and this metric."""
    coming: dict[str, Assigned] = field(default_factory=dict)
    """Assigned pods that the snapshot does not show on the node yet."""

    def copy(self) -> _Node:
        """Return an independent copy."""
        totals = {query: list(total) for query, total in self.totals.items()}
        return _Node(dict(self.pods), self.measured, totals, dict(self.coming))


def estimate_pod(pod: PodInfo, args: LoadAwareArgs) -> dict[str, int]:
    """Return a pod's estimated usage, by resource with a scaling factor.

    A pod of the batch or mid band is estimated by the resources of its band, one of the free band at 0.
    """
    factors = args.scaling_factors
    if args.customized_estimation and (own := _own_factors(pod)):
        factors = {**factors, **own}
    return {name: _estimate(pod, _name_of(name, pod.priority_band), factor) for name, factor in factors.items()}


def estimate_node(node: Mapping[str, Any], allocatable: ResourceList) -> ResourceList:
    """Return the capacity of a node: its allocatable, before amplification where annotated."""
    text = _annotations(node).get(RAW_ALLOCATABLE_ANNOTATION)
    if not text:
        return allocatable
    try:
        return ResourceList({**allocatable, **resource_list({"raw": json.loads(text)}, "raw", "metadata.annotations")})
    except ValueError:
        return allocatable


class PodAssignCache:
    """The pods on each node with their time of placement and their estimated usage."""

    def __init__(self, args: LoadAwareArgs) -> None:
        self._args = args
        self._names = args.resources
        self._nodes: dict[str, _Node] = {}
        self._estimated: tuple[Mapping[str, Any], Vector] = ({}, ())

    def estimate(self, pod: PodInfo) -> Vector:
        """Return a pod's estimate as a vector."""
        item, known = self._estimated
        if item is not pod.object:
            # Cached by pod: the same one is looked up several times in a row.
            known = self._vector(estimate_pod(pod, self._args))
            self._estimated = pod.object, known
        return known

    def assign(self, node: str, pod: PodInfo, now: int) -> None:
        """Record that a pod was assigned to a node."""
        known = self._nodes.setdefault(node, _Node())
        self._remove(known, pod.key)  # it may have been there before
        known.coming[pod.key] = self._assigned(pod, None, now)

    def unassign(self, node: str, pod: PodInfo) -> None:
        """Undo `assign`."""
        known = self._nodes.get(node)
        if known is not None:
            known.coming.pop(pod.key, None)
            self._remove(known, pod.key)

    def keep_only(self, nodes: Mapping[str, int]) -> None:
        """Drop deleted nodes."""
        if len(self._nodes) > len(nodes):
            self._nodes = {name: node for name, node in self._nodes.items() if name in nodes}

    def usage(self, snapshot: Snapshot, row: int, query: Query) -> Sequence[int]:
        """Return the node's measured usage plus the estimates of its pods; zeros without a metric.

        Values of an overlay are not cached.
        """
        node = self._renewed(snapshot, row)
        if node.measured is None:
            return (0,) * len(self._names)
        total = node.totals.get(query)
        if total is None:
            total = node.totals[query] = list(self._base(node.measured, query) or (0,) * len(self._names))
            for pod in node.pods.values():
                self._count(total, pod, node.measured, query, 1)
        return total

    def _base(self, measured: MeasuredUsage, query: Query) -> Vector | None:
        """Return the measured usage of the whole node, or None."""
        if query.prod:
            return measured.system if self._args.prod_usage_includes_system else None
        if not query.statistic:
            return measured.usage
        base = measured.aggregated.get((query.statistic, query.duration))
        return measured.usage if base is None and query.duration == 0 else base

    def _count(self, total: list[int], pod: Assigned, measured: MeasuredUsage, query: Query, times: int) -> None:
        """Add the contribution of a pod to a total; it depends on no other pod, and not on the time."""
        if query.prod and pod.pod.priority_band != PROD:
            return
        key, estimate = pod.pod.key, pod.estimate
        seen = measured.pods.get(key)
        excess = estimate is not None and _still_estimated(pod, seen, measured)
        if query.prod:
            # Both must be prod: a pod's class may change, and a deleted pod may still be reported.
            reported = key in measured.prod_pods
            if reported and seen is not None:
                _add(total, seen, times)
            whole = seen is not None and not reported
        else:
            whole = self._base(measured, query) is None
        if estimate is not None and whole:
            _add(total, estimate, times)
        elif estimate is not None and excess:
            left = estimate if seen is None else [max(0, amount - seen[index]) for index, amount in enumerate(estimate)]
            _add(total, left, times)

    def _renewed(self, snapshot: Snapshot, index: int) -> _Node:
        """Return the state of a node, refreshed with the snapshot's pods and metric."""
        row, now = snapshot.row(index), snapshot.now
        is_own = not snapshot.is_overridden(index)
        known = self._nodes.get(row.name)
        if known is None:
            known = _Node()
            if is_own:
                self._nodes[row.name] = known
        elif not is_own:
            known = known.copy()
        before = known.measured
        if row.metric is None:
            known.measured = None
        elif before is None or before.metric is not row.metric:
            known.measured = self._measured(row.metric)
        if known.measured is not before:
            known.totals.clear()
        shown, pods = row.pods, known.pods
        others = [key for key, entry in pods.items() if key not in shown or shown[key].object is not entry.pod.object]
        replaced = {key: self._remove(known, key) for key in others}
        if len(pods) < len(shown):
            for key in shown.keys() - pods.keys():
                pod, entry = shown[key], known.coming.pop(key, None) or replaced.get(key)
                if entry is None or entry.pod.object is not pod.object:
                    entry = self._assigned(pod, entry, now)
                pods[key] = entry
                if known.measured is not None:
                    for query, total in known.totals.items():
                        self._count(total, entry, known.measured, query, 1)
        known.coming.clear()
        return known

    def _remove(self, node: _Node, key: str) -> Assigned | None:
        removed = node.pods.pop(key, None)
        if removed is not None and node.measured is not None:
            for query, total in node.totals.items():
                self._count(total, removed, node.measured, query, -1)
        return removed

    def _assigned(self, pod: PodInfo, before: Assigned | None, now: int) -> Assigned:
        noticed = before.noticed if before is not None and before.pod.uid in ("", pod.uid) else now
        timestamp = _condition(pod, "PodScheduled") or noticed
        args = self._args
        initialized, scheduled = args.seconds_after_initialized, args.seconds_after_scheduled
        if args.customized_estimation:
            own = _annotations(pod.object)
            after_initialized = seconds_of(own.get(AFTER_INITIALIZED_ANNOTATION))
            after_scheduled = seconds_of(own.get(AFTER_SCHEDULED_ANNOTATION))
            initialized = initialized if after_initialized is None else after_initialized
            scheduled = scheduled if after_scheduled is None else after_scheduled
        ready = _condition(pod, "Initialized") if initialized > 0 else 0
        if ready:
            deadline = ready + initialized * NANOSECONDS
        else:
            deadline = timestamp + scheduled * NANOSECONDS if scheduled > 0 else 0
        estimate = self.estimate(pod)
        return Assigned(pod, noticed, timestamp, estimate if any(estimate) else None, deadline)

    def _measured(self, metric: NodeMetric) -> MeasuredUsage:
        status = metric.object.get("status") or {}
        node = status.get("nodeMetric")
        aggregated: dict[tuple[str, int], Vector] = {}
        longest: dict[str, int] = {}
        for entry in (node or {}).get("aggregatedNodeUsages") or ():
            duration = _duration(entry.get("duration"))
            for statistic, usage in (entry.get("usage") or {}).items():
                amounts = _resources(usage)
                if amounts:
                    aggregated[statistic, duration] = self._vector(amounts)
                    if duration > longest.get(statistic, 0):
                        longest[statistic] = duration
        aggregated |= {(statistic, 0): aggregated[statistic, duration] for statistic, duration in longest.items()}
        return MeasuredUsage(
            metric=metric,
            updated=updated_at(metric),
            usage=None if node is None else self._vector(_resources(node.get("nodeUsage"))),
            system=self._vector(_resources((node or {}).get("systemUsage"))),
            pods={key: self._vector(amounts) for key, amounts in metric.pods.items()},
            prod_pods=frozenset(
                f"{each.get('namespace')}/{each.get('name')}"
                for each in status.get("podsMetric") or () if each.get("priority") == PROD
            ),
            aggregated=aggregated,
        )

    def _vector(self, amounts: Mapping[str, int]) -> Vector:
        return tuple(amounts.get(name, 0) for name in self._names)


def updated_at(metric: NodeMetric) -> int:
    """Return when a NodeMetric was updated, in ns since the epoch; `NEVER` without an update time."""
    text = (metric.object.get("status") or {}).get("updateTime")
    try:
        return nanoseconds(text, "status.updateTime") if isinstance(text, str) and text else NEVER
    except ValueError:
        return NEVER


def _still_estimated(pod: Assigned, seen: Vector | None, measured: MeasuredUsage) -> bool:
    """Return whether the metric does not (fully) include the pod yet."""
    return (
        seen is None
        or measured.updated - measured.metric.report_interval * NANOSECONDS < pod.timestamp
        or (pod.deadline != 0 and pod.deadline > measured.updated)
    )


def _add(total: list[int], amounts: Sequence[int], times: int) -> None:
    for index, amount in enumerate(amounts):
        total[index] += times * amount


def _estimate(pod: PodInfo, name: str, factor: int) -> int:
    limit = pod.limits[name]
    amount = max(pod.requests[name], limit)
    if amount == 0:
        return _UNREQUESTED.get(name, 0)
    # In floating point, rounded half away from zero, as in Koordinator: large amounts give the same result.
    exact = float(amount) * float(factor) / 100.0
    estimate = int(exact) + (exact - int(exact) >= 0.5)
    return min(estimate, limit) if limit > 0 else estimate


def _name_of(name: str, band: str) -> str:
    """Return the name under which pods of a band request a resource; bands other than prod have cpu and memory."""
    return name if band == PROD else resource_name(name, band) if name in ("cpu", "memory") else ""


def _own_factors(pod: PodInfo) -> dict[str, int]:
    try:
        factors = json.loads(_annotations(pod.object).get(FACTORS_ANNOTATION) or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(factors, dict) or not all(type(each) is int for each in factors.values()):
        return {}
    return factors


def _annotations(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return (item.get("metadata") or {}).get("annotations") or {}


def _condition(pod: PodInfo, kind: str) -> int:
    """Return the time since which a condition of a pod is true, in ns; 0 if it is not, or has no time."""
    for condition in (pod.object.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind:
            try:
                since = condition.get("lastTransitionTime") or ""
                return nanoseconds(since, "") if condition.get("status") == "True" and since else 0
            except ValueError:
                return 0
    return 0


def _duration(text: Any) -> int:
    try:
        return parse_duration(text) if isinstance(text, str) and text else 0
    except ValueError:
        return 0


def _resources(usage: Any) -> ResourceList:
    try:
        return resource_list(usage or {}, "resources", "status.nodeMetric")
    except ValueError:
        return ResourceList()
