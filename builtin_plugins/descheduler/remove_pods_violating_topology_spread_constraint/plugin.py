"""RemovePodsViolatingTopologySpreadConstraint: pods leave the domains of a topology that hold too many of them.

Kubernetes' descheduler (removepodsviolatingtopologyspreadconstraint). Pods that may not be evicted are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.plugin_args import PodSelection
from koordpolicy.engine.descheduler.pod_columns import PodColumns, Positions
from koordpolicy.engine.descheduler.pods import NodeFit, labels_of
from koordpolicy.engine.framework.descheduler import Evictor
from koordpolicy.engine.framework.points import Refusal

from .args import check_args
from .constraints import SpreadConstraint, Topologies, constraints_of, moves, sort_pods

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
        columns = PodColumns.of(snapshot)
        candidates = _Candidates(columns, self._selection, evictor)
        run = _Run(evictor, columns, Topologies(snapshot, rows), NodeFit(snapshot))
        marked: dict[str, tuple[PodInfo, SpreadConstraint]] = {}
        for carriers, pods in self._by_namespace(columns, rows):
            for constraint in list(constraints_of(columns.templates_at(candidates.among(carriers)), self._actions)):
                counted = candidates.among(_counted(constraint, pods, columns))
                for pod in self._to_move(constraint, counted, run):
                    marked.setdefault(pod.key, (pod, constraint))
        for pod, constraint in marked.values():
            if evictor.filter(pod) is None and evictor.pre_eviction_filter(pod) is None:
                reason = f"too many pods in its domain of {constraint.topology_key}, maxSkew is {constraint.max_skew}"
                if not evictor.evict(pod, reason, rule=_RULE) and evictor.total_limit_exceeded():
                    return

    def _by_namespace(self, columns: PodColumns, rows: Rows) -> Iterator[tuple[Positions, Positions]]:
        """Yield the pods with a constraint, and all pods, of each namespace in which a pod has one."""
        on_rows = columns.on(rows)
        carriers = columns.having(lambda each: "topologySpreadConstraints" in each.pod.object["spec"])
        carriers = carriers[on_rows[carriers]]
        codes: dict[str, list[int]] = {}
        for code, template in enumerate(columns.templates):
            codes.setdefault(template.pod.namespace, []).append(code)
        for namespace in dict.fromkeys(each.pod.namespace for each in columns.templates_at(carriers)):
            pods = columns.of_codes(codes[namespace])
            yield np.intersect1d(carriers, pods, assume_unique=True), pods[on_rows[pods]]

    def _to_move(self, constraint: SpreadConstraint, counted: Positions, run: _Run) -> list[PodInfo]:
        domains = run.topologies.domains(constraint, counted)
        if domains.is_balanced(constraint.max_skew):
            return []
        by_size = sorted(
            ((value, sort_pods(of_domain, lambda _: True)) for value, of_domain in domains.pods(run.columns).items()),
            key=lambda each: len(each[1]),
        )
        average = sum(len(of_domain) for _, of_domain in by_size) / len(by_size)
        below = {value for value, of_domain in by_size if len(of_domain) < average}
        fits = run.fit.destinations(run.topologies.rows_of(constraint, below)).take
        found = []
        message = f"no node of a smaller domain of {constraint.topology_key} takes it"
        refusal = Refusal("topologyBalanceNodeFit", message)
        for pod in moves([of_domain for _, of_domain in by_size], constraint.max_skew, fits):
            if self._must_fit and not fits(pod):
                # It counts as moved all the same, so that the others are not moved in its place.
                run.evictor.keep(pod, refusal, rule=_RULE)
            else:
                found.append(pod)
        return found


def _counted(constraint: SpreadConstraint, pods: Positions, columns: PodColumns) -> Positions:
    """Return those of the pods that the selector of the constraint takes and that do not terminate."""
    codes = columns.codes[pods]
    taken = np.zeros(len(columns.templates), np.bool_)
    for code in np.unique(codes).tolist():
        pod = columns.templates[code].pod
        taken[code] = pod.object["metadata"].get("deletionTimestamp") is None and constraint.takes(labels_of(pod))
    return pods[taken[codes]]


class _Candidates:
    """The pods that the plugin may evict: selected, not leaving, and without a veto; each is looked at once."""

    def __init__(self, columns: PodColumns, selection: PodSelection, evictor: Evictor) -> None:
        self._columns = columns
        self._selection = selection
        self._evictor = evictor
        self._is_known = np.zeros(len(columns.pods), np.bool_)
        self._may_go = np.zeros(len(columns.pods), np.bool_)

    def among(self, places: Positions) -> Positions:
        """Return the places of candidates among these."""
        fresh = places[~self._is_known[places]]
        self._may_go[fresh] = self._selection.candidates(self._columns, fresh, self._evictor, now=False)
        self._is_known[fresh] = True
        return places[self._may_go[places]]


@dataclass(frozen=True, slots=True)
class _Run:
    """The data of one call."""

    evictor: Evictor
    columns: PodColumns
    topologies: Topologies
    fit: NodeFit


def make(args: Mapping[str, Any], handle: object) -> RemovePodsViolatingTopologySpreadConstraint:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile, of valid arguments."""
    return RemovePodsViolatingTopologySpreadConstraint(args)
