"""Topology spread constraints of pods, and their domains with the pods in them (Kubernetes' descheduler)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.pods import placement_key
from koordpolicy.engine.kubernetes.selectors import check_selector, matches_labels, matches_node, untolerated

Json = Mapping[str, Any]

_HONOR: Final = "Honor"
_IGNORE: Final = "Ignore"


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """A constraint with its defaults, of the first pod that has it."""

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

    def includes(self, node: Json) -> bool:
        """Return whether the policies of the constraint include the node."""
        if self.honors_affinity and not matches_node(self.pod.object, node):
            return False
        return not self.honors_taints or untolerated(self.pod.object, node) is None


def constraints_of(pods: Iterable[PodInfo], actions: Collection[str]) -> Iterator[SpreadConstraint]:
    """Yield the distinct constraints of pods with one of these `whenUnsatisfiable`; malformed ones are left out.

    Two are the same if they restrict the same pods to the same nodes.
    """
    seen: set[str] = set()
    for pod in pods:
        labels = pod.object["metadata"].get("labels") or {}
        for given in pod.object["spec"].get("topologySpreadConstraints") or ():
            if given.get("whenUnsatisfiable") not in actions:
                continue
            found = _constraint(pod, given, labels)
            if found is None:
                continue
            spec = pod.object["spec"]
            affinity = None
            if found.honors_affinity:
                affinity = spec.get("nodeSelector"), ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
                    "requiredDuringSchedulingIgnoredDuringExecution",
                )
            key = repr((
                found.max_skew, found.topology_key, found.selector, found.honors_affinity, affinity,
                found.honors_taints, spec.get("tolerations") if found.honors_taints else None,
            ))
            if key not in seen:
                seen.add(key)
                yield found


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
    """The nodes of one call by the values of one label."""

    domain_of: Mapping[str, str]
    """The domain by node name, without nodes that lack the label."""
    codes: NDArray[np.intp]
    """The place of each node's domain in `values`; -1 without one."""
    values: tuple[str, ...]


class Topologies:
    """The domains of the nodes at `rows`; found once per label, and once for pods with equal constraints."""

    def __init__(self, snapshot: Snapshot, rows: Sequence[int]) -> None:
        self._snapshot = snapshot
        self._rows = rows
        self._all = np.array(rows, dtype=np.intp)
        self._topologies: dict[str, NodeDomains] = {}
        self._included: dict[tuple[bool, bool, str], NDArray[np.bool_]] = {}

    def domains(self, constraint: SpreadConstraint, pods: Iterable[PodInfo]) -> dict[str, list[PodInfo]]:
        """Return the pods by domain: empty domains of nodes that the policies include, and all domains with a pod."""
        topology = self._topology(constraint.topology_key)
        codes = topology.codes[self._includes(constraint)]
        domains: dict[str, list[PodInfo]] = {
            topology.values[code]: [] for code in np.unique(codes[codes >= 0]).tolist()
        }
        for pod in pods:
            value = topology.domain_of.get(pod.node_name)
            if value is not None:
                domains.setdefault(value, []).append(pod)
        return domains

    def rows_of(self, constraint: SpreadConstraint, domains: Collection[str]) -> NDArray[np.intp]:
        """Return the rows of these domains that the policies include, in the order of the nodes."""
        topology = self._topology(constraint.topology_key)
        wanted = np.array([value in domains for value in topology.values] + [False], dtype=np.bool_)
        chosen: NDArray[np.intp] = self._all[wanted[topology.codes] & self._includes(constraint)]
        return chosen

    def _topology(self, key: str) -> NodeDomains:
        found = self._topologies.get(key)
        if found is None:
            places: dict[str, int] = {}
            codes, domain_of = [], {}
            for row in self._rows:
                value = (self._snapshot.node(row)["metadata"].get("labels") or {}).get(key)
                codes.append(-1 if value is None else places.setdefault(value, len(places)))
                if value is not None:
                    domain_of[self._snapshot.names[row]] = value
            found = NodeDomains(domain_of, np.array(codes, dtype=np.intp), tuple(places))
            self._topologies[key] = found
        return found

    def _includes(self, constraint: SpreadConstraint) -> NDArray[np.bool_]:
        honored = constraint.honors_affinity or constraint.honors_taints
        key = constraint.honors_affinity, constraint.honors_taints, placement_key(constraint.pod) if honored else ""
        found = self._included.get(key)
        if found is None:
            found = self._included[key] = np.array(
                [constraint.includes(self._snapshot.node(row)) for row in self._rows], dtype=np.bool_,
            )
        return found


class LabelledPods:
    """The pods of a namespace, found by the labels of a selector."""

    def __init__(self, pods: Sequence[PodInfo]) -> None:
        self._pods = pods
        self._by_label: dict[str, dict[str, list[PodInfo]]] = {}

    def counted(self, constraint: SpreadConstraint) -> Iterator[PodInfo]:
        """Yield the pods that the constraint counts: those that its selector takes and that do not terminate."""
        selector = constraint.selector or {}
        labels, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions")
        pods = self._pods
        if labels:
            key, value = next(iter(labels.items()))
            pods = self._having(key).get(value, [])
        exact = len(labels) == 1 and not expressions
        for pod in pods:
            metadata = pod.object["metadata"]
            if metadata.get("deletionTimestamp") is None and (
                exact or constraint.takes(metadata.get("labels") or {})
            ):
                yield pod

    def _having(self, key: str) -> Mapping[str, list[PodInfo]]:
        found = self._by_label.get(key)
        if found is None:
            found = self._by_label[key] = {}
            for pod in self._pods:
                value = (pod.object["metadata"].get("labels") or {}).get(key)
                if value is not None:
                    found.setdefault(value, []).append(pod)
        return found


def is_balanced(domains: Mapping[str, Sequence[PodInfo]], max_skew: int) -> bool:
    """Return whether no two domains differ by more pods than `max_skew`."""
    sizes = [len(pods) for pods in domains.values()]
    return not sizes or max(sizes) - min(sizes) <= max_skew


def sort_pods(pods: Iterable[PodInfo], is_evictable: Callable[[PodInfo], bool]) -> list[PodInfo]:
    """Return a domain's pods, the last of which go first.

    Pods that may not be evicted, then those with a node selector or node affinity, then the others; each by ascending
    priority, so that among equal pods those of the highest priority go first, as in Kubernetes' descheduler.
    """
    return sorted(pods, key=lambda pod: _rank(pod, is_evictable))


def _rank(pod: PodInfo, is_evictable: Callable[[PodInfo], bool]) -> tuple[int, float]:
    if not is_evictable(pod):
        return 0, 0
    spec = pod.object["spec"]
    priority = spec.get("priority")
    bound = spec.get("nodeSelector") is not None or (spec.get("affinity") or {}).get("nodeAffinity") is not None
    return 1 if bound else 2, -math.inf if priority is None else priority


def moves(
    domains: list[list[PodInfo]], max_skew: int, fits: Callable[[PodInfo], bool],
) -> Iterator[PodInfo]:
    """Yield the pods to move from large domains to small ones; `domains` are changed as if they were moved.

    `domains` are sorted by size. Pods that `fits` says fit on a node of a small domain are moved first.
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
