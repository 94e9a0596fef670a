"""LoadAwareScheduling: refuses nodes whose measured and expected load is above a threshold, and prefers idle ones.

The behaviour is Koordinator's (pkg/scheduler/plugins/loadaware). All nodes are evaluated at once: usage, capacity and
age of the metrics are cached as columns, and a row is recomputed when its pods, metric or node change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.explain.clauses import nearest
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived, DerivedState
from koordpolicy.engine.cluster.edits import Edit, request_edits, usage_edits
from koordpolicy.engine.cluster.objects.metrics import NANOSECONDS
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.documents import parse_duration
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Answer, CacheKey, Code, Point, Refusal, Scores
from koordpolicy.engine.kubernetes.vocabulary import PROD, RAW_ALLOCATABLE_ANNOTATION, USAGE_THRESHOLDS_ANNOTATION
from koordpolicy.plugin import CycleState, Handle

from ..allocation.resource_scoring import least_allocated
from .args import check_args, convert, default_args
from .estimates import NEVER, PodAssignCache, Query, Vector, estimate_node, updated_at

_METRIC: Final = frozenset({("nodeMetric",)})
_USAGE: Final = frozenset({("estimated",)})
_CAPACITY: Final = frozenset({("allocatable",), ("node", "metadata", "annotations", RAW_ALLOCATABLE_ANNOTATION)})
_THRESHOLDS: Final = frozenset({("node", "metadata", "annotations", USAGE_THRESHOLDS_ANNOTATION)})
_METRICS_AND_THRESHOLDS: Final = _METRIC | _THRESHOLDS
_READ: Final = _METRIC | _USAGE | _CAPACITY | _THRESHOLDS
_PRESENT, _MEASURED, _UPDATED, _COUNTED = range(4)
"""Columns: whether a node has a metric, whether the metric has usage, its update time, and its update time if it has
usage."""
_NEVER_EXPIRES: Final = 2**63 - 1
_UNLIMITED: Final = 2**63 - 1
_LONGEST_LIFETIME: Final = 2**61
"""Some seventy years in nanoseconds: the sum of a longer time and a date exceeds 64 bits."""
_EXPIRED: Final = "node(s) nodeMetric expired"

_Integers = NDArray[np.int64]
_Booleans = NDArray[np.bool_]
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class UsageThresholds:
    """The thresholds of a node in percent by resource; `aggregated` is None where none are set."""

    usage: Mapping[str, int] = field(default_factory=dict)
    prod: Mapping[str, int] = field(default_factory=dict)
    aggregated: tuple[Mapping[str, int], Query] | None = None

    def overridden(self, text: str) -> UsageThresholds:
        """Return the thresholds overridden by a node's annotation; a malformed one is ignored."""
        try:
            own = json.loads(text)
            usage, prod = _percents(own, "usageThresholds"), _percents(own, "prodUsageThresholds")
            aggregated = own.get("aggregatedUsage") or {}
            percents, statistic = _percents(aggregated, "usageThresholds"), aggregated.get("usageAggregationType") or ""
            duration = parse_duration(aggregated.get("usageAggregatedDuration") or "0")
        except (ValueError, TypeError, AttributeError, RecursionError):
            return self
        if not isinstance(statistic, str):
            return self
        return UsageThresholds(
            usage or self.usage, prod or self.prod,
            (percents, Query(statistic=statistic, duration=duration)) if percents and statistic else self.aggregated,
        )

    def chosen(self, *, prod: bool) -> tuple[Mapping[str, int], Query]:
        """Return the thresholds for a pod, prod or not, and the usage that they limit."""
        if prod and any(self.prod.values()):
            return self.prod, Query(prod=True)
        return self.aggregated or (self.usage, Query())


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """The load of the rows that a filter evaluated.

    `percent` and `bound` are float64[resources, rows]: usage in percent, and the bound at which it is refused. Percents
    are rounded half away from zero, so a threshold is exceeded at half a percent above it; without a threshold the
    bound is infinite.
    """

    percent: _Floats
    bound: _Floats
    aggregated: _Booleans
    expired: _Booleans
    """The rows with an expired metric."""

    @property
    def exceeded(self) -> _Booleans:
        """Return where usage is above its threshold, bool[resources, rows]."""
        return self.percent >= self.bound

    @property
    def passed(self) -> _Booleans:
        """Return which of the rows fit the pod."""
        exceeded: _Booleans = np.logical_or.reduce(self.exceeded)
        return ~(self.expired | exceeded)


@dataclass(frozen=True, slots=True, eq=False)
class _Expected:
    """The estimate of a pod: int64[resources, 1] of usage, and whether it is a prod pod."""

    use: _Integers
    prod: bool


@dataclass(slots=True)
class _Period:
    """A period in which metrics neither change nor expire; one that ends before it begins has to be computed."""

    since: int = 0
    until: int = 0
    plain: bool = False
    """True if all nodes have a valid metric, and the same thresholds."""

    def refresh(self, snapshot: Snapshot, rows: Rows) -> None:
        """Invalidate the period."""
        self.since = self.until = 0

    def copy(self) -> _Period:
        """Return one for an overlay."""
        return replace(self)


class LoadAwareScheduling:
    """Filter and scorer; it also records the times of placements. For the arguments see docs/scheduling.md."""

    name = "LoadAwareScheduling"
    check_args = staticmethod(check_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._args = convert(default_args(args))
        self._names = self._args.resources
        self._lifetime = min(self._args.expiration_seconds * NANOSECONDS, _LONGEST_LIFETIME)
        self._cache = PodAssignCache(self._args)
        aggregated = self._args.aggregated
        self._thresholds = [UsageThresholds(
            self._args.usage_thresholds, self._args.prod_usage_thresholds,
            (aggregated.usage_thresholds, Query(False, aggregated.usage_type, aggregated.usage_duration))
            if aggregated.usage_thresholds and aggregated.usage_type else None,
        )]
        self._places: dict[str, int] = {"": 0}
        self._places_of_nodes = Derived(_THRESHOLDS, np.int64, self._place_of, distinct=True)
        self._metrics = Derived(_METRIC, np.int64, _metric_row, width=4)
        self._capacity = Derived(_CAPACITY, np.int64, self._capacity_row, width=len(self._names))
        self._limits_of_nodes = Derived(_CAPACITY, np.int64, width=len(self._names))
        self._periods = DerivedState(_METRICS_AND_THRESHOLDS, lambda size: _Period())  # noqa: ARG005 - one for all
        self._usages = Derived(_USAGE, np.int64, width=len(self._names))
        self._limits: dict[tuple[int, bool], tuple[_Floats | None, Query]] = {}
        self._weights = np.array([self._args.resource_weights.get(name, 0) for name in self._names], np.int64)
        self._dominant = self._args.dominant_weight

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey:
        """Return the dependencies: the pod's estimate, and the usage that is compared; valid until a metric expires."""
        if point is Point.FILTER and _is_of_daemon_set(pod):
            return CacheKey((), _READ, self._epoch, stable_for_shape=True)
        expected = self._expected(pod)
        answer = partial(self._passed if point is Point.FILTER else self._scored, expected)
        return CacheKey((expected.prod, *self._cache.estimate(pod)), _READ, self._epoch, answer, stable_for_shape=True)

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes whose usage, with the pod's estimate, would be above a threshold, and expired metrics."""
        if _is_of_daemon_set(pod):
            return Answer(np.ones(len(rows), np.bool_))
        load = self._load(self._expected(pod), snapshot, rows)
        exceeded = load.exceeded

        def message(place: int) -> str:
            if load.expired[place]:
                return _EXPIRED
            kind = "aggregated usage" if load.aggregated[place] else "usage"
            return f"node(s) {self._names[exceeded[:, place].argmax()]} {kind} exceed threshold"

        def explain(row: int) -> Refusal:
            place = int(np.searchsorted(rows, row))
            if load.expired[place]:
                return Refusal("metric", _EXPIRED)
            first = int(exceeded[:, place].argmax())
            percent, bound = float(load.percent[first, place]), float(load.bound[first, place])
            values = {"percent": math.floor(percent + 0.5), "threshold": math.floor(bound)}
            return Refusal("load", message(place), values=((self._names[first], values),))

        def reasons(refused: Rows) -> dict[str, Rows]:
            places = np.searchsorted(rows, refused)
            first = exceeded[:, places].argmax(axis=0)
            kinds = np.where(load.expired[places], -1, first * 2 + load.aggregated[places])
            found = {}
            for kind in np.unique(kinds).tolist():
                these = kinds == kind
                found[message(int(places[these][0]))] = refused[these]
            return found

        return Answer(load.passed, explain, reasons=reasons,
                      codes=lambda refused: {Code.UNSCHEDULABLE: refused}, brief=reasons)

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer the nodes with the smallest expected usage; 0 without a metric, or with an expired one."""
        return Scores(self._scored(self._expected(pod), snapshot, rows))

    def counterfactuals(self, pod: PodInfo, snapshot: Snapshot, row: int) -> Iterator[Edit]:
        """Yield lower usage of the node, and smaller requests of the pod."""
        name, held = snapshot.names[row], snapshot.row(row)

        def passes(edits: Iterator[Edit]) -> bool:
            edit = next(edits, None)
            if edit is None:
                return False
            changed, view = edit.apply(pod, snapshot, name)
            return bool(self.filter(CycleState(), changed, view, np.array([row], np.intp)).passed[0])

        refusal = self.filter(CycleState(), pod, snapshot, np.array([row], np.intp)).explain(row)
        resource = refusal.values[0][0] if refusal.values else ""
        used = dict(held.metric.usage).get(resource) if held.metric is not None else None
        ways: list[tuple[int, Callable[[int], Iterator[Edit]]]] = [
            (pod.requests[resource], lambda amount: request_edits(pod, resource, amount)),
        ]
        if isinstance(used, int):
            ways.append((used, lambda amount: usage_edits(held, resource, amount)))
        for start, edits in ways:
            found = nearest(lambda amount, edits=edits: passes(edits(amount)), start, -1)  # type: ignore[misc]
            if found:
                yield from edits(found)

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Record the time of the placement; never refuses."""
        self._cache.assign(snapshot.names[row], pod, snapshot.now)
        return None

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Drop the record of the placement."""
        if row >= 0:  # a deleted node has no cached values
            self._cache.unassign(snapshot.names[row], pod)

    def _expected(self, pod: PodInfo) -> _Expected:
        use = np.array(self._cache.estimate(pod), np.int64)
        return _Expected(use[:, np.newaxis], pod.priority_band == PROD)

    def _passed(self, expected: _Expected, snapshot: Snapshot, rows: Rows) -> _Booleans:
        if not self._is_plain(snapshot):
            return self._load(expected, snapshot, rows).passed
        bounds, query = self._bounds(0, prod=expected.prod)
        if bounds is None:
            return np.ones(len(rows), np.bool_)
        limits = self._limits_of_nodes.of(snapshot, expected.prod, partial(self._limits_row, bounds[:, 0].tolist()))
        # The same as comparing percents: what depends on the node alone is computed once per node.
        used = snapshot.gathered(self._used(query, snapshot), rows) + expected.use
        passed: _Booleans = np.logical_and.reduce(used < snapshot.gathered(limits, rows))
        return passed

    def _scored(self, expected: _Expected, snapshot: Snapshot, rows: Rows) -> _Integers:
        weights = int(self._weights.sum()) + self._dominant
        if weights <= 0:
            return np.zeros(len(rows), np.int64)
        aggregated = self._args.aggregated
        if self._args.score_by_prod_usage and expected.prod:
            query = Query(prod=True)
        else:
            query = Query(False, aggregated.score_type, aggregated.score_duration) if aggregated.score_type else Query()
        least = least_allocated(*self._used_and_capacity(query, expected, snapshot, rows))
        total: _Integers = self._weights @ least
        if self._dominant:
            total += np.minimum(least.min(axis=0), HIGHEST_SCORE) * self._dominant
        total //= weights
        if not self._is_plain(snapshot):
            total[snapshot.gathered(self._metrics.of(snapshot), rows)[_COUNTED] <= self._oldest(snapshot)] = 0
        return total

    def _load(self, expected: _Expected, snapshot: Snapshot, rows: Rows) -> _Load:
        """Return the load of the rows."""
        size, prod = len(rows), expected.prod
        aggregated, expired = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        if self._is_plain(snapshot):
            bounds, query = self._bounds(0, prod=prod)
            if bounds is not None:
                aggregated[:] = bool(query.statistic)
                return _Load(*self._compared(query, bounds, expected, snapshot, rows), aggregated, expired)
        metrics, oldest = snapshot.gathered(self._metrics.of(snapshot), rows), self._oldest(snapshot)
        current = metrics[_COUNTED] > oldest if self._args.filter_expired else metrics[_MEASURED] > 0
        places = self._places_of_nodes.of(snapshot)
        percent, bound = np.zeros((len(self._names), size)), np.full((len(self._names), size), np.inf)
        old = metrics[_UPDATED] <= oldest
        for place in np.unique(places[rows]).tolist():
            bounds, query = self._bounds(place, prod=prod)
            if bounds is None:
                continue
            here = places[rows] == place
            if self._args.filter_expired and not self._args.schedule_when_expired:
                expired |= here & old & (metrics[_PRESENT] > 0)
            found = self._compared(query, bounds, expected, snapshot, rows)
            for whole, part in zip((percent, bound), found, strict=True):
                np.copyto(whole, part, where=here & current)
            aggregated[here] = bool(query.statistic)
        return _Load(percent, bound, aggregated, expired)

    def _compared(
        self, query: Query, bounds: _Floats, expected: _Expected, snapshot: Snapshot, rows: Rows,
    ) -> tuple[_Floats, _Floats]:
        """Return the usage of the rows with the pod, in percent, and the bound at which it is refused."""
        used, capacity = self._used_and_capacity(query, expected, snapshot, rows)
        # In the floating point of the original.
        return used / np.maximum(capacity, 1) * 100, np.where(capacity != 0, bounds, np.inf)

    def _bounds(self, place: int, *, prod: bool) -> tuple[_Floats | None, Query]:
        """Return by resource the bound at which usage is refused, None if there is none, and the usage query."""
        found = self._limits.get((place, prod))
        if found is None:
            percents, query = self._thresholds[place].chosen(prod=prod)
            threshold = np.array([[percents.get(name, 0)] for name in self._names], np.float64)
            bounds = np.where(threshold != 0, threshold + 0.5, np.inf) if threshold.any() else None
            found = self._limits[place, prod] = bounds, query
        return found

    def _epoch(self, snapshot: Snapshot) -> tuple[int, int]:
        """Return the period in which no metric expires, so that results do not change with time."""
        period = self._period(snapshot)
        return period.since, period.until

    def _period(self, snapshot: Snapshot) -> _Period:
        """Return the current period."""
        period = self._periods.of(snapshot)
        if not period.since <= snapshot.now < period.until:
            metrics = self._metrics.of(snapshot)
            there = metrics[_UPDATED][(metrics[_PRESENT] > 0) & (metrics[_UPDATED] != NEVER)]
            ends = there + self._lifetime
            fresh = ends > snapshot.now
            alike = not self._places_of_nodes.of(snapshot).any()
            period.since = int(ends[~fresh].max(initial=NEVER))
            period.until = int(ends[fresh].min(initial=_NEVER_EXPIRES))
            period.plain = alike and bool((metrics[_COUNTED] > self._oldest(snapshot)).all())
        return period

    def _is_plain(self, snapshot: Snapshot) -> bool:
        return self._period(snapshot).plain

    def _oldest(self, snapshot: Snapshot) -> int:
        """Return the latest update time of an expired metric; a metric without update time is older."""
        return max(snapshot.now - self._lifetime, NEVER)

    def _used_and_capacity(
        self, query: Query, expected: _Expected, snapshot: Snapshot, rows: Rows,
    ) -> tuple[_Integers, _Integers]:
        """Return the usage of the rows with the pod, and their capacity."""
        used = snapshot.gathered(self._used(query, snapshot), rows)
        return used + expected.use, snapshot.gathered(self._capacity.of(snapshot), rows)

    def _used(self, query: Query, snapshot: Snapshot) -> _Integers:
        def usage_row(snapshot: Snapshot, row: int) -> Sequence[int]:
            return self._cache.usage(snapshot, row, query)

        self._cache.keep_only(snapshot.index)
        return self._usages.of(snapshot, query, usage_row)

    def _capacity_row(self, snapshot: Snapshot, row: int) -> Vector:
        at = snapshot.row(row)
        capacity = estimate_node(at.node, at.allocatable)
        return tuple(capacity[name] for name in self._names)

    def _limits_row(self, bounds: Sequence[float], snapshot: Snapshot, row: int) -> Vector:
        """Return from which usage on a node is refused, by resource, with these bounds in percent."""
        return tuple(map(refused_from, bounds, self._capacity_row(snapshot, row)))

    def _place_of(self, snapshot: Snapshot, row: int) -> int:
        """Return the index of a node's thresholds in the list of all."""
        annotations = (snapshot.node(row).get("metadata") or {}).get("annotations") or {}
        text = annotations.get(USAGE_THRESHOLDS_ANNOTATION) or ""
        place = self._places.get(text)
        if place is None:
            place = self._places[text] = len(self._thresholds)
            self._thresholds.append(self._thresholds[0].overridden(text))
        return place


def _metric_row(snapshot: Snapshot, row: int) -> Vector:
    metric = snapshot.row(row).metric
    if metric is None:
        return 0, 0, NEVER, NEVER
    measured = (metric.object.get("status") or {}).get("nodeMetric") is not None
    updated = updated_at(metric)
    return 1, int(measured), updated, updated if measured else NEVER


def _percents(own: Mapping[str, Any], name: str) -> Mapping[str, int]:
    percents = own.get(name) or {}
    if not all(type(each) is int for each in percents.values()):
        raise ValueError(f"`{name}` must hold whole numbers")
    return dict(percents)


def refused_from(bound: float, capacity: int) -> int:
    """Return the least usage whose percent of the capacity reaches the bound, in the floating point of the original.

    It is the largest integer where none does: with an infinite bound, or without capacity.
    """
    if capacity == 0 or bound == math.inf:
        return _UNLIMITED
    size = float(max(capacity, 1))
    usage = int(bound * size / 100)
    while usage > 0 and float(usage - 1) / size * 100 >= bound:
        usage -= 1
    while float(usage) / size * 100 < bound:
        usage += 1
    return min(usage, _UNLIMITED)


def _is_of_daemon_set(pod: PodInfo) -> bool:
    owners = (pod.object.get("metadata") or {}).get("ownerReferences") or ()
    return any(owner.get("kind") == "DaemonSet" for owner in owners)
