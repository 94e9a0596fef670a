"""Matching of reservations to a pod, and the reasons of those that do not match (Koordinator's transformer.go)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.kubernetes.selectors import NO_EXECUTE, NO_SCHEDULE, matches_node, tolerates
from koordpolicy.engine.kubernetes.vocabulary import RESERVATION_AFFINITY_ANNOTATION, RESERVATION_IGNORED_LABEL
from koordpolicy.engine.scheduler.extensions.reservations import ReservationInfo

from ..allocation.annotations import annotations_of, json_object, labels_of

EXACT_MATCH: Final = "scheduling.koordinator.sh/exact-match-reservation"
_UNSCHEDULABLE: Final = {"key": "node.kubernetes.io/unschedulable", "effect": NO_SCHEDULE}

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReservationRequirement:
    """The annotations of a pod about the reservations that it may use."""

    affinity: Json | None = None
    """The reservation affinity; None where the pod has none, and may do without a reservation."""
    exact: tuple[str, ...] = ()
    """The resources in which a reservation must hold exactly what the pod requests."""
    ignored: bool = False
    """True if reserved resources are free for the pod, which then uses no reservation."""

    @property
    def name(self) -> str:
        """The one reservation that the pod names; empty for none."""
        return str((self.affinity or {}).get("name") or "")

    @staticmethod
    def of(pod: PodInfo) -> ReservationRequirement:
        """Read a pod's annotations.

        Raises:
            ValueError: one cannot be read; the message names it.
        """
        annotations = annotations_of(pod.object)
        affinity = json_object(annotations, RESERVATION_AFFINITY_ANNOTATION) \
            if annotations.get(RESERVATION_AFFINITY_ANNOTATION) else None
        exact = json_object(annotations, EXACT_MATCH).get("resourceNames") or () \
            if annotations.get(EXACT_MATCH) else ()
        if not isinstance(exact, (list, tuple)) or not all(isinstance(name, str) for name in exact):
            raise ValueError(f"annotation `{EXACT_MATCH}`: `resourceNames` must be a list of strings")
        return ReservationRequirement(
            affinity, tuple(exact), labels_of(pod.object).get(RESERVATION_IGNORED_LABEL) == "true",
        )


@dataclass(slots=True)
class Counts:
    """Counts of a node's reservations that matched the pod's owners, by the reason why they were not usable."""

    ignored: int = 0
    owner_matched: int = 0
    name_matched: int = 0
    name_unmatched: int = 0
    affinity_unmatched: int = 0
    unschedulable: int = 0
    not_exact: int = 0
    tainted: int = 0
    taints: dict[str, int] = field(default_factory=dict)
    """The number of reservations refused for each taint, written `{key: value}`."""

    @property
    def usable(self) -> int:
        """The number of usable reservations."""
        return self.owner_matched - (
            self.name_unmatched + self.affinity_unmatched + self.unschedulable + self.not_exact + self.tainted
        )


def matches(
    pod: PodInfo, requirement: ReservationRequirement, info: ReservationInfo, node: Json, counts: Counts, *,
    labels: bool,
) -> bool:
    """Return whether a pod that matches the owners may use a reservation; the reason why not is added to `counts`.

    `labels` says whether selectors see the node's labels under the reservation's.
    """
    counts.owner_matched += 1
    if requirement.name:
        if requirement.name != info.name:
            counts.name_unmatched += 1
            return False
        counts.name_matched += 1
        return _is_exact(pod, requirement, info, counts)
    affinity = requirement.affinity
    tolerations = (affinity or {}).get("tolerations") or ()
    if info.unschedulable and not any(tolerates(each, _UNSCHEDULABLE) for each in tolerations):
        counts.unschedulable += 1
        return False
    taint = None if affinity is None else _untolerated(info, tolerations)
    if taint is not None:
        counts.tainted += 1
        text = f"{{{taint.get('key') or ''}: {taint.get('value') or ''}}}"
        counts.taints[text] = counts.taints.get(text, 0) + 1
        return False
    if affinity is not None and not _is_selected(affinity, info, node, labels=labels):
        counts.affinity_unmatched += 1
        return False
    return _is_exact(pod, requirement, info, counts)


def _is_exact(pod: PodInfo, requirement: ReservationRequirement, info: ReservationInfo, counts: Counts) -> bool:
    if exactly(requirement.exact, pod.requests, info.allocatable):
        return True
    counts.not_exact += 1
    return False


def exactly(names: tuple[str, ...], requests: ResourceList, allocatable: ResourceList) -> bool:
    """Return whether both lists hold the same of these resources.

    As upstream, the first name that neither of them has ends the comparison, and they match.
    """
    for name in names:
        if name not in requests and name not in allocatable:
            return True
        if name not in requests or name not in allocatable or requests[name] != allocatable[name]:
            return False
    return True


def _untolerated(info: ReservationInfo, tolerations: Any) -> Json | None:
    for taint in info.taints:
        if taint.get("effect") in (NO_SCHEDULE, NO_EXECUTE) and not any(tolerates(each, taint) for each in tolerations):
            return taint
    return None


def _is_selected(affinity: Json, info: ReservationInfo, node: Json, *, labels: bool) -> bool:
    """Return whether selector and required terms take the reservation, as if it were a node with its labels."""
    own = labels_of(node) if labels else {}
    fake = {"metadata": {"name": info.name, "labels": {**own, **info.labels}}}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    spec: dict[str, Any] = {"nodeSelector": affinity.get("reservationSelector") or {}}
    if required is not None:
        terms = {"nodeSelectorTerms": required.get("reservationSelectorTerms") or ()}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return matches_node({"spec": spec}, fake)


def named_nodes(pod: PodInfo) -> frozenset[str] | None:
    """Return the nodes that a pod's required affinity names by `metadata.name`; None where it names none.

    An empty set means that its terms contradict each other.
    """
    affinity = ((pod.object.get("spec") or {}).get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    found: set[str] = set()
    for term in terms:
        names: set[str] | None = None
        for each in term.get("matchFields") or ():
            if each.get("key") == "metadata.name" and each.get("operator") == "In":
                values: set[str] = set(each.get("values") or ())
                names = values if names is None else names & values
        if names is None:
            return None
        found |= names
    return frozenset(found) if terms else None
