"""CustomPriority: moves pods from expensive nodes to cheaper ones, by levels of nodes that the user orders.

The behaviour is Koordinator's (pkg/descheduler/framework/plugins/custompriority), without its faults when it drains
nodes: see docs/descheduling.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.fitting_nodes import FittingNodes
from koordpolicy.engine.descheduler.framework import select_rows
from koordpolicy.engine.descheduler.pods import AssignedPods
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.kubernetes.selectors import matches_labels
from koordpolicy.plugin import Evictor

from .args import CustomPriorityArgs, NodeLevel, check_args, read_args
from .placement import TargetRoom, container_requests, place_all

__all__ = ["CustomPriority", "check_args", "make"]

_MOST_MISSES: Final = 5
_FEWEST_LEVELS: Final = 2


def by_level(snapshot: Snapshot, rows: Sequence[int], levels: Sequence[NodeLevel]) -> list[tuple[NodeLevel, list[int]]]:
    """Return the levels that have nodes, in order; a node belongs to the first level that selects it."""
    found: dict[str, list[int]] = {level.name: [] for level in levels}
    for row in rows:
        labels = snapshot.node(row)["metadata"].get("labels") or {}
        level = next((each for each in levels if matches_labels(each.selector, labels)), None)
        if level is not None:
            found[level.name].append(row)
    return [(level, found[level.name]) for level in levels if found[level.name]]


def eviction_key(pod: PodInfo) -> tuple[int, int, str, str]:
    """Return the sort key of candidates: small requests first."""
    requests = container_requests(pod)
    return requests["cpu"], requests["memory"], pod.namespace, pod.name


def split_by_fit(pods: Sequence[PodInfo], fitting: FittingNodes) -> tuple[list[PodInfo], list[PodInfo], list[PodInfo]]:
    """Return the pods that a target takes, those that none takes, and those not tried.

    After five misfits in a row no more pods are tried.
    """
    fit: list[PodInfo] = []
    misfits: list[PodInfo] = []
    in_a_row = 0
    for place, pod in enumerate(pods):
        if fitting.any(pod):
            fit.append(pod)
            in_a_row = 0
            continue
        misfits.append(pod)
        in_a_row += 1
        if in_a_row >= _MOST_MISSES:
            return fit, misfits, list(pods[place + 1:])
    return fit, misfits, []


class CustomPriority:
    """The plugin; it has no state."""

    name = "CustomPriority"

    def __init__(self, args: CustomPriorityArgs) -> None:
        self._args = args

    def balance(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict from the nodes of each level pods that nodes of later levels take."""
        if self._args.paused:
            return
        levels = by_level(snapshot, select_rows(snapshot, rows, self._args.node_selector).tolist(), self._args.levels)
        if len(levels) < _FEWEST_LEVELS:
            return
        assigned = AssignedPods(snapshot)
        for index, (level, sources) in enumerate(levels[:-1]):
            targets = [row for _, of_level in levels[index + 1:] for row in of_level]
            for row in sources:
                evictor.observe(snapshot.names[row], "source", f"level {level.name}")
            for row in targets:
                evictor.observe(snapshot.names[row], "target")
            mover = _Mover(self._args, level.name, snapshot, targets, evictor)
            for row in sources:
                pods = sorted(self._candidates(assigned, row, evictor), key=eviction_key)
                if pods and self._args.drains:
                    mover.drain(row, pods)
                elif pods:
                    mover.evict_fitting(pods)

    def explain_node(self, snapshot: Snapshot, rows: Rows, node: str) -> Iterator[Finding]:
        """Yield the level of a node and where its pods could go; changes nothing."""
        if self._args.paused:
            yield Finding("state", "it is paused (`paused: true`)")
            return
        levels = by_level(snapshot, select_rows(snapshot, rows, self._args.node_selector).tolist(), self._args.levels)
        names = [level.name for level, _ in levels]
        row = snapshot.index.get(node, -1)
        place = next((place for place, (_, of_level) in enumerate(levels) if row in of_level), None)
        if place is None:
            yield Finding("state", f"no level of `evictionOrder` selects {node}")
        elif place == len(levels) - 1:
            yield Finding("state", f"{node} is of level {names[place]}, and no cheaper level has nodes")
        else:
            yield Finding(
                "state", f"{node} is of level {names[place]}: its pods may go to {', '.join(names[place + 1:])}")

    def _candidates(self, assigned: AssignedPods, row: int, evictor: Evictor) -> list[PodInfo]:
        targets = self._args.targets
        return [
            pod for pod in assigned.all(row) if not evictor.is_leaving(pod) and targets.candidate(pod, evictor)
        ]


class _Mover:
    """The evictions from the nodes of one level."""

    def __init__(
        self, args: CustomPriorityArgs, level: str, snapshot: Snapshot, targets: Sequence[int], evictor: Evictor,
    ) -> None:
        self._args = args
        self._level = level
        self._snapshot = snapshot
        self._evictor = evictor
        self._fitting = FittingNodes(snapshot, targets)
        self._room = TargetRoom.of(snapshot, targets)

    def evict_fitting(self, pods: Sequence[PodInfo]) -> None:
        """Evict the pods that a target takes; no room is reserved for them."""
        fit, misfits, untried = split_by_fit(pods, self._fitting) if self._args.node_fit else (list(pods), [], [])
        self._keep(misfits, "nodeFit", "no node of a cheaper level takes it")
        self._keep(untried, "nodeFit", f"not tried: {_MOST_MISSES} pods in a row before it fit on no node")
        for pod in fit:
            if self._evictor.pre_eviction_filter(pod) is None:
                self._evict(pod, f"evicting from {self._level} priority resource to lower priority resource")

    def drain(self, row: int, pods: Sequence[PodInfo]) -> None:
        """Evict all pods of a node if all may leave and there is room for all of them, and none otherwise.

        An eviction that fails ends the drain, and the node is uncordoned. Only evicted pods take room on targets.
        """
        node = self._snapshot.names[row]
        places = place_all(pods, self._room, self._fitting, node_fit=self._args.node_fit)
        if isinstance(places, PodInfo):
            self._keep(pods, "DrainNode", f"{places.key} fits on no node of a cheaper level, so {node} is not drained")
            return
        refused = {pod.key for pod in pods if self._evictor.pre_eviction_filter(pod) is not None}
        if refused:
            self._keep([pod for pod in pods if pod.key not in refused], "DrainNode",
                       f"{min(refused)} may not be evicted now, so {node} is not drained")
            return
        cordoned = self._args.cordons and not self._args.dry_run and self._cordon(row, cordon=True)
        for pod, place in zip(pods, places, strict=True):
            evicted = self._evict(pod, f"drain node {node} (sourcePriority={self._level})")
            if not evicted:
                if cordoned:
                    self._cordon(row, cordon=False)
                return
            self._room.take(place, container_requests(pod))

    def _evict(self, pod: PodInfo, reason: str) -> bool:
        if self._args.dry_run:
            self._keep([pod], "dryRun", f"only noted: {reason}")
            return True
        return self._evictor.evict(pod, reason, rule=self._level)

    def _keep(self, pods: Sequence[PodInfo], rule: str, message: str) -> None:
        for pod in pods:
            self._evictor.keep(pod, Refusal(rule, message), rule=self._level)

    def _cordon(self, row: int, *, cordon: bool) -> bool:
        """Cordon a node, or undo that; return whether it was changed."""
        node = self._snapshot.node(row)
        spec = node.get("spec") or {}
        if spec.get("unschedulable"):
            return False
        cordoned = {**node, "spec": {**spec, "unschedulable": True}}
        if cordon:
            return self._evictor.patch(node, cordoned, "cordoned, to be drained")
        return self._evictor.patch(cordoned, node, "uncordoned, as an eviction failed")


def make(args: Mapping[str, Any], handle: object) -> CustomPriority:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile, of arguments in internal form."""
    return CustomPriority(read_args(args))
