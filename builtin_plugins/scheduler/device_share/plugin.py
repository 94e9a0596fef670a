"""DeviceShare: GPUs, whole and shared, RDMA and FPGA devices, and virtual functions, as Device objects tell of them.

The behaviour is Koordinator's (pkg/scheduler/plugins/deviceshare). Nodes without a Device object cost nothing; the
others are tried one by one, and what that came to is kept for the next pod of the same kind, until the node changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived, DerivedObjects
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Answer, Code, Refusal, Scores
from koordpolicy.engine.kubernetes.quantity import Quantity
from koordpolicy.engine.kubernetes.vocabulary import (
    DEVICE_ALLOCATED_ANNOTATION,
    GPU_MEMORY,
    GPU_MODEL_LABEL,
    GPU_PARTITION_POLICY_LABEL,
    GPU_VENDOR_LABEL,
)
from koordpolicy.engine.scheduler.cycle.normalize import normalize_by_max
from koordpolicy.engine.scheduler.cycle.schedule_one import ReservedDevices
from koordpolicy.engine.scheduler.extensions.reservations import is_reserve_pod
from koordpolicy.engine.scheduler.extensions.topology import affinities_of, affinity_of, mask_of, masks
from koordpolicy.plugin import SKIP, CycleState, Deferred, Handle, Skip, TopologyHint

from ..allocation.annotations import annotations_of, is_hinted, labels_of, write_annotation
from ..allocation.grants import Grants
from ..allocation.kept_outcomes import KeptOutcomes, Trials, refuse_one_by_one, score_one_by_one
from ..allocation.requeue_hints import node_came_or_changed, pod_left
from ..allocation.resource_scoring import AllocationScorer
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
from ..reservation.status import RESIZE
from .adapters import GATE, ISOLATION_LABEL, AdaptionError, Bound, adapt
from .allocation import (
    NO_TEMPLATE,
    Allocation,
    Choosing,
    DeviceDemand,
    Given,
    Templates,
    Wishes,
    allocate,
    completed,
    demand_on,
    holding_of,
    score_pool,
)
from .args import check_args, convert, ignored_args
from .devices import AllocationScope, Holding, Holdings, NodeDevices, holding_in, pool_of, recorded
from .requests import GPU_TYPE, DeviceRequestError, WantedDevices, read_request, wants_devices
from .templates import templates_of

if TYPE_CHECKING:
    from koordpolicy.plugin import Event

HINT_SCORE: Final = 500
"""What a topology hint counts that leaves the choice of devices as it would be anyway: more than those of cpus."""

_DEVICE_PATHS: Final = frozenset({("objects", "Device")})
_HOLDING_PATHS: Final = _DEVICE_PATHS | {("requested",)}
_LABELS: Final = tuple(
    ("node", "metadata", "labels", label) for label in (
        GPU_VENDOR_LABEL, GPU_MODEL_LABEL, GPU_PARTITION_POLICY_LABEL, ISOLATION_LABEL,
    )
)
_OUTCOME_PATHS: Final = _HOLDING_PATHS | frozenset(_LABELS)
_RESIZE_GATE: Final = "ResizePod"
_NO_ISOLATION: Final = Refusal("isolation", "GPUIsolationProviderHAMICore not found on the node", Code.ERROR)
_TOO_FEW_ON_NUMA: Final = Refusal("numa", "Insufficient NUMA Scoped Devices", Code.UNRESOLVABLE)
_NOT_ON_NUMA: Final = Refusal("numa", "Designated Allocation Lack NUMA Node ID")


@dataclass(frozen=True, slots=True)
class PodDevices:
    """What a pod wants of this plugin: the same for all nodes, and a key of the cycle state.

    `templates` are those that suit the pod, or None where it needs none; `designated` is what it has to get again.
    """

    request: WantedDevices
    templates: Templates | None = None
    designated: Holding | None = None
    needs_reservation: bool = False
    ignores_reservations: bool = False

    @property
    def kind(self) -> object:
        """What all pods have in common that get the same answers."""
        return self.request.kind, self.needs_reservation, self.ignores_reservations


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """What was reserved for a pod on a node, until its annotations say it; also a key of the cycle state."""

    uid: str
    node: str
    allocation: Allocation
    held: Holding


class DeviceShare:
    """Filter, scorer, and who hands out devices; arguments: see docs/plugins/device-share.md."""

    name = "DeviceShare"
    check_args = staticmethod(check_args)
    ignored_args = staticmethod(ignored_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._args = convert(check_args(args))
        self._handle = handle
        self._devices: DerivedObjects[NodeDevices | None] = DerivedObjects(
            _DEVICE_PATHS, _devices_of, lambda devices: (devices is not None,), 1)
        self._holdings: DerivedObjects[Holdings | None] = DerivedObjects(_HOLDING_PATHS, self._holdings_of)
        self._outcomes = KeptOutcomes(_OUTCOME_PATHS)
        self._scores = KeptOutcomes(_OUTCOME_PATHS)
        self._of_labels = Derived(frozenset(_LABELS), np.bool_, distinct=True)
        self._granted: Grants[DeviceGrant, Holding] = Grants(holding_in, Holding(), self._holdings.forget)

    def start(self) -> None:
        """Hear of pods that go, to forget what was reserved for them."""
        self._handle.events.on(("Pod",), self._granted.note)

    # The points

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | Skip | None:
        """Read what the pod wants; pods without devices are none of this plugin's."""
        found = self._read(pod, snapshot)
        if isinstance(found, Refusal):
            return found
        state[PodDevices] = found
        return SKIP if found is None else None

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes whose devices do not suffice; nodes without a Device object are left to others."""
        refusals = RowRefusals(snapshot.size, rows)
        wanted = self._wanted(state, pod, snapshot)
        if wanted is None:
            return refusals.answer()
        if wanted.request.shared:
            self._refuse_unsharable(refusals, pod, snapshot)
        tried = self._devices.of(snapshot).numbers[:, 0] != 0
        for row in affinities_of(state).rows(snapshot):
            tried[row] = False  # the topology manager has tried to allocate

        def attempt(row: int) -> Refusal | None:
            on = self._on(state, snapshot, row, wanted)
            return None if on is None else self._try(on)

        refuse_one_by_one(refusals, snapshot, tried, attempt, self._trials(self._outcomes, state, snapshot, wanted))
        return refusals.answer()

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Skip | None:  # noqa: ARG002
        """Leave out pods that are none of this plugin's."""
        return SKIP if self._wanted(state, pod, snapshot) is None else None

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer nodes by how much of their devices is allocated, the best one 100."""
        raw = np.zeros(snapshot.size, np.int64)
        wanted = self._wanted(state, pod, snapshot)
        if wanted is None:
            return Scores(raw)
        asked = np.zeros(snapshot.size, np.bool_)
        asked[rows] = True
        asked &= self._devices.of(snapshot).numbers[:, 0] != 0

        def score(row: int) -> int:
            return self._score(state, pod, snapshot, row, wanted)

        chosen = affinities_of(state).rows(snapshot)
        if chosen:  # there it hangs on the NUMA nodes too
            own = np.zeros(snapshot.size, np.bool_)
            own[chosen] = True
            score_one_by_one(raw, snapshot, asked & own, score, None)
            asked &= ~own
        score_one_by_one(raw, snapshot, asked, score, self._trials(self._scores, state, snapshot, wanted))
        return Scores(normalize_by_max(raw, rows, HIGHEST_SCORE), raw={"": raw})

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Give the pod its devices."""
        wanted = self._wanted(state, pod, snapshot)
        on = None if wanted is None else self._on(state, snapshot, row, wanted)
        if on is None:
            return None
        found = self._allocated(pod, on, self._nominee(state, pod, snapshot, row))
        if isinstance(found, Refusal):
            return found
        allocation, reservation = found
        grant = DeviceGrant(pod.uid, on.name, allocation, holding_of(allocation, reservation))
        state[DeviceGrant] = grant
        self._granted.give(pod, grant)
        if allocation.get(GPU_TYPE):
            # So that what the framework counts by GPU, and GpuShare, know the same ones.
            state[ReservedDevices] = tuple(each.minor for each in allocation[GPU_TYPE])
        return None

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:  # noqa: ARG002
        """Take back what was reserved."""
        if state.pop(DeviceGrant, None) is not None:
            state.pop(ReservedDevices, None)
        self.forget_pod(pod)

    def forget_pod(self, pod: PodInfo) -> None:
        """Forget what was reserved for a pod; another one that has its name by now keeps what it has."""
        self._granted.take_back(pod)

    def pre_bind(
        self, state: CycleState, pod: PodInfo, draft: dict[str, Any], node: str,
    ) -> Refusal | Deferred | None:
        """Write down which devices the pod got."""
        found = state.get(DeviceGrant) or self._granted.of(pod)
        return self._write(draft, found, node) if isinstance(found, DeviceGrant) else None

    def pre_bind_reservation(
        self, state: CycleState, reservation: dict[str, Any], node: str,
    ) -> Refusal | Deferred | None:
        """Write down which devices the Reservation got."""
        found = state.get(DeviceGrant)
        if not isinstance(found, DeviceGrant):
            return None
        answer = self._write(reservation, found, node)
        if not isinstance(answer, Refusal) and found.node == node and _RESIZE_GATE in self._handle.feature_gates:
            write_annotation(reservation, RESIZE, {"resources": {
                name: _quantity(name, amount) for name, amount in sorted(_summed(found.allocation).items())
            }})
        return answer

    def resize_pod(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> PodInfo | Refusal | None:
        """Let a pod that stands for a Reservation request all of the devices that it gets."""
        wanted = self._wanted(state, pod, snapshot)
        on = None if wanted is None or not is_reserve_pod(pod) else self._on(state, snapshot, row, wanted)
        if on is None:
            return None
        found = self._allocated(pod, on, self._nominee(state, pod, snapshot, row))
        if isinstance(found, Refusal):
            return found
        return replace(pod, requests=ResourceList({**pod.requests, **_summed(found[0])}))

    # Reservations

    def pre_restore(self, state: CycleState, pod: PodInfo) -> Refusal | None:  # noqa: ARG002
        """Nothing to prepare."""
        return None

    def restore(
        self, state: CycleState, pod: PodInfo, matched: Sequence[Any], unmatched: Sequence[Any], node: str,
    ) -> Refusal | None:
        """Take note of the node's reservations."""
        if wants_devices(pod.requests):
            note_restored(state, matched, unmatched, node)
        return None

    def filter_reservation(
        self, state: CycleState, pod: PodInfo, reservation: Any, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        """Refuse a reservation that holds devices, but not those that the pod needs."""
        wanted = self._wanted(state, pod, snapshot)
        on = None if wanted is None else self._on(state, snapshot, row, wanted)
        if on is None or reservation.uid not in on.holdings.claims:
            return None
        demand = on.demand(plan_others=False)
        if isinstance(demand, Refusal):
            return demand
        found = on.of_reservations(demand, (reservation,), Wishes(), required=True)
        return found if isinstance(found, Refusal) else None

    def score_reservation(
        self, state: CycleState, pod: PodInfo, reservation: Any, snapshot: Snapshot, row: int,
    ) -> int:
        """Prefer reservations by how much of their devices is allocated; at most 100 where there are several types."""
        wanted = self._wanted(state, pod, snapshot)
        on = None if wanted is None or is_reserve_pod(pod) else self._on(state, snapshot, row, wanted)
        if on is None or reservation.uid not in on.holdings.claims:
            return 0
        return min(HIGHEST_SCORE, on.score(self._args.scorer, on.limits_of(reservation)))

    # Topology hints

    def topology_kind(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot,
    ) -> tuple[Hashable, frozenset[Path]] | None:
        """Return what decides about a pod's hints: nothing for pods without devices."""
        if not self._args.aligned or not wants_devices(pod.requests):
            return (), frozenset()
        wanted = self._wanted(state, pod, snapshot)
        if wanted is None:
            return (), frozenset()
        return (wanted.kind, _OUTCOME_PATHS) if self._alone(state, wanted) else None

    def topology_hints(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int,
    ) -> Mapping[str, Sequence[TopologyHint] | None] | Refusal:
        """Return for each type of devices the sets of NUMA nodes that have enough of them."""
        wanted = self._wanted(state, pod, snapshot)
        on = None if wanted is None or not self._args.aligned else self._on(state, snapshot, row, wanted)
        if wanted is None or on is None:
            return {}
        if wanted.designated is not None:
            return _designated_hints(on.devices, wanted.designated)
        demand = on.demand(plan_others=False)
        nodes = on.devices.numa_nodes()
        if not nodes:
            return {}
        if isinstance(demand, Refusal):
            return demand
        feasible: list[tuple[int, Allocation]] = []
        last: Allocation | Refusal = {}
        for mask in masks(nodes):
            last = on.on_numa_nodes(demand, mask)
            if not isinstance(last, Refusal):
                feasible.append((mask, last))
        if isinstance(last, Refusal):  # not even all NUMA nodes together suffice
            return last
        best = _gpus(last)
        narrowest = min(mask.bit_count() for mask, _ in feasible)
        hints = [
            TopologyHint(mask, mask.bit_count() == narrowest, HINT_SCORE if _gpus(found) == best else 0)
            for mask, found in feasible
        ]
        return dict.fromkeys(demand.per_device, hints)

    def allocate_by_topology(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, affinity: TopologyHint,
    ) -> Refusal | None:
        """Try to allocate from these NUMA nodes."""
        wanted = self._wanted(state, pod, snapshot)
        on = None if wanted is None or not self._args.aligned else self._on(state, snapshot, row, wanted)
        return None if on is None else self._try(replace(on, numa=affinity.mask))

    # The queue, and what may be asked

    def may_help(self, event: Event, pod: PodInfo) -> bool:  # noqa: ARG002 - any pod may wait for devices
        """Pods and reservations that go, nodes and their devices, templates."""
        if event.kind in ("Device", "Reservation", "ConfigMap"):
            return True
        return pod_left(event) or node_came_or_changed(event)

    def endpoints(self) -> Mapping[str, Callable[..., Any]]:
        """What devices a node has, who holds them, and what is free."""
        return {"nodes/{name}": self._describe, "nodes": self._describe_all}

    # What a pod wants

    def _wanted(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PodDevices | None:
        if PodDevices not in state:
            found = self._read(pod, snapshot)
            if isinstance(found, Refusal):
                raise ValueError(found.message)
            state[PodDevices] = found
        wanted: PodDevices | None = state[PodDevices]
        return wanted

    def _read(self, pod: PodInfo, snapshot: Snapshot) -> PodDevices | Refusal | None:
        try:
            if not wants_devices(pod.requests):
                return None
            recorded = holding_in(annotations_of(pod.object))
            request = read_request(pod)
            if request is None:
                return None
            templates = None
            if request.gpu is not None and request.shared and self._args.templated & request.gpu.per_gpu.keys():
                templates = templates_of(snapshot.object("ConfigMap", self._args.templates), request.gpu.per_gpu)
                if not templates:
                    return Refusal("template", NO_TEMPLATE, Code.UNRESOLVABLE)
            needs = needs_reservation(pod)
        except DeviceRequestError as error:
            return Refusal("request", str(error), Code.UNRESOLVABLE)
        except ValueError as error:
            return Refusal("annotations", str(error), Code.UNRESOLVABLE)
        designated = recorded if recorded and is_hinted(pod, self.name) else None
        return PodDevices(request, templates, designated, needs, ignores_reservations(pod))

    def _refuse_unsharable(self, refusals: RowRefusals, pod: PodInfo, snapshot: Snapshot) -> None:
        """Refuse nodes without the isolation that the pod asks for, and GPUs that cannot be shared."""
        provider = labels_of(pod.object).get(ISOLATION_LABEL)
        if provider:
            refusals.refuse(self._of_labels.of(
                snapshot, ("isolation", provider),
                lambda view, row: labels_of(view.node(row)).get(ISOLATION_LABEL) != provider,
                paths=frozenset(_LABELS[3:]),
            ), _NO_ISOLATION)
        for vendor, model in sorted(self._args.unsharable):
            def is_one(view: Snapshot, row: int, vendor: str = vendor, model: str = model) -> bool:
                labels = labels_of(view.node(row))
                return (labels.get(GPU_VENDOR_LABEL, ""), labels.get(GPU_MODEL_LABEL, "")) == (vendor, model)

            message = f'model "{model}" of vendor "{vendor}" does not support GPU Share'
            refusals.refuse(self._of_labels.of(
                snapshot, ("unsharable", vendor, model), is_one, paths=frozenset(_LABELS[:2]),
            ), Refusal("unsharable", message, Code.UNRESOLVABLE))

    def _alone(self, state: CycleState, wanted: PodDevices) -> bool:
        """Whether nothing but the node and the kind of the pod decides."""
        return wanted.designated is None and wanted.templates is None and not anything_restored(state)

    def _trials(
        self, outcomes: KeptOutcomes, state: CycleState, snapshot: Snapshot, wanted: PodDevices,
    ) -> Trials | None:
        """Return what is known of pods of the same kind; None where more than node and kind decides."""
        if not self._alone(state, wanted):
            return None

        def alike(row: int) -> Hashable:
            holdings = self._holdings.at(snapshot, row)
            labels = labels_of(snapshot.node(row))
            return (
                id(self._devices.at(snapshot, row)), None if holdings is None else holdings.likeness,
                *(labels.get(path[-1]) for path in _LABELS),
            )

        return Trials(outcomes.of(snapshot, wanted.kind), alike)

    # What is held on a node

    def _holdings_of(self, snapshot: Snapshot, row: int) -> Holdings | None:
        node = snapshot.names[row]
        if snapshot.object("Device", node) is None:
            return None
        held, claims = self._granted.held_on(node, snapshot.pods(row), recorded)
        return Holdings(held).with_claims(claims)

    def _held(self, state: CycleState, snapshot: Snapshot, row: int) -> Holdings | None:
        """Return what is held on a node, reservations included that the snapshot shows without their reserve pods."""
        held = self._holdings.at(snapshot, row)
        return None if held is None else held.with_claims(self._granted.claims(state, snapshot.names[row]))

    # Trying to allocate

    def _on(self, state: CycleState, snapshot: Snapshot, row: int, wanted: PodDevices) -> _OnNode | None:
        """Return a node with devices as the pod meets it; None for one without a Device object."""
        devices, holdings = self._devices.at(snapshot, row), self._held(state, snapshot, row)
        if devices is None or holdings is None:
            return None
        name = snapshot.names[row]
        affinity = affinity_of(state, snapshot, row) if self._args.aligned else None
        return _OnNode(name, snapshot.node(row), devices, holdings, restored_on(state, name).matched, wanted,
                       None if affinity is None else affinity.mask)

    def _try(self, on: _OnNode) -> Refusal | None:
        """Return why the pod cannot have its devices on the node, of a reservation or else of all that is free."""
        found: object
        if on.wanted.designated is not None:
            found = on.designated(self._args.scorer)
        else:
            demand = on.demand(plan_others=False)
            found = demand if isinstance(demand, Refusal) else on.anywhere(demand)
        return found if isinstance(found, Refusal) else None

    def _allocated(
        self, pod: PodInfo, on: _OnNode, nominate: Callable[[], Reserved | None],
    ) -> tuple[Allocation, str] | Refusal:
        """Return what the pod gets for good on a node, and of which reservation."""
        if on.wanted.designated is not None:
            return on.designated(self._args.scorer)
        demand = on.demand()
        if isinstance(demand, Refusal):
            return demand
        wishes = Wishes(scorer=self._args.scorer)
        found = None
        if not is_reserve_pod(pod):
            nominated = nominate() if on.matched else None
            chosen = on.matched if on.wanted.ignores_reservations else () if nominated is None else (nominated,)
            found = on.of_reservations(demand, chosen, wishes, required=False)
        if found is None:
            anything = on.choose(demand, on.limits(), wishes)
            found = anything if isinstance(anything, Refusal) else (anything, "")
        return found if isinstance(found, Refusal) else on.completed(found)

    def _nominee(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Callable[[], Reserved | None]:
        return lambda: nominated_reservation(self._handle, state, pod, snapshot, row)

    # Scores

    def _score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, wanted: PodDevices) -> int:
        """Return the sum over the types of devices: of the reservation that was chosen, else of the node."""
        on = self._on(state, snapshot, row, wanted)
        if on is None:
            return 0
        may_use = on.matched and not is_reserve_pod(pod)
        nominated = nominated_reservation(self._handle, state, pod, snapshot, row) if may_use else None
        if nominated is None:
            return on.score(self._args.scorer, on.limits())
        if nominated.uid not in on.holdings.claims:
            return 0
        return on.score(self._args.scorer, on.limits_of(nominated))

    # Writing and describing

    def _write(self, item: dict[str, Any], grant: DeviceGrant, node: str) -> Refusal | Deferred | None:
        if grant.node != node:
            return None
        snapshot = self._handle.snapshot()
        device = snapshot.object("Device", node)
        if device is None:
            return Refusal("device", f"there is no Device `{node}` any more", Code.ERROR)
        devices = NodeDevices.of(device)
        write_annotation(item, DEVICE_ALLOCATED_ANNOTATION, {
            device_type: [_entry(devices, device_type, each) for each in given]
            for device_type, given in grant.allocation.items()
        })
        if GATE in self._handle.feature_gates:
            try:
                lock = adapt(Bound(item, grant.allocation, node, snapshot, self._handle.now()))
            except AdaptionError as error:
                return Refusal("adaption", str(error), Code.ERROR)
            return None if lock is None else Deferred(partial(lock.set, self._handle.client))
        return None

    def _describe(self, name: str) -> Any:
        snapshot = self._handle.snapshot()
        row = snapshot.index.get(name)
        devices = None if row is None else self._devices.at(snapshot, row)
        holdings = None if row is None else self._holdings.at(snapshot, row)
        if devices is None or holdings is None:
            return None
        everything = WantedDevices(dict.fromkeys(devices.devices, ResourceList()))
        pool = pool_of(devices, holdings, everything, AllocationScope())
        return {
            "total": {
                device_type: {str(minor): dict(info.resources) for minor, info in infos.items()}
                for device_type, infos in devices.devices.items()
            },
            "free": _plain(pool.free),
            "pods": {key: _plain(each.amounts) for key, each in sorted(holdings.pods.items())},
            "reservations": {uid: _plain(each.amounts) for uid, each in sorted(holdings.reservations.items())},
        }

    def _describe_all(self) -> Any:
        snapshot = self._handle.snapshot()
        return {name: found for name in snapshot.names if (found := self._describe(name)) is not None}


@dataclass(frozen=True, slots=True)
class _OnNode:
    """A node with devices as one pod meets it: what is held there, and the reservations that the pod may use.

    `numa` is the mask of the NUMA nodes that were chosen for the pod, None for any.
    """

    name: str
    node: Mapping[str, Any]
    devices: NodeDevices
    holdings: Holdings
    matched: Sequence[Reserved]
    wanted: PodDevices
    numa: int | None = None

    def demand(self, *, plan_others: bool = True) -> DeviceDemand | Refusal:
        """Return what the pod wants here."""
        return demand_on(self.devices, self.wanted.request, plan_others=plan_others)

    def limits(self) -> AllocationScope:
        """Return the limits of an allocation from all that is free: what the pod's reservations hold counts as free."""
        return AllocationScope(tuple(each.uid for each in self.matched), self.numa)

    def limits_of(self, reservation: Reserved) -> AllocationScope:
        """Return the limits of an allocation from a reservation: a restricted one gives no more than it has left."""
        limits = AllocationScope((reservation.uid,), self.numa)
        if reservation.policy != RESTRICTED_RESERVATION:
            return limits
        return replace(limits, most=self.holdings.reservations[reservation.uid].amounts)

    def choose(self, demand: DeviceDemand, limits: AllocationScope, wishes: Wishes) -> Allocation | Refusal:
        """Return the devices that the pod would get within limits."""
        pool = pool_of(self.devices, self.holdings, self.wanted.request, limits)
        return allocate(Choosing(self.node, self.devices, self.wanted.request, demand, pool, wishes,
                                 self.wanted.templates))

    def anywhere(self, demand: DeviceDemand) -> Allocation | Refusal:
        """Return the devices that the pod would get of a reservation, or else of all that is free."""
        found = self.of_reservations(demand, self.matched, Wishes(), required=self.wanted.needs_reservation)
        if found is not None:
            return found if isinstance(found, Refusal) else found[0]
        return self.choose(demand, self.limits(), Wishes())

    def on_numa_nodes(self, demand: DeviceDemand, mask: int) -> Allocation | Refusal:
        """Return the devices that the pod would get of these NUMA nodes."""
        for device_type, count in demand.counts.items():
            here = sum(
                1 for info in self.devices.of_type(device_type).values()
                if info.place is not None and info.place.numa_node >= 0 and mask >> info.place.numa_node & 1
            )
            if 0 < here < count:
                return _TOO_FEW_ON_NUMA
        return replace(self, numa=mask).anywhere(demand)

    def of_reservations(
        self, demand: DeviceDemand, reservations: Sequence[Reserved], wishes: Wishes, *, required: bool,
    ) -> tuple[Allocation, str] | Refusal | None:
        """Return what the pod gets of one of the reservations, and of which; None where it has to look elsewhere."""
        usable = [each for each in reservations if each.uid in self.holdings.claims]
        if not usable:
            return None
        if self.wanted.ignores_reservations:
            chosen = self.choose(demand, AllocationScope(tuple(each.uid for each in usable), self.numa), wishes)
            return chosen if isinstance(chosen, Refusal) else (chosen, "")

        def attempt(reservation: Reserved) -> tuple[Allocation, str] | Refusal:
            whole = self.holdings.claims[reservation.uid].held
            minors = {device_type: whole.minors(device_type) for device_type in whole.amounts}
            bound = minors if reservation.policy == RESTRICTED_RESERVATION else {}
            chosen = self.choose(
                demand, self.limits_of(reservation), replace(wishes, preferred=minors, required=bound))
            return chosen if isinstance(chosen, Refusal) else (chosen, reservation.uid)

        return first_fitting(usable, attempt, required=required)

    def designated(self, scorer: AllocationScorer) -> tuple[Allocation, str] | Refusal:
        """Return exactly what the pod has to get again, or why it cannot have it."""
        designated, demand = self.wanted.designated or Holding(), self.demand()
        if isinstance(demand, Refusal):
            return demand
        whole = completed(self.devices, {
            device_type: [Given(minor, amounts) for minor, amounts in minors.items()]
            for device_type, minors in designated.amounts.items()
        })
        if isinstance(whole, Refusal):
            return whole
        most = {device_type: {each.minor: each.resources for each in given} for device_type, given in whole.items()}
        found = self.choose(
            demand, replace(self.limits(), most=most), Wishes(functions=designated.functions, scorer=scorer))
        return found if isinstance(found, Refusal) else self.completed((found, ""))

    def completed(self, found: tuple[Allocation, str]) -> tuple[Allocation, str] | Refusal:
        """Return an allocation with all that is written down of it."""
        complete = completed(self.devices, found[0])
        return complete if isinstance(complete, Refusal) else (complete, found[1])

    def score(self, scorer: AllocationScorer, limits: AllocationScope) -> int:
        """Return how well the pod suits the devices within limits."""
        demand = self.demand(plan_others=False)
        if isinstance(demand, Refusal):
            return 0
        return score_pool(scorer, demand, pool_of(self.devices, self.holdings, self.wanted.request, limits))


def _devices_of(snapshot: Snapshot, row: int) -> NodeDevices | None:
    device = snapshot.object("Device", snapshot.names[row])
    return None if device is None else NodeDevices.shared(device)


def _summed(allocation: Allocation) -> ResourceList:
    total = ResourceList()
    for given in allocation.values():
        for each in given:
            for name, amount in each.resources.items():
                total[name] += amount
    return total


def _gpus(allocation: Allocation) -> frozenset[int]:
    return frozenset(each.minor for each in allocation.get(GPU_TYPE, ()))


def _designated_hints(devices: NodeDevices, designated: Holding) -> Mapping[str, Sequence[TopologyHint]] | Refusal:
    nodes = set()
    for device_type, minors in designated.amounts.items():
        for minor in minors:
            info = devices.of_type(device_type).get(minor)
            if info is None or info.place is None or info.place.numa_node < 0:
                return _NOT_ON_NUMA
            nodes.add(info.place.numa_node)
    hint = TopologyHint(mask_of(nodes), True, HINT_SCORE)
    return {device_type: [hint] for device_type in designated.amounts}


def _entry(devices: NodeDevices, device_type: str, given: Given) -> dict[str, Any]:
    info = devices.of_type(device_type).get(given.minor)
    entry: dict[str, Any] = {
        "minor": given.minor,
        "resources": {name: _quantity(name, amount) for name, amount in sorted(given.resources.items())},
    }
    if info is not None and info.uuid:
        entry["id"] = info.uuid
    extension: dict[str, Any] = {}
    if given.functions:
        extension["vfs"] = [{"busID": each.bus, "minor": each.minor} for each in given.functions]
    if given.template:
        extension["gpuSharedResourceTemplate"] = given.template
    if extension:
        entry["extension"] = extension
    return entry


def _quantity(name: str, amount: int) -> str:
    if name != GPU_MEMORY:
        return str(amount)
    return str(Quantity.parse(f"{amount // 1024}Ki")) if amount % 1024 == 0 else str(amount)


def _plain(amounts: Mapping[str, Mapping[int, Mapping[str, int]]]) -> dict[str, dict[str, dict[str, int]]]:
    return {
        device_type: {str(minor): dict(held) for minor, held in minors.items()}
        for device_type, minors in amounts.items()
    }
