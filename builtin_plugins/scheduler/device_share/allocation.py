"""Allocation of devices to a pod within a scope.

(Koordinator device_allocator.go and allocator_gpu.go semantics. Types are processed in a fixed order, where the
original's order is random.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import ResourceList
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.kubernetes.selectors import matches_labels
from koordpolicy.engine.kubernetes.vocabulary import GPU_MEMORY, GPU_MEMORY_RATIO, GPU_MODEL_LABEL, GPU_VENDOR_LABEL

from ..allocation.annotations import labels_of
from ..allocation.resource_scoring import AllocationScorer, sum_of_amounts
from .devices import (
    DeviceInfo,
    DeviceScope,
    Holding,
    NodeDevices,
    Partition,
    Partitions,
    Pool,
    VirtualFunction,
    partitions_of,
    types_of,
)
from .requests import (
    APPLY_FOR_ALL,
    DEVICE_LEVEL,
    GPU_TYPE,
    REQUESTS_AS_COUNT,
    SAME_PCIE,
    SCOPE_LEVELS,
    WHOLE,
    GpuRequest,
    PodDeviceRequest,
)

Templates = Mapping[str, Mapping[str, ResourceList]]
"""The templates of shared GPUs: resources by `<vendor>-<model>` and name."""

NO_TEMPLATE: Final = "no matched GPU shared resource template"

_VIOLATION: Final = Refusal("joint", "node(s) Device Joint-Allocate rules violation")
_NO_PRIMARY: Final = Refusal("joint", "node(s) Insufficient primary device")
_NO_TABLE: Final = Refusal("partition", "node(s) missing GPU Partition Table", Code.UNRESOLVABLE)
_NO_SUCH_COUNT: Final = Refusal("partition", "node(s) Unsupported number of GPU requests", Code.UNRESOLVABLE)
_NO_PARTITION: Final = Refusal("partition", "Insufficient Partitioned GPU Devices")
_NO_TREE: Final = Refusal("topology", "node(s) missing GPU Device Topology Tree", Code.UNRESOLVABLE)
_MULTI_SHARED: Final = Refusal("topology", "node(s) Unsupported Multi-Shared GPU", Code.UNRESOLVABLE)
_NO_SCOPE: Final = Refusal("topology", "Insufficient Topology Scoped GPU Devices")
_NO_GPUS: Final = Refusal("topology", "Insufficient GPU Devices")
_NOT_ON_NODE: Final = Refusal("template", NO_TEMPLATE, Code.UNRESOLVABLE)
_PACKING: Final = {8: 10_000, 4: 100, 2: 1}
"""The score of an unused partition by its number of GPUs."""


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """The allocation of one device to a pod."""

    minor: int
    resources: ResourceList
    functions: tuple[VirtualFunction, ...] = ()
    template: str = ""


Allocation = Mapping[str, Sequence[DeviceAllocation]]
"""The allocations of a pod by device type."""


@dataclass(frozen=True, slots=True)
class Preferences:
    """Preferences of an allocation: preferred and required minors, and the scorer of devices.

    `functions` are the only virtual functions to take, by type and minor; `scorer` None scores nothing.
    """

    preferred: Mapping[str, Collection[int]] = field(default_factory=dict)
    required: Mapping[str, Collection[int]] = field(default_factory=dict)
    functions: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)
    scorer: AllocationScorer | None = None


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """The demand of a pod on one node by device type: the resources of each device, and the number of devices."""

    per_device: Mapping[str, ResourceList]
    counts: Mapping[str, int]


def demand_on(devices: NodeDevices, request: PodDeviceRequest, *, plan_others: bool = True) -> DeviceDemand | Refusal:
    """Return the demand of a pod on a node, or why the node lacks a device type.

    Without `plan_others`, the types that follow the primary one are omitted for whole GPUs on a well-planned node:
    they are allocated once the node is chosen.
    """
    per_device: dict[str, ResourceList] = {}
    counts: dict[str, int] = {}
    waits = not plan_others and devices.well_planned and request.gpu is not None and not request.gpu.shared
    for device_type in types_of(request):
        if waits and request.joint and device_type != request.joint[0]:
            continue
        if not devices.of_type(device_type):
            return _insufficient(device_type, Code.UNRESOLVABLE)
        if device_type == GPU_TYPE and request.gpu is not None:
            per_device[device_type], counts[device_type] = request.gpu.per_gpu, request.gpu.count
            continue
        found = _plain_demand(devices, request, device_type)
        if isinstance(found, Refusal):
            return found
        per_device[device_type], counts[device_type] = found
    for device_type in per_device:
        if request.hint(device_type).vf_selector is not None and not devices.has_functions(device_type):
            return Refusal("functions", f"Insufficient {device_type} VirtualFunctions", Code.UNRESOLVABLE)
    return DeviceDemand(per_device, counts)


def allocate(allocator: DeviceAllocator) -> Allocation | Refusal:
    """Return the pod's allocation, or why the devices do not suffice."""
    demand, request = allocator.demand, allocator.request
    found: dict[str, Sequence[DeviceAllocation]] = {}
    if len(demand.per_device) > 1 and request.joint:
        together = allocator.joint()
        if isinstance(together, Refusal):
            return together
        found = together
    for device_type in demand.per_device:
        if device_type not in found:
            given = allocator.one_type(device_type, demand.counts[device_type])
            if isinstance(given, Refusal):
                return given
            found[device_type] = given
    return found


def completed(devices: NodeDevices, allocation: Allocation) -> Allocation | Refusal:
    """Return an allocation in which GPUs have their memory both in bytes and in percent of the device."""
    result = dict(allocation)
    gpus = []
    for given in allocation.get(GPU_TYPE, ()):
        info = devices.of_type(GPU_TYPE).get(given.minor)
        if info is None or not any(info.resources.values()):
            message = f"no healthy gpu device with minor {given.minor} of allocation"
            return Refusal("memory", message, Code.ERROR)
        gpus.append(replace(given, resources=_with_memory(given.resources, info.resources[GPU_MEMORY])))
    if gpus:
        result[GPU_TYPE] = gpus
    return result


def holding_of(allocation: Allocation, reservation: str = "") -> Holding:
    """Return the holding of a pod with this allocation."""
    return Holding(
        {device_type: {each.minor: each.resources for each in given} for device_type, given in allocation.items()},
        {
            device_type: functions for device_type, given in allocation.items()
            if (functions := {
                each.minor: frozenset(function.bus for function in each.functions) for each in given if each.functions
            })
        },
        reservation,
    )


def _plain_demand(
    devices: NodeDevices, request: PodDeviceRequest, device_type: str,
) -> tuple[ResourceList, int] | Refusal:
    """Return the demand for RDMA or FPGA devices: the resources of each, and the number."""
    amounts = request.requests[device_type]
    (name, amount), = amounts.items()
    if amount > WHOLE and amount % WHOLE == 0:
        return ResourceList({name: WHOLE}), amount // WHOLE
    hint = request.hint(device_type)
    if hint.strategy == APPLY_FOR_ALL:
        infos = devices.of_type(device_type).values()
        count = sum(matches_labels(hint.selector, info.labels) for info in infos)
        return (amounts, count) if count else _insufficient(device_type, Code.UNRESOLVABLE)
    if hint.strategy == REQUESTS_AS_COUNT:
        return ResourceList({name: WHOLE if hint.exclusive == DEVICE_LEVEL else 1}), amount
    return amounts, 1


@dataclass(frozen=True, slots=True)
class DeviceAllocator:
    """The allocator of devices of one node to one pod; `templates` is None for a pod without templates."""

    node: Mapping[str, Any]
    devices: NodeDevices
    request: PodDeviceRequest
    demand: DeviceDemand
    pool: Pool
    preferences: Preferences
    templates: Templates | None

    def joint(self) -> dict[str, Sequence[DeviceAllocation]] | Refusal:
        """Allocate the primary type, then the others as near to it as possible."""
        primary, *others = self.request.joint
        first = self.one_type(primary, self.demand.counts.get(primary, 0))
        if isinstance(first, Refusal):
            return first
        if not first:
            return _NO_PRIMARY
        found: dict[str, Sequence[DeviceAllocation]] = {primary: first}
        switches = self._switches(primary, first)
        together = self.request.joint_scope == SAME_PCIE
        for device_type in others:
            if device_type not in self.demand.per_device:
                continue
            count = self.demand.counts[device_type]
            given = self.one_type(device_type, max(count, len(switches)) if together else count, switches)
            if isinstance(given, Refusal):
                return given
            found[device_type] = given
        if together and any(self._switches(each, found[each]) != switches for each in others if each in found):
            return _VIOLATION
        return found

    def one_type(
        self, device_type: str, count: int, switches: Collection[str] = (),
    ) -> Sequence[DeviceAllocation] | Refusal:
        """Allocate devices of one type; at most one per PCIe switch of these, if there are several."""
        count = max(1, count)
        if device_type != GPU_TYPE or self.request.gpu is None:
            amounts = self.demand.per_device[device_type]
            return self._default(device_type, amounts, count, max(count, len(switches)), switches)
        return self._gpus(self.request.gpu)

    def _switches(self, device_type: str, given: Iterable[DeviceAllocation]) -> set[str]:
        infos = self.devices.of_type(device_type)
        places = (infos[each.minor].place for each in given if each.minor in infos)
        return {place.pcie for place in places if place is not None}

    # GPUs: by template, by partition, by topology, or in order

    def _gpus(self, gpu: GpuRequest) -> Sequence[DeviceAllocation] | Refusal:
        if self.templates is not None:
            labels = labels_of(self.node)
            key = f"{labels.get(GPU_VENDOR_LABEL, '')}-{labels.get(GPU_MODEL_LABEL, '')}"
            names = self.templates.get(key, {})
            if not names:
                return _NOT_ON_NODE
            if len(names) == 1:
                found = self._by_topology_or_default(gpu)
                if isinstance(found, Refusal):
                    return found
                return [replace(each, template=next(iter(names))) for each in found]
        partitions, honors = partitions_of(self.devices, self.node)
        if not gpu.shared:
            partition = self._partition(gpu, partitions)
            if isinstance(partition, Partition):
                return [DeviceAllocation(minor, gpu.per_gpu) for minor in partition.minors]
            if honors or self.request.partition is not None:
                return partition
        return self._by_topology_or_default(gpu)

    def _partition(self, gpu: GpuRequest, partitions: Partitions | None) -> Partition | Refusal:
        if partitions is None:
            return _NO_TABLE
        groups = partitions.get(gpu.count)
        if not groups:
            return _NO_SUCH_COUNT
        wish, used = self.request.partition, self.pool.used_gpus
        healthy = sum(1 << minor for minor, has in self.pool.total.get(GPU_TYPE, {}).items() if any(has.values()))
        for group in groups:
            feasible = [
                each for each in group
                if not each.mask & used and each.mask & healthy == each.mask and _is_fast_enough(each, wish)
            ]
            if feasible:
                return max(feasible, key=lambda each: _packing(each.mask | used, gpu.count, partitions))
            if wish is not None and wish.restricted:
                break
        return _NO_PARTITION

    def _by_topology_or_default(self, gpu: GpuRequest) -> Sequence[DeviceAllocation] | Refusal:
        scope = self.request.hint(GPU_TYPE).scope
        found = self._by_topology(gpu, scope)
        if isinstance(found, Refusal) and not scope and found.code is Code.UNRESOLVABLE:
            return self._default(GPU_TYPE, gpu.per_gpu, gpu.count, gpu.count)
        return found

    def _by_topology(self, gpu: GpuRequest, scope: str) -> Sequence[DeviceAllocation] | Refusal:
        if self.devices.tree is None:
            return _NO_TREE
        if gpu.shared and gpu.count > 1:
            return _MULTI_SHARED
        minors = [minor for minor in self.devices.of_type(GPU_TYPE) if self._fits(gpu, minor)]
        fitting = {minor: self._topology_score(gpu, minor) for minor in minors}
        found = _Search(gpu, SCOPE_LEVELS.get(scope, 0), fitting, self.pool.used_gpus).deepest(self.devices.tree)
        if found is None:
            return _NO_SCOPE if scope else _NO_GPUS
        return [DeviceAllocation(minor, gpu.per_gpu) for minor in found.minors]

    def _fits(self, gpu: GpuRequest, minor: int) -> bool:
        free = self.pool.free.get(GPU_TYPE, {}).get(minor)
        return free is not None and any(self.devices.of_type(GPU_TYPE)[minor].resources.values()) and _is_enough(
            gpu.per_gpu, free)

    def _topology_score(self, gpu: GpuRequest, minor: int) -> int:
        if not gpu.shared or self.preferences.scorer is None:
            return 0
        # Koordinator swaps free and total amounts here.
        total, free = self.devices.of_type(GPU_TYPE)[minor].resources, self.pool.free[GPU_TYPE][minor]
        return score_device(self.preferences.scorer, gpu.per_gpu, free, total)

    # Devices in order

    def _default(
        self, device_type: str, amounts: ResourceList, count: int, most: int, switches: Collection[str] = (),
    ) -> Sequence[DeviceAllocation] | Refusal:
        given: list[DeviceAllocation] = []
        required = self.preferences.required.get(device_type)
        for minor in self._ordered(device_type, amounts, switches):
            free = self.pool.free[device_type][minor]
            if (required and minor not in required) or not any(free.values()) or not _is_enough(amounts, free):
                continue
            functions: tuple[VirtualFunction, ...] = ()
            if self.request.hint(device_type).vf_selector is not None:
                function = self._function(device_type, minor)
                if function is None:
                    continue
                functions = (function,)
            given.append(DeviceAllocation(minor, amounts, functions))
            if len(given) == most:
                break
        return given if len(given) >= count else _insufficient(device_type, Code.UNSCHEDULABLE)

    def _ordered(self, device_type: str, amounts: ResourceList, switches: Collection[str]) -> list[int]:
        """Return the minors in the order in which they are tried."""
        free, total = self.pool.free.get(device_type, {}), self.pool.total.get(device_type, {})
        scorer = self.preferences.scorer
        scores = {
            minor: 0 if scorer is None else score_device(scorer, amounts, total[minor], free[minor]) for minor in free
        }
        preferred = self.preferences.preferred.get(device_type)

        def order(minor: int) -> tuple[bool, int, int]:
            return bool(preferred) and minor not in preferred, -scores[minor], minor  # type: ignore[operator]

        minors = sorted(free, key=order)
        return minors if preferred or not switches else _round_robin(
            minors, self.devices.of_type(device_type), switches, order)

    def _function(self, device_type: str, minor: int) -> VirtualFunction | None:
        """Return the first virtual function of a device that is free and suits the pod."""
        taken = self.pool.functions.get(device_type, {}).get(minor, frozenset())
        only = self.preferences.functions.get(device_type, {}).get(minor)
        selector = self.request.hint(device_type).vf_selector
        free = [
            each for labels, functions in self.devices.of_type(device_type)[minor].functions
            if matches_labels(selector, labels) for each in functions
            if each.bus not in taken and (only is None or each.bus in only)
        ]
        return min(free, key=lambda each: each.bus, default=None)


def score_device(
    scorer: AllocationScorer, request: Mapping[str, int], total: Mapping[str, int], free: Mapping[str, int],
) -> int:
    """Return the score of a request on a device, 0..100; resources that the device lacks do not count."""
    requested = {}
    for name, amount in total.items():
        left = free.get(name, 0)
        requested[name] = amount if left > amount else amount - left + request.get(name, 0)
    return scorer.score_as_is(requested, total)


def score_pool(scorer: AllocationScorer, demand: DeviceDemand, pool: Pool) -> int:
    """Return the score of a pod on the devices of a node: the sum over types, which may exceed 100."""
    score = 0
    for device_type, amounts in demand.per_device.items():
        if device_type in pool.total and any(amounts.values()):
            total, free = (sum_of_amounts(of[device_type].values()) for of in (pool.total, pool.free))
            score += score_device(scorer, amounts, total, free)
    return score


@dataclass(frozen=True, slots=True)
class _Found:
    """GPUs within one scope: its depth, and the number of scopes down to it with used GPUs."""

    minors: tuple[int, ...]
    depth: int
    used: int
    score: int


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for GPUs within one scope: fitting ones with their scores, and used ones."""

    gpu: GpuRequest
    level: int
    fitting: Mapping[int, int]
    busy: int

    def deepest(self, scope: DeviceScope, depth: int = 1, used: int = 0) -> _Found | None:
        """Return the GPUs of the deepest scope with enough fitting ones, at least as deep as `level`."""
        if len(scope.minors) < self.gpu.count:
            return None
        used += bool(scope.mask & self.busy)
        best: _Found | None = None
        for child in scope.children:
            found = self.deepest(child, depth + 1, used)
            if found is not None and (best is None or _is_better(found, best, shared=self.gpu.shared)):
                best = found
        if best is not None:
            return best
        minors = [minor for minor in scope.minors if minor in self.fitting]
        if self.level > scope.level or len(minors) < self.gpu.count:
            return None
        if self.gpu.shared:
            minor = max(minors, key=lambda each: (self.fitting[each], -each))
            return _Found((minor,), depth, used, self.fitting[minor])
        return _Found(tuple(minors[: self.gpu.count]), depth, used, 0)


def _is_better(found: _Found, best: _Found, *, shared: bool) -> bool:
    if (found.depth, found.used) != (best.depth, best.used):
        return (found.depth, found.used) > (best.depth, best.used)
    return shared and found.score > best.score


def _packing(used: int, count: int, partitions: Partitions) -> int:
    """Return the score of the partitions that stay free if these GPUs are used."""
    return sum(
        weight * each.score
        for size, weight in _PACKING.items() if size >= count and partitions.get(size)
        for each in partitions[size][0] if not each.mask & used
    )


def _is_fast_enough(partition: Partition, wish: Any) -> bool:
    if wish is None or wish.bandwidth is None:
        return True
    return partition.bandwidth is not None and wish.bandwidth <= partition.bandwidth


def _round_robin(
    minors: Sequence[int], infos: Mapping[int, DeviceInfo], switches: Collection[str],
    order: Callable[[int], tuple[bool, int, int]],
) -> list[int]:
    """Return the minors with those first that are on these switches: one of each, then a second one of each, ..."""
    rounds: dict[int, list[int]] = {}
    seen: dict[str, int] = {}
    others = []
    for minor in minors:
        place = infos[minor].place
        if place is None or place.pcie not in switches:
            others.append(minor)
            continue
        rounds.setdefault(seen.get(place.pcie, 0), []).append(minor)
        seen[place.pcie] = seen.get(place.pcie, 0) + 1
    return [*(minor for number in sorted(rounds) for minor in sorted(rounds[number], key=order)), *others]


def _is_enough(requested: Mapping[str, int], free: Mapping[str, int]) -> bool:
    """Return whether no amount exceeds the free one; resources that the device does not have are ignored."""
    return all(amount <= free[name] for name, amount in requested.items() if name in free)


def _with_memory(amounts: ResourceList, memory: int) -> ResourceList:
    result = ResourceList(amounts)
    if GPU_MEMORY in amounts and GPU_MEMORY_RATIO not in amounts:
        if memory:
            # In the floating point of the original.
            result[GPU_MEMORY_RATIO] = int(amounts[GPU_MEMORY] / memory * WHOLE)
    elif GPU_MEMORY not in amounts:
        result[GPU_MEMORY] = amounts[GPU_MEMORY_RATIO] * memory // WHOLE
    return result


def _insufficient(device_type: str, code: Code) -> Refusal:
    return Refusal("devices", f"Insufficient {device_type} devices", code)
