"""The reservations of nodes in the cycle state of one pod, for plugins that allocate single cpus and devices.

The reservations that a pod may use ("matched") are tried one at a time: the unused holding of the tried one is
free for the pod, those of the others are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, cast

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.kubernetes.vocabulary import RESERVATION_AFFINITY_ANNOTATION, RESERVATION_IGNORED_LABEL
from koordpolicy.plugin import CycleState, Handle, ReservationNominator

from ..allocation.annotations import annotations_of, json_object, labels_of

RESTRICTED: Final = "Restricted"
PRE_ALLOCATION_REQUIRED_LABEL: Final = "scheduling.koordinator.sh/pre-allocation-required"

_Allocation = TypeVar("_Allocation")


class Reserved(Protocol):
    """The part of a reservation that is used here (see `engine.scheduler.extensions.reservations.ReservationInfo`)."""

    @property
    def uid(self) -> str:
        """The reservation's uid."""
        ...

    @property
    def pod(self) -> PodInfo:
        """The reserve pod, or the pod that acts as the reservation."""
        ...

    @property
    def object(self) -> Mapping[str, Any]:
        """The Reservation, or the pod that acts as one."""
        ...

    @property
    def policy(self) -> str:
        """Empty, `Aligned` or `Restricted`."""
        ...

    @property
    def consumers(self) -> Mapping[str, PodInfo]:
        """The pods that use it, by key."""
        ...


@dataclass(frozen=True, slots=True)
class UsableReservations:
    """The reservations of one node: those that the pod may use, and those that it may not."""

    matched: tuple[Reserved, ...] = ()
    unmatched: tuple[Reserved, ...] = ()


@dataclass(slots=True)
class Restored:
    """Per node the reservations there, as the Reservation plugin found them for this pod; a key of the cycle state."""

    nodes: dict[str, UsableReservations] = field(default_factory=dict)

    def clone(self) -> Restored:
        """Return an independent copy."""
        return Restored(dict(self.nodes))


def note_restored(state: CycleState, matched: Sequence[Any], unmatched: Sequence[Any], node: str) -> None:
    """Store the reservations of a node; plugins share one copy."""
    restored = state.get(Restored)
    if not isinstance(restored, Restored):
        restored = state[Restored] = Restored()
    restored.nodes[node] = UsableReservations(tuple(matched), tuple(unmatched))


def restored_on(state: CycleState, node: str) -> UsableReservations:
    """Return the reservations of a node; none where none are stored."""
    restored = state.get(Restored)
    return restored.nodes.get(node, _NONE) if isinstance(restored, Restored) else _NONE


def anything_restored(state: CycleState) -> bool:
    """Return whether any node has reservations that affect the pod."""
    restored = state.get(Restored)
    return isinstance(restored, Restored) and bool(restored.nodes)


_NONE: Final = UsableReservations()


def needs_reservation(pod: PodInfo) -> bool:
    """Return whether the pod may only run in a reservation.

    Raises:
        ValueError: its reservation affinity is malformed.
    """
    if labels_of(pod.object).get(PRE_ALLOCATION_REQUIRED_LABEL) == "true":
        return True
    return bool(json_object(annotations_of(pod.object), RESERVATION_AFFINITY_ANNOTATION))


def ignores_reservations(pod: PodInfo) -> bool:
    """Return whether the pod may use reserved resources without a reservation."""
    return labels_of(pod.object).get(RESERVATION_IGNORED_LABEL) == "true"


def nominated_reservation(
    handle: Handle, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int,
) -> Reserved | None:
    """Return the reservation that the pod uses on the node, if any."""
    for peer in handle.peers(ReservationNominator):  # type: ignore[type-abstract]
        nominate = getattr(peer, "nominate", None)
        found = nominate(state, pod, snapshot, row) if callable(nominate) else None
        if found is not None and not isinstance(found, Refusal):
            return cast("Reserved", found)
    return None


def first_fitting(
    reservations: Sequence[Reserved], attempt: Callable[[Reserved], _Allocation | Refusal], *, required: bool,
) -> _Allocation | Refusal | None:
    """Return the result of the first reservation with room; None if the pod may use other resources."""
    reasons: list[str] = []
    for reservation in reservations:
        found = attempt(reservation)
        if not isinstance(found, Refusal):
            return found
        reasons.append(f"Reservation(s) {found.message}")
    return Refusal("reservation", ", ".join(reasons)) if required and reservations else None
