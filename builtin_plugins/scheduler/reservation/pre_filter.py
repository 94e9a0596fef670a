"""Reservation's PreFilter: matching of reservations to the pod, and the snapshot in which they are free."""

from __future__ import annotations

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.kubernetes.selectors import matches_node
from koordpolicy.engine.scheduler.extensions.reservations import (
    ReservationInfo,
    is_reserve_pod,
    problem_of,
    reservation_of,
)
from koordpolicy.plugin import SKIP, Changed, CycleState, Handle, OnlyNodes, ReservationRestore, Skip

from ..allocation.annotations import SCHEDULING_HINT_ANNOTATIONS, annotations_of, json_object
from .args import ReservationArgs
from .cache import ReservationCache
from .filtering import NO_AFFINITY
from .matching import Counts, ReservationRequirement, matches, named_nodes
from .pre_allocation import NO_MATCH, PreAllocation
from .state import NodeReservations, ReservationState, involved, restored


class ReservationPreFilter:
    """The transformation of the snapshot for one pod, and its PreFilter."""

    def __init__(self, args: ReservationArgs, handle: Handle, cache: ReservationCache) -> None:
        self._args = args
        self._handle = handle
        self._cache = cache
        self._node_labels = "OmitNodeLabelsForReservation" not in handle.feature_gates

    def before_pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Changed | Refusal | None:
        """Return the snapshot in which the resources of the reservations that the pod may use are free."""
        if is_reserve_pod(pod):
            found = self._of_reserve_pod(pod, snapshot)
        else:
            try:
                requirement = ReservationRequirement.of(pod)
            except ValueError as error:
                return Refusal("affinity", str(error), Code.ERROR)
            if named_nodes(pod) == frozenset():
                return Refusal("node-affinity", "pod affinity terms conflict", Code.UNRESOLVABLE)
            found = self._of_pod(pod, requirement, snapshot)
        state[ReservationState] = found
        shown, found.nodes = restored(snapshot, found.nodes, self._cache.unsettled())
        found.usable = {node: here for node, here in found.nodes.items() if here.matched or here.candidates}
        found.shown = shown or snapshot
        if not found.nodes:
            return None
        for peer in self._handle.peers(ReservationRestore):  # type: ignore[type-abstract]
            refusal = peer.pre_restore(state, pod)
            for node, here in found.nodes.items() if refusal is None else ():
                refusal = refusal or peer.restore(state, pod, here.matched, here.unmatched, node)
            if refusal is not None:
                return refusal
        return Changed(snapshot=shown) if shown is not None else None

    def _of_reserve_pod(self, pod: PodInfo, snapshot: Snapshot) -> ReservationState:
        """Return the state of a reserve pod: nothing reserved is free for it, but it may pre-allocate running pods."""
        item = snapshot.object("Reservation", reservation_of(pod))
        info = ReservationInfo.of(item) if item is not None else None
        nodes = involved((), self._cache.shared(), snapshot)
        pre_allocation = PreAllocation.of(info) if info is not None else None
        if pre_allocation is not None and pre_allocation.problem(self._args) is None:
            candidates = pre_allocation.candidates(
                snapshot, self._args, lambda each: bool(self._cache.uses(each)), node_labels=self._node_labels)
            for node, pods in candidates.items():
                here = nodes.get(node, NodeReservations())
                nodes[node] = NodeReservations(here.matched, here.unmatched, pods)
        return ReservationState(ReservationRequirement(), nodes, reservation=info)

    def _of_pod(self, pod: PodInfo, requirement: ReservationRequirement, snapshot: Snapshot) -> ReservationState:
        counts: dict[str, Counts] = {}
        matched: list[ReservationInfo] = []
        if requirement.ignored:
            for name in self._cache.nodes():
                here = [info for info in self._cache.on_node(name) if info.is_matchable]
                counts[name] = Counts(ignored=len(here))
                matched += here
        else:
            only = self._only_nodes(pod, requirement)
            fits: dict[str, bool] = {}
            for info in self._cache.owned_by(pod):
                row = snapshot.index.get(info.node)
                if row is None or (only is not None and info.node not in only):
                    continue
                node = snapshot.node(row)
                if info.node not in fits:
                    fits[info.node] = matches_node(pod.object, node)
                if fits[info.node] and matches(
                    pod, requirement, info, node, counts.setdefault(info.node, Counts()), labels=self._node_labels,
                ):
                    matched.append(info)
        nodes = involved(matched, self._cache.shared(), snapshot)
        if requirement.affinity is not None:
            nodes = {node: here for node, here in nodes.items() if here.matched}
        return ReservationState(requirement, nodes, counts)

    def _only_nodes(self, pod: PodInfo, requirement: ReservationRequirement) -> frozenset[str] | None:
        """Return the only nodes whose reservations the pod may use: those of a hint, or of the one that it names."""
        for name in SCHEDULING_HINT_ANNOTATIONS:
            if annotations_of(pod.object).get(name):
                try:
                    names = json_object(annotations_of(pod.object), name).get("nodeNames")
                except ValueError:
                    continue  # reported by SchedulingHint
                if names:
                    return frozenset(names)
        if requirement.name:
            info = self._cache.named(requirement.name)
            # Others on that node are counted as those that have another name.
            return frozenset((info.node,)) if info is not None else None
        return None

    def pre_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot,
    ) -> Refusal | OnlyNodes | Skip | None:
        """Refuse invalid requests, and return the only nodes with reservations that the pod requires."""
        found = state.get(ReservationState)
        if found is None:
            return SKIP
        if is_reserve_pod(pod):
            return self._check_reserve_pod(found, pod, snapshot)
        if found.requirement.affinity is not None:
            if not found.nodes:
                return Refusal("affinity", NO_AFFINITY, Code.UNRESOLVABLE)
            return OnlyNodes(frozenset(found.nodes))
        return None if found.nodes else SKIP

    def _check_reserve_pod(
        self, found: ReservationState, pod: PodInfo, snapshot: Snapshot,
    ) -> Refusal | OnlyNodes | None:
        name = reservation_of(pod)
        item = snapshot.object("Reservation", name)
        if item is None:
            message = f'cannot get reservation, err: reservation.scheduling.koordinator.sh "{name}" not found'
            return Refusal("reservation", message, Code.ERROR)
        if problem := problem_of(item):
            return Refusal("reservation", problem, Code.ERROR)
        pre_allocation = PreAllocation.of(found.reservation) if found.reservation is not None else None
        if pre_allocation is None:
            return None
        refusal = pre_allocation.problem(self._args)
        if refusal is None and pre_allocation.required:
            nodes = frozenset(node for node, here in found.nodes.items() if here.candidates)
            return OnlyNodes(nodes) if nodes else Refusal("pre-allocation", NO_MATCH, Code.UNRESOLVABLE)
        return refusal
