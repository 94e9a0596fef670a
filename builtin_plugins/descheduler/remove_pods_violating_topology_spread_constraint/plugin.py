"""RemovePodsViolatingTopologySpreadConstraint: pods leave the domains of a topology that hold too many of them.

Kubernetes' descheduler (removepodsviolatingtopologyspreadconstraint). Pods that may not be evicted are not counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.plugin_args import PodSelection
from koordpolicy.engine.descheduler.pods import NodeFit
from koordpolicy.engine.framework.descheduler import Evictor
from koordpolicy.engine.framework.points import Refusal

from .args import check_args
from .constraints import LabelledPods, SpreadConstraint, Topologies, constraints_of, is_balanced, moves, sort_pods

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
        candidates = _Once(functools.partial(self._counts, evictor))
        run = _Run(evictor, Topologies(snapshot, order), NodeFit(snapshot))
        marked: dict[str, tuple[PodInfo, SpreadConstraint]] = {}
        for of_namespace in self._by_namespace(snapshot, order).values():
            carriers = (pod for pod in of_namespace if pod.object["spec"].get("topologySpreadConstraints"))
            pods = LabelledPods(of_namespace)
            for constraint in list(constraints_of(filter(candidates.ask, carriers), self._actions)):
                for pod in self._to_move(constraint, filter(candidates.ask, pods.counted(constraint)), run):
                    marked.setdefault(pod.key, (pod, constraint))
        for pod, constraint in marked.values():
            if evictor.filter(pod) is None and evictor.pre_eviction_filter(pod) is None:
                reason = f"too many pods in its domain of {constraint.topology_key}, maxSkew is {constraint.max_skew}"
                if not evictor.evict(pod, reason, rule=_RULE) and evictor.total_limit_exceeded():
                    return

    def _counts(self, evictor: Evictor, pod: PodInfo) -> bool:
        return self._selection.takes(pod) and not evictor.is_leaving(pod) and evictor.filter(pod) is None

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
        domains = run.topologies.domains(constraint, pods)
        if is_balanced(domains, constraint.max_skew):
            return []
        by_size = sorted(
            ((value, sort_pods(of_domain, lambda _: True)) for value, of_domain in domains.items()),
            key=lambda each: len(each[1]),
        )
        average = sum(len(of_domain) for _, of_domain in by_size) / len(by_size)
        below = {value for value, of_domain in by_size if len(of_domain) < average}
        destinations = run.fit.destinations(run.topologies.rows_of(constraint, below))
        fits = _Once(destinations.take).ask
        found = []
        for pod in moves([of_domain for _, of_domain in by_size], constraint.max_skew, fits):
            if self._must_fit and not fits(pod):
                # It counts as moved all the same, so that the others are not moved in its place.
                message = f"no node of a smaller domain of {constraint.topology_key} takes it"
                run.evictor.keep(pod, Refusal("topologyBalanceNodeFit", message), rule=_RULE)
            else:
                found.append(pod)
        return found


class _Once:
    """Answers a question about each pod once."""

    def __init__(self, ask: Callable[[PodInfo], bool]) -> None:
        self._ask = ask
        self._known: dict[str, bool] = {}

    def ask(self, pod: PodInfo) -> bool:
        found = self._known.get(pod.key)
        if found is None:
            found = self._known[pod.key] = self._ask(pod)
        return found


@dataclass(frozen=True, slots=True)
class _Run:
    """The data of one call."""

    evictor: Evictor
    topologies: Topologies
    fit: NodeFit


def make(args: Mapping[str, Any], handle: object) -> RemovePodsViolatingTopologySpreadConstraint:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile, of valid arguments."""
    return RemovePodsViolatingTopologySpreadConstraint(args)
