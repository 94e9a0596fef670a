"""Topology spread constraints of pods, and their domains with the pods in them (Kubernetes' descheduler)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
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


def domains_of(
    constraint: SpreadConstraint, snapshot: Snapshot, rows: Sequence[int], pods: Iterable[PodInfo],
) -> dict[str, list[PodInfo]]:
    """Return the pods that count, by domain: empty domains of included nodes, and all domains with a pod."""
    domains: dict[str, list[PodInfo]] = {}
    domain_of: dict[str, str] = {}
    for row in rows:
        node = snapshot.node(row)
        value = (node["metadata"].get("labels") or {}).get(constraint.topology_key)
        if value is not None:
            domain_of[snapshot.names[row]] = value
            if value not in domains and constraint.includes(node):
                domains[value] = []
    for pod in pods:
        metadata = pod.object["metadata"]
        value = domain_of.get(pod.node_name)
        if value is None or metadata.get("deletionTimestamp") is not None:
            continue
        if constraint.takes(metadata.get("labels") or {}):
            domains.setdefault(value, []).append(pod)
    return domains


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
