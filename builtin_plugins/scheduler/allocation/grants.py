"""Grants: resources reserved for pods whose annotations do not record them yet, and claims of reservations.

DeviceShare stores grants of devices, NodeNUMAResource of cpus and of resources of NUMA nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.scheduler.extensions.reservations import is_reserve_pod
from koordpolicy.plugin import CycleState, Event

from ..reservation.holdings import Reserved, restored_on
from .annotations import annotations_of

_Held = TypeVar("_Held")
_Held_co = TypeVar("_Held_co", covariant=True)


class Granted(Protocol[_Held_co]):
    """A grant: what was reserved for a pod on a node until its annotations record it."""

    @property
    def uid(self) -> str:
        """The pod's UID."""
        ...

    @property
    def node(self) -> str:
        """The node's name."""
        ...

    @property
    def held(self) -> _Held_co:
        """The resources that the pod holds on the node; false if there are none."""
        ...


_Grant = TypeVar("_Grant", bound=Granted[Any])


@dataclass(frozen=True, slots=True)
class ReservationClaim(Generic[_Held]):
    """The resources that a reservation and its consumers hold: the key of the holding pod, and the consumers' keys."""

    holder: str
    held: _Held
    consumers: Collection[str] = ()


class Grants(Generic[_Grant, _Held]):
    """The grants of one plugin by pod.

    `read` parses the recorded annotations, and raises `ValueError` for malformed ones, which count as empty. `of_pod`
    adds other facts about the pod to a holding; `nothing` is the empty holding. `changed` is called with the name of a
    node when a grant is added or removed there.
    """

    def __init__(
        self, read: Callable[[Mapping[str, Any]], _Held], of_pod: Callable[[_Held, PodInfo], _Held], nothing: _Held,
        changed: Callable[[str], None],
    ) -> None:
        self._read = read
        self._of_pod = of_pod
        self._nothing = nothing
        self._changed = changed
        self._by_pod: dict[str, _Grant] = {}

    def __len__(self) -> int:
        """The number of pods."""
        return len(self._by_pod)

    def of(self, pod: PodInfo) -> _Grant | None:
        """Return the grant of a pod, or of another pod of its name."""
        return self._by_pod.get(pod.key)

    def give(self, pod: PodInfo, grant: _Grant) -> None:
        """Store a pod's grant."""
        self._by_pod[pod.key] = grant
        self._changed(grant.node)

    def take_back(self, pod: PodInfo) -> None:
        """Remove the grant of a pod; the grant of a newer pod of the same name stays."""
        grant = self._by_pod.get(pod.key)
        if grant is not None and grant.uid == pod.uid:
            del self._by_pod[pod.key]
            self._changed(grant.node)

    def note(self, event: Event) -> None:
        """Remove the grant of a deleted pod."""
        if event.new is None and not event.assumed and event.old_pod is not None:
            self.take_back(event.old_pod)

    def recorded(self, item: Mapping[str, Any]) -> _Held:
        """Return the holding in the annotations of a pod or a reservation; a malformed one counts as empty."""
        try:
            return self._read(annotations_of(item))
        except ValueError:
            return self._nothing

    def held_on(
        self, node: str, pods: Iterable[PodInfo],
    ) -> tuple[dict[str, _Held], dict[str, ReservationClaim[_Held]]]:
        """Return the holdings of the pods on a node, by key, and the claims of its reserve pods, by uid.

        The grant of a pod counts if its annotations record nothing yet.
        """
        held: dict[str, _Held] = {}
        claims: dict[str, ReservationClaim[_Held]] = {}
        for pod in pods:
            own = self.recorded(pod.object)
            if own:
                own = self._of_pod(own, pod)
            else:
                grant = self._by_pod.get(pod.key)
                if grant is None or (grant.uid, grant.node) != (pod.uid, node):
                    continue
                own = grant.held
            if own and is_reserve_pod(pod):
                claims[pod.uid] = ReservationClaim(pod.key, own)
            elif own:
                held[pod.key] = own
        return held, claims

    def claims(self, state: CycleState, node: str) -> dict[str, ReservationClaim[_Held]]:
        """Return the claims of reservations on a node whose reserve pods the snapshot does not contain, by uid."""
        here = restored_on(state, node)
        return {each.uid: ReservationClaim(each.pod.key, self._of_reservation(each), each.consumers)
                for each in (*here.matched, *here.unmatched)}

    def _of_reservation(self, reservation: Reserved) -> _Held:
        """Return the holding of a reservation and its pods: as annotated, else as granted."""
        recorded = self.recorded(reservation.object)
        if recorded:
            return recorded
        grants = (each.held for each in self._by_pod.values() if each.uid == reservation.uid)
        return next(grants, self._nothing)
