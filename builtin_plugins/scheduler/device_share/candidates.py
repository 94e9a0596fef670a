"""A node with devices as a candidate for one pod: allocation from its reservations, its free devices, or NUMA nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from koordpolicy.engine.cluster.derived import DerivedOfBase
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.scheduler.extensions.topology import affinity_of
from koordpolicy.plugin import CycleState

from ..allocation.resource_scoring import AllocationScorer
from ..allocation.trials import TrialOutcomes, Trials
from ..reservation.holdings import RESTRICTED as RESTRICTED_RESERVATION
from ..reservation.holdings import Reserved, anything_restored, first_fitting, restored_on
from .allocation import (
    Allocation,
    DeviceAllocation,
    DeviceAllocator,
    DeviceDemand,
    Preferences,
    allocate,
    completed,
    demand_on,
    score_pool,
)
from .args import DeviceShareArgs
from .cache import DeviceCache
from .devices import AllocationScope, Holding, Holdings, NodeDevices, pool_of
from .pod_devices import PodDevices, read_pod_devices

_TOO_FEW_ON_NUMA: Final = Refusal("numa", "Insufficient NUMA Scoped Devices", Code.UNRESOLVABLE)


@dataclass(frozen=True, slots=True)
class CandidateNode:
    """A node with devices in the scheduling cycle of one pod: its holders, and the reservations that the pod may use.

    `numa` is the mask of the NUMA nodes chosen for the pod, None for any.
    """

    name: str
    node: Mapping[str, Any]
    devices: NodeDevices
    holdings: Holdings
    matched: Sequence[Reserved]
    pod_devices: PodDevices
    numa: int | None = None

    def demand(self, *, plan_others: bool = True) -> DeviceDemand | Refusal:
        """Return the devices that the pod requests of this node."""
        return demand_on(self.devices, self.pod_devices.request, plan_others=plan_others)

    def scope(self) -> AllocationScope:
        """Return the scope of all free devices, including those that the pod's reservations hold."""
        return AllocationScope(tuple(each.uid for each in self.matched), self.numa)

    def reservation_scope(self, reservation: Reserved) -> AllocationScope:
        """Return the scope of one reservation; a restricted one is limited to its remaining devices."""
        scope = AllocationScope((reservation.uid,), self.numa)
        if reservation.policy != RESTRICTED_RESERVATION:
            return scope
        return replace(scope, most=self.holdings.reservations[reservation.uid].amounts)

    def allocate(self, demand: DeviceDemand, scope: AllocationScope, preferences: Preferences) -> Allocation | Refusal:
        """Allocate devices within a scope."""
        pool = pool_of(self.devices, self.holdings, self.pod_devices.request, scope)
        return allocate(DeviceAllocator(self.node, self.devices, self.pod_devices.request, demand, pool, preferences,
                                 self.pod_devices.templates))

    def allocate_anywhere(self, demand: DeviceDemand) -> Allocation | Refusal:
        """Allocate from the first fitting reservation, or else from all free devices."""
        found = self.allocate_from(
            demand, self.matched, Preferences(), required=self.pod_devices.needs_reservation)
        if found is not None:
            return found if isinstance(found, Refusal) else found[0]
        return self.allocate(demand, self.scope(), Preferences())

    def allocate_on_numa_nodes(self, demand: DeviceDemand, mask: int) -> Allocation | Refusal:
        """Allocate from the devices of these NUMA nodes."""
        for device_type, count in demand.counts.items():
            here = sum(
                1 for info in self.devices.of_type(device_type).values()
                if info.place is not None and info.place.numa_node >= 0 and mask >> info.place.numa_node & 1
            )
            if 0 < here < count:
                return _TOO_FEW_ON_NUMA
        return replace(self, numa=mask).allocate_anywhere(demand)

    def allocate_from(
        self, demand: DeviceDemand, reservations: Sequence[Reserved], preferences: Preferences, *, required: bool,
    ) -> tuple[Allocation, str] | Refusal | None:
        """Allocate from the first fitting reservation; return the allocation and the reservation's uid.

        Return None if none fits and none is `required`.
        """
        usable = [each for each in reservations if each.uid in self.holdings.claims]
        if not usable:
            return None
        if self.pod_devices.ignores_reservations:
            scope = AllocationScope(tuple(each.uid for each in usable), self.numa)
            found = self.allocate(demand, scope, preferences)
            return found if isinstance(found, Refusal) else (found, "")

        def attempt(reservation: Reserved) -> tuple[Allocation, str] | Refusal:
            whole = self.holdings.claims[reservation.uid].held
            minors = {device_type: whole.minors(device_type) for device_type in whole.amounts}
            bound = minors if reservation.policy == RESTRICTED_RESERVATION else {}
            found = self.allocate(
                demand, self.reservation_scope(reservation), replace(preferences, preferred=minors, required=bound))
            return found if isinstance(found, Refusal) else (found, reservation.uid)

        return first_fitting(usable, attempt, required=required)

    def allocate_designated(self, scorer: AllocationScorer) -> tuple[Allocation, str] | Refusal:
        """Allocate exactly the devices designated for the pod."""
        designated, demand = self.pod_devices.designated or Holding(), self.demand()
        if isinstance(demand, Refusal):
            return demand
        whole = completed(self.devices, {
            device_type: [DeviceAllocation(minor, amounts) for minor, amounts in minors.items()]
            for device_type, minors in designated.amounts.items()
        })
        if isinstance(whole, Refusal):
            return whole
        most = {device_type: {each.minor: each.resources for each in given} for device_type, given in whole.items()}
        found = self.allocate(
            demand, replace(self.scope(), most=most), Preferences(functions=designated.functions, scorer=scorer))
        return found if isinstance(found, Refusal) else self.complete((found, ""))

    def complete(self, found: tuple[Allocation, str]) -> tuple[Allocation, str] | Refusal:
        """Return an allocation in the form in which it is recorded."""
        complete = completed(self.devices, found[0])
        return complete if isinstance(complete, Refusal) else (complete, found[1])

    def check(self, scorer: AllocationScorer) -> Refusal | None:
        """Return why the pod's devices cannot be allocated, or None."""
        found: object
        if self.pod_devices.designated is not None:
            found = self.allocate_designated(scorer)
        else:
            demand = self.demand(plan_others=False)
            found = demand if isinstance(demand, Refusal) else self.allocate_anywhere(demand)
        return found if isinstance(found, Refusal) else None

    def score(self, scorer: AllocationScorer, scope: AllocationScope) -> int:
        """Return the score of the devices within a scope."""
        demand = self.demand(plan_others=False)
        if isinstance(demand, Refusal):
            return 0
        return score_pool(scorer, demand, pool_of(self.devices, self.holdings, self.pod_devices.request, scope))


class Candidates:
    """The candidates of the pod whose scheduling cycle it is."""

    def __init__(self, args: DeviceShareArgs, cache: DeviceCache, plugin: str) -> None:
        self._args = args
        self._cache = cache
        self._plugin = plugin

    def read(self, pod: PodInfo, snapshot: Snapshot) -> PodDevices | Refusal | None:
        """Return the device request of a pod (see `read_pod_devices`)."""
        return read_pod_devices(pod, snapshot, self._args, self._plugin)

    def pod_devices(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PodDevices | None:
        """Return the device request of a pod from the cycle state; None for a pod that requests no devices.

        Raises:
            ValueError: the request is invalid.
        """
        if PodDevices not in state:
            found = self.read(pod, snapshot)
            if isinstance(found, Refusal):
                raise ValueError(found.message)
            state[PodDevices] = found
        result: PodDevices | None = state[PodDevices]
        return result

    def of(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> CandidateNode | None:
        """Return a node as candidate; None for a pod that requests no devices or a node without a Device object."""
        pod_devices = self.pod_devices(state, pod, snapshot)
        if pod_devices is None:
            return None
        devices = self._cache.devices(snapshot, row)
        holdings = self._cache.holdings_in_cycle(state, snapshot, row)
        if devices is None or holdings is None:
            return None
        name = snapshot.names[row]
        affinity = affinity_of(state, snapshot, row) if self._args.aligned else None
        return CandidateNode(name, snapshot.node(row), devices, holdings, restored_on(state, name).matched, pod_devices,
                         None if affinity is None else affinity.mask)

    def trials(
        self, outcomes: DerivedOfBase[TrialOutcomes], state: CycleState, snapshot: Snapshot, pod_devices: PodDevices,
    ) -> Trials | None:
        """Return the cached results of pods of the same kind; None where results are not cacheable."""
        if not is_cacheable(state, pod_devices):
            return None
        return Trials(outcomes.of_base(snapshot, pod_devices.kind), lambda row: self._cache.likeness(snapshot, row))


def is_cacheable(state: CycleState, pod_devices: PodDevices) -> bool:
    """Return whether results depend only on the node and the kind of the pod."""
    return pod_devices.designated is None and pod_devices.templates is None and not anything_restored(state)
