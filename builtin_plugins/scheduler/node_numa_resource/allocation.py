"""Allocations of a node's cpus and NUMA nodes: holdings of pods and reservations, free resources, and a pod's share.

All of it is derived from the pods of a snapshot, so that simulations need no state of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList, canonical_amount
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.kubernetes.vocabulary import RESOURCE_SPEC_ANNOTATION, RESOURCE_STATUS_ANNOTATION
from koordpolicy.engine.scheduler.extensions.reservations import allocated_uid
from koordpolicy.engine.scheduler.extensions.topology import NumaState, nodes_of

from ..allocation.annotations import annotations_of, json_object
from ..allocation.grants import ReservationClaim
from .cpus import (
    FULL_PCPUS,
    CpuSelection,
    CpuTopology,
    Taken,
    cpu_numbers,
    format_cpus,
    parse_cpus,
    take_preferred_cpus,
)
from .topology import NodeTopology, amplify

NOT_ENOUGH_CPUS: Final = "not enough cpus available to satisfy request"


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """The holding of a pod or a reservation: cpus (see `cpus`), and amounts by NUMA node.

    `reservation` is the uid of the reservation that it is taken from, or empty.
    """

    cpus: int = 0
    zones: Mapping[int, ResourceList] = field(default_factory=dict)
    exclusive: str = ""
    reservation: str = ""

    def __bool__(self) -> bool:
        return bool(self.cpus or self.zones)

    def status(self) -> dict[str, Any]:
        """Return the holding in the form of the annotation `resource-status`."""
        status: dict[str, Any] = {}
        if self.cpus:
            status["cpuset"] = format_cpus(self.cpus)
        if self.zones:
            status["numaNodeResources"] = [
                {"node": node, "resources": {name: _quantity(name, amount) for name, amount in sorted(amounts.items())}}
                for node, amounts in sorted(self.zones.items())
            ]
        return status

    def without(self, others: Iterable[PodAllocation]) -> PodAllocation:
        """Return this without the holdings of others; amounts do not go below 0."""
        cpus = self.cpus
        zones = {node: ResourceList(amounts) for node, amounts in self.zones.items()}
        for other in others:
            cpus &= ~other.cpus
            for node, amounts in other.zones.items():
                held = zones.get(node, ResourceList())
                for name, amount in amounts.items():
                    if name in held:
                        held[name] = max(0, held[name] - amount)
        return PodAllocation(cpus, zones, self.exclusive, self.reservation)


def allocation_in(annotations: Mapping[str, Any]) -> PodAllocation:
    """Return the holding in the annotation `resource-status`; empty without one.

    Raises:
        ValueError: it is malformed.
    """
    text = annotations.get(RESOURCE_STATUS_ANNOTATION)
    return PodAllocation() if text is None else _parse(text)


def of_pod(found: PodAllocation, pod: PodInfo) -> PodAllocation:
    """Return a recorded allocation with the pod's exclusive policy and the reservation that it consumes."""
    try:
        exclusive = json_object(annotations_of(pod.object), RESOURCE_SPEC_ANNOTATION).get("preferredCPUExclusivePolicy")
    except ValueError:
        exclusive = None
    exclusive = exclusive if isinstance(exclusive, str) else ""
    return PodAllocation(found.cpus, found.zones, exclusive, allocated_uid(pod.object))


@dataclass(frozen=True, slots=True)
class NodeAllocation:
    """The holdings on a node: of pods by key, and of reservations, by uid, without what their pods hold."""

    topology: NodeTopology
    pods: Mapping[str, PodAllocation] = field(default_factory=dict)
    reservations: Mapping[str, PodAllocation] = field(default_factory=dict)
    taken: Mapping[int, Taken] = field(default_factory=dict)
    """The cpus in use."""
    claims: Mapping[str, ReservationClaim[PodAllocation]] = field(default_factory=dict)

    @staticmethod
    def of(
        topology: NodeTopology,
        held: Mapping[str, PodAllocation],
        claims: Mapping[str, ReservationClaim[PodAllocation]],
    ) -> NodeAllocation:
        """Return the allocations of a node's pods, by key, and of its reservations, by uid."""
        return _allocation(topology, held, claims)

    def with_claims(self, claims: Mapping[str, ReservationClaim[PodAllocation]]) -> NodeAllocation:
        """Return this with the claims of reservations, by uid."""
        claims = {uid: claim for uid, claim in claims.items() if claim.held}
        if not claims or not self.topology.cpus:
            return self
        holders = {claim.holder for claim in claims.values()}
        pods = {key: allocation for key, allocation in self.pods.items() if key not in holders}
        return _allocation(self.topology, pods, {**self.claims, **claims})

    @property
    def likeness(self) -> Hashable:
        """The cache key of results of a node: nodes with equal keys give equal results."""
        if not self.pods and not self.reservations:
            return self.topology.likeness
        taken = tuple((number, each.count, each.exclusive) for number, each in sorted(self.taken.items()))
        used = tuple((node, tuple(sorted(amounts.items()))) for node, amounts in sorted(self.used().items()))
        states = tuple(sorted((node, state.value) for node, state in self.states().items()))
        return self.topology.likeness, taken, used, states

    @property
    def bound(self) -> int:
        """The number of cpus in use."""
        return len(self.taken)

    def states(self) -> dict[int, NumaState]:
        """Return the holders of cpus of the NUMA nodes."""
        states: dict[int, NumaState] = {}
        for allocation in (*self.pods.values(), *self.reservations.values()):
            nodes = self.topology.cpus.nodes_of(allocation.cpus)
            for node in nodes:
                if len(nodes) > 1:
                    states[node] = NumaState.SHARED
                else:
                    states.setdefault(node, NumaState.SINGLE)
        return states

    def used(self, given_back: Iterable[str] = ()) -> dict[int, ResourceList]:
        """Return the amounts in use by NUMA node, with amplification, without these reservations."""
        holders = self._holders(given_back)
        used: dict[int, ResourceList] = {}
        for allocation in holders:
            for node, amounts in allocation.zones.items():
                total = used.setdefault(node, ResourceList())
                for name, amount in amounts.items():
                    total[name] += amount
        if self.topology.ratio > 1:
            cpus = 0
            for allocation in holders:
                cpus |= allocation.cpus
            for node, total in used.items():
                bound = 1000 * (cpus & self.topology.cpus.of_node(node)).bit_count()
                total["cpu"] += amplify(bound, self.topology.ratio) - bound
        return used

    def room(self, given_back: Sequence[str] = (), *, preferred: int = 0) -> Room:
        """Return the free amounts, including those that these reservations hold beyond their pods; `preferred` cpus
        come first.
        """
        used = self.used(given_back)
        free = {
            node: ResourceList({
                name: max(0, amount - used[node][name]) if node in used else amount for name, amount in amounts.items()
            })
            for node, amounts in self.topology.zones.items()
        }
        taken = self.taken
        if given_back:
            taken = _taken(self.topology.cpus, self._holders(given_back))
        held = sum(1 << number for number in taken)
        return Room(free, self.topology.cpus.all & ~held & ~self.topology.reserved, taken, preferred)

    def _holders(self, given_back: Iterable[str]) -> list[PodAllocation]:
        without = set(given_back)
        return [
            *self.pods.values(),
            *(allocation for uid, allocation in self.reservations.items() if uid not in without),
        ]


@dataclass(frozen=True, slots=True)
class Room:
    """The free resources of a node: amounts by NUMA node, and cpus; `taken` maps the other cpus to their holders."""

    free: Mapping[int, ResourceList]
    cpus: int
    taken: Mapping[int, Taken]
    preferred: int = 0


@dataclass(frozen=True, slots=True)
class NumaDemand:
    """The demand of a pod on one node.

    `cpus` is the number of bound cpus (0: none); `policy` their CPU bind policy, which must be met where `required`.
    """

    requests: ResourceList
    cpus: int = 0
    policy: str = ""
    required: bool = False
    exclusive: str = ""
    strategy: str = ""

    @property
    def choice(self) -> CpuSelection:
        """The policies by which cpus are chosen."""
        return CpuSelection(self.policy, self.exclusive, self.strategy)


def trimmed(topology: NodeTopology, demand: NumaDemand, room: Room) -> Room:
    """Return the room without cpu that a required bind policy could not use."""
    if not demand.required:
        return room
    free = {}
    for node, amounts in room.free.items():
        usable = topology.cpus.usable(room.cpus & topology.cpus.of_node(node), demand.policy).bit_count()
        free[node] = ResourceList(amounts)
        if amounts["cpu"]:
            free[node]["cpu"] = min(amounts["cpu"], 1000 * usable)
    return Room(free, room.cpus, room.taken, room.preferred)


def allocate(topology: NodeTopology, demand: NumaDemand, room: Room, affinity: int | None) -> PodAllocation | Refusal:
    """Return the allocation for the pod, or the reason why the room is not enough; `affinity` is a mask of NUMA
    nodes.
    """
    zones: dict[int, ResourceList] = {}
    if affinity is not None:
        if not topology.zones:
            return Refusal("numa", "insufficient resources on NUMA Node", Code.UNRESOLVABLE)
        distributed = _distributed(topology.cpus, demand, trimmed(topology, demand, room).free, nodes_of(affinity))
        if isinstance(distributed, Refusal):
            return distributed
        zones = distributed
    if not demand.cpus:
        return PodAllocation(0, zones, demand.exclusive)
    cpus = _cpus(topology, demand, room, zones)
    return cpus if isinstance(cpus, Refusal) else PodAllocation(cpus, zones, demand.exclusive)


def _distributed(
    cpus: CpuTopology, demand: NumaDemand, free: Mapping[int, ResourceList], nodes: Sequence[int],
) -> dict[int, ResourceList] | Refusal:
    """Return how the requests are spread over NUMA nodes, as evenly as they can be."""
    nothing = ResourceList()
    known = {name for amounts in free.values() for name in amounts}
    result: dict[int, ResourceList] = {}
    reasons = []
    for name in sorted(known & demand.requests.keys()):
        left = demand.requests[name]
        order = _emptiest_first(nodes, lambda node, name=name: free.get(node, nothing)[name])  # type: ignore[misc]
        for place, node in enumerate(order):
            part = min(free.get(node, nothing)[name], _part(cpus, demand, name, left, len(order) - place))
            if part > 0:
                result.setdefault(node, ResourceList())[name] = part
                left -= part
        if left:
            reasons.append(f"Insufficient NUMA {name}")
    if reasons:
        return Refusal("numa", ", ".join(reasons))
    return dict(sorted(result.items()))


def _emptiest_first(nodes: Sequence[int], free: Callable[[int], int]) -> list[int]:
    """Return the NUMA nodes by what is free on them, ascending, as Koordinator sorts them.

    Its comparison takes positions for node numbers: a correct order on two nodes, another one now and then on more.
    """
    order = list(nodes)
    for start in range(1, len(order)):
        for place in range(start, 0, -1):
            if free(place) >= free(place - 1):
                break
            order[place - 1], order[place] = order[place], order[place - 1]
    return order


def _part(cpus: CpuTopology, demand: NumaDemand, name: str, left: int, nodes: int) -> int:
    """Return the even share of one of so many NUMA nodes in what is left: whole cpus or cores where they are bound."""
    if name != "cpu" or not demand.cpus:
        return left // nodes
    if demand.required and demand.policy == FULL_PCPUS and cpus.cpus_per_core:
        return left // 1000 // cpus.cpus_per_core // nodes * cpus.cpus_per_core * 1000
    return left // 1000 // nodes * 1000


def _cpus(
    topology: NodeTopology, demand: NumaDemand, room: Room, zones: Mapping[int, ResourceList],
) -> int | Refusal:
    available = topology.cpus.usable(room.cpus, demand.policy) if demand.required else room.cpus
    too_few = Refusal("cpus", NOT_ENOUGH_CPUS)
    if available.bit_count() < demand.cpus:
        return too_few
    result = 0
    shares = [
        (available & topology.cpus.of_node(node), amounts["cpu"] // 1000) for node, amounts in zones.items()
    ] or [(available, demand.cpus)]
    for cpus, share in shares:
        taken = take_preferred_cpus(
            topology.cpus, cpus, room.preferred, room.taken, needed=min(share, cpus.bit_count()), choice=demand.choice)
        if taken is None:
            return Refusal("cpus", "failed to allocate cpus")
        result |= taken
    if result.bit_count() != demand.cpus:
        return too_few
    if demand.required and not topology.cpus.satisfies(result, demand.policy):
        return Refusal("cpus", f"insufficient CPUs to satisfy required cpu bind policy {demand.policy}")
    return result


def _allocation(
    topology: NodeTopology, pods: Mapping[str, PodAllocation], claims: Mapping[str, ReservationClaim[PodAllocation]],
) -> NodeAllocation:
    remaining = {
        uid: claim.held.without(
            allocation for key, allocation in pods.items()
            if key in claim.consumers or (uid and allocation.reservation == uid)
        )
        for uid, claim in claims.items()
    }
    taken = _taken(topology.cpus, (*pods.values(), *remaining.values()))
    return NodeAllocation(topology, pods, remaining, taken, claims)


def _taken(cpus: CpuTopology, holders: Iterable[PodAllocation]) -> dict[int, Taken]:
    taken: dict[int, Taken] = {}
    for allocation in holders:
        for number in cpu_numbers(allocation.cpus & cpus.all):
            before = taken.get(number)
            taken[number] = Taken(1 if before is None else before.count + 1, allocation.exclusive)
    return taken


def _quantity(name: str, amount: int) -> str:
    if name == "cpu":
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    return str(amount)


@lru_cache(maxsize=65_536)
def _parse(text: str) -> PodAllocation:
    status = json_object({RESOURCE_STATUS_ANNOTATION: text}, RESOURCE_STATUS_ANNOTATION)
    try:
        cpus = parse_cpus(status.get("cpuset") or "")
        zones: dict[int, ResourceList] = {}
        for each in status.get("numaNodeResources") or ():
            node = each.get("node", 0)
            if type(node) is not int or not 0 <= node < 64:
                raise ValueError(f"`{node}` is not a NUMA node")  # noqa: TRY301 - one kind of complaint
            amounts = zones.setdefault(node, ResourceList())
            for name, quantity in (each.get("resources") or {}).items():
                amounts[name] += canonical_amount(name, quantity, name)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"annotation `{RESOURCE_STATUS_ANNOTATION}` cannot be read: {error}") from None
    return PodAllocation(cpus, zones)
