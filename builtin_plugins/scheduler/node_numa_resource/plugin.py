"""NodeNUMAResource: cpu sets for pods of the classes LSE and LSR, placement by NUMA nodes, and amplified cpu.

The behaviour is Koordinator's (pkg/scheduler/plugins/nodenumaresource). Numeric rules are evaluated for all nodes at
once; only nodes with a NUMA policy or a required bind policy are tried one by one, and results are cached by kind of
pod until the node changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Refusal, Scores
from koordpolicy.plugin import SKIP, CycleState, Handle, Skip, TopologyHint

from ..allocation.resource_scoring import LEAST, MOST
from ..allocation.row_refusals import RowRefusals
from ..reservation.holdings import note_restored
from .admission import NumaAdmission
from .allocator import NumaAllocator
from .args import check_args, convert, ignored_args
from .cache import CpuGrant, NumaCache
from .cpus import format_cpus
from .filtering import NumaFilter
from .numa_request import NumaRequest, read_numa_request
from .pre_bind import record_allocation
from .scoring import NumaScorer
from .topology_hints import topology_hints

if TYPE_CHECKING:
    from koordpolicy.plugin import Event


class NodeNUMAResource:
    """The plugin at all of its extension points; arguments: see docs/plugins/node-numa-resource.md."""

    name = "NodeNUMAResource"
    check_args = staticmethod(check_args)
    ignored_args = staticmethod(ignored_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._args = convert(check_args(args))
        self._handle = handle
        self._cache = NumaCache()
        self._granted = self._cache.granted
        self._allocator = NumaAllocator(self._cache, MOST if self._args.numa_scorer.kind == MOST else LEAST, handle)
        self._admission = NumaAdmission(self._cache, handle, self)
        self._filter = NumaFilter(self._cache, self._allocator, self._admission)
        self._scorer = NumaScorer(self._args.scorer, self._cache, self._allocator, self._admission)

    def start(self) -> None:
        """Subscribe to deleted pods, to remove their grants."""
        self._handle.events.on(("Pod",), self._granted.note)

    # Scheduling cycle

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | Skip | None:
        """Read the pod's request; skip pods that request no resources."""
        request = read_numa_request(pod, self._args, self.name)
        if isinstance(request, Refusal):
            return request
        state[NumaRequest] = request
        return SKIP if request is None else None

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes whose policies contradict the pod's, or whose free cpus or NUMA nodes do not suffice."""
        request = self._request(state, pod)
        if request is None:
            return RowRefusals(snapshot.size, rows).answer()
        return self._filter.filter(state, pod, snapshot, rows, request)

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Skip | None:
        """Skip pods that request no resources."""
        return SKIP if self._request(state, pod) is None else None

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer nodes, or the NUMA nodes that the pod would get there, by how much of them is allocated."""
        request = self._request(state, pod)
        if request is None:
            return Scores(np.zeros(snapshot.size, np.int64))
        return self._scorer.score(state, pod, snapshot, rows, request)

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Allocate the pod's cpus and NUMA nodes and grant them."""
        request = self._request(state, pod)
        if request is None:
            return None
        topology = self._cache.topology(snapshot, row)
        if request.policy_on(topology) and request.designated is None:
            refusal = self._admission.admit(state, pod, snapshot, row, request)
            if refusal is not None:
                return refusal
        found = self._allocator.allocate(state, pod, snapshot, row, request)
        if isinstance(found, Refusal):
            return found
        if found is None or topology is None:
            return None
        node = snapshot.names[row]
        grant = CpuGrant(pod.uid, node, found, request.binds(topology), request.bind_policy_on(topology))
        state[CpuGrant] = grant
        self._granted.give(pod, grant)
        return None

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Remove the grant."""
        state.pop(CpuGrant, None)
        self.forget_pod(pod)

    def forget_pod(self, pod: PodInfo) -> None:
        """Remove the grant of a pod; the grant of a newer pod of the same name stays."""
        self._granted.take_back(pod)

    # Binding cycle

    def pre_bind_pre_flight(self, state: CycleState, pod: PodInfo, node: str) -> bool:
        """Return whether the pod has an allocation to record."""
        return CpuGrant in state or self._granted.of(pod) is not None

    def pre_bind(self, state: CycleState, pod: PodInfo, draft: dict[str, Any], node: str) -> Refusal | None:
        """Record the allocation in the pod's annotations, and the bind policy if the pod names none."""
        grant = state.get(CpuGrant) or self._granted.of(pod)
        if isinstance(grant, CpuGrant) and grant.node == node:
            record_allocation(draft, grant)
        return None

    def pre_bind_reservation(self, state: CycleState, reservation: dict[str, Any], node: str) -> Refusal | None:
        """Record the allocation in the Reservation's annotations."""
        grant = state.get(CpuGrant)
        if isinstance(grant, CpuGrant) and grant.node == node:
            record_allocation(reservation, grant)
        return None

    # Reservations

    def pre_restore(self, state: CycleState, pod: PodInfo) -> Refusal | None:
        """Return None: nothing is prepared."""
        return None

    def restore(
        self, state: CycleState, pod: PodInfo, matched: Sequence[Any], unmatched: Sequence[Any], node: str,
    ) -> Refusal | None:
        """Store the node's reservations in the cycle state."""
        note_restored(state, matched, unmatched, node)
        return None

    def filter_reservation(
        self, state: CycleState, pod: PodInfo, reservation: Any, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        """Refuse a reservation that holds cpus or NUMA amounts which do not suffice for the pod."""
        request = self._request(state, pod)
        if request is None:
            return None
        return self._filter.filter_reservation(state, reservation, snapshot, row, request)

    # Topology hints

    def topology_hints(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int,
    ) -> Mapping[str, Sequence[TopologyHint] | None] | Refusal:
        """Return for each requested resource of the NUMA nodes the sets of NUMA nodes that have enough of it."""
        request = self._request(state, pod)
        if request is None:
            return {}
        return topology_hints(state, snapshot, row, request, self._cache, self._allocator, self._args.numa_scorer)

    def allocate_by_topology(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, affinity: TopologyHint,
    ) -> Refusal | None:
        """Return why these NUMA nodes do not suffice, None where they do."""
        request = self._request(state, pod)
        return None if request is None else self._allocator.check(state, snapshot, row, request, affinity.mask)

    # Queue and endpoints

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether an event may free or add cpus or NUMA amounts: deleted pods and reservations, nodes."""
        if event.kind in ("Pod", "Reservation"):
            return event.new is None or (event.old_pod is not None and event.old_pod.node_name != "")
        return event.kind in ("Node", "NodeResourceTopology")

    def endpoints(self) -> Mapping[str, Callable[..., Any]]:
        """Return the endpoint with the holdings and the free resources of a node."""
        return {"nodes/{name}": self._describe}

    def _request(self, state: CycleState, pod: PodInfo) -> NumaRequest | None:
        if NumaRequest not in state:
            request = read_numa_request(pod, self._args, self.name)
            if isinstance(request, Refusal):
                raise ValueError(request.message)
            state[NumaRequest] = request
        found: NumaRequest | None = state[NumaRequest]
        return found

    def _describe(self, name: str) -> Any:
        snapshot = self._handle.snapshot()
        row = snapshot.index.get(name)
        held = None if row is None else self._cache.held(snapshot, row)
        if held is None:
            return None
        room = held.room()
        return {
            "pods": {key: each.status() for key, each in sorted(held.pods.items())},
            "reservations": {uid: each.status() for uid, each in sorted(held.reservations.items())},
            "reservedCPUs": format_cpus(held.topology.reserved),
            "availableCPUs": format_cpus(room.cpus),
            "available": {str(node): dict(amounts) for node, amounts in room.free.items()},
        }
