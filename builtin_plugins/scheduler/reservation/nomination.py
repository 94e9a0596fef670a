"""Nomination: the reservation that a pod uses on a node, and the running pods that a Reservation pre-allocates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Code, Refusal
from koordpolicy.engine.scheduler.extensions.reservations import ReservationInfo, is_reserve_pod
from koordpolicy.plugin import CycleState, Handle, ReservationScore

from .cache import ReservationCache
from .filtering import ReservationFiltering
from .matching import ReservationRequirement
from .pre_allocation import PreAllocation, PreAllocationChoice
from .refusals import refused_for
from .state import ReservationState

TAKEN: Final = "reservation has allocateOnce enabled and has already been allocated"


class ReservationNominations:
    """The nominations of pods by node name, until a pod is placed or fails."""

    def __init__(self, handle: Handle, cache: ReservationCache, filtering: ReservationFiltering) -> None:
        self._handle = handle
        self._cache = cache
        self._filtering = filtering
        self._reservations: dict[str, dict[str, str]] = {}
        self._pods: dict[str, dict[str, PreAllocationChoice]] = {}

    def reservations_of(self, pod: PodInfo) -> Mapping[str, str]:
        """Return the uids of the reservations nominated for a pod, by node."""
        return self._reservations.get(pod.key, {})

    def pods_of(self, pod: PodInfo) -> Mapping[str, PreAllocationChoice]:
        """Return the pods to pre-allocate for a reserve pod, by node."""
        return self._pods.get(pod.key, {})

    def nominate_reservation(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Nominate the reservation that the pod uses on the node; a pod that requires none may get none."""
        found: ReservationState | None = state.get(ReservationState)
        if found is None:
            return None
        if is_reserve_pod(pod):
            return self.nominate_pods(found, pod, snapshot, row)
        chosen = self.nominate(state, pod, snapshot, row)
        if isinstance(chosen, Refusal):
            return chosen
        names = self._reservations.setdefault(pod.key, {})
        if chosen is None:
            names.pop(snapshot.names[row], None)
        else:
            names[snapshot.names[row]] = chosen.uid
        return None

    def nominate(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int,
    ) -> ReservationInfo | Refusal | None:
        """Return the best reservation for the pod on a node, or None; a refusal is an error of a scorer."""
        found: ReservationState | None = state.get(ReservationState)
        if found is None or found.requirement.ignored:
            return None
        matched = found.of(snapshot, row).matched
        if not matched:
            return None
        if len(matched) == 1 and found.requirement.affinity is not None:
            return matched[0]
        # The reservation in use comes first: this is called after Reserve too.
        for known in (self._cache.uses(pod), self._reservations.get(pod.key, {}).get(snapshot.names[row])):
            for info in matched:
                if info.uid == known:
                    return info
        fitting = [info for info in matched if self.filter_nominated(state, pod, info, snapshot, row) is None]
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        ordered = [info for info in fitting if info.order > 0]
        if ordered:
            return min(ordered, key=lambda info: info.order)
        totals: dict[str, int] = {}
        for info in fitting:
            for peer in self._handle.peers(ReservationScore):  # type: ignore[type-abstract]
                points = peer.score_reservation(state, pod, info, snapshot, row)
                if not 0 <= points <= HIGHEST_SCORE:
                    message = f"the score {points} of reservation `{info.name}` is outside 0..{HIGHEST_SCORE}"
                    return Refusal("score", message, Code.ERROR)
                totals[info.uid] = totals.get(info.uid, 0) + points
        return max(fitting, key=lambda info: totals.get(info.uid, 0))

    def filter_nominated(
        self, state: CycleState, pod: PodInfo, info: ReservationInfo, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        """Return why the pod may not use this reservation on the node."""
        if info.allocate_once and (info.consumers or info.is_taken):
            return refused_for((TAKEN,))
        found: ReservationState = state.get(ReservationState) or ReservationState(ReservationRequirement())
        short, reasons = self._filtering.fits(state, found, pod, snapshot, row, info)
        names = tuple(f"Insufficient {name} by node" for name in sorted(short))
        return refused_for((*names, *reasons)) if names or reasons else None

    def nominate_pods(self, found: ReservationState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Choose the pods that the Reservation of a reserve pod pre-allocates on the node."""
        pre_allocation = PreAllocation.of(found.reservation) if found.reservation is not None else None
        if pre_allocation is None:
            return None
        choice = self._filtering.choose_pods(found, pre_allocation, snapshot, row)
        if not isinstance(choice, PreAllocationChoice):
            return refused_for(choice)
        self._pods.setdefault(pod.key, {})[snapshot.names[row]] = choice
        return None

    def forget(self, pod: PodInfo) -> None:
        """Remove the nominations of the pod."""
        self._reservations.pop(pod.key, None)
        self._pods.pop(pod.key, None)
