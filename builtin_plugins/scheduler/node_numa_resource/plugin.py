"""NodeNUMAResource: cpu sets for pods of the classes LSE and LSR, placement by NUMA nodes, and amplified cpu.

The behaviour is Koordinator's (pkg/scheduler/plugins/nodenumaresource). What is a matter of numbers is answered for all
nodes at once; only nodes with a NUMA policy or a required bind policy are tried one by one, and what that came to is
kept for the next pod of the same kind, until the node changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import DerivedObjects, RowObjects
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Code, Refusal, Scores
from koordpolicy.engine.kubernetes.vocabulary import (
    CPU_BIND_POLICY_LABEL,
    LSE,
    LSR,
    NUMA_ALLOCATE_STRATEGY_LABEL,
    NUMA_TOPOLOGY_POLICY_LABEL,
    NUMA_TOPOLOGY_SPEC_ANNOTATION,
    PROD,
    RESOURCE_AMPLIFICATION_RATIO_ANNOTATION,
    RESOURCE_SPEC_ANNOTATION,
    RESOURCE_STATUS_ANNOTATION,
    raw_qos_class,
)
from koordpolicy.engine.scheduler.extensions.reservations import is_reserve_pod
from koordpolicy.engine.scheduler.extensions.topology import (
    EXCLUSIVE_REQUIRED,
    RESTRICTED,
    KeepableHints,
    TopologyDemand,
    admit,
    affinities_of,
    affinity_of,
    mask_of,
    masks,
)
from koordpolicy.plugin import SKIP, CycleState, Handle, Skip, TopologyHint, TopologyHints

from ..allocation.annotations import annotations_of, is_hinted, json_object, text_in, write_annotation
from ..allocation.grants import Grants
from ..allocation.kept_outcomes import KeptOutcomes, Trials, refuse_one_by_one, score_one_by_one
from ..allocation.resource_scoring import LEAST, MOST
from ..allocation.row_refusals import RowRefusals
from ..reservation.holdings import RESTRICTED as RESTRICTED_RESERVATION
from ..reservation.holdings import (
    Reserved,
    anything_restored,
    first_fitting,
    ignores_reservations,
    needs_reservation,
    nominated_reservation,
    note_restored,
    restored_on,
)
from .allocation import (
    NOT_ENOUGH_CPUS,
    NodeAllocation,
    NumaDemand,
    PodAllocation,
    Room,
    allocate,
    allocation_in,
    recorded,
    trimmed,
)
from .args import check_args, convert, ignored_args
from .cpus import FULL_PCPUS, SPREAD_BY_PCPUS, format_cpus
from .topology import FACTS, NO_FACTS, NodeTopology, amplify, bind_code, known_policy, policy_code, topology_of

if TYPE_CHECKING:
    from koordpolicy.plugin import Event

_TOPOLOGY_PATHS: Final = frozenset({
    ("objects", "NodeResourceTopology"),
    ("node", "metadata", "annotations", RESOURCE_AMPLIFICATION_RATIO_ANNOTATION),
    *(("node", "metadata", "labels", label) for label in (
        CPU_BIND_POLICY_LABEL, NUMA_ALLOCATE_STRATEGY_LABEL, NUMA_TOPOLOGY_POLICY_LABEL,
    )),
})
_ALLOCATION_PATHS: Final = _TOPOLOGY_PATHS | {("requested",)}
_OUTCOME_PATHS: Final = _ALLOCATION_PATHS | {("allocatable",)}

_NOT_MATCHING: Final = Refusal("numaPolicy", "node(s) NUMA Topology policy not match", Code.UNRESOLVABLE)
_NOT_INTEGER: Final = Refusal("cpus", "the requested CPUs must be integer", Code.UNRESOLVABLE)
_INVALID_RATIO: Final = Refusal("amplification", "node(s) invalid CPU amplification ratio", Code.UNRESOLVABLE)
_INSUFFICIENT_AMPLIFIED: Final = Refusal("amplification", "Insufficient amplified cpu")
_INVALID_TOPOLOGY: Final = Refusal("cpus", "node(s) invalid CPU Topology", Code.UNRESOLVABLE)
_CONFLICT: Final = Refusal(
    "bindPolicy", "node(s) cpu bind policy conflicts with pod's required cpu bind policy", Code.UNRESOLVABLE)
_NOT_ALIGNED: Final = Refusal("bindPolicy", "node(s) requested cpus not multiple cpus per core", Code.UNRESOLVABLE)
_NO_ZONES: Final = Refusal("numa", "node(s) missing NUMA resources", Code.UNRESOLVABLE)
_NO_HINTS: Final = Refusal("numa", "node(s) Insufficient NUMA Node resources")
_NOT_ENOUGH: Final = Refusal("cpus", NOT_ENOUGH_CPUS)
_NOT_IN_NOMINATED: Final = Refusal(
    "reservation", "pod has a nominated reservation but cannot be allocated within its NUMA scope")
_NOT_IN_SCOPE: Final = Refusal(
    "reservation", "reservation NUMA scope is incompatible with the best topology hint")
_NOTHING_NOMINATED: Final = Refusal("reservation", "no nominated reservation")

_DEFAULT: Final = "Default"
_CPUSET_POLICIES: Final = (FULL_PCPUS, SPREAD_BY_PCPUS)
_ALIGNING_POLICIES: Final = ("Restricted", "SingleNUMANode")
_ALIGNING_CODES: Final = tuple(policy_code(policy) for policy in _ALIGNING_POLICIES)

_Booleans = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class NumaRequest:
    """What a pod wants of this plugin: the same for all nodes, and a key of the cycle state.

    `cpus` is how many whole cpus the pod asks for, `bind` whether it wants them for itself whatever the node says,
    `required` and `preferred` how they should lie; `designated` is the allocation that it has to get again.
    """

    requests: ResourceList
    cpus: int = 0
    bind: bool = False
    required: str = ""
    preferred: str = ""
    exclusive: str = ""
    numa_policy: str = ""
    numa_exclusive: str = ""
    needs_reservation: bool = False
    ignores_reservations: bool = False
    designated: PodAllocation | None = None

    @property
    def milli_cpu(self) -> int:
        """The requested cpu in milli-cores."""
        return self.requests["cpu"]

    def binds(self, topology: NodeTopology | None) -> bool:
        """Whether the pod gets cpus of its own on a node: it wants to, or the node gives nothing else."""
        return self.bind or bool(self.milli_cpu and topology is not None and topology.bind)

    def policy_on(self, topology: NodeTopology | None) -> str:
        """Return the NUMA policy that counts on a node that does not contradict the pod."""
        return (topology.policy if topology is not None else "") or self.numa_policy

    def bind_policy_on(self, topology: NodeTopology) -> tuple[str, bool]:
        """Return how the cpus should lie on a node, and whether they must."""
        if self.required:
            return self.required, True
        return (topology.bind, True) if topology.bind else (self.preferred, False)

    @property
    def exclusively(self) -> str:
        """Whether NUMA nodes may be shared; a pod that names a policy does not want to share."""
        return self.numa_exclusive or (EXCLUSIVE_REQUIRED if self.numa_policy else "")

    @property
    def kind(self) -> object:
        """What all pods have in common that get the same answers."""
        return (
            tuple(sorted(self.requests.items())), self.bind, self.required, self.preferred, self.exclusive,
            self.numa_policy, self.numa_exclusive, self.needs_reservation, self.ignores_reservations,
        )


@dataclass(frozen=True, slots=True)
class CpuGrant:
    """What was reserved for a pod on a node, until its annotations say it; also a key of the cycle state."""

    uid: str
    node: str
    held: PodAllocation
    binding: bool
    bind_policy: tuple[str, bool]


class NodeNUMAResource:
    """Filter, scorer, and who hands out cpus and NUMA nodes; arguments: see docs/plugins/node-numa-resource.md."""

    name = "NodeNUMAResource"
    check_args = staticmethod(check_args)
    ignored_args = staticmethod(ignored_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._args = convert(check_args(args))
        self._handle = handle
        self._strategy = MOST if self._args.numa_scorer.kind == MOST else LEAST
        self._topologies: DerivedObjects[NodeTopology | None] = DerivedObjects(
            _TOPOLOGY_PATHS, topology_of, lambda topology: NO_FACTS if topology is None else topology.facts, FACTS)
        self._allocations: DerivedObjects[NodeAllocation | None] = DerivedObjects(
            _ALLOCATION_PATHS, self._allocation_of, lambda held: (0 if held is None else held.bound,), 1)
        self._outcomes: dict[frozenset[Path], KeptOutcomes] = {}
        self._scores: dict[frozenset[Path], KeptOutcomes] = {}
        self._whole = KeptOutcomes(_OUTCOME_PATHS)
        self._granted: Grants[CpuGrant, PodAllocation] = Grants(
            allocation_in, PodAllocation(), self._allocations.forget,
        )

    def start(self) -> None:
        """Hear of pods that go, to forget what was reserved for them."""
        self._handle.events.on(("Pod",), self._granted.note)

    # The points

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | Skip | None:  # noqa: ARG002
        """Read what the pod wants; pods without any request are none of this plugin's."""
        request = self._read(pod)
        if isinstance(request, Refusal):
            return request
        state[NumaRequest] = request
        return SKIP if request is None else None

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes that contradict the pod's policies, or have no cpus or NUMA nodes left as it wants them."""
        request = self._request(state, pod)
        refusals = RowRefusals(snapshot.size, rows)
        if request is None:
            return refusals.answer()
        topologies = self._topologies.of(snapshot)
        if request.designated is not None:
            self._refuse_designated(refusals, state, pod, snapshot, request, topologies.numbers)
            return refusals.answer()
        # Only pods that want something special have to do with nodes that have nothing special.
        asked = rows if request.bind or request.numa_policy else topologies.present
        if len(asked):
            self._refuse(refusals, state, pod, snapshot, request, asked, topologies.numbers[asked])
        return refusals.answer()

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Skip | None:  # noqa: ARG002
        """Leave out pods that are none of this plugin's."""
        return SKIP if self._request(state, pod) is None else None

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer nodes, or the NUMA nodes that the pod would get there, by how much of them is allocated."""
        request = self._request(state, pod)
        if request is None:
            return Scores(np.zeros(snapshot.size, np.int64))
        topologies = self._topologies.of(snapshot)
        values = self._node_scores(request, snapshot, topologies, rows)
        special = rows if request.bind or request.numa_policy else topologies.present
        if len(special):
            policy, bind, valid, _, _, node_ratio = topologies.numbers[special].T
            binding = _binding(request, bind)
            nothing = (binding & (valid == 0)) | np.isnan(node_ratio)
            if not request.bind and request.milli_cpu % 1000:
                nothing |= binding
            by_zone = np.zeros(snapshot.size, np.bool_)
            by_zone[special] = ~nothing & ((policy != 0) | bool(request.numa_policy))
            if special is not rows:
                asked = np.zeros(snapshot.size, np.bool_)
                asked[rows] = True
                by_zone &= asked
            if by_zone.any():
                score_one_by_one(
                    values, snapshot, by_zone, lambda row: self._zone_score(state, pod, snapshot, row, request),
                    self._trials(self._scores, state, pod, snapshot, request),
                )
            values[special[nothing]] = 0
        return Scores(values)

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Give the pod its cpus and NUMA nodes."""
        request = self._request(state, pod)
        if request is None:
            return None
        topology = self._topologies.at(snapshot, row)
        if request.policy_on(topology) and request.designated is None:
            refusal = self._admit(state, pod, snapshot, row, request)
            if refusal is not None:
                return refusal
        found = self._allocated(state, pod, snapshot, row, request)
        if isinstance(found, Refusal):
            return found
        if found is None or topology is None:
            return None
        node = snapshot.names[row]
        grant = CpuGrant(pod.uid, node, found, request.binds(topology), request.bind_policy_on(topology))
        state[CpuGrant] = grant
        self._granted.give(pod, grant)
        return None

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:  # noqa: ARG002
        """Take back what was reserved."""
        state.pop(CpuGrant, None)
        self.forget_pod(pod)

    def forget_pod(self, pod: PodInfo) -> None:
        """Forget what was reserved for a pod; another one that has its name by now keeps what it has."""
        self._granted.take_back(pod)

    def pre_bind(self, state: CycleState, pod: PodInfo, draft: dict[str, Any], node: str) -> Refusal | None:
        """Write down what the pod got, and the bind policy where it had named none."""
        found = state.get(CpuGrant) or self._granted.of(pod)
        if isinstance(found, CpuGrant) and found.node == node:
            _write(draft, found)
        return None

    def pre_bind_reservation(self, state: CycleState, reservation: dict[str, Any], node: str) -> Refusal | None:
        """Write down what the Reservation got."""
        found = state.get(CpuGrant)
        if isinstance(found, CpuGrant) and found.node == node:
            _write(reservation, found)
        return None

    # Reservations

    def pre_restore(self, state: CycleState, pod: PodInfo) -> Refusal | None:  # noqa: ARG002
        """Nothing to prepare."""
        return None

    def restore(
        self, state: CycleState, pod: PodInfo, matched: Sequence[Any], unmatched: Sequence[Any], node: str,  # noqa: ARG002
    ) -> Refusal | None:
        """Take note of the node's reservations."""
        note_restored(state, matched, unmatched, node)
        return None

    def filter_reservation(
        self, state: CycleState, pod: PodInfo, reservation: Any, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        """Refuse a reservation that holds cpus or NUMA nodes, but not those that the pod needs."""
        request = self._request(state, pod)
        topology = self._topologies.at(snapshot, row)
        if request is None or topology is None:
            return None
        binding = request.binds(topology)
        if binding and request.milli_cpu % 1000:
            return _NOT_INTEGER
        if not binding and not request.policy_on(topology):
            return None
        if binding and not topology.cpus:
            return _INVALID_TOPOLOGY
        held = self._held(state, snapshot, row)
        if held is None or not self._holdings(held, reservation):
            return None
        affinity = affinity_of(state, snapshot, row)
        found = self._from_reservations(held, request, (reservation,), None if affinity is None else affinity.mask)
        return _NOT_IN_SCOPE if found is None else found if isinstance(found, Refusal) else None

    # Topology hints

    def topology_hints(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int,
    ) -> Mapping[str, Sequence[TopologyHint] | None] | Refusal:
        """Return for each resource of the zones that the pod requests the sets of NUMA nodes that have enough of it."""
        request = self._request(state, pod)
        if request is None:
            return {}
        topology = self._topologies.at(snapshot, row)
        if request.binds(topology) and request.milli_cpu % 1000:
            return _NOT_INTEGER
        held = self._held(state, snapshot, row)
        if topology is None or held is None or not topology.zones:
            return _NO_HINTS
        wanted = self._wanted(request, topology)
        here = restored_on(state, snapshot.names[row])
        free = trimmed(topology, wanted, held.room([each.uid for each in here.matched])).free
        asked = self._counted(request, topology)
        names = sorted({name for amounts in topology.zones.values() for name in amounts} & request.requests.keys())
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
        for mask in masks(list(topology.zones)):
            if isinstance(self._anywhere(held, request, here.matched, mask), Refusal):
                continue
            nodes = [node for node in topology.zones if mask >> node & 1]
            total, left = _sum(topology.zones[node] for node in nodes), _sum(free[node] for node in nodes)
            used = {name: max(0, amount - left[name]) for name, amount in total.items()}
            score = self._args.numa_scorer.score(used, total, asked)
            for name in names:
                if all(free[node][name] for node in nodes):
                    found[name].append((mask, score))
        anyhow = request.policy_on(topology) == RESTRICTED
        return {name: _hints(of_name, anyhow=anyhow) for name, of_name in found.items()}

    def allocate_by_topology(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, affinity: TopologyHint,
    ) -> Refusal | None:
        """Try to allocate from these NUMA nodes."""
        request = self._request(state, pod)
        held = self._held(state, snapshot, row)
        if request is None or held is None:
            return None
        here = restored_on(state, snapshot.names[row])
        return self._failure(self._anywhere(held, request, here.matched, affinity.mask))

    # The queue, and what may be asked

    def may_help(self, event: Event, pod: PodInfo) -> bool:  # noqa: ARG002 - any pod may wait for cpus
        """Pods and reservations that go, nodes and their topologies."""
        if event.kind in ("Pod", "Reservation"):
            return event.new is None or (event.old_pod is not None and event.old_pod.node_name != "")
        return event.kind in ("Node", "NodeResourceTopology")

    def endpoints(self) -> Mapping[str, Callable[..., Any]]:
        """What is held on a node, and what is free there."""
        return {"nodes/{name}": self._describe}

    # What a pod wants

    def _request(self, state: CycleState, pod: PodInfo) -> NumaRequest | None:
        if NumaRequest not in state:
            request = self._read(pod)
            if isinstance(request, Refusal):
                raise ValueError(request.message)
            state[NumaRequest] = request
        found: NumaRequest | None = state[NumaRequest]
        return found

    def _read(self, pod: PodInfo) -> NumaRequest | Refusal | None:
        annotations = annotations_of(pod.object)
        try:
            spec = json_object(annotations, RESOURCE_SPEC_ANNOTATION)
            preferred, required, exclusive = (text_in(spec, field, RESOURCE_SPEC_ANNOTATION) for field in (
                "preferredCPUBindPolicy", "requiredCPUBindPolicy", "preferredCPUExclusivePolicy",
            ))
            numa = json_object(annotations, NUMA_TOPOLOGY_SPEC_ANNOTATION)
            numa_policy, numa_exclusive = (text_in(numa, field, NUMA_TOPOLOGY_SPEC_ANNOTATION) for field in (
                "numaTopologyPolicy", "singleNUMANodeExclusive",
            ))
        except ValueError as error:
            return Refusal("annotations", str(error), Code.ERROR)
        if not any(pod.requests.values()):
            return None
        try:
            needs = needs_reservation(pod)
            designated = allocation_in(annotations) if is_hinted(pod, self.name) else None
        except ValueError as error:
            return Refusal("annotations", str(error), Code.UNRESOLVABLE)
        request = NumaRequest(
            pod.requests, pod.requests["cpu"] // 1000, numa_policy=known_policy(numa_policy),
            numa_exclusive=numa_exclusive, needs_reservation=needs, ignores_reservations=ignores_reservations(pod),
            designated=designated or None,
        )
        if raw_qos_class(pod.object) not in (LSE, LSR) or pod.priority_band != PROD:
            return request
        default = self._args.default_bind
        preferred = default if preferred in ("", _DEFAULT) else preferred
        required = default if required == _DEFAULT else required
        preferred = required or preferred
        if preferred not in _CPUSET_POLICIES:
            return request
        if request.milli_cpu % 1000:
            return _NOT_INTEGER
        if not request.milli_cpu:
            return request
        return replace(request, bind=True, required=required, preferred=preferred, exclusive=exclusive)

    def _wanted(self, request: NumaRequest, topology: NodeTopology) -> NumaDemand:
        policy, required = request.bind_policy_on(topology)
        return NumaDemand(
            request.requests, request.cpus if request.binds(topology) else 0, policy, required, request.exclusive,
            topology.strategy or self._strategy,
        )

    def _counted(self, request: NumaRequest, topology: NodeTopology) -> Mapping[str, int]:
        """Return the requests as they count on a node: cpu that is bound is amplified."""
        if topology.ratio <= 1 or not request.binds(topology):
            return request.requests
        return {**request.requests, "cpu": amplify(request.milli_cpu, topology.ratio)}

    # What is held on a node

    def _allocation_of(self, snapshot: Snapshot, row: int) -> NodeAllocation | None:
        topology = self._topologies.at(snapshot, row)
        if topology is None:
            return None
        pods = snapshot.pods(row) if topology.cpus else ()
        return NodeAllocation.of(topology, *self._granted.held_on(snapshot.names[row], pods, recorded))

    def _held(self, state: CycleState, snapshot: Snapshot, row: int) -> NodeAllocation | None:
        """Return what is held on a node, reservations included that the snapshot shows without their reserve pods."""
        held = self._allocations.at(snapshot, row)
        return None if held is None else held.with_claims(self._granted.claims(state, snapshot.names[row]))

    def _holdings(self, held: NodeAllocation, reservation: Reserved) -> bool:
        """Whether a reservation holds any cpus or NUMA amounts of its own on the node."""
        return reservation.uid in held.reservations

    # Trying to allocate

    def _anywhere(
        self, held: NodeAllocation, request: NumaRequest, matched: Sequence[Reserved], affinity: int | None,
    ) -> PodAllocation | Refusal:
        """Return what the pod would get: of a reservation if it can, else of the node."""
        found = self._from_reservations(held, request, matched, affinity)
        return self._from_node(held, request, affinity) if found is None else found

    def _from_node(self, held: NodeAllocation, request: NumaRequest, affinity: int | None) -> PodAllocation | Refusal:
        return allocate(held.topology, self._wanted(request, held.topology), held.room(), affinity)

    def _from_reservations(
        self, held: NodeAllocation, request: NumaRequest, matched: Sequence[Reserved], affinity: int | None,
    ) -> PodAllocation | Refusal | None:
        """Return what the pod would get of one of the reservations; None where it has to take it of the node."""
        usable = [each for each in matched if self._holdings(held, each)]
        topology, wanted = held.topology, self._wanted(request, held.topology)
        if not usable:
            return None
        if request.ignores_reservations:
            cpus = sum_of_cpus(held.reservations[each.uid].cpus for each in usable)
            return allocate(topology, wanted, held.room([each.uid for each in usable], preferred=cpus), affinity)

        def attempt(reservation: Reserved) -> PodAllocation | Refusal:
            own = held.reservations[reservation.uid]
            room = held.room([reservation.uid], preferred=own.cpus)
            found = allocate(topology, wanted, room, affinity)
            if reservation.policy == RESTRICTED_RESERVATION and not isinstance(found, Refusal):
                if wanted.cpus > own.cpus.bit_count():
                    return _NOT_ENOUGH
                # Of nothing but the reservation; one that holds only cpus leaves the amounts to the node.
                only = Room(own.zones or room.free, room.cpus & own.cpus, room.taken, own.cpus)
                found = allocate(topology, wanted, only, affinity)
            if isinstance(found, Refusal):
                return found
            return replace(found, reservation=reservation.uid)

        return first_fitting(usable, attempt, required=request.needs_reservation)

    def _allocated(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, request: NumaRequest,
    ) -> PodAllocation | Refusal | None:
        """Return what the pod gets on the node; None where that is nothing of this plugin's."""
        topology = self._topologies.at(snapshot, row)
        held = self._held(state, snapshot, row)
        binding = request.binds(topology)
        if binding and request.milli_cpu % 1000:
            return _NOT_INTEGER
        if not binding and not request.policy_on(topology):
            return None
        if binding and (topology is None or not topology.cpus):
            return replace(_INVALID_TOPOLOGY, code=Code.ERROR)
        if topology is None or held is None:
            return None
        if request.designated is not None:
            return _designated(held, self._wanted(request, topology), request.designated)
        affinity = affinity_of(state, snapshot, row)
        mask = None if affinity is None else affinity.mask
        found = self._from_nominated(state, pod, snapshot, row, request, held, mask)
        return self._from_node(held, request, mask) if found is None else found

    def _from_nominated(  # noqa: PLR0917 - what a decision on one node consists of
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, request: NumaRequest,
        held: NodeAllocation, affinity: int | None,
    ) -> PodAllocation | Refusal | None:
        """Return what the pod gets of the reservation that was chosen for it; None where none was."""
        node = snapshot.names[row]
        matched = restored_on(state, node).matched
        if is_reserve_pod(pod) or not any(self._holdings(held, each) for each in matched):
            return None
        if request.ignores_reservations:
            return self._from_reservations(held, request, matched, affinity)
        nominated = nominated_reservation(self._handle, state, pod, snapshot, row)
        if nominated is None:
            return _NOTHING_NOMINATED if request.needs_reservation else None
        if not self._holdings(held, nominated):
            return None
        found = self._from_reservations(held, request, (nominated,), affinity)
        return _NOT_IN_NOMINATED if found is None else found

    def _failure(self, found: PodAllocation | Refusal | None) -> Refusal | None:
        return found if isinstance(found, Refusal) else None

    # Filtering

    def _refuse_designated(  # noqa: PLR0917 - what a decision consists of, and where the answer goes
        self, refusals: RowRefusals, state: CycleState, pod: PodInfo, snapshot: Snapshot, request: NumaRequest,
        facts: NDArray[np.float64],
    ) -> None:
        refusals.refuse(_contradict(request, facts), _NOT_MATCHING)
        refuse_one_by_one(refusals, snapshot, np.ones(snapshot.size, np.bool_), lambda row: self._failure(
            self._allocated(state, pod, snapshot, row, request)), None)

    def _refuse(  # noqa: PLR0917
        self, refusals: RowRefusals, state: CycleState, pod: PodInfo, snapshot: Snapshot, request: NumaRequest,
        asked: Rows, facts: NDArray[np.float64],
    ) -> None:
        """Refuse rows by their facts, and try those for which these do not tell."""
        policy, bind, valid, cpus_per_core, _, _ = facts.T
        refusals.refuse_at(asked, _contradict(request, facts), _NOT_MATCHING)
        binding = _binding(request, bind)
        if not request.bind and request.milli_cpu % 1000:
            refusals.refuse_at(asked, binding, _NOT_INTEGER)
        self._refuse_amplified(refusals, request, snapshot, asked, facts[:, 5], binding)
        refusals.refuse_at(asked, binding & (valid == 0), _INVALID_TOPOLOGY)
        required = np.where(bind != 0, bind, bind_code(request.required) if request.required else 0)
        if request.required:
            refusals.refuse_at(asked, binding & (required != bind_code(request.required)), _CONFLICT)
        uneven = request.cpus % np.maximum(cpus_per_core, 1) != 0
        refusals.refuse_at(asked, binding & (required == bind_code(FULL_PCPUS)) & uneven, _NOT_ALIGNED)
        effective = np.where(policy != 0, policy, policy_code(request.numa_policy))
        aligning = (effective == _ALIGNING_CODES[0]) | (effective == _ALIGNING_CODES[1])
        tried = np.zeros(snapshot.size, np.bool_)
        tried[asked] = aligning | (binding & (required != 0) & (effective == 0))
        if (tried & refusals.open).any():
            self._try_all(state, pod, snapshot, request, refusals, tried)

    def _try_all(  # noqa: PLR0917 - what a decision consists of, and where the answer goes
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, request: NumaRequest, refusals: RowRefusals,
        tried: _Booleans,
    ) -> None:
        """Try nodes one by one, as far as it is not known what comes of that for a pod of the same kind."""
        trials = self._trials(self._outcomes, state, pod, snapshot, request)

        def attempt(row: int) -> Refusal | None:
            refusal = self._try(state, pod, snapshot, row, request)
            affinity = affinity_of(state, snapshot, row)
            if trials is not None and affinity is not None and row not in snapshot.overridden:
                trials.outcomes.affinities[row] = affinity
            return refusal

        refuse_one_by_one(refusals, snapshot, tried, attempt, trials)
        if trials is not None and trials.outcomes.affinities:
            affinities_of(state).note_known(snapshot, trials.outcomes.affinities)

    def _trials(
        self, outcomes: dict[frozenset[Path], KeptOutcomes], state: CycleState, pod: PodInfo, snapshot: Snapshot,
        request: NumaRequest,
    ) -> Trials | None:
        """Return what is known of pods of the same kind; None where more than node and kind decides."""
        if anything_restored(state):
            return None
        kinds: list[Hashable] = [request.kind]
        paths = _OUTCOME_PATHS
        for provider in self._providers(state):
            if provider is self:
                continue
            found = provider.topology_kind(state, pod, snapshot) if isinstance(provider, KeepableHints) else None
            if found is None:
                return None
            kinds.append(found[0])
            paths |= found[1]
        if paths not in outcomes:
            outcomes[paths] = KeptOutcomes(paths)
        alone = paths == _OUTCOME_PATHS

        def alike(row: int) -> Hashable:
            held = self._allocations.at(snapshot, row)
            if not alone or held is None:
                return row
            at = snapshot.row(row)
            return held.likeness, tuple(sorted(at.requested.items())), tuple(sorted(at.allocatable.items()))

        return Trials(outcomes[paths].of(snapshot, tuple(kinds)), alike)

    def _providers(self, state: CycleState) -> Sequence[TopologyHints]:
        """Return who has topology hints; whoever asks this plugin outside a framework has no peers."""
        if TopologyHints not in state:
            state[TopologyHints] = self._handle.peers(TopologyHints) or (self,)
        found: Sequence[TopologyHints] = state[TopologyHints]
        return found

    def _try(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, request: NumaRequest,
    ) -> Refusal | None:
        if request.policy_on(self._topologies.at(snapshot, row)):
            return self._admit(state, pod, snapshot, row, request)
        return self.allocate_by_topology(state, pod, snapshot, row, TopologyHint(None, True))

    def _admit(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, request: NumaRequest,
    ) -> Refusal | None:
        topology, held = self._topologies.at(snapshot, row), self._held(state, snapshot, row)
        if topology is None or held is None or not topology.zones:
            return _NO_ZONES
        demand = TopologyDemand(list(topology.zones), request.policy_on(topology), request.exclusively, held.states())
        return admit(state, pod, snapshot, row, providers=self._providers(state), demand=demand)

    def _refuse_amplified(  # noqa: PLR0917
        self, refusals: RowRefusals, request: NumaRequest, snapshot: Snapshot, asked: Rows, ratio: NDArray[np.float64],
        binding: _Booleans,
    ) -> None:
        """Refuse nodes with amplified cpu on which bound cpus, which count more, leave too little."""
        if not request.milli_cpu or not (ratio != 1).any():
            return
        refusals.refuse_at(asked, np.isnan(ratio), _INVALID_RATIO)
        amplified = ratio > 1
        if not amplified.any():
            return
        requested = snapshot.requested("cpu")[asked]
        bound = self._allocations.of(snapshot).numbers[asked, 0] * 1000
        counted = np.where(
            (bound > 0) & (bound <= requested), requested - bound + np.ceil(bound * np.maximum(ratio, 1)), requested)
        wanted = np.where(binding, np.ceil(request.milli_cpu * np.maximum(ratio, 1)), request.milli_cpu)
        short = wanted > snapshot.allocatable("cpu")[asked] - counted
        refusals.refuse_at(asked, amplified & short, _INSUFFICIENT_AMPLIFIED)

    # Scores

    def _node_scores(
        self, request: NumaRequest, snapshot: Snapshot, topologies: RowObjects[NodeTopology | None], rows: Rows,
    ) -> NDArray[np.int64]:
        """Return the scores of whole nodes; those of rows that did not change since the last such pod are known."""
        known = self._whole.of(snapshot, request.kind)
        unknown = rows[~known.known[rows]]
        if len(unknown) and not snapshot.overridden:
            known.numbers[unknown] = self._whole_scores(request, snapshot, topologies, unknown)
            known.known[unknown] = True
        values = known.numbers.copy()
        if snapshot.overridden:
            unknown = np.union1d(unknown, np.array(list(snapshot.overridden), dtype=np.intp))
            values[unknown] = self._whole_scores(request, snapshot, topologies, unknown)
        return values

    def _whole_scores(
        self, request: NumaRequest, snapshot: Snapshot, topologies: RowObjects[NodeTopology | None], rows: Rows,
    ) -> NDArray[np.int64]:
        scorer = self._args.scorer
        names = [name for name in scorer.weights if scorer.counts(name, request.requests)]
        requested = {name: snapshot.requested(name)[rows] for name in names}
        asked = {name: np.full(len(rows), request.requests[name], np.int64) for name in names}
        if "cpu" in names and request.milli_cpu and len(topologies.present):
            ratio = topologies.numbers[rows, 4]
            if (ratio > 1).any():
                bound = self._allocations.of(snapshot).numbers[rows, 0] * 1000
                extra = np.where(ratio > 1, np.ceil(bound * ratio) - bound, 0)
                requested["cpu"] = requested["cpu"] + extra.astype(np.int64)
                binding = _binding(request, topologies.numbers[rows, 1])
                amplified = np.where(binding & (ratio > 1), np.ceil(request.milli_cpu * ratio), request.milli_cpu)
                asked["cpu"] = amplified.astype(np.int64)
        values = scorer.scores(requested, {name: snapshot.allocatable(name)[rows] for name in names}, asked)
        return np.zeros(len(rows), np.int64) if values is None else values

    def _zone_score(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, request: NumaRequest,
    ) -> int:
        """Return the score of the NUMA nodes that the pod would get; 0 where it would get none."""
        request = replace(request, designated=None)
        aligning = request.policy_on(self._topologies.at(snapshot, row)) in _ALIGNING_POLICIES
        if aligning and affinity_of(state, snapshot, row) is None and self._admit(state, pod, snapshot, row, request):
            return 0
        found = self._allocated(state, pod, snapshot, row, request)
        held, topology = self._held(state, snapshot, row), self._topologies.at(snapshot, row)
        if not isinstance(found, PodAllocation) or held is None or topology is None:
            return 0
        given_back = (found.reservation,) if found.reservation else ()
        at = snapshot.row(row)
        capacity: Mapping[str, int] = at.allocatable
        requested: dict[str, int] = dict(at.requested)
        if found.zones:
            used = held.used(given_back)
            capacity = _sum(topology.zones[node] for node in found.zones if node in topology.zones)
            requested = _sum(used[node] for node in found.zones if node in used)
        if found.cpus:
            requested["cpu"] = amplify(1000 * len(held.room(given_back).taken), topology.ratio)
        return self._args.scorer.score(requested, capacity, self._counted(request, topology))

    def _describe(self, name: str) -> Any:
        snapshot = self._handle.snapshot()
        row = snapshot.index.get(name)
        held = None if row is None else self._allocations.at(snapshot, row)
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


def sum_of_cpus(sets: Any) -> int:
    """Return the union of sets of cpus."""
    cpus = 0
    for each in sets:
        cpus |= each
    return cpus


def _contradict(request: NumaRequest, facts: NDArray[np.float64]) -> _Booleans:
    """Return which nodes have another NUMA policy than the pod."""
    policy = facts[:, 0]
    if not request.numa_policy:
        return np.zeros(len(policy), np.bool_)
    contradicting: _Booleans = (policy != 0) & (policy != policy_code(request.numa_policy))
    return contradicting


def _binding(request: NumaRequest, bind: NDArray[np.float64]) -> _Booleans:
    """Return on which nodes the pod gets cpus of its own."""
    if request.bind:
        return np.ones(len(bind), np.bool_)
    return bind != 0 if request.milli_cpu else np.zeros(len(bind), np.bool_)


def _designated(held: NodeAllocation, wanted: NumaDemand, designated: PodAllocation) -> PodAllocation | Refusal:
    """Return exactly the allocation that the pod has to get again, or why it cannot have it."""
    room = held.room(preferred=designated.cpus)
    free = {node: ResourceList(amounts) for node, amounts in designated.zones.items()} or room.free
    affinity = mask_of(designated.zones) if designated.zones else None
    found = allocate(held.topology, wanted, Room(free, room.cpus, room.taken, designated.cpus), affinity)
    if isinstance(found, PodAllocation) and found.cpus != designated.cpus:
        return _NOT_ENOUGH
    return found


def _hints(found: Sequence[tuple[int, int]], *, anyhow: bool) -> list[TopologyHint]:
    """Return hints of (mask, score): the narrowest are preferred, or all of them."""
    narrowest = min((mask.bit_count() for mask, _ in found), default=0)
    return [TopologyHint(mask, anyhow or mask.bit_count() == narrowest, score) for mask, score in found]


def _sum(lists: Any) -> ResourceList:
    total = ResourceList()
    for amounts in lists:
        for name, amount in amounts.items():
            total[name] += amount
    return total


def _write(item: dict[str, Any], grant: CpuGrant) -> None:
    annotations = annotations_of(item)
    if grant.binding:
        policy, must = grant.bind_policy
        try:
            spec = dict(json_object(annotations, RESOURCE_SPEC_ANNOTATION))
        except ValueError:
            spec = {}
        before = dict(spec)
        if must and spec.get("requiredCPUBindPolicy", "") in ("", _DEFAULT):
            spec["requiredCPUBindPolicy"] = policy
        if spec.get("preferredCPUBindPolicy") == _DEFAULT:
            spec["preferredCPUBindPolicy"] = policy
        if not spec.get("requiredCPUBindPolicy") and not spec.get("preferredCPUBindPolicy") and policy:
            spec["preferredCPUBindPolicy"] = policy
        if spec != before:
            write_annotation(item, RESOURCE_SPEC_ANNOTATION, spec)
    write_annotation(item, RESOURCE_STATUS_ANNOTATION, grant.held.status())
