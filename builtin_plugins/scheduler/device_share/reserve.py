"""DeviceShare's Reserve: the final allocation of devices on the chosen node, and its grant until it is recorded."""

from __future__ import annotations

from dataclasses import replace

from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.scheduler.cycle.schedule_one import ReservedDevices
from koordpolicy.engine.scheduler.extensions.reservations import is_reserve_pod
from koordpolicy.plugin import CycleState, Handle

from ..allocation.resource_scoring import AllocationScorer
from ..reservation.holdings import nominated_reservation
from .allocation import Allocation, Preferences, holding_of
from .cache import DeviceCache, DeviceGrant
from .candidates import CandidateNode, Candidates
from .requests import GPU_TYPE


class DeviceReserver:
    """The allocation of devices on the node that was chosen for a pod."""

    def __init__(
        self, scorer: AllocationScorer, cache: DeviceCache, candidates: Candidates, handle: Handle,
    ) -> None:
        self._scorer = scorer
        self._cache = cache
        self._candidates = candidates
        self._handle = handle

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Allocate the pod's devices and grant them."""
        candidate = self._candidates.of(state, pod, snapshot, row)
        if candidate is None:
            return None
        found = self._allocate(state, pod, snapshot, row, candidate)
        if isinstance(found, Refusal):
            return found
        allocation, reservation = found
        grant = DeviceGrant(pod.uid, candidate.name, allocation, holding_of(allocation, reservation))
        state[DeviceGrant] = grant
        self._cache.granted.give(pod, grant)
        if allocation.get(GPU_TYPE):
            # The framework's counts by GPU and GpuShare use the same minors.
            state[ReservedDevices] = tuple(each.minor for each in allocation[GPU_TYPE])
        return None

    def unreserve(self, state: CycleState, pod: PodInfo) -> None:
        """Remove the grant."""
        if state.pop(DeviceGrant, None) is not None:
            state.pop(ReservedDevices, None)
        self._cache.granted.take_back(pod)

    def resize(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> PodInfo | Refusal | None:
        """Return a reserve pod with the resources of all devices that it would get; None for other pods."""
        candidate = self._candidates.of(state, pod, snapshot, row) if is_reserve_pod(pod) else None
        if candidate is None:
            return None
        found = self._allocate(state, pod, snapshot, row, candidate)
        if isinstance(found, Refusal):
            return found
        return replace(pod, requests=ResourceList({**pod.requests, **total_resources(found[0])}))

    def _allocate(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, candidate: CandidateNode,
    ) -> tuple[Allocation, str] | Refusal:
        """Return the final allocation and the uid of the reservation that it is taken from, empty for none."""
        if candidate.pod_devices.designated is not None:
            return candidate.allocate_designated(self._scorer)
        demand = candidate.demand()
        if isinstance(demand, Refusal):
            return demand
        preferences = Preferences(scorer=self._scorer)
        found = None
        if not is_reserve_pod(pod):
            nominated = None
            if candidate.matched:
                nominated = nominated_reservation(self._handle, state, pod, snapshot, row)
            usable = candidate.matched
            if not candidate.pod_devices.ignores_reservations:
                usable = () if nominated is None else (nominated,)
            found = candidate.allocate_from(demand, usable, preferences, required=False)
        if found is None:
            free = candidate.allocate(demand, candidate.scope(), preferences)
            found = free if isinstance(free, Refusal) else (free, "")
        return found if isinstance(found, Refusal) else candidate.complete(found)


def total_resources(allocation: Allocation) -> ResourceList:
    """Return the sum of the resources of all allocated devices."""
    total = ResourceList()
    for given in allocation.values():
        for each in given:
            for name, amount in each.resources.items():
                total[name] += amount
    return total
