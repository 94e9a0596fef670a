"""LowNodeLoad: moves pods from nodes whose measured load is high to nodes whose load is low.

The behaviour is Koordinator's (pkg/descheduler/framework/plugins/loadaware). Amounts are canonical integers: cpu in
milli-cores, all else in base units; thresholds are percent of a node's raw allocatable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList, resource_list
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.anomaly import Detectors
from koordpolicy.engine.descheduler.arguments import LowNodeLoadArgs, NodePool, complete, read_low_node_load
from koordpolicy.engine.descheduler.pods import NodeFit, eviction_order, labels_of, moment
from koordpolicy.engine.descheduler.results import WAITING
from koordpolicy.engine.descheduler.templates import PodTemplate, template_of
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.kubernetes.selectors import matches_labels
from koordpolicy.engine.kubernetes.vocabulary import PROD, RAW_ALLOCATABLE_ANNOTATION
from koordpolicy.plugin import Evictor

_PODS: Final = "pods"
_SECOND: Final = 1_000_000_000


def raw_allocatable(node: Mapping[str, Any]) -> ResourceList:
    """Return a node's allocatable before amplification: from its annotation if that is valid, else from its status."""
    text = ((node.get("metadata") or {}).get("annotations") or {}).get(RAW_ALLOCATABLE_ANNOTATION)
    if text:
        try:
            return resource_list({"raw": json.loads(text)}, "raw", "metadata.annotations")
        except ValueError:
            pass  # Koordinator falls back too
    return resource_list(node.get("status") or {}, "allocatable", "status")


@dataclass(frozen=True, slots=True)
class Bounds:
    """A node's thresholds as amounts."""

    low: Mapping[str, int]
    high: Mapping[str, int]
    prod_low: Mapping[str, int]
    prod_high: Mapping[str, int]


@dataclass(slots=True, eq=False)
class NodeLoad:
    """A measured node during one round: its usage, updated for moved pods."""

    row: int
    node: Mapping[str, Any]
    capacity: ResourceList
    usage: dict[str, int]
    prod_usage: dict[str, int]
    pods: tuple[PodInfo, ...]
    pod_metrics: Mapping[str, ResourceList]
    bounds: Bounds = field(default_factory=lambda: Bounds({}, {}, {}, {}))

    @property
    def name(self) -> str:
        """The node's name."""
        return str(self.node["metadata"]["name"])

    @property
    def schedulable(self) -> bool:
        """Return whether the node is not cordoned."""
        return not (self.node.get("spec") or {}).get("unschedulable")

    def percentages(self, *, prod: bool = False) -> dict[str, float]:
        """Return the usage in percent of the capacity; resources without capacity are omitted."""
        usage = self.prod_usage if prod else self.usage
        return {name: used * 100 / self.capacity[name] for name, used in usage.items() if self.capacity[name] > 0}


@dataclass(frozen=True, slots=True)
class PoolThresholds:
    """A pool's thresholds in percent with their defaults; `low` names every resource that is compared."""

    low: Mapping[str, float]
    high: Mapping[str, float]
    prod_low: Mapping[str, float]
    prod_high: Mapping[str, float]
    deviation: bool

    @staticmethod
    def of(pool: NodePool) -> PoolThresholds:
        """Return a pool's thresholds with defaults: a resource without a low threshold has 100 percent."""
        # Koordinator fills in the configured maps, which pools may share. These are copies.
        low, high = dict(pool.low or {}), dict(pool.high or {})
        prod_low, prod_high = dict(pool.prod_low or {}), dict(pool.prod_high or {})
        whole = 0.0 if pool.deviation else 100.0
        for name in sorted({*low, *high, *prod_low, *prod_high, "memory"}):
            if name not in low:
                low[name] = high[name] = whole
            if name not in prod_low:
                prod_low[name] = prod_high[name] = whole
        return PoolThresholds(low, high, prod_low, prod_high, pool.deviation)

    @property
    def names(self) -> tuple[str, ...]:
        """The compared resources."""
        return tuple(self.low)

    def bounds(self, load: NodeLoad, average: Mapping[str, float], prod_average: Mapping[str, float]) -> Bounds:
        """Return the thresholds as amounts of one node; the averages (percent) count with `deviation` only."""
        low, high = self._amounts(load, self.low, self.high, average)
        prod_low, prod_high = self._amounts(load, self.prod_low, self.prod_high, prod_average)
        return Bounds(low, high, prod_low, prod_high)

    def _amounts(
        self, load: NodeLoad, low: Mapping[str, float], high: Mapping[str, float], average: Mapping[str, float],
    ) -> tuple[dict[str, int], dict[str, int]]:
        lower, upper = {}, {}
        for name in self.names:
            capacity = load.capacity[name]
            below, above = low[name], high.get(name, 0.0)
            if self.deviation:
                if below == 0:
                    lower[name] = upper[name] = capacity
                    continue
                middle = average.get(name, 0.0)
                below, above = _percent(middle - below), _percent(middle + above)
            lower[name], upper[name] = int(below * 0.01 * capacity), int(above * 0.01 * capacity)
        return lower, upper


def _percent(value: float) -> float:
    return min(max(value, 0.0), 100.0)


def average_percentages(loads: Sequence[NodeLoad], *, prod: bool = False) -> dict[str, float]:
    """Return the average usage over the nodes in percent, by resource; nodes without capacity add nothing."""
    total: dict[str, float] = {}
    for load in loads:
        for name, percent in load.percentages(prod=prod).items():
            total[name] = total.get(name, 0.0) + percent
    return {name: percent / len(loads) for name, percent in total.items()}


def is_under(usage: Mapping[str, int], bound: Mapping[str, int]) -> bool:
    """Return whether every resource is at or below its bound."""
    return all(usage.get(name, 0) <= amount for name, amount in bound.items())


def is_over(usage: Mapping[str, int], bound: Mapping[str, int]) -> bool:
    """Return whether some resource is above its bound."""
    return any(usage.get(name, 0) > amount for name, amount in bound.items())


def usage_score(usage: Mapping[str, int], capacity: ResourceList, weights: Mapping[str, int]) -> int:
    """Return a node's load score, 0..1000: the weighted share of the capacity."""
    total = score = 0
    for name, used in usage.items():
        weight, limit = weights.get(name, 0), capacity[name]
        score += weight * (min(used, limit) * 1000 // limit if limit > 0 else 0)
        total += weight
    return score // total if total else 0


def sort_by_load(
    loads: Iterable[NodeLoad], weights: Mapping[str, int], *, prod: bool = False, ascending: bool = False,
) -> list[NodeLoad]:
    """Return the nodes by usage score, the most loaded first."""
    return sorted(
        loads, reverse=not ascending,
        key=lambda load: usage_score(load.prod_usage if prod else load.usage, load.capacity, weights),
    )


def select_nodes(
    nodes: Sequence[Mapping[str, Any]], selector: Mapping[str, Any] | None, processed: Iterable[str] = (),
) -> list[int]:
    """Return the positions of a pool's nodes: all without a selector, else matching ones that no earlier pool took."""
    if selector is None:
        return list(range(len(nodes)))
    taken = frozenset(processed)
    return [
        index for index, node in enumerate(nodes)
        if node["metadata"]["name"] not in taken and matches_labels(selector, node["metadata"].get("labels") or {})
    ]


def _comparisons(load: NodeLoad, thresholds: PoolThresholds) -> Iterator[Finding]:
    """Yield each resource's usage with its eviction threshold, if it has one."""
    for prod, percents, high in ((False, thresholds.high, load.bounds.high),
                                 (True, thresholds.prod_high, load.bounds.prod_high)):
        usage, who = (load.prod_usage, "prod pods use") if prod else (load.usage, "the node uses")
        for name in thresholds.names:
            capacity, used, bound = load.capacity[name], usage.get(name, 0), high.get(name, 0)
            if capacity <= 0 or bound >= capacity or percents.get(name, 100) >= 100:
                continue
            share, limit = used * 100 / capacity, bound * 100 / capacity
            by = f"{abs(share - limit):.3g} %"
            yield Finding(
                "distance", f"{who} {share:.3g} % of its {name}, pods leave above {limit:.3g} %: "
                            f"{'over' if used > bound else 'short'} by {by}",
                facts={"what": f"usage.{name}", "prod": prod, "value": share, "relation": "above", "limit": limit,
                       "difference": abs(share - limit), "unit": "%"},
            )


def eviction_reason(load: NodeLoad, thresholds: PoolThresholds, *, prod: bool) -> str:
    """Return why pods leave the node: each over-used resource with its usage and threshold in percent."""
    usage = load.prod_usage if prod else load.usage
    bounds, percents = (load.bounds.prod_high, thresholds.prod_high) if prod else (load.bounds.high, thresholds.high)
    who = "prod" if prod else "node"
    parts = [
        f"{who} {name} usage({100 * usage[name] / load.capacity[name]:.2f}%)>threshold({percents.get(name, 0):.2f}%)"
        for name in sorted(thresholds.high) if load.capacity[name] > 0 and usage.get(name, 0) > bounds.get(name, 0)
    ]
    return f"node is overutilized, {', '.join(parts)}"


@dataclass(slots=True)
class Classes:
    """The nodes by role in one round."""

    low: list[NodeLoad] = field(default_factory=list)
    prod_low: list[NodeLoad] = field(default_factory=list)
    both_low: list[NodeLoad] = field(default_factory=list)
    sources: list[NodeLoad] = field(default_factory=list)
    prod_sources: list[NodeLoad] = field(default_factory=list)


def classify(loads: Iterable[NodeLoad]) -> Classes:
    """Assign each node to at most one class."""
    found = Classes()
    for load in loads:
        bounds = load.bounds
        low = load.schedulable and is_under(load.usage, bounds.low)
        prod_low = load.schedulable and is_under(load.prod_usage, bounds.prod_low)
        high = is_over(load.usage, bounds.high)
        prod_high = is_over(load.prod_usage, bounds.prod_high)
        if low:
            (found.prod_sources if prod_high else found.both_low if prod_low else found.low).append(load)
        elif high:
            found.sources.append(load)
        elif prod_high:
            found.prod_sources.append(load)
        elif prod_low:
            found.prod_low.append(load)
    return found


class LowNodeLoad:
    """The plugin. Its anomaly detectors live as long as it does."""

    name = "LowNodeLoad"

    def __init__(self, args: LowNodeLoadArgs) -> None:
        self._args = args
        self.detectors = Detectors(args.detector_cache_timeout)
        self.prod_detectors = Detectors(args.detector_cache_timeout)

    def balance(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Balance pool after pool; a source of one pool is skipped by later ones."""
        if self._args.paused:
            return
        # Upstream raises the life of detectors to the interval, which a cycle that begins late exceeds.
        lifetime = max(self._args.detector_cache_timeout, 2 * evictor.interval)
        self.detectors.lifetime = self.prod_detectors.lifetime = lifetime
        order = [int(row) for row in rows]
        nodes = [snapshot.node(row) for row in order]
        processed: set[str] = set()
        for pool in self._args.pools:
            chosen = [order[index] for index in select_nodes(nodes, pool.selector, processed)]
            if chosen:
                self._balance_pool(pool, snapshot, chosen, evictor, processed)

    def explain_node(self, snapshot: Snapshot, rows: Rows, node: str) -> Iterator[Finding]:
        """Yield a node's usage of each resource with its thresholds, and the possible targets; changes nothing."""
        if self._args.paused:
            yield Finding("state", "it is paused (`paused: true`)")
            return
        order = [int(row) for row in rows]
        nodes = [snapshot.node(row) for row in order]
        for pool in self._args.pools:
            chosen = [order[index] for index in select_nodes(nodes, pool.selector)]
            if snapshot.index.get(node) not in chosen:
                continue
            thresholds, loads = self._loads(pool, snapshot, chosen)
            load = next((each for each in loads if each.name == node), None)
            if load is None:
                yield Finding("state", f"pool {pool.name or 'default'}: nobody measured {node}, or not lately")
                continue
            yield from _comparisons(load, thresholds)
            classes = classify(loads)
            targets = len(classes.low) + len(classes.prod_low) + len(classes.both_low)
            if not targets:
                yield Finding("state", "no node of the pool has a low load: nothing could take its pods")
            elif targets == len(chosen) or targets <= self._args.number_of_nodes:
                few = f"`numberOfNodes` is {self._args.number_of_nodes}"
                yield Finding("state", f"{targets} of {len(chosen)} nodes have a low load, so none is relieved ({few})")
            return
        yield Finding("state", f"no pool takes {node}")

    def clears(self, snapshot: Snapshot, rows: Rows, row: int, pod: PodInfo) -> str:
        """Return why pods would leave the node at `row`: its usage is above the thresholds of its pool."""
        if self._args.paused:
            return ""
        order = [int(each) for each in rows]
        for pool in self._args.pools:
            if not select_nodes([snapshot.node(row)], pool.selector):
                continue
            chosen = [row]
            if pool.deviation:  # the averages are those of all nodes
                nodes = [snapshot.node(each) for each in order]
                chosen = [order[index] for index in select_nodes(nodes, pool.selector)]
            thresholds, loads = self._loads(pool, snapshot, chosen)
            classes = classify(each for each in loads if each.row == row)
            for load in (*classes.sources, *classes.prod_sources):
                return eviction_reason(load, thresholds, prod=load in classes.prod_sources)
            return ""
        return ""

    def _loads(
        self, pool: NodePool, snapshot: Snapshot, rows: Sequence[int],
    ) -> tuple[PoolThresholds, list[NodeLoad]]:
        """Return the measured nodes of a pool with their bounds."""
        thresholds = PoolThresholds.of(pool)
        loads = [load for row in rows if (load := self._measure(snapshot, row, thresholds.names)) is not None]
        average, prod_average = average_percentages(loads), average_percentages(loads, prod=True)
        for load in loads:
            load.bounds = thresholds.bounds(load, average, prod_average)
        return thresholds, loads

    def _balance_pool(
        self, pool: NodePool, snapshot: Snapshot, rows: Sequence[int], evictor: Evictor, processed: set[str],
    ) -> None:
        now = snapshot.now
        thresholds, loads = self._loads(pool, snapshot, rows)
        measured = {load.row for load in loads}
        for row in rows:
            if row not in measured:
                evictor.observe(snapshot.names[row], "unmeasured", "it has no NodeMetric, or an expired one")
        classes = classify(loads)
        if not classes.sources and not classes.prod_sources:
            return
        sources = _abnormal(classes.sources, self.detectors, pool, now)
        prod_sources = _abnormal(classes.prod_sources, self.prod_detectors, pool, now)
        targets = (*classes.low, *classes.prod_low, *classes.both_low)
        for load in (*classes.sources, *classes.prod_sources):
            waiting = load not in sources and load not in prod_sources
            prod = load in classes.prod_sources
            evictor.observe(load.name, WAITING if waiting else "source", eviction_reason(load, thresholds, prod=prod))
        for load in targets:
            evictor.observe(load.name, "target")
        if not (sources or prod_sources) or not targets:
            return
        for load in (*classes.low, *classes.both_low):
            self.detectors.reset(load.name, now)
        for load in classes.prod_low:
            self.prod_detectors.reset(load.name, now)
        if len(targets) <= self._args.number_of_nodes or len(targets) == len(rows):
            return
        weights = pool.weights or {}
        mover = _Mover(
            self._args, thresholds=thresholds, weights=weights, fit=NodeFit(snapshot), evictor=evictor,
            may_go=self._filter(evictor),
        )
        mover.move(
            sort_by_load(sources, weights), sort_by_load(prod_sources, weights, prod=True), classes,
            lambda load: self.detectors.reset(load.name, now), lambda load: self.prod_detectors.reset(load.name, now),
        )
        for load in sources:
            self.detectors.observe_normal(load.name, now)
        for load in prod_sources:
            self.prod_detectors.observe_normal(load.name, now)
        processed.update(load.name for load in classes.sources)

    def _measure(self, snapshot: Snapshot, row: int, names: Sequence[str]) -> NodeLoad | None:
        """Return the usage of a node; None without a recent metric."""
        measured = snapshot.row(row).metric
        status = (measured.object if measured is not None else {}).get("status") or {}
        updated, metric = status.get("updateTime"), status.get("nodeMetric")
        if metric is None or not updated:
            return None
        if snapshot.now - moment(updated) >= self._args.metric_expiration_seconds * _SECOND:
            return None
        pods = snapshot.pods(row)
        prods = {pod.key for pod in pods if pod.priority_band == PROD}
        metrics = {
            f"{each.get('namespace', '')}/{each.get('name', '')}":
                resource_list(each.get("podUsage") or {}, "resources", "status.podsMetric[].podUsage")
            for each in status.get("podsMetric") or ()
        }
        system = resource_list(metric.get("systemUsage") or {}, "resources", "status.nodeMetric.systemUsage")
        usage = {each: system[each] + sum(used[each] for used in metrics.values()) for each in names}
        prod = {each: sum(used[each] for key, used in metrics.items() if key in prods) for each in names}
        usage[_PODS], prod[_PODS] = len(pods), len(prods)
        return NodeLoad(row, snapshot.node(row), raw_allocatable(snapshot.node(row)), usage, prod, pods, metrics)

    def _filter(self, evictor: Evictor) -> Callable[[PodInfo], bool]:
        """Return a predicate for pods that may be evicted; refusals are reported to the evictor."""
        args = self._args

        def may_go(pod: PodInfo) -> bool:
            if evictor.filter(pod) is not None:
                return False
            included, excluded = args.included_namespaces, args.excluded_namespaces
            if (included and pod.namespace not in included) or pod.namespace in excluded:
                evictor.keep(pod, Refusal("evictableNamespaces", f"namespace `{pod.namespace}` is not evictable"))
                return False
            labels = labels_of(pod)
            if args.pod_selectors and not any(matches_labels(each, labels) for each in args.pod_selectors):
                evictor.keep(pod, Refusal("podSelectors", "no pod selector takes it"))
                return False
            return True

        return may_go


def _abnormal(loads: Iterable[NodeLoad], detectors: Detectors, pool: NodePool, now: int) -> list[NodeLoad]:
    return [load for load in loads if detectors.observe_abnormal(load.name, pool.anomaly, now)]


class _Mover:
    """One round's evictions: two phases over the targets' shared free resources."""

    def __init__(
        self, args: LowNodeLoadArgs, *, thresholds: PoolThresholds, weights: Mapping[str, int], fit: NodeFit,
        evictor: Evictor, may_go: Callable[[PodInfo], bool],
    ) -> None:
        self._args = args
        self._thresholds = thresholds
        self._weights = weights
        self._evictor = evictor
        self._may_go = may_go
        self._fit = fit

    def move(
        self, sources: Sequence[NodeLoad], prod_sources: Sequence[NodeLoad], classes: Classes,
        reset: Callable[[NodeLoad], None], reset_prod: Callable[[NodeLoad], None],
    ) -> None:
        names = self._thresholds.names
        both = self._headroom(classes.both_low)
        room = _sum(self._headroom(classes.low), both)
        targets = [*classes.low, *classes.both_low]
        if targets:
            self._drain(sources, targets, room, reset, prod=False)
        left_of_both = {name: min(both[name], room[name]) for name in names}
        prod_both = self._headroom(classes.both_low, prod=True)
        shared = {name: min(prod_both[name], left_of_both[name]) for name in names}
        prod_room = _sum(self._headroom(classes.prod_low, prod=True), shared)
        prod_targets = [*classes.prod_low, *classes.both_low]
        if prod_targets:
            self._drain(prod_sources, prod_targets, prod_room, reset_prod, prod=True)

    def _headroom(self, loads: Iterable[NodeLoad], *, prod: bool = False) -> dict[str, int]:
        room = dict.fromkeys(self._thresholds.names, 0)
        for load in loads:
            usage, high = (load.prod_usage, load.bounds.prod_high) if prod else (load.usage, load.bounds.high)
            for name in room:
                room[name] += high[name] - usage[name]
        return room

    def _drain(
        self, sources: Sequence[NodeLoad], targets: Sequence[NodeLoad], room: dict[str, int],
        reset: Callable[[NodeLoad], None], *, prod: bool,
    ) -> None:
        room_of = SharedRoom(targets, self._fit, prod=prod)
        for source in sources:
            candidates = [
                pod for pod in source.pods
                if (not prod or pod.priority_band == PROD) and self._may_go(pod)
                and self._finds_room(pod, source, room_of)
            ]
            if not candidates:
                continue
            by_usage = usage_preference(source, self._weights, prod=prod)
            candidates.sort(key=eviction_order(by_usage))
            self._evict(source, candidates, room, reset, prod=prod)

    def _evict(
        self, source: NodeLoad, candidates: Sequence[PodInfo], room: dict[str, int],
        reset: Callable[[NodeLoad], None], *, prod: bool,
    ) -> None:
        phase = "prodHighThresholds" if prod else "highThresholds"
        usage, high = (source.prod_usage, source.bounds.prod_high) if prod else (source.usage, source.bounds.high)
        for position, pod in enumerate(candidates):
            stop = ""
            if not is_over(usage, high):
                reset(source)
                stop = f"node `{source.name}` is not above its thresholds any more"
            elif short := next((name for name, left in room.items() if left <= 0), ""):
                stop = f"no room for more {short} on the nodes with low load"
            if stop:
                for other in candidates[position:]:
                    self._evictor.keep(other, Refusal(phase, stop), rule=phase)
                return
            if not self._may_go(pod) or self._evictor.pre_eviction_filter(pod) is not None:
                continue
            reason = eviction_reason(source, self._thresholds, prod=prod)
            if self._args.dry_run:
                self._evictor.keep(pod, Refusal("dryRun", f"only noted: {reason}"), rule=phase)
            elif not self._evictor.evict(pod, reason, rule=phase):
                continue
            metric = source.pod_metrics.get(pod.key)
            if metric is None:
                continue
            for name in self._thresholds.names:
                amount = 1 if name == _PODS else metric[name]
                room[name] -= amount
                source.usage[name] -= amount
                if prod:
                    source.prod_usage[name] -= amount

    def _finds_room(self, pod: PodInfo, source: NodeLoad, targets: SharedRoom) -> bool:
        if not self._args.node_fit:
            return True
        metric = source.pod_metrics.get(pod.key)
        if metric is None:
            self._evictor.keep(pod, Refusal("nodeFit", "nobody measured what it uses"))
            return False
        if targets.take(pod, metric):
            return True
        self._evictor.keep(pod, Refusal("nodeFit", "no node with low load takes it"))
        return False


def reserve(target: NodeLoad, metric: Mapping[str, int], *, prod: bool) -> bool:
    """Add a pod's usage to a target if it stays at or below the high thresholds; return whether it does.

    The usage stays added even if the pod is not evicted in the end, to be safe.
    """
    usage, high = (target.prod_usage, target.bounds.prod_high) if prod else (target.usage, target.bounds.high)
    after = {name: usage.get(name, 0) + metric.get(name, 0) for name in high}
    if is_over(after, high):
        return False
    usage.update(after)
    return True


class SharedRoom:
    """The room of targets in the order in which they are tried, as columns; it shrinks with every pod that is taken."""

    def __init__(self, targets: Sequence[NodeLoad], fit: NodeFit, *, prod: bool) -> None:
        self._targets = targets
        self._fit = fit
        self._prod = prod
        bounds = [target.bounds.prod_high if prod else target.bounds.high for target in targets]
        usages = [target.prod_usage if prod else target.usage for target in targets]
        self._names = tuple(bounds[0])
        self._rows = np.array([target.row for target in targets], np.intp)
        self._room = {
            name: np.array([bound[name] - usage.get(name, 0) for bound, usage in zip(bounds, usages, strict=True)])
            for name in self._names
        }
        self._fitting: dict[PodTemplate, NDArray[np.intp]] = {}
        self._refused: dict[PodTemplate, Mapping[str, int]] = {}
        """By template, the usage of the last pod for which there was no room."""

    def take(self, pod: PodInfo, metric: Mapping[str, int]) -> bool:
        """Add a pod's usage to the first target that the pod fits on and that stays within its high thresholds."""
        template = template_of(pod)
        refused = self._refused.get(template)
        # Room never grows: a pod that uses no less than one that found none finds none either.
        if refused is not None and all(metric.get(name, 0) >= refused.get(name, 0) for name in self._names):
            return False
        places = self._fitting.get(template)
        if places is None:
            places = self._fitting[template] = np.flatnonzero(self._fit.fitting(pod)[self._rows])
        has_room = np.ones(len(places), np.bool_)
        for name in self._names:
            has_room &= self._room[name][places] >= metric.get(name, 0)
        if not has_room.any():
            self._refused[template] = metric
            return False
        place = int(places[has_room.argmax()])
        for name in self._names:
            self._room[name][place] -= metric.get(name, 0)
        return reserve(self._targets[place], metric, prod=self._prod)


def usage_preference(
    source: NodeLoad, weights: Mapping[str, int], *, prod: bool,
) -> Callable[[PodInfo], tuple[int, float]]:
    """Return a sort key: pods that best reduce the overused resources first, pods without metrics last."""
    usage, high = (source.prod_usage, source.bounds.prod_high) if prod else (source.usage, source.bounds.high)
    excess = {name: usage[name] - amount for name, amount in high.items() if usage.get(name, 0) > amount}

    def preference(pod: PodInfo) -> tuple[int, float]:
        metric = source.pod_metrics.get(pod.key)
        if metric is None:
            return 1, 0.0
        score = total = 0.0
        for name, used in metric.items():
            weight = weights.get(name, 0) if name in excess else 0
            ratio = used / excess[name] if weight else 0.0
            score += weight * (ratio if ratio < 1 else 1 + 1 / ratio)
            total += weight
        return 0, -(score / total if total else 0.0)

    return preference


def _sum(one: Mapping[str, int], two: Mapping[str, int]) -> dict[str, int]:
    return {name: amount + two[name] for name, amount in one.items()}


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1alpha2 arguments in internal form with defaults; raise `ValueError` with all faults."""
    return complete("LowNodeLoad", args)


def make(args: Mapping[str, Any], handle: object) -> LowNodeLoad:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile, of arguments in internal form."""
    return LowNodeLoad(read_low_node_load(args))
