"""The devices of a node from its Device object, their holders, and the free amounts.

All of it is derived from a snapshot, so that simulations need no other state. A set of minors is an integer with one
bit per minor.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList, canonical_amount
from koordpolicy.engine.kubernetes.quantity import Quantity
from koordpolicy.engine.kubernetes.selectors import matches_labels
from koordpolicy.engine.kubernetes.vocabulary import (
    DEVICE_ALLOCATED_ANNOTATION,
    GPU_MODEL_LABEL,
    GPU_PARTITION_POLICY_LABEL,
    GPU_VENDOR_LABEL,
)
from koordpolicy.engine.scheduler.extensions.reservations import allocated_uid

from ..allocation.annotations import annotations_of, json_object, labels_of
from ..allocation.grants import ReservationClaim
from .requests import DEPRECATED, GPU_TYPE, SCOPE_LEVELS, TYPES, PodDeviceRequest

GPU_PARTITIONS_ANNOTATION: Final = "scheduling.koordinator.sh/gpu-partitions"
WELL_PLANNED_LABEL: Final = "node.koordinator.sh/secondary-device-well-planned"

_ANYWHERE: Final = -1
_MOST_MINORS: Final = 1_024
_HOPPER: Final = ("H100", "H800", "H20")


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """The location of a device; NUMA node -1 is unknown."""

    numa_node: int
    pcie: str


@dataclass(frozen=True, slots=True)
class VirtualFunction:
    """A virtual function of a device, allocated exclusively."""

    bus: str
    minor: int


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device; an unhealthy one has no resources."""

    minor: int
    resources: ResourceList
    labels: Mapping[str, str] = field(default_factory=dict)
    place: DevicePlace | None = None
    functions: tuple[tuple[Mapping[str, str], tuple[VirtualFunction, ...]], ...] = ()
    """Groups of virtual functions with their labels."""
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: GPUs with a fast interconnect; bandwidth is None where none is reported."""

    minors: tuple[int, ...]
    mask: int
    score: int = 1
    bandwidth: Quantity | None = None


Partitions = Mapping[int, Sequence[Sequence[Partition]]]
"""By number of GPUs: groups of the same score, the lowest score first."""


@dataclass(frozen=True, slots=True)
class DeviceScope:
    """A part of a node's topology (the node, a NUMA node, a PCIe switch) with its GPUs, ascending."""

    level: int
    minors: tuple[int, ...]
    mask: int
    children: tuple[DeviceScope, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices of a node by type and minor; `partitions` and `tree` are None where none are reported."""

    devices: Mapping[str, Mapping[int, DeviceInfo]]
    partitions: Partitions | None = None
    honors_partitions: bool = False
    well_planned: bool = False
    tree: DeviceScope | None = None

    @staticmethod
    def shared(device: Mapping[str, Any]) -> NodeDevices:
        """Read a Device object without the ids of its devices; objects with equal content share one instance."""
        labels = labels_of(device)
        return _shared(json.dumps({
            "devices": [
                {name: value for name, value in entry.items() if name != "id"} for entry in _entries(device)
                if isinstance(entry, Mapping)
            ],
            "labels": {name: labels.get(name) for name in (GPU_PARTITION_POLICY_LABEL, WELL_PLANNED_LABEL)},
            "partitions": annotations_of(device).get(GPU_PARTITIONS_ANNOTATION),
        }, default=str))

    @staticmethod
    def of(device: Mapping[str, Any]) -> NodeDevices:
        """Read a Device object; malformed parts count as absent."""
        found: dict[str, dict[int, DeviceInfo]] = {}
        for entry in _entries(device):
            info = _info(entry)
            if info is not None:
                found.setdefault(str(entry.get("type")), {})[info.minor] = info
        labels = labels_of(device)
        return NodeDevices(
            {device_type: dict(sorted(infos.items())) for device_type, infos in found.items()},
            _partitions(annotations_of(device)),
            labels.get(GPU_PARTITION_POLICY_LABEL) == "Honor",
            labels.get(WELL_PLANNED_LABEL) == "true",
            _tree(found.get(GPU_TYPE, {})),
        )

    def of_type(self, device_type: str) -> Mapping[int, DeviceInfo]:
        """Return the devices of a type by minor."""
        return self.devices.get(device_type, {})

    def numa_nodes(self) -> list[int]:
        """Return the NUMA nodes that devices are on, ascending."""
        places = (info.place for infos in self.devices.values() for info in infos.values())
        return sorted({place.numa_node for place in places if place is not None and place.numa_node != _ANYWHERE})

    def has_functions(self, device_type: str) -> bool:
        """Return whether any device of the type has virtual functions."""
        return any(info.functions for info in self.of_type(device_type).values())


@lru_cache(maxsize=4_096)
def _shared(text: str) -> NodeDevices:
    facts = json.loads(text)
    annotations = {} if facts["partitions"] is None else {GPU_PARTITIONS_ANNOTATION: facts["partitions"]}
    metadata = {"labels": facts["labels"], "annotations": annotations}
    return NodeDevices.of({"spec": {"devices": facts["devices"]}, "metadata": metadata})


def _entries(device: Mapping[str, Any]) -> Sequence[Any]:
    spec = device.get("spec")
    entries = spec.get("devices") if isinstance(spec, Mapping) else None
    return entries if isinstance(entries, list) else ()


def partitions_of(devices: NodeDevices, node: Mapping[str, Any]) -> tuple[Partitions | None, bool]:
    """Return a node's partitions and whether GPUs are allocated only by them: its own, else those of its model."""
    if devices.partitions is not None:
        return devices.partitions, devices.honors_partitions
    labels = labels_of(node)
    known = labels.get(GPU_VENDOR_LABEL, "") in ("", "nvidia") and labels.get(GPU_MODEL_LABEL) in _HOPPER
    return _HOPPER_PARTITIONS if known else None, labels.get(GPU_PARTITION_POLICY_LABEL) == "Honor"


# Holdings


@dataclass(frozen=True, slots=True)
class Holding:
    """The devices held by a pod or a reservation: amounts by type and minor, and buses of virtual functions.

    `reservation` is the uid of the reservation that it takes them from, or empty.
    """

    amounts: Mapping[str, Mapping[int, ResourceList]] = field(default_factory=dict)
    functions: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)
    reservation: str = ""

    def __bool__(self) -> bool:
        return bool(self.amounts)

    def minors(self, device_type: str) -> frozenset[int]:
        """Return the minors of a type that it holds."""
        return frozenset(self.amounts.get(device_type, ()))

    def without(self, others: Iterable[Holding]) -> Holding:
        """Return this without the holdings of others; amounts do not go below 0."""
        amounts = {
            device_type: {minor: ResourceList(held) for minor, held in minors.items()}
            for device_type, minors in self.amounts.items()
        }
        functions = {device_type: dict(minors) for device_type, minors in self.functions.items()}
        for other in others:
            for device_type, minors in other.amounts.items():
                for minor, taken in minors.items():
                    held = amounts.get(device_type, {}).get(minor, ResourceList())
                    for name in held:
                        held[name] = max(0, held[name] - taken[name])
            for device_type, of_minor in other.functions.items():
                for minor, buses in of_minor.items():
                    if minor in functions.get(device_type, {}):
                        functions[device_type][minor] -= buses
        return Holding(amounts, functions, self.reservation)


def holding_in(annotations: Mapping[str, Any]) -> Holding:
    """Return the holding in the annotation `device-allocated`; empty without one.

    Raises:
        ValueError: it is malformed.
    """
    text = annotations.get(DEVICE_ALLOCATED_ANNOTATION)
    return Holding() if text is None else _parse(text)


def of_pod(found: Holding, pod: PodInfo) -> Holding:
    """Return a recorded holding with the reservation that the pod consumes."""
    return Holding(found.amounts, found.functions, allocated_uid(pod.object))


@dataclass(frozen=True, slots=True)
class Holdings:
    """The holdings on a node: of pods by key, and of reservations, by uid, without what their pods hold."""

    pods: Mapping[str, Holding] = field(default_factory=dict)
    reservations: Mapping[str, Holding] = field(default_factory=dict)
    claims: Mapping[str, ReservationClaim[Holding]] = field(default_factory=dict)

    def with_claims(self, claims: Mapping[str, ReservationClaim[Holding]]) -> Holdings:
        """Return this with the claims of reservations, by uid."""
        claims = {uid: claim for uid, claim in claims.items() if claim.held}
        if not claims:
            return self
        holders = {claim.holder for claim in claims.values()}
        pods = {key: holding for key, holding in self.pods.items() if key not in holders}
        together = {**self.claims, **claims}
        remaining = {
            uid: claim.held.without(
                holding for key, holding in pods.items()
                if key in claim.consumers or (uid and holding.reservation == uid)
            )
            for uid, claim in together.items()
        }
        return Holdings(pods, remaining, together)

    @property
    def likeness(self) -> Hashable:
        """The sums of the holdings: nodes with equal sums give equal results."""
        if not self.pods and not self.reservations:
            return ()
        amounts, functions = _sum(self.holders())
        return (
            tuple((each, minor, tuple(sorted(held.items()))) for each, of_type in sorted(amounts.items())
                  for minor, held in sorted(of_type.items())),
            tuple((each, minor, tuple(sorted(buses))) for each, of_minor in sorted(functions.items())
                  for minor, buses in sorted(of_minor.items())),
        )

    def holders(self, given_back: Iterable[str] = ()) -> list[Holding]:
        """Return all holdings, without those of these reservations."""
        without = set(given_back)
        return [*self.pods.values(), *(each for uid, each in self.reservations.items() if uid not in without)]


# Free devices


@dataclass(frozen=True, slots=True)
class AllocationScope:
    """The scope of an allocation: the part of a node's devices that it may use.

    `given_back` are uids of reservations, whose devices count as free; `numa` is a mask of NUMA nodes; `most` limits
    the free amounts by type and minor; for its types, all other devices are excluded.
    """

    given_back: tuple[str, ...] = ()
    numa: int | None = None
    most: Mapping[str, Mapping[int, ResourceList]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pool:
    """The devices that an allocation may choose from: total and free amounts by type and minor."""

    total: Mapping[str, Mapping[int, ResourceList]]
    free: Mapping[str, Mapping[int, ResourceList]]
    functions: Mapping[str, Mapping[int, frozenset[str]]]
    """Buses of allocated virtual functions."""
    used_gpus: int = 0
    """The sets of used GPUs, and of used GPUs out of scope."""


def pool_of(devices: NodeDevices, holdings: Holdings, request: PodDeviceRequest, limits: AllocationScope) -> Pool:
    """Return the devices that a pod may use within limits, and by its own selectors."""
    used, functions = _sum(holdings.holders(limits.given_back))
    total: dict[str, dict[int, ResourceList]] = {}
    free: dict[str, dict[int, ResourceList]] = {}
    for device_type in request.requests:
        infos = devices.of_type(device_type)
        left: dict[int, ResourceList] = {}
        for minor, info in infos.items():
            amounts = _left(info.resources, used.get(device_type, {}).get(minor))
            bound = limits.most.get(device_type)
            if bound:
                if minor not in bound:
                    continue
                most = bound[minor]
                amounts = ResourceList({
                    name: min(amount, most[name]) for name, amount in amounts.items() if name in most
                })
            left[minor] = amounts
        if not any(amount for amounts in left.values() for amount in amounts.values()):
            continue
        selector = request.hint(device_type).selector
        minors = [minor for minor in left if _takes(infos[minor], limits.numa, selector)]
        total[device_type] = {minor: infos[minor].resources for minor in minors}
        free[device_type] = {minor: left[minor] for minor in minors}
    gpus, room = total.get(GPU_TYPE, {}), free.get(GPU_TYPE, {})
    anybody = _sum(holdings.holders())[0].get(GPU_TYPE, {}) if limits.given_back else used.get(GPU_TYPE, {})
    busy = mask_of(
        minor for minor in {*anybody, *gpus}
        if (minor not in gpus and any(anybody[minor].values())) or (
            minor in gpus and any(gpus[minor][name] > room[minor][name] for name in gpus[minor]))
    )
    return Pool(total, free, functions, busy)


def mask_of(minors: Iterable[int]) -> int:
    """Return the set of these minors."""
    mask = 0
    for minor in minors:
        mask |= 1 << minor
    return mask


def _left(resources: ResourceList, used: ResourceList | None) -> ResourceList:
    if used is None:
        return resources
    return ResourceList({name: max(0, amount - used[name]) for name, amount in resources.items()})


def _takes(info: DeviceInfo, numa: int | None, selector: Mapping[str, Any] | None) -> bool:
    if numa is not None:
        if info.place is None:
            return False
        if info.place.numa_node != _ANYWHERE and not numa >> info.place.numa_node & 1:
            return False
    return matches_labels(selector, info.labels)


def _sum(
    holders: Iterable[Holding],
) -> tuple[dict[str, dict[int, ResourceList]], dict[str, dict[int, frozenset[str]]]]:
    amounts: dict[str, dict[int, ResourceList]] = {}
    functions: dict[str, dict[int, frozenset[str]]] = {}
    for holding in holders:
        for device_type, minors in holding.amounts.items():
            of_type = amounts.setdefault(device_type, {})
            for minor, held in minors.items():
                total = of_type.setdefault(minor, ResourceList())
                for name, amount in held.items():
                    total[name] += amount
        for device_type, of_minor in holding.functions.items():
            taken = functions.setdefault(device_type, {})
            for minor, buses in of_minor.items():
                taken[minor] = taken.get(minor, frozenset()) | buses
    return amounts, functions


# Reading


def _info(entry: Any) -> DeviceInfo | None:
    try:
        minor = entry.get("minor") or 0
        if type(minor) is not int or not 0 <= minor < _MOST_MINORS:
            return None
        resources = ResourceList()
        if entry.get("health", True):
            for name, quantity in (entry.get("resources") or {}).items():
                resources[DEPRECATED.get(name, name)] = canonical_amount(name, quantity, name)
        topology = entry.get("topology")
        groups = tuple(
            (_labels(group.get("labels")), tuple(
                VirtualFunction(str(each.get("busID", "")), int(each.get("minor") or 0))
                for each in group.get("vfs") or ()
            ))
            for group in entry.get("vfGroups") or ()
        )
        place = (
            None
            if topology is None
            else DevicePlace(int(topology.get("nodeID") or 0), str(topology.get("pcieID") or ""))
        )
        return DeviceInfo(minor, resources, _labels(entry.get("labels")), place, groups, str(entry.get("id") or ""))
    except (ValueError, AttributeError, TypeError, OverflowError):
        return None


def _labels(value: Any) -> Mapping[str, str]:
    return value if isinstance(value, Mapping) else {}


def _tree(gpus: Mapping[int, DeviceInfo]) -> DeviceScope | None:
    """Return the topology tree of a node's GPUs; None if one of them reports no location."""
    places: dict[int, dict[str, list[int]]] = {}
    for minor, info in sorted(gpus.items()):
        if info.place is None:
            return None
        places.setdefault(info.place.numa_node, {}).setdefault(info.place.pcie, []).append(minor)
    if not gpus:
        return None
    numa_nodes = [
        _scope("NUMANode", (minor for minors in pcies.values() for minor in minors), tuple(
            _scope("PCIe", minors) for _, minors in sorted(pcies.items())
        ))
        for _, pcies in sorted(places.items())
    ]
    return _scope("Node", gpus, tuple(numa_nodes))


def _scope(name: str, minors: Iterable[int], children: tuple[DeviceScope, ...] = ()) -> DeviceScope:
    ordered = tuple(sorted(minors))
    return DeviceScope(SCOPE_LEVELS[name], ordered, mask_of(ordered), children)


def _partitions(annotations: Mapping[str, Any]) -> Partitions | None:
    if not annotations.get(GPU_PARTITIONS_ANNOTATION):
        return None
    try:
        table = json_object(annotations, GPU_PARTITIONS_ANNOTATION)
        return {int(count): _grouped([_partition(each) for each in entries]) for count, entries in table.items()}
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError):
        return None


def _partition(entry: Mapping[str, Any]) -> Partition:
    minors = tuple(int(minor) for minor in entry["minors"])
    if not all(0 <= minor < _MOST_MINORS for minor in minors):
        raise ValueError("a minor is out of any range")
    bandwidth = entry.get("ringBusBandwidth")
    return Partition(
        minors, mask_of(minors), int(entry.get("allocationScore") or 0),
        None if bandwidth is None else Quantity.parse(str(bandwidth)),
    )


def _grouped(partitions: Iterable[Partition]) -> list[list[Partition]]:
    groups: dict[int, list[Partition]] = {}
    for partition in partitions:
        groups.setdefault(partition.score, []).append(partition)
    return [groups[score] for score in sorted(groups)]


_HOPPER_PARTITIONS: Final[Partitions] = {
    size: [[
        Partition(minors, mask_of(minors))
        for minors in (tuple(range(first, first + size)) for first in range(0, 8, size))
    ]]
    for size in (1, 2, 4, 8)
}


@lru_cache(maxsize=65_536)
def _parse(text: str) -> Holding:
    amounts: dict[str, dict[int, ResourceList]] = {}
    functions: dict[str, dict[int, frozenset[str]]] = {}
    recorded = json_object({DEVICE_ALLOCATED_ANNOTATION: text}, DEVICE_ALLOCATED_ANNOTATION)
    try:
        for device_type, entries in recorded.items():
            for entry in entries or ():
                minor = entry["minor"]
                if type(minor) is not int or not 0 <= minor < _MOST_MINORS:
                    raise ValueError(f"`{minor}` is not a minor")  # noqa: TRY301 - one kind of complaint
                held = amounts.setdefault(device_type, {}).setdefault(minor, ResourceList())
                for name, quantity in (entry.get("resources") or {}).items():
                    held[DEPRECATED.get(name, name)] += canonical_amount(name, quantity, name)
                buses = frozenset(str(each["busID"]) for each in (entry.get("extension") or {}).get("vfs") or ())
                if buses:
                    taken = functions.setdefault(device_type, {})
                    taken[minor] = taken.get(minor, frozenset()) | buses
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        raise ValueError(f"annotation `{DEVICE_ALLOCATED_ANNOTATION}` cannot be read: {error}") from None
    return Holding(amounts, functions)


def types_of(request: PodDeviceRequest) -> list[str]:
    """Return the types that a pod requests, in the order of their allocation."""
    return [device_type for device_type in TYPES if device_type in request.requests]
