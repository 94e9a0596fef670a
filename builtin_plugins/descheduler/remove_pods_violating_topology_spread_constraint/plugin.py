"""RemovePodsViolatingTopologySpreadConstraint: pods leave the domains of a topology that hold too many of them.

Kubernetes' descheduler (removepodsviolatingtopologyspreadconstraint). Pods that may not be evicted are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.plugin_args import PodSelection
from koordpolicy.engine.descheduler.pods import NodeFit
from koordpolicy.engine.framework.descheduler import Evictor
from koordpolicy.engine.framework.points import Refusal

from .args import check_args
from .constraints import SpreadConstraint, constraints_of, domains_of, is_balanced, moves, sort_pods

__all__ = ["RemovePodsViolatingTopologySpreadConstraint", "check_args", "make"]

_RULE: Final = "maxSkew"


class RemovePodsViolatingTopologySpreadConstraint:
    """The plugin, with valid arguments and their defaults."""

    name = "RemovePodsViolatingTopologySpreadConstraint"

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._selection = PodSelection.of(args)
        self._actions = frozenset(args["constraints"])
        self._must_fit = bool(args["topologyBalanceNodeFit"])

    def balance(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict pods until all domains of each constraint are within its skew."""
        order = [int(row) for row in rows]
        run = _Run(snapshot, order, evictor, _Candidates(self._selection, evictor), NodeFit(snapshot))
        marked: dict[str, tuple[PodInfo, SpreadConstraint]] = {}
        for of_namespace in self._by_namespace(snapshot, order).values():
            carriers = (pod for pod in of_namespace if pod.object["spec"].get("topologySpreadConstraints"))
            constraints = list(constraints_of(filter(run.candidates.has, carriers), self._actions))
            if not constraints:
                continue
            pods = list(filter(run.candidates.has, of_namespace))
            for constraint in constraints:
                for pod in self._to_move(constraint, pods, run):
                    marked.setdefault(pod.key, (pod, constraint))
        for pod, constraint in marked.values():
            if evictor.filter(pod) is None and evictor.pre_eviction_filter(pod) is None:
                reason = f"too many pods in its domain of {constraint.topology_key}, maxSkew is {constraint.max_skew}"
                evictor.evict(pod, reason, rule=_RULE)

    def _by_namespace(self, snapshot: Snapshot, order: Sequence[int]) -> Mapping[str, list[PodInfo]]:
        """Return the pods of the namespaces in which a pod has a constraint."""
        found: dict[str, list[PodInfo]] = {}
        pods_of = [snapshot.pods(row) for row in order]
        for pods in pods_of:
            for pod in pods:
                if pod.namespace not in found and "topologySpreadConstraints" in pod.object["spec"]:
                    found[pod.namespace] = []
        if found:
            for pods in pods_of:
                for pod in pods:
                    listed = found.get(pod.namespace)
                    if listed is not None:
                        listed.append(pod)
        return found

    def _to_move(self, constraint: SpreadConstraint, pods: Iterable[PodInfo], run: _Run) -> list[PodInfo]:
        domains = domains_of(constraint, run.snapshot, run.order, pods)
        if is_balanced(domains, constraint.max_skew):
            return []
        by_size = sorted(
            ((value, sort_pods(of_domain, lambda _: True)) for value, of_domain in domains.items()),
            key=lambda each: len(each[1]),
        )
        average = sum(len(of_domain) for _, of_domain in by_size) / len(by_size)
        below = {value for value, of_domain in by_size if len(of_domain) < average}
        fits = _fits_below(constraint, below, run)
        found = []
        for pod in moves([of_domain for _, of_domain in by_size], constraint.max_skew, fits):
            if self._must_fit and not fits(pod):
                # It counts as moved all the same, so that the others are not moved in its place.
                message = f"no node of a smaller domain of {constraint.topology_key} takes it"
                run.evictor.keep(pod, Refusal("topologyBalanceNodeFit", message), rule=_RULE)
            else:
                found.append(pod)
        return found


class _Candidates:
    """The pods that are counted; each is looked at once."""

    def __init__(self, selection: PodSelection, evictor: Evictor) -> None:
        self._selection = selection
        self._evictor = evictor
        self._known: dict[str, bool] = {}

    def has(self, pod: PodInfo) -> bool:
        found = self._known.get(pod.key)
        if found is None:
            found = self._known[pod.key] = (
                self._selection.takes(pod) and not self._evictor.is_leaving(pod) and self._evictor.filter(pod) is None
            )
        return found


@dataclass(frozen=True, slots=True)
class _Run:
    """What one call looks at."""

    snapshot: Snapshot
    order: Sequence[int]
    evictor: Evictor
    candidates: _Candidates
    fit: NodeFit


def _fits_below(constraint: SpreadConstraint, below: set[str], run: _Run) -> Callable[[PodInfo], bool]:
    """Return whether another node of the domains `below` takes a pod."""
    targets = np.array([
        row for row in run.order
        if ((node := run.snapshot.node(row))["metadata"].get("labels") or {}).get(constraint.topology_key) in below
        and constraint.includes(node)
    ], dtype=np.intp)
    known: dict[str, bool] = {}

    def fits(pod: PodInfo) -> bool:
        found = known.get(pod.key)
        if found is None:
            found = known[pod.key] = run.fit.fits_any_other_strictly(pod, targets)
        return found

    return fits


def make(args: Mapping[str, Any], handle: object) -> RemovePodsViolatingTopologySpreadConstraint:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile, of valid arguments."""
    return RemovePodsViolatingTopologySpreadConstraint(args)
