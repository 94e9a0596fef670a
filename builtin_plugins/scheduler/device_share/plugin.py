"""DeviceShare: allocates GPUs (whole and shared), RDMA and FPGA devices and virtual functions of Device objects.

The behaviour is Koordinator's (pkg/scheduler/plugins/deviceshare). Nodes without a Device object cost nothing; the
others are tried one by one, and results are cached by kind of pod until the node changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Refusal, Scores
from koordpolicy.plugin import SKIP, CycleState, Deferred, Handle, Skip, TopologyHint

from ..allocation.requeue_hints import node_came_or_changed, pod_left
from ..reservation.holdings import note_restored
from .allocation import Preferences
from .args import check_args, convert, ignored_args
from .cache import OUTCOME_PATHS, DeviceCache, DeviceGrant
from .candidates import Candidates, is_cacheable
from .endpoints import endpoints
from .filtering import DeviceFilter
from .pod_devices import PodDevices
from .pre_bind import record_allocation, record_reservation_allocation
from .requests import wants_devices
from .reserve import DeviceReserver
from .scoring import DeviceScorer
from .topology_hints import topology_hints

if TYPE_CHECKING:
    from koordpolicy.plugin import Event


class DeviceShare:
    """The plugin at all of its extension points; arguments: see docs/plugins/device-share.md."""

    name = "DeviceShare"
    check_args = staticmethod(check_args)
    ignored_args = staticmethod(ignored_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._args = convert(check_args(args))
        self._handle = handle
        self._cache = DeviceCache()
        self._granted = self._cache.granted
        self._candidates = Candidates(self._args, self._cache, self.name)
        self._filter = DeviceFilter(self._args, self._cache, self._candidates)
        self._scorer = DeviceScorer(self._args.scorer, self._cache, self._candidates, handle)
        self._reserver = DeviceReserver(self._args.scorer, self._cache, self._candidates, handle)

    def start(self) -> None:
        """Subscribe to deleted pods, to remove their grants."""
        self._handle.events.on(("Pod",), self._granted.note)

    # Scheduling cycle

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | Skip | None:
        """Read the pod's device request; skip pods without one."""
        found = self._candidates.read(pod, snapshot)
        if isinstance(found, Refusal):
            return found
        state[PodDevices] = found
        return SKIP if found is None else None

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes whose devices do not suffice; nodes without a Device object pass."""
        return self._filter.filter(state, pod, snapshot, rows)

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Skip | None:
        """Skip pods without a device request."""
        return SKIP if self._candidates.pod_devices(state, pod, snapshot) is None else None

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer nodes by the allocated share of their devices; the best one gets 100."""
        return self._scorer.score(state, pod, snapshot, rows)

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Allocate the pod's devices and grant them."""
        return self._reserver.reserve(state, pod, snapshot, row)

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Remove the grant."""
        self._reserver.unreserve(state, pod)

    def forget_pod(self, pod: PodInfo) -> None:
        """Remove the grant of a pod; the grant of a newer pod of the same name stays."""
        self._granted.take_back(pod)

    def resize_pod(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> PodInfo | Refusal | None:
        """Return a reserve pod with the resources of all devices that it would get; None for other pods."""
        return self._reserver.resize(state, pod, snapshot, row)

    # Binding cycle

    def pre_bind_pre_flight(self, state: CycleState, pod: PodInfo, node: str) -> bool:
        """Return whether the pod has devices to record."""
        return DeviceGrant in state or self._granted.of(pod) is not None

    def pre_bind(
        self, state: CycleState, pod: PodInfo, draft: dict[str, Any], node: str,
    ) -> Refusal | Deferred | None:
        """Record the granted devices in the pod's annotations."""
        grant = state.get(DeviceGrant) or self._granted.of(pod)
        return record_allocation(self._handle, draft, grant, node) if isinstance(grant, DeviceGrant) else None

    def pre_bind_reservation(
        self, state: CycleState, reservation: dict[str, Any], node: str,
    ) -> Refusal | Deferred | None:
        """Record the granted devices in the Reservation's annotations."""
        grant = state.get(DeviceGrant)
        if not isinstance(grant, DeviceGrant):
            return None
        return record_reservation_allocation(self._handle, reservation, grant, node)

    # Reservations

    def pre_restore(self, state: CycleState, pod: PodInfo) -> Refusal | None:
        """Return None: nothing is prepared."""
        return None

    def restore(
        self, state: CycleState, pod: PodInfo, matched: Sequence[Any], unmatched: Sequence[Any], node: str,
    ) -> Refusal | None:
        """Store the node's reservations in the cycle state."""
        if wants_devices(pod.requests):
            note_restored(state, matched, unmatched, node)
        return None

    def filter_reservation(
        self, state: CycleState, pod: PodInfo, reservation: Any, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        """Refuse a reservation that holds devices which do not suffice for the pod."""
        candidate = self._candidates.of(state, pod, snapshot, row)
        if candidate is None or reservation.uid not in candidate.holdings.claims:
            return None
        demand = candidate.demand(plan_others=False)
        if isinstance(demand, Refusal):
            return demand
        found = candidate.allocate_from(demand, (reservation,), Preferences(), required=True)
        return found if isinstance(found, Refusal) else None

    def score_reservation(
        self, state: CycleState, pod: PodInfo, reservation: Any, snapshot: Snapshot, row: int,
    ) -> int:
        """Prefer reservations by the allocated share of their devices; at most 100 if there are several types."""
        return self._scorer.score_reservation(state, pod, reservation, snapshot, row)

    # Topology hints

    def topology_kind(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot,
    ) -> tuple[Hashable, frozenset[Path]] | None:
        """Return the cache key of the pod's hints and the paths that they depend on; None if not cacheable."""
        if not self._args.aligned or not wants_devices(pod.requests):
            return (), frozenset()
        pod_devices = self._candidates.pod_devices(state, pod, snapshot)
        if pod_devices is None:
            return (), frozenset()
        return (pod_devices.kind, OUTCOME_PATHS) if is_cacheable(state, pod_devices) else None

    def topology_hints(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int,
    ) -> Mapping[str, Sequence[TopologyHint] | None] | Refusal:
        """Return for each type of devices the sets of NUMA nodes that have enough of them."""
        candidate = self._candidates.of(state, pod, snapshot, row) if self._args.aligned else None
        return {} if candidate is None else topology_hints(candidate)

    def allocate_by_topology(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, affinity: TopologyHint,
    ) -> Refusal | None:
        """Return why the devices of these NUMA nodes do not suffice, or None."""
        candidate = self._candidates.of(state, pod, snapshot, row) if self._args.aligned else None
        return None if candidate is None else replace(candidate, numa=affinity.mask).check(self._args.scorer)

    # Queue and endpoints

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether an event may free or add devices: deleted pods, reservations, nodes, Devices, templates."""
        if event.kind in ("Device", "Reservation", "ConfigMap"):
            return True
        return pod_left(event) or node_came_or_changed(event)

    def endpoints(self) -> Mapping[str, Callable[..., Any]]:
        """Return the endpoints with the devices of nodes, their holders, and what is free."""
        return endpoints(self._cache, self._handle)
