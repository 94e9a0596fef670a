"""Topology spread constraints of pods, and their domains with the pods in them (Kubernetes' descheduler)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.admission import NodeAdmission
from koordpolicy.engine.descheduler.pod_columns import PodColumns, Positions
from koordpolicy.engine.descheduler.templates import PodTemplate, fact_of
from koordpolicy.engine.kubernetes.selectors import check_selector, matches_labels

Json = Mapping[str, Any]

_HONOR: Final = "Honor"
_IGNORE: Final = "Ignore"


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """A constraint with its defaults, and the first pod that has it."""

    max_skew: int
    topology_key: str
    selector: Json | None
    """The selector with the pod's values of `matchLabelKeys`; None matches no pod."""
    honors_affinity: bool
    honors_taints: bool
    pod: PodInfo

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Return whether a pod with those labels counts."""
        return matches_labels(self.selector, labels, absent=False)


def constraints_of(templates: Iterable[PodTemplate], actions: Collection[str]) -> Iterator[SpreadConstraint]:
    """Yield the distinct, well-formed constraints of these templates whose `whenUnsatisfiable` is among `actions`.

    Two are the same if they restrict the same pods to the same nodes.
    """
    seen: set[str] = set()
    for template in templates:
        for when, found, key in fact_of(template.pod, _constraints):
            if when in actions and key not in seen:
                seen.add(key)
                yield found


def _constraints(pod: PodInfo) -> list[tuple[str, SpreadConstraint, str]]:
    """Return the constraints of a pod with their `whenUnsatisfiable` and identity."""
    labels, spec = pod.object["metadata"].get("labels") or {}, pod.object["spec"]
    constraints = []
    for given in spec.get("topologySpreadConstraints") or ():
        found = _constraint(pod, given, labels)
        if found is None:
            continue
        affinity = None
        if found.honors_affinity:
            affinity = spec.get("nodeSelector"), ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
                "requiredDuringSchedulingIgnoredDuringExecution",
            )
        key = repr((
            found.max_skew, found.topology_key, found.selector, found.honors_affinity, affinity,
            found.honors_taints, spec.get("tolerations") if found.honors_taints else None,
        ))
        constraints.append((given.get("whenUnsatisfiable"), found, key))
    return constraints


def _constraint(pod: PodInfo, given: Json, labels: Mapping[str, str]) -> SpreadConstraint | None:
    try:
        selector = _with_own_values(given.get("labelSelector"), given.get("matchLabelKeys") or (), labels)
        check_selector(selector)
        return SpreadConstraint(
            int(given["maxSkew"]), str(given["topologyKey"]), selector,
            (given.get("nodeAffinityPolicy") or _HONOR) == _HONOR, (given.get("nodeTaintsPolicy") or _IGNORE) == _HONOR,
            pod,
        )
    except (KeyError, TypeError, ValueError):
        return None


def _with_own_values(selector: Json | None, keys: Sequence[str], labels: Mapping[str, str]) -> Json | None:
    own = [{"key": key, "operator": "In", "values": [labels[key]]} for key in keys if key in labels]
    if selector is None or not own:
        return selector
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *own]}


@dataclass(frozen=True, slots=True)
class NodeDomains:
    """The nodes of one call, grouped by the value of one label."""

    codes: NDArray[np.intp]
    """By row, the index of the node's domain in `values`; -1 for nodes without the label, and outside of the call."""
    values: tuple[str, ...]


class Topologies:
    """The domains of the nodes at `rows`, computed once per label."""

    def __init__(self, snapshot: Snapshot, rows: Rows) -> None:
        self._snapshot = snapshot
        self._rows = rows
        self._columns = PodColumns.of(snapshot)
        self._topologies: dict[str, NodeDomains] = {}

    def domains(self, constraint: SpreadConstraint, places: Positions) -> PodsByDomain:
        """Return the pods at these places by domain.

        An empty domain is included if `nodeAffinityPolicy` and `nodeTaintsPolicy` of the constraint include one of its
        nodes.
        """
        topology = self._topology(constraint.topology_key)
        codes = topology.codes[self._rows[self._includes(constraint)]]
        of_pods = topology.codes[self._columns.rows[places]]
        inside = of_pods >= 0
        return PodsByDomain(topology.values, np.unique(codes[codes >= 0]), places[inside], of_pods[inside])

    def rows_of(self, constraint: SpreadConstraint, domains: Collection[str]) -> NDArray[np.intp]:
        """Return the rows of these domains that the constraint's node policies include, in the order of the nodes."""
        topology = self._topology(constraint.topology_key)
        included = np.array([value in domains for value in topology.values] + [False], dtype=np.bool_)
        chosen: NDArray[np.intp] = self._rows[included[topology.codes[self._rows]] & self._includes(constraint)]
        return chosen

    def _topology(self, key: str) -> NodeDomains:
        found = self._topologies.get(key)
        if found is None:
            places: dict[str, int] = {}
            codes = np.full(self._snapshot.size, -1, np.intp)
            for row in self._rows.tolist():
                value = (self._snapshot.node(row)["metadata"].get("labels") or {}).get(key)
                if value is not None:
                    codes[row] = places.setdefault(value, len(places))
            found = self._topologies[key] = NodeDomains(codes, tuple(places))
        return found

    def _includes(self, constraint: SpreadConstraint) -> NDArray[np.bool_]:
        """Return for each of the rows whether the node policies of the constraint include its node."""
        admission, snapshot = NodeAdmission.of(self._snapshot), self._snapshot
        found = np.ones(snapshot.size, np.bool_)
        if constraint.honors_affinity:
            found &= admission.selected(constraint.pod, snapshot)
        if constraint.honors_taints:
            found &= admission.tolerated(constraint.pod, snapshot)
        return found[self._rows]


@dataclass(frozen=True, slots=True)
class PodsByDomain:
    """The pods that a constraint counts, by domain."""

    values: Sequence[str]
    included: NDArray[np.intp]
    """The domains that count even without pods, as ascending indices of `values`."""
    places: Positions
    """The pods in a domain, in the order of nodes."""
    codes: NDArray[np.intp]
    """The domain of each pod."""

    def is_balanced(self, max_skew: int) -> bool:
        """Return whether no two domains differ by more than `max_skew` pods."""
        sizes = np.bincount(self.codes, minlength=len(self.values))
        sizes = sizes[np.union1d(self.included, np.flatnonzero(sizes))]
        return not len(sizes) or int(sizes.max()) - int(sizes.min()) <= max_skew

    def pods(self, columns: PodColumns) -> dict[str, list[PodInfo]]:
        """Return the pods of each domain by its value."""
        included: list[int] = self.included.tolist()
        codes: list[int] = self.codes.tolist()
        found: dict[str, list[PodInfo]] = {self.values[code]: [] for code in included}
        for pod, code in zip(columns.listed(self.places), codes, strict=True):
            found.setdefault(self.values[code], []).append(pod)
        return found


def sort_pods(pods: Iterable[PodInfo], is_evictable: Callable[[PodInfo], bool]) -> list[PodInfo]:
    """Return a domain's pods in the reverse order of eviction: the last one leaves first.

    Pods that must not be evicted come first, then pods with a node selector or node affinity, then the others. In each
    group the priority ascends: the pod of the highest priority leaves first, as in Kubernetes' descheduler.
    """
    return sorted(pods, key=lambda pod: fact_of(pod, _rank) if is_evictable(pod) else (0, 0))


def _rank(pod: PodInfo) -> tuple[int, float]:
    spec = pod.object["spec"]
    priority = spec.get("priority")
    bound = spec.get("nodeSelector") is not None or (spec.get("affinity") or {}).get("nodeAffinity") is not None
    return 1 if bound else 2, -math.inf if priority is None else priority


def moves(
    domains: list[list[PodInfo]], max_skew: int, fits: Callable[[PodInfo], bool],
) -> Iterator[PodInfo]:
    """Yield the pods to move from large domains to small ones; `domains` is updated as if they had moved.

    `domains` is sorted by size. Pods that fit on a node of a small domain, by `fits`, move first.
    """
    average = sum(map(len, domains)) / len(domains) if domains else 0.0
    low, high = 0, len(domains) - 1
    while low < high:
        if len(domains[high]) <= average:
            high -= 1
        skew = len(domains[high]) - len(domains[low])
        if skew <= max_skew:
            low += 1
            continue
        count = min(
            math.ceil(len(domains[high]) - average), math.ceil(average - len(domains[low])),
            math.ceil((skew - max_skew) / 2),
        )
        if count <= 0:
            low += 1
            continue
        domains[high].sort(key=fits)
        moved = domains[high][-count:]
        yield from moved
        del domains[high][-count:]
        domains[low].extend(moved)
