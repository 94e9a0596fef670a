"""Reservation's filter: by the pod's reservations and the free resources of their nodes."""

from __future__ import annotations

from typing import Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Code, Refusal
from koordpolicy.engine.scheduler.extensions.reservations import (
    RESERVATION_NODE,
    ReservationInfo,
    is_operating_pod,
    is_reserve_pod,
)
from koordpolicy.plugin import CycleState, Handle, ReservationFilter

from ..allocation.annotations import annotations_of
from .args import ReservationArgs
from .cache import ReservationCache
from .fit import shares_names, short_of_reservation
from .pre_allocation import PreAllocation, PreAllocationChoice
from .refusals import by_code, by_reason, refused_for
from .state import ReservationState

NO_AFFINITY: Final = "node(s) no reservations match reservation affinity"
OTHER_NODE: Final = "node(s) didn't match the nodeName specified by reservation"
POLICY_CONFLICT: Final = "node(s) reservation allocate policy conflict"
NOT_FREED: Final = "node(s) preemption failed due to insufficient resources"
NOTHING_FITS: Final = "node(s) no reservation(s) to meet the requirements"


class ReservationFiltering:
    """The filter of nodes, and the fit of single reservations."""

    def __init__(self, args: ReservationArgs, handle: Handle, cache: ReservationCache) -> None:
        self._args = args
        self._handle = handle
        self._cache = cache

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes on which no reservation fits nor, where the pod requires none, the free resources."""
        passed = np.ones(snapshot.size, np.bool_)
        found: ReservationState | None = state.get(ReservationState)
        if found is None:
            return Answer(passed)
        refusals: dict[int, Refusal] = {}
        others: Refusal | None = None
        if not is_reserve_pod(pod):
            if found.requirement.affinity is not None and not found.requirement.ignored:
                others = Refusal("affinity", NO_AFFINITY, Code.UNRESOLVABLE)
            self._filter_pod(state, found, pod, snapshot, rows, refusals)
        if is_reserve_pod(pod) or is_operating_pod(pod):
            others = self._filter_reserve_pod(found, pod, snapshot, rows, refusals) or others
        if others is not None:
            spared = {snapshot.index[node] for node, here in found.usable.items() if here.matched}
            if others.message == OTHER_NODE:
                spared = {snapshot.index.get(str(annotations_of(pod.object).get(RESERVATION_NODE)), -1)}
            for row in rows.tolist():
                if row not in spared:
                    refusals[row] = others
        passed[list(refusals)] = False
        return Answer(passed, refusals.__getitem__, reasons=lambda refused: by_reason(refusals, refused),
                      codes=lambda refused: by_code(refusals, refused))

    def _filter_reserve_pod(
        self, found: ReservationState, pod: PodInfo, snapshot: Snapshot, rows: Rows, refusals: dict[int, Refusal],
    ) -> Refusal | None:
        """Filter the nodes for a reserve pod; return why all but one node are refused, if so."""
        named = annotations_of(pod.object).get(RESERVATION_NODE)
        info = found.reservation if is_reserve_pod(pod) else ReservationInfo.of_operating_pod(pod)
        everywhere = None
        if info is None:
            everywhere = Refusal("reservation", "reservation not found", Code.ERROR)
        pre_allocation = PreAllocation.of(info) if info is not None and is_reserve_pod(pod) else None
        if pre_allocation is not None:
            everywhere = everywhere or pre_allocation.problem(self._args)
        filtered = set(rows.tolist())
        nodes = set(self._cache.nodes()) if pre_allocation is None or not pre_allocation.required else snapshot.names
        for node in {*nodes, *found.nodes} if everywhere is None else snapshot.names:
            row = snapshot.index.get(node)
            if row is None or row not in filtered:
                continue
            refusal = everywhere
            if info is not None and any(
                bool(each.policy) != bool(info.policy) for each in self._cache.on_node(node) if each.is_matchable
            ):
                refusal = Refusal("policy", POLICY_CONFLICT, Code.UNRESOLVABLE)
            elif pre_allocation is not None and everywhere is None:
                refusal = self._check_pre_allocation(found, pre_allocation, snapshot, row)
            if refusal is not None:
                refusals[row] = refusal
        return Refusal("node", OTHER_NODE, Code.UNRESOLVABLE) if named else None

    def _check_pre_allocation(
        self, found: ReservationState, pre_allocation: PreAllocation, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        choice = self.choose_pods(found, pre_allocation, snapshot, row)
        return None if isinstance(choice, PreAllocationChoice) else refused_for(choice)

    def choose_pods(
        self, found: ReservationState, pre_allocation: PreAllocation, snapshot: Snapshot, row: int,
    ) -> PreAllocationChoice | tuple[str, ...]:
        """Return the pods to pre-allocate on the node, or the reasons why the reservation does not fit there."""
        def allows(candidate: PodInfo) -> Refusal | None:
            return self._peers_refuse(CycleState(), candidate, pre_allocation.info, snapshot, row)

        here = found.of(snapshot, row)
        view = found.view(snapshot, row, self._args.ignores)
        return pre_allocation.choose(view, here.candidates, self._args, allows)

    def _filter_pod(  # noqa: PLR0917 - the filter's arguments, and what it finds
        self, state: CycleState, found: ReservationState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
        refusals: dict[int, Refusal],
    ) -> None:
        checked = {snapshot.index[node] for node, here in found.usable.items() if here.matched}
        checked |= set(snapshot.overridden) | set(found.shown.overridden if found.shown is not None else ())
        for row in sorted(checked & set(rows.tolist())):
            refusal = self._check_pod(state, found, pod, snapshot, row)
            if refusal is not None:
                refusals[row] = refusal

    def _check_pod(
        self, state: CycleState, found: ReservationState, pod: PodInfo, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        """Return why the pod finds no place on a node, with or without reservations."""
        view = found.view(snapshot, row, self._args.ignores)
        if found.requirement.ignored:
            return None  # NodeResourcesFit checks whether the node has room
        if not view.matched:
            if found.is_freed(snapshot, row) and view.short(pod.requests, {}):
                return refused_for((NOT_FREED,))
            return None
        needed = found.requirement.affinity is not None
        of_node: dict[str, None] = {}
        of_reservations: list[str] = []
        for info in view.matched:
            if found.requirement.name and info.name != found.requirement.name:
                continue
            if not needed and not shares_names(pod.requests, info.resource_names):
                continue
            short, reasons = self.fits(state, found, pod, snapshot, row, info)
            if not short and not reasons:
                return None
            of_node |= dict.fromkeys(short)
            of_reservations += reasons
        names = tuple(f"Insufficient {name} by node" for name in sorted(of_node))
        if needed:
            return refused_for((*names, *of_reservations) or (NOTHING_FITS,))
        if not names:
            names = tuple(f"Insufficient {name} by node" for name in sorted(view.short(pod.requests, {})))
        return refused_for(names) if names else None

    def fits(  # noqa: PLR0917 - a pod, a node and a reservation
        self, state: CycleState, found: ReservationState, pod: PodInfo, snapshot: Snapshot, row: int,
        info: ReservationInfo,
    ) -> tuple[list[str], list[str]]:
        """Return the resources of which the node has too little beside a reservation, and other reasons against using
        it.
        """
        view = found.view(snapshot, row, self._args.ignores)
        known = found.fits.get(info.uid)
        if known is not None and known[0] is view.row:
            return known[1]
        short: list[str] = []
        if not ("SkipReservationFitsNode" in self._handle.feature_gates and len(view.matched) == 1):
            short = view.short_beside(pod.requests, info)
        reasons = [
            f"Reservation(s) {reason}" for reason in short_of_reservation(
                pod.requests, info, view.row, self._args.ignores, amounts=bool(found.requirement.name))
        ]
        if not short and not reasons:
            refusal = self._peers_refuse(state, pod, info, snapshot, row)
            if refusal is not None:
                reasons.append(f"Reservation(s) {refusal.message}")
        found.fits[info.uid] = (view.row, (short, reasons))
        return short, reasons

    def _peers_refuse(
        self, state: CycleState, pod: PodInfo, info: ReservationInfo, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        for peer in self._handle.peers(ReservationFilter):  # type: ignore[type-abstract]
            refusal = peer.filter_reservation(state, pod, info, snapshot, row)
            if refusal is not None:
                return refusal
        return None
