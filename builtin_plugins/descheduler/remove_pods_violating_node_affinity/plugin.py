"""RemovePodsViolatingNodeAffinity (Kubernetes' descheduler): evicts pods whose node does not match their affinity."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.admission import NodeAdmission
from koordpolicy.engine.descheduler.pod_columns import PodColumns
from koordpolicy.engine.descheduler.pods import NodeFit
from koordpolicy.engine.descheduler.templates import PodTemplate, template_of
from koordpolicy.engine.kubernetes.selectors import matches_term
from koordpolicy.plugin import Evictor

from .args import PREFERRED, REQUIRED, NodeAffinityArgs, check_args, read_args

__all__ = ["RemovePodsViolatingNodeAffinity", "check_args", "make"]

Json = Mapping[str, Any]


class RemovePodsViolatingNodeAffinity:
    """Evicts active pods whose node does not match their affinity, and that fit on some node at this time.

    Required: the node no longer matches. Preferred: a node has a greater sum of weights than the pod's own.
    """

    name = "RemovePodsViolatingNodeAffinity"

    def __init__(self, args: NodeAffinityArgs) -> None:
        self._args = args

    def deschedule(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict pods by type of affinity, then node by node; see `Deschedule`."""
        look, columns = _Look(snapshot, rows), PodColumns.of(snapshot)
        on_rows = columns.on(rows)
        for kind in self._args.types:
            reason_of = _REASONS.get(kind)
            if reason_of is None:
                continue
            codes = [code for code, each in enumerate(columns.templates)
                     if (_node_affinity(each.pod) or {}).get(kind) is not None]
            carriers = columns.of_codes(codes)
            carriers = carriers[on_rows[carriers]]
            placed = zip(columns.rows[carriers].tolist(), columns.listed(carriers), strict=True)
            for row, pods in itertools.groupby(placed, key=lambda each: each[0]):
                found = [
                    (pod, reason) for _, pod in pods
                    if (reason := reason_of(look, pod, row))
                    and self._args.selection.candidate(pod, evictor) and look.fits_any(pod, row)
                ]
                for pod, reason in found:
                    evictor.evict(pod, reason)


def _node_affinity(pod: PodInfo) -> Json | None:
    affinity = (pod.object.get("spec") or {}).get("affinity")
    found: Json | None = affinity.get("nodeAffinity") if affinity else None
    return found


class _Look:
    """The nodes of one call."""

    def __init__(self, snapshot: Snapshot, rows: Rows) -> None:
        self._snapshot = snapshot
        self._rows = rows
        self._admission = NodeAdmission.of(snapshot)
        self._selected: dict[PodTemplate, NDArray[np.bool_]] = {}
        self._fit = NodeFit(snapshot)
        self._heaviest: dict[str, int] = {}

    def fits_any(self, pod: PodInfo, own: int) -> bool:
        """Return whether some node, maybe its own, takes the pod."""
        return self._fit.fits_strictly(pod, own) or any(True for _ in self._fit.strict_rows(pod, self._rows))

    def violated(self, pod: PodInfo, row: int) -> str:
        """Return why the pod's node does not match; empty if it does."""
        template = template_of(pod)
        selected = self._selected.get(template)
        if selected is None:
            selected = self._selected[template] = self._admission.selected(pod, self._snapshot)
        if selected[row]:
            return ""
        return "its required node affinity does not match its node"

    def outweighed(self, pod: PodInfo, row: int) -> str:
        """Return the reason if a node has a greater weight than the pod's own; empty if none has."""
        terms: Sequence[Json] = (_node_affinity(pod) or {}).get(PREFERRED) or ()
        if not terms:
            return ""
        own, heaviest = _weight(terms, self._snapshot.node(row)), self._heaviest_of(terms)
        return f"its node has the weight {own} by its preferred node affinity, another one {heaviest}" \
            if heaviest > own else ""

    def _heaviest_of(self, terms: Sequence[Json]) -> int:
        key = json.dumps(terms)
        if key not in self._heaviest:
            self._heaviest[key] = max(_weight(terms, self._snapshot.node(row)) for row in self._rows.tolist())
        return self._heaviest[key]


_REASONS: Final[Mapping[str, Callable[[_Look, PodInfo, int], str]]] = {
    REQUIRED: _Look.violated, PREFERRED: _Look.outweighed,
}


def _weight(terms: Sequence[Json], node: Json) -> int:
    return sum(each.get("weight") or 0 for each in terms if matches_term(each.get("preference") or {}, node))


def make(args: Json, handle: object) -> RemovePodsViolatingNodeAffinity:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile."""
    return RemovePodsViolatingNodeAffinity(read_args(args))
