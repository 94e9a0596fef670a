"""RemovePodsViolatingInterPodAntiAffinity (Kubernetes' descheduler): evicts pods beside pods that they avoid.

Only required terms count, and only the pod that declares a term is evicted. As upstream, `namespaceSelector` and
`matchLabelKeys` of terms are ignored, and so are other pods of the same name, whatever their namespace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.plugin_args import PodSelection
from koordpolicy.engine.descheduler.pod_columns import PodColumns
from koordpolicy.engine.descheduler.pods import labels_of, priority_order
from koordpolicy.engine.descheduler.templates import PodTemplate, fact_of, template_of
from koordpolicy.engine.kubernetes.selectors import matches_labels
from koordpolicy.plugin import Evictor

from .args import check_args

__all__ = ["RemovePodsViolatingInterPodAntiAffinity", "check_args", "make"]

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"

Json = Mapping[str, Any]


class RemovePodsViolatingInterPodAntiAffinity:
    """Evicts active pods that violate their own anti-affinity, on each node those of low priority first.

    Namespaces and labels of the arguments restrict all pods that are looked at: a pod that is not selected is neither
    evicted nor a conflict.
    """

    name = "RemovePodsViolatingInterPodAntiAffinity"

    def __init__(self, selection: PodSelection) -> None:
        self._selection = selection

    def deschedule(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict pods node by node; see `Deschedule`."""
        columns = PodColumns.of(snapshot)
        takes = self._selection.takes
        carriers = columns.having(lambda each: bool(fact_of(each.pod, _terms)) and takes(each.pod))
        carriers = carriers[columns.on(rows)[carriers]]
        if not len(carriers):
            return
        beside = _Beside(snapshot, rows, self._selection, evictor.leaving_pods())
        order = sorted(
            zip(columns.rows[carriers].tolist(), columns.listed(carriers), strict=True),
            key=lambda each: (each[0], priority_order(each[1])),
        )
        for row, pod in order:
            term = beside.violated(pod, row)
            if term is None or evictor.is_leaving(pod):
                continue
            if evictor.filter(pod) is not None or evictor.pre_eviction_filter(pod) is not None:
                continue
            if evictor.evict(pod, f"it avoids a pod that has the same {term.get('topologyKey')}"):
                beside.remove(pod, row)


def _terms(pod: PodInfo) -> Sequence[Json]:
    affinity = (pod.object.get("spec") or {}).get("affinity")
    anti = affinity.get("podAntiAffinity") if affinity else None
    found: Sequence[Json] = (anti.get(_REQUIRED) or ()) if anti else ()
    return found


@dataclass(frozen=True, slots=True)
class _Conflicts:
    """The pods that a term means, by domain of its topology key."""

    term: Json
    namespaces: frozenset[str]
    names: dict[object, dict[str, int]]
    """Per domain how many of the pods have each name."""

    def means(self, pod: PodInfo) -> bool:
        """Return whether the term means the pod; all pods of a template or none."""
        return pod.namespace in self.namespaces and matches_labels(
            self.term.get("labelSelector"), labels_of(pod), absent=False,
        )


class _Beside:
    """The selected active pods by term and by domain of its topology key."""

    def __init__(self, snapshot: Snapshot, rows: Rows, selection: PodSelection, leaving: Sequence[PodInfo]) -> None:
        self._snapshot = snapshot
        self._selection = selection
        self._leaving = leaving
        self._columns = PodColumns.of(snapshot)
        self._on_rows = self._columns.on(rows)
        self._known: dict[str, _Conflicts] = {}
        self._of_template: dict[PodTemplate, list[_Conflicts]] = {}

    def violated(self, pod: PodInfo, row: int) -> Json | None:
        """Return the first term of which a pod of another name is in the pod's domain, or None."""
        template = template_of(pod)
        conflicts = self._of_template.get(template)
        if conflicts is None:
            conflicts = [self._of(term, pod.namespace) for term in fact_of(pod, _terms)]
            self._of_template[template] = conflicts
        for each in conflicts:
            names = each.names.get(self._domain(each.term, row))
            if names and (len(names) > 1 or pod.name not in names):
                return each.term
        return None

    def remove(self, pod: PodInfo, row: int) -> None:
        """Forget an evicted pod, so that it is a conflict no more."""
        for each in self._known.values():
            names = each.names.get(self._domain(each.term, row))
            if names and pod.name in names and each.means(pod):
                names[pod.name] -= 1
                if not names[pod.name]:
                    del names[pod.name]

    def _of(self, term: Json, namespace: str) -> _Conflicts:
        namespaces = frozenset(term.get("namespaces") or (namespace,))
        key = json.dumps((term, sorted(namespaces)))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Conflicts(term, namespaces, {})
            self._fill(known)
        return known

    def _fill(self, conflicts: _Conflicts) -> None:
        columns, names = self._columns, conflicts.names
        places = columns.having(lambda each: conflicts.means(each.pod) and self._selection.takes(each.pod))
        places = places[self._on_rows[places]]
        if self._leaving:
            places = places[~columns.are_among(self._leaving)[places]]
        for pod, row in zip(columns.listed(places), columns.rows[places].tolist(), strict=True):
            of_domain = names.setdefault(self._domain(conflicts.term, row), {})
            of_domain[pod.name] = of_domain.get(pod.name, 0) + 1

    def _domain(self, term: Json, row: int) -> object:
        """Return the node's value of the topology key; of a node without it, the node itself."""
        value = ((self._snapshot.node(row).get("metadata") or {}).get("labels") or {}).get(term.get("topologyKey"))
        return row if value is None else str(value)


def make(args: Json, handle: object) -> RemovePodsViolatingInterPodAntiAffinity:  # noqa: ARG001 - as others
    """Make the plugin for one profile."""
    return RemovePodsViolatingInterPodAntiAffinity(PodSelection.of(args))
