"""Reservation: pods use the resources reserved for them, which are in use for all others.

The behaviour is Koordinator's (pkg/scheduler/plugins/reservation). A pod that may use reservations is scheduled on a
snapshot in which these are free, so that all other plugins need no change; the reservation is nominated per node. A
pod that may use none costs a lookup of the distinct owners.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Refusal, Scores
from koordpolicy.engine.kubernetes.vocabulary import (
    PREEMPTIBLE_LABEL,
    RESERVATION_AFFINITY_ANNOTATION,
    RESERVATION_ALLOCATED_ANNOTATION,
)
from koordpolicy.engine.scheduler.extensions.reservations import (
    ReservationInfo,
    is_reserve_pod,
    reservation_of,
    written,
)
from koordpolicy.plugin import (
    SKIP,
    Changed,
    CycleState,
    Deferred,
    Event,
    Handle,
    Nomination,
    OnlyNodes,
    Refused,
    Skip,
)

from ..allocation.annotations import (
    annotations_of,
    labels_of,
    write_annotation,
)
from ..kubernetes.default_preemption import make_room
from .args import check_args, convert, default_args, ignored_args
from .binding import bind_reserve_pod, record_in_pods
from .cache import ReservationCache
from .controller import ReservationStatus
from .diagnosis import event_message, reasons
from .filtering import NO_AFFINITY, ReservationFiltering
from .fit import score
from .matching import Counts, ReservationRequirement
from .nomination import ReservationNominations
from .pre_allocation import PreAllocationChoice
from .pre_filter import ReservationPreFilter
from .refusals import reasons_of, refused_for
from .scoring import ReservationScoring
from .state import ReservationState
from .status import with_conditions


class Reservation:
    """The plugin at all of its extension points; arguments: see docs/plugins/reservation.md."""

    name = "Reservation"
    sends_annotations = True  # it binds reserve pods only
    check_args = staticmethod(check_args)
    ignored_args = staticmethod(ignored_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._args = convert(default_args(args))
        self._handle = handle
        self.cache = ReservationCache()
        self._pre_filter = ReservationPreFilter(self._args, handle, self.cache)
        self._filtering = ReservationFiltering(self._args, handle, self.cache)
        self._nominations = ReservationNominations(handle, self.cache, self._filtering)
        self._scoring = ReservationScoring(self.cache, self._nominations)
        handle.events.on(("Reservation", "Pod"), self._on_event)

    def _on_event(self, event: Event) -> None:
        self.cache.on_event(event)
        if event.kind == "Pod" and event.new is None and event.old_pod is not None:
            self.forget_nomination(event.old_pod)

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether an event may let a refused pod find a place.

        That is a reservation, a node or the pod itself that changed, or another pod that left.
        """
        if event.kind == "Pod":
            return (event.key == pod.key and event.old != event.new) or _pod_left(event)
        return event.kind in ("Reservation", "Node") and event.new is not None

    # Scheduling cycle

    def before_pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Changed | Refusal | None:
        """Return the snapshot in which the resources of the reservations that the pod may use are free."""
        return self._pre_filter.before_pre_filter(state, pod, snapshot)

    def pre_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot,
    ) -> Refusal | OnlyNodes | Skip | None:
        """Refuse invalid requests, and return the only nodes with reservations that the pod requires."""
        return self._pre_filter.pre_filter(state, pod, snapshot)

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes on which no reservation fits nor, where the pod requires none, the free resources."""
        return self._filtering.filter(state, pod, snapshot, rows)

    def post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, refused: Refused,
    ) -> Nomination | Refusal | None:
        """Preempt, where enabled; else report the reasons of the reservations."""
        if self._args.preempts:
            return make_room(
                pod, snapshot, refused, may_take=lambda victim: _may_take(pod, victim),
                percentage=self._args.candidates_percentage, absolute=self._args.candidates_absolute,
            )
        found: ReservationState | None = state.get(ReservationState)
        if found is None or is_reserve_pod(pod):
            return None
        by_node = _reasons_by_node(found, snapshot, refused)
        all_reasons = self.post_filter_reasons(found.counts, by_node, found.requirement)
        return refused_for(all_reasons) if all_reasons else None

    @staticmethod
    def post_filter_reasons(
        counts: Mapping[str, Counts], node_reasons: Mapping[str, Iterable[str]], requirement: ReservationRequirement,
    ) -> tuple[str, ...]:
        """Return the reasons why the reservations of all nodes were not usable."""
        return tuple(reasons(counts, node_reasons, has_affinity=requirement.affinity is not None))

    # Nomination

    def nominate_reservation(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Nominate the reservation that the pod uses on the node; a pod that requires none may get none."""
        return self._nominations.nominate_reservation(state, pod, snapshot, row)

    def nominate(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int,
    ) -> ReservationInfo | Refusal | None:
        """Return the best reservation for the pod on a node, or None; a refusal is an error of a scorer."""
        return self._nominations.nominate(state, pod, snapshot, row)

    def filter_nominated(
        self, state: CycleState, pod: PodInfo, info: ReservationInfo, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        """Return why the pod may not use this reservation on the node."""
        return self._nominations.filter_nominated(state, pod, info, snapshot, row)

    def score_reservation(
        self, state: CycleState, pod: PodInfo, reservation: ReservationInfo, snapshot: Snapshot, row: int,
    ) -> int:
        """Return the utilization of the reservation with the pod, 0 to 100."""
        return score(pod.requests, reservation.allocated(snapshot.row(row)), reservation.allocatable)

    def forget_nomination(self, pod: PodInfo) -> None:
        """Remove the nominations of the pod."""
        self._nominations.forget(pod)

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Refusal | Skip | None:
        """Nominate a reservation per node; skip pods without reservations."""
        return self._scoring.pre_score(state, pod, snapshot, rows)

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer nodes with a nominated reservation: the one of the lowest order, then by utilization."""
        return self._scoring.score(state, pod, snapshot, rows)

    def raw_scores(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> dict[int, int]:
        """Return the scores by row before they are normalized; missing rows have 0."""
        return self._scoring.raw_scores(state, pod, snapshot, rows)

    # Reserve and bind

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Assume the pod as a consumer of its nominated reservation."""
        found: ReservationState | None = state.get(ReservationState)
        if found is None:
            return None
        node = snapshot.names[row]
        if is_reserve_pod(pod):
            if node not in self._nominations.pods_of(pod):
                refusal = self._nominations.nominate_pods(found, pod, snapshot, row)
                if refusal is not None:
                    return refusal
            choice = self._nominations.pods_of(pod).get(node, PreAllocationChoice())
            for taken in choice.pods:
                self.cache.assume(taken, pod.uid)
            state[PreAllocationChoice] = choice
            return None
        if found.requirement.ignored:
            return None
        chosen = self.nominate(state, pod, snapshot, row)
        if isinstance(chosen, Refusal):
            return chosen
        if chosen is not None:
            self.cache.assume(pod, chosen.uid)
        elif found.requirement.affinity is not None:
            return Refusal("affinity", NO_AFFINITY)
        return None

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Undo `reserve`, and remove the annotation from the pod's object if the pod is not bound."""
        self._release(state.get(PreAllocationChoice, PreAllocationChoice()).pods if is_reserve_pod(pod) else (pod,))
        state.pop(PreAllocationChoice, None)
        item = self._handle.snapshot().object("Pod", pod.key)
        if item is None or is_reserve_pod(pod) or (item.get("spec") or {}).get("nodeName"):
            return
        annotations = annotations_of(item)
        if RESERVATION_ALLOCATED_ANNOTATION in annotations:
            others = {key: value for key, value in annotations.items() if key != RESERVATION_ALLOCATED_ANNOTATION}
            try:
                self._handle.client.patch(item, {**item, "metadata": {**item["metadata"], "annotations": others}})
            except OSError as error:
                self._handle.log.warning("the reservation of pod `%s` was not taken back: %s", pod.key, error)

    def forget_pod(self, pod: PodInfo) -> None:
        """Release the reservation of a pod, and its nominations."""
        self._release((pod,))
        self.forget_nomination(pod)

    def _release(self, pods: Iterable[PodInfo]) -> None:
        for each in pods:
            self.cache.forget(each)

    def pre_bind_pre_flight(self, state: CycleState, pod: PodInfo, node: str) -> bool:
        """Return whether the pod uses a reservation."""
        return not is_reserve_pod(pod) and self.cache.used_by(pod) is not None

    def pre_bind(self, state: CycleState, pod: PodInfo, draft: dict[str, Any], node: str) -> Refusal | None:
        """Record the reservation in the pod's annotations."""
        info = None if is_reserve_pod(pod) else self.cache.used_by(pod)
        if info is not None:
            write_annotation(draft, RESERVATION_ALLOCATED_ANNOTATION, {"name": info.name, "uid": info.uid})
        return None

    def pre_bind_reservation(
        self, state: CycleState, reservation: dict[str, Any], node: str,
    ) -> Deferred | None:
        """Record the Reservation in the annotations of the pods that it pre-allocates."""
        return record_in_pods(self._handle, state, reservation)

    def bind(self, state: CycleState, pod: PodInfo, node: str) -> Refusal | Skip | Deferred:
        """Make the Reservation of a reserve pod available on its node; skip other pods."""
        return bind_reserve_pod(self._handle, pod, node) if is_reserve_pod(pod) else SKIP

    # Failure

    def before_error(self, pod: PodInfo, refusal: Refusal) -> bool:
        """Forget the nominations of the pod, and write the failure into the status of a Reservation."""
        self.forget_nomination(pod)
        if not is_reserve_pod(pod):
            required = bool(annotations_of(pod.object).get(RESERVATION_AFFINITY_ANNOTATION))
            message = event_message(refusal.message) if required else ""
            if message:
                self._handle.log.warning("FailedScheduling-Reservation %s: %s", pod.key, message)
            return False
        item = self._handle.snapshot().object("Reservation", reservation_of(pod))
        if item is not None and not (item.get("status") or {}).get("nodeName"):
            failed = with_conditions(item, self._handle.now(), Scheduled=("False", "Unschedulable", refusal.message))
            if failed != item:
                try:
                    self._handle.client.patch(item, failed)
                except OSError as error:
                    self._handle.log.warning("the condition of Reservation `%s` was not written: %s",
                                             reservation_of(pod), error)
        return False

    # Controllers and endpoints

    def controllers(self) -> tuple[ReservationStatus, ...]:
        """Return the controller of expiration, statuses and garbage collection."""
        return (ReservationStatus(self._handle, self._args),)

    def endpoints(self) -> Mapping[str, Any]:
        """Return the endpoints with a node's reservations and with the index of owners."""
        return {"nodeReservations/{nodeName}": self._of_node, "reservationSelectorIndex": self.cache.owners}

    def _of_node(self, nodeName: str) -> dict[str, Any]:  # noqa: N803 - the path's name
        return {"items": [_summary(info) for info in self.cache.on_node(nodeName)]}


def _pod_left(event: Event) -> bool:
    """Return whether a pod left its node."""
    before, after = event.old_pod, event.new_pod
    return before is not None and bool(before.node_name) and (after is None or not after.node_name)


def _reasons_by_node(found: ReservationState, snapshot: Snapshot, refused: Refused) -> dict[str, tuple[str, ...]]:
    """Return why the nodes with reservations refused the pod."""
    result: dict[str, tuple[str, ...]] = {}
    for node in found.counts:
        if node in snapshot.index:
            try:
                refusal = refused.reason(snapshot.index[node])
            except KeyError:
                continue
            own = reasons_of(refusal)
            result[node] = own if len(own) > 1 else tuple(refusal.message.split(", Insufficient "))
    return result


def _may_take(pod: PodInfo, victim: PodInfo) -> bool:
    return victim.priority < pod.priority and not is_reserve_pod(victim) and (
        labels_of(victim.object).get(PREEMPTIBLE_LABEL) != "false")


def _summary(info: ReservationInfo) -> dict[str, Any]:
    is_pod = info.object.get("kind") == "Pod"
    return {
        "name": info.name, "namespace": info.pod.namespace if is_pod else "", "uid": info.uid,
        "kind": "Pod" if is_pod else "Reservation", "available": info.is_available,
        "allocateOnce": info.allocate_once, "allocatable": written(info.allocatable),
        "reserved": written(info.reserved), "allocated": written(info.allocated()),
        "owners": [dict(owner) for owner in info.owners], "allocatePolicy": info.policy,
        "assignedPods": sorted(info.consumers),
    }
