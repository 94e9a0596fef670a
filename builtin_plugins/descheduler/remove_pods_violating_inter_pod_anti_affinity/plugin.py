"""RemovePodsViolatingInterPodAntiAffinity (Kubernetes' descheduler): evicts pods beside pods that they avoid.

Only required terms count, and only the pod that declares a term is evicted. As upstream, `namespaceSelector` and
`matchLabelKeys` of terms are ignored, and so are other pods of the same name, whatever their namespace.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.plugin_args import PodSelection
from koordpolicy.engine.descheduler.pods import annotations_of, labels_of
from koordpolicy.engine.descheduler.row_facts import facts_by_row
from koordpolicy.engine.kubernetes.selectors import matches_labels
from koordpolicy.plugin import Evictor

from .args import check_args

__all__ = ["RemovePodsViolatingInterPodAntiAffinity", "check_args", "make"]

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFER_NO_EVICTION: Final = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
_QOS: Final = {"BestEffort": 1, "Burstable": 2, "Guaranteed": 3}

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
        carriers = facts_by_row(snapshot, "anti-affinity", _with_terms)
        found = {
            row: [(pod, terms) for pod, terms in carriers[row] if self._selection.takes(pod)]
            for row in rows.tolist() if carriers[row]
        }
        if not found:
            return
        beside = _Beside(snapshot, rows, self._selection, evictor)
        for row, of_row in found.items():
            for pod, terms in sorted(of_row, key=lambda each: _order(each[0])):
                term = beside.violated(pod, terms, row)
                if term is None or evictor.is_leaving(pod):
                    continue
                if evictor.filter(pod) is not None or evictor.pre_eviction_filter(pod) is not None:
                    continue
                if evictor.evict(pod, f"it avoids a pod that has the same {term.get('topologyKey')}"):
                    beside.remove(pod, row)


def _with_terms(pods: tuple[PodInfo, ...]) -> tuple[tuple[PodInfo, Sequence[Json]], ...]:
    return tuple((pod, terms) for pod in pods if (terms := _terms(pod)))


def _terms(pod: PodInfo) -> Sequence[Json]:
    affinity = (pod.object.get("spec") or {}).get("affinity")
    anti = affinity.get("podAntiAffinity") if affinity else None
    found: Sequence[Json] = (anti.get(_REQUIRED) or ()) if anti else ()
    return found


def _order(pod: PodInfo) -> tuple[Any, ...]:
    """Return the sort key of Kubernetes' descheduler: no priority first, then from low to high."""
    priority = (pod.object.get("spec") or {}).get("priority")
    pinned = _PREFER_NO_EVICTION in annotations_of(pod)
    return priority is not None, priority or 0, _QOS.get(pod.kubernetes_qos, 0), pinned


_Labels: TypeAlias = tuple[tuple[str, str], ...]


def _by_labels(pods: tuple[PodInfo, ...]) -> tuple[tuple[str, _Labels, PodInfo], ...]:
    return tuple((pod.namespace, tuple(labels_of(pod).items()), pod) for pod in pods)


class _Beside:
    """The selected active pods by term and by domain of its topology key."""

    def __init__(self, snapshot: Snapshot, rows: Rows, selection: PodSelection, evictor: Evictor) -> None:
        self._snapshot = snapshot
        self._selection = selection
        self._evictor = evictor
        # Pods of a controller have the same labels, so that a term is compared with few of them.
        self._pods: dict[str, dict[_Labels, list[tuple[PodInfo, int]]]] = {}
        of_rows = facts_by_row(snapshot, "labels", _by_labels)
        for row in rows.tolist():
            for namespace, labels, pod in of_rows[row]:
                self._pods.setdefault(namespace, {}).setdefault(labels, []).append((pod, row))
        self._names: dict[str, tuple[Json, frozenset[str], dict[object, Counter[str]]]] = {}
        """Per term its namespaces, and per domain how many matching pods have each name."""

    def violated(self, pod: PodInfo, terms: Sequence[Json], row: int) -> Json | None:
        """Return the first term of which a pod of another name is in the pod's domain, or None."""
        for term in terms:
            names = self._of(term, pod.namespace).get(self._domain(term, row))
            if names and (len(names) > 1 or pod.name not in names):
                return term
        return None

    def remove(self, pod: PodInfo, row: int) -> None:
        """Forget an evicted pod, so that it is a conflict no more."""
        for term, namespaces, domains in self._names.values():
            names = domains.get(self._domain(term, row))
            if names and pod.namespace in namespaces and _is_meant(term, pod) and names[pod.name]:
                names[pod.name] -= 1
                if not names[pod.name]:
                    del names[pod.name]

    def _of(self, term: Json, namespace: str) -> Mapping[object, Counter[str]]:
        namespaces = frozenset(term.get("namespaces") or (namespace,))
        key = json.dumps((term, sorted(namespaces)))
        known = self._names.get(key)
        if known is None:
            domains: dict[object, Counter[str]] = {}
            for each in namespaces:
                for alike in self._pods.get(each, {}).values():
                    first = alike[0][0]
                    if _is_meant(term, first) and self._selection.takes(first):
                        for pod, row in alike:
                            if not self._evictor.is_leaving(pod):
                                domains.setdefault(self._domain(term, row), Counter())[pod.name] += 1
            known = self._names[key] = term, namespaces, domains
        return known[2]

    def _domain(self, term: Json, row: int) -> object:
        """Return the node's value of the topology key; of a node without it, the node itself."""
        value = ((self._snapshot.node(row).get("metadata") or {}).get("labels") or {}).get(term.get("topologyKey"))
        return row if value is None else str(value)


def _is_meant(term: Json, pod: PodInfo) -> bool:
    return matches_labels(term.get("labelSelector"), labels_of(pod), absent=False)


def make(args: Json, handle: object) -> RemovePodsViolatingInterPodAntiAffinity:  # noqa: ARG001 - as others
    """Make the plugin for one profile."""
    return RemovePodsViolatingInterPodAntiAffinity(PodSelection.of(args))
