"""Allocates cpus and NUMA nodes for one pod: from its reservations, or from what is free on the node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.scheduler.extensions.reservations import is_reserve_pod
from koordpolicy.engine.scheduler.extensions.topology import affinity_of, mask_of
from koordpolicy.plugin import CycleState, Handle

from ..reservation.holdings import RESTRICTED as RESTRICTED_RESERVATION
from ..reservation.holdings import Reserved, first_fitting, nominated_reservation, restored_on
from .allocation import NOT_ENOUGH_CPUS, NodeAllocation, NumaDemand, PodAllocation, Room
from .allocation import allocate as allocate_cpus
from .cache import NumaCache
from .numa_request import NOT_INTEGER, NumaRequest
from .topology import NodeTopology

INVALID_TOPOLOGY: Final = Refusal("cpus", "node(s) invalid CPU Topology", Code.UNRESOLVABLE)

_NOT_ENOUGH: Final = Refusal("cpus", NOT_ENOUGH_CPUS)
_NOT_IN_NOMINATED: Final = Refusal(
    "reservation", "pod has a nominated reservation but cannot be allocated within its NUMA scope")
_NOTHING_NOMINATED: Final = Refusal("reservation", "no nominated reservation")


class NumaAllocator:
    """The allocations that a pod would get, or gets, on single nodes."""

    def __init__(self, cache: NumaCache, strategy: str, handle: Handle) -> None:
        self._cache = cache
        self._strategy = strategy
        self._handle = handle

    def allocate_anywhere(
        self, held: NodeAllocation, request: NumaRequest, matched: Sequence[Reserved], affinity: int | None,
    ) -> PodAllocation | Refusal:
        """Allocate from the first fitting reservation, or else from what is free on the node."""
        found = self.allocate_from_reservations(held, request, matched, affinity)
        return self.allocate_from_node(held, request, affinity) if found is None else found

    def allocate_from_node(
        self, held: NodeAllocation, request: NumaRequest, affinity: int | None,
    ) -> PodAllocation | Refusal:
        """Allocate from what is free on the node."""
        return allocate_cpus(held.topology, self.demand(request, held.topology), held.room(), affinity)

    def allocate_from_reservations(
        self, held: NodeAllocation, request: NumaRequest, matched: Sequence[Reserved], affinity: int | None,
    ) -> PodAllocation | Refusal | None:
        """Allocate from the first fitting reservation; return None where none fits and the pod requires none."""
        usable = [each for each in matched if holds_anything(held, each)]
        topology, needs = held.topology, self.demand(request, held.topology)
        if not usable:
            return None
        if request.ignores_reservations:
            cpus = _union(held.reservations[each.uid].cpus for each in usable)
            return allocate_cpus(topology, needs, held.room([each.uid for each in usable], preferred=cpus), affinity)

        def attempt(reservation: Reserved) -> PodAllocation | Refusal:
            own = held.reservations[reservation.uid]
            room = held.room([reservation.uid], preferred=own.cpus)
            found = allocate_cpus(topology, needs, room, affinity)
            if reservation.policy == RESTRICTED_RESERVATION and not isinstance(found, Refusal):
                if needs.cpus > own.cpus.bit_count():
                    return _NOT_ENOUGH
                # Only from the reservation; where it holds cpus alone, amounts come from the node.
                only = Room(own.zones or room.free, room.cpus & own.cpus, room.taken, own.cpus)
                found = allocate_cpus(topology, needs, only, affinity)
            if isinstance(found, Refusal):
                return found
            return replace(found, reservation=reservation.uid)

        return first_fitting(usable, attempt, required=request.needs_reservation)

    def allocate(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, request: NumaRequest,
    ) -> PodAllocation | Refusal | None:
        """Return the final allocation on the node; None where the pod needs no cpus or NUMA nodes there."""
        topology = self._cache.topology(snapshot, row)
        held = self._cache.held_in_cycle(state, snapshot, row)
        binding = request.binds(topology)
        if binding and request.milli_cpu % 1000:
            return NOT_INTEGER
        if not binding and not request.policy_on(topology):
            return None
        if binding and (topology is None or not topology.cpus):
            return replace(INVALID_TOPOLOGY, code=Code.ERROR)
        if topology is None or held is None:
            return None
        if request.designated is not None:
            return _designated(held, self.demand(request, topology), request.designated)
        affinity = affinity_of(state, snapshot, row)
        mask = None if affinity is None else affinity.mask
        found = self._allocate_from_nominated(state, pod, snapshot, row, request, held, mask)
        return self.allocate_from_node(held, request, mask) if found is None else found

    def _allocate_from_nominated(  # noqa: PLR0917 - the parameters of a decision on one node
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, request: NumaRequest,
        held: NodeAllocation, affinity: int | None,
    ) -> PodAllocation | Refusal | None:
        """Allocate from the nominated reservation; return None where none is nominated and none required."""
        node = snapshot.names[row]
        matched = restored_on(state, node).matched
        if is_reserve_pod(pod) or not any(holds_anything(held, each) for each in matched):
            return None
        if request.ignores_reservations:
            return self.allocate_from_reservations(held, request, matched, affinity)
        nominated = nominated_reservation(self._handle, state, pod, snapshot, row)
        if nominated is None:
            return _NOTHING_NOMINATED if request.needs_reservation else None
        if not holds_anything(held, nominated):
            return None
        found = self.allocate_from_reservations(held, request, (nominated,), affinity)
        return _NOT_IN_NOMINATED if found is None else found

    def demand(self, request: NumaRequest, topology: NodeTopology) -> NumaDemand:
        """Return the cpus and amounts that a pod requests of a node."""
        return request.demand_on(topology, self._strategy)

    def check(
        self, state: CycleState, snapshot: Snapshot, row: int, request: NumaRequest, affinity: int | None,
    ) -> Refusal | None:
        """Return why the pod cannot be allocated cpus and amounts of these NUMA nodes, None where it can."""
        held = self._cache.held_in_cycle(state, snapshot, row)
        if held is None:
            return None
        matched = restored_on(state, snapshot.names[row]).matched
        found = self.allocate_anywhere(held, request, matched, affinity)
        return found if isinstance(found, Refusal) else None


def holds_anything(held: NodeAllocation, reservation: Reserved) -> bool:
    """Return whether a reservation holds any cpus or NUMA amounts of its own on the node."""
    return reservation.uid in held.reservations


def _union(sets: Iterable[int]) -> int:
    """Return the union of sets of cpus."""
    cpus = 0
    for each in sets:
        cpus |= each
    return cpus


def _designated(held: NodeAllocation, needs: NumaDemand, designated: PodAllocation) -> PodAllocation | Refusal:
    """Allocate exactly the designated cpus and amounts."""
    room = held.room(preferred=designated.cpus)
    free = {node: ResourceList(amounts) for node, amounts in designated.zones.items()} or room.free
    affinity = mask_of(designated.zones) if designated.zones else None
    found = allocate_cpus(held.topology, needs, Room(free, room.cpus, room.taken, designated.cpus), affinity)
    if isinstance(found, PodAllocation) and found.cpus != designated.cpus:
        return _NOT_ENOUGH
    return found
