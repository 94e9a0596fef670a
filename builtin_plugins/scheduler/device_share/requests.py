"""The device request of a pod: resources per device, number of devices, and the hints of its annotations.

(Koordinator deviceshare utils.go and devicehandler_gpu.go semantics.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.kubernetes.quantity import Quantity
from koordpolicy.engine.kubernetes.selectors import check_selector
from koordpolicy.engine.kubernetes.vocabulary import (
    DEVICE_ALLOCATE_HINT_ANNOTATION,
    DEVICE_JOINT_ALLOCATE_ANNOTATION,
    FPGA,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    RDMA,
    WHOLE_GPUS,
)

from ..allocation.annotations import annotations_of, json_object

GPU_TYPE: Final = "gpu"
RDMA_TYPE: Final = "rdma"
FPGA_TYPE: Final = "fpga"
TYPES: Final = (GPU_TYPE, RDMA_TYPE, FPGA_TYPE)
"""The types of devices, in the order in which they are allocated."""
WHOLE: Final = 100
"""One device in percent."""

GPU_PARTITION_SPEC_ANNOTATION: Final = "scheduling.koordinator.sh/gpu-partition-spec"
NPU_CORE: Final = "huawei.com/npu-core"
NPU_CPU: Final = "huawei.com/npu-cpu"
NPU_DVPP: Final = "huawei.com/npu-dvpp"

APPLY_FOR_ALL: Final = "ApplyForAll"
REQUESTS_AS_COUNT: Final = "RequestsAsCount"
DEVICE_LEVEL: Final = "DeviceLevel"
SAME_PCIE: Final = "SamePCIe"
RESTRICTED: Final = "Restricted"
SCOPE_LEVELS: Final = {"Node": 1, "NUMANode": 2, "PCIe": 3, "Device": 4}
"""The depths of topology scopes; the device scope has none, as in Koordinator."""

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    GPU_TYPE: (
        *WHOLE_GPUS, GPU, GPU_SHARED, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, NPU_CORE, NPU_CPU, NPU_DVPP,
    ),
    RDMA_TYPE: (RDMA,),
    FPGA_TYPE: (FPGA,),
}
DEPRECATED: Final[Mapping[str, str]] = {
    f"kubernetes.io/{name.partition('/')[2]}": name
    for name in (GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA, FPGA)
}
"""The current names of deprecated device resources."""

_IN_PERCENT: Final = (GPU, FPGA, RDMA)
_PER_DEVICE: Final = (GPU_CORE, NPU_CORE, NPU_CPU, NPU_DVPP, GPU_MEMORY_RATIO)


class DeviceRequestError(ValueError):
    """An invalid device request; the message is the reason."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A GPU request: the number of GPUs, the resources of each, and whether they may be shared."""

    count: int
    per_gpu: ResourceList
    shared: bool


@dataclass(frozen=True, slots=True)
class DeviceHint:
    """The hints of a pod for devices of one type; empty strings mean none. Selectors are None for any device."""

    selector: Mapping[str, Any] | None = None
    vf_selector: Mapping[str, Any] | None = None
    strategy: str = ""
    scope: str = ""
    exclusive: str = ""


@dataclass(frozen=True, slots=True)
class PartitionWish:
    """The requirement that the GPUs are a partition of the node: only the best ones, and the bandwidth (bytes per
    second).
    """

    restricted: bool = False
    bandwidth: Quantity | None = None


@dataclass(frozen=True, slots=True)
class PodDeviceRequest:
    """The devices that a pod requests, the same for all nodes; pods of equal `kind` get equal results.

    `requests` are by type, converted. `joint` are the types to allocate together, near the first one.
    """

    requests: Mapping[str, ResourceList]
    gpu: GpuRequest | None = None
    hints: Mapping[str, DeviceHint] = field(default_factory=dict)
    joint: tuple[str, ...] = ()
    joint_scope: str = ""
    partition: PartitionWish | None = None
    kind: object = None

    @property
    def shared(self) -> bool:
        """Return whether it shares GPUs with other pods."""
        return self.gpu is not None and self.gpu.shared

    def hint(self, device_type: str) -> DeviceHint:
        """Return the hints for a type."""
        return self.hints.get(device_type, _NO_HINT)


_NO_HINT: Final = DeviceHint()


def read_request(pod: PodInfo) -> PodDeviceRequest | None:
    """Return the devices that the pod requests; None for none.

    Raises:
        DeviceRequestError: the combination of requests is invalid, or the annotations are malformed.
    """
    requests = device_requests(pod.requests)
    if not requests:
        return None
    annotations = annotations_of(pod.object)
    hints = _hints(annotations)
    joint, scope = _joint(annotations, requests, hints)
    gpu = gpu_request(requests[GPU_TYPE]) if GPU_TYPE in requests else None
    return PodDeviceRequest(
        requests, gpu, hints, joint, scope, _partition(annotations) if gpu is not None else None,
        (
            tuple((name, tuple(sorted(amounts.items()))) for name, amounts in requests.items()),
            *(annotations.get(name) for name in (
                DEVICE_ALLOCATE_HINT_ANNOTATION, DEVICE_JOINT_ALLOCATE_ANNOTATION, GPU_PARTITION_SPEC_ANNOTATION,
            )),
        ),
    )


def wants_devices(requests: Mapping[str, int]) -> bool:
    """Return whether any of these requests is for a device."""
    return any(requests.get(name) for name in _ALL_NAMES)


def device_requests(requests: Mapping[str, int]) -> dict[str, ResourceList]:
    """Return requests for devices by type, with deprecated names replaced.

    Raises:
        DeviceRequestError: invalid amounts, or names that cannot be combined.
    """
    request_amounts = {DEPRECATED.get(name, name): amount for name, amount in requests.items() if amount}
    found: dict[str, ResourceList] = {}
    for device_type, names in _NAMES.items():
        own = {name: request_amounts[name] for name in names if name in request_amounts}
        if own:
            found[device_type] = _converted(own)
    return found


def gpu_request(amounts: Mapping[str, int]) -> GpuRequest:
    """Return the GPU request of converted requests: the number, and the resources of each."""
    count, ratio = 1, amounts.get(GPU_MEMORY_RATIO)
    if amounts.get(GPU_SHARED, 0) > 0:
        count = amounts[GPU_SHARED]
    elif ratio is not None and ratio > WHOLE and ratio % WHOLE == 0:
        count = ratio // WHOLE
    each = ResourceList({name: amounts[name] // count for name in _PER_DEVICE if name in amounts})
    if ratio is not None:
        return GpuRequest(count, each, each[GPU_MEMORY_RATIO] < WHOLE)
    if GPU_MEMORY in amounts:
        each[GPU_MEMORY] = amounts[GPU_MEMORY] // count
        return GpuRequest(count, each, True)
    return GpuRequest(count, each, False)


# Valid combinations of resource names


def _is_percent(amount: int) -> bool:
    return amount <= WHOLE or amount % WHOLE == 0


def _any(_: Mapping[str, int]) -> bool:
    return True


def _percents(request_amounts: Mapping[str, int]) -> bool:
    return all(_is_percent(request_amounts.get(name, 0)) for name in (GPU_CORE, GPU_MEMORY_RATIO))


def _shares(request_amounts: Mapping[str, int]) -> bool:
    count = request_amounts[GPU_SHARED]
    return all(
        request_amounts[name] % count == 0 and request_amounts[name] // count <= WHOLE
        for name in (GPU_CORE, GPU_MEMORY_RATIO) if name in request_amounts
    )


def _npu_share(request_amounts: Mapping[str, int]) -> bool:
    return request_amounts[GPU_SHARED] <= 1 and request_amounts.get(NPU_DVPP, 0) <= WHOLE


_COMBINATIONS: Final[Mapping[frozenset[str], Callable[[Mapping[str, int]], bool]]] = {
    **{frozenset({name}): _any for name in (*WHOLE_GPUS, GPU, FPGA, RDMA)},
    **{frozenset(names): _percents for names in (
        {GPU_MEMORY}, {GPU_MEMORY_RATIO}, {GPU_CORE, GPU_MEMORY}, {GPU_CORE, GPU_MEMORY_RATIO},
        {NPU_CORE, GPU_MEMORY_RATIO},
    )},
    **{frozenset({GPU_SHARED, *names}): _shares for names in (
        {GPU_MEMORY}, {GPU_MEMORY_RATIO}, {GPU_CORE, GPU_MEMORY}, {GPU_CORE, GPU_MEMORY_RATIO},
    )},
    **{frozenset({GPU_SHARED, NPU_CORE, NPU_CPU, GPU_MEMORY, *names}): _npu_share for names in ((), (NPU_DVPP,))},
}
_ALL_NAMES: Final = (*(name for names in _NAMES.values() for name in names), *DEPRECATED)


def _converted(request_amounts: Mapping[str, int]) -> ResourceList:
    for name, amount in request_amounts.items():
        if name in _IN_PERCENT and not _is_percent(amount):
            raise DeviceRequestError(f"invalid resource unit {name}: {Quantity.of(amount)}")
    valid = _COMBINATIONS.get(frozenset(request_amounts))
    if valid is None or not valid(request_amounts):
        raise DeviceRequestError(f"invalid resource device requests: [{' '.join(sorted(request_amounts))}]")
    for name in (*WHOLE_GPUS, GPU):
        if name in request_amounts:
            percent = request_amounts[name] if name == GPU else request_amounts[name] * WHOLE
            return ResourceList({GPU_CORE: percent, GPU_MEMORY_RATIO: percent})
    return ResourceList(request_amounts)


# Annotations


def _hints(annotations: Mapping[str, Any]) -> dict[str, DeviceHint]:
    try:
        given = json_object(annotations, DEVICE_ALLOCATE_HINT_ANNOTATION)
        hints = {device_type: _mapping(hint) for device_type, hint in given.items() if hint is not None}
        found = {device_type: DeviceHint(
            hint.get("selector"), hint.get("vfSelector"), _text(hint, "allocateStrategy"),
            _text(hint, "requiredTopologyScope"), _text(hint, "exclusivePolicy"),
        ) for device_type, hint in hints.items()}
    except ValueError as error:
        raise DeviceRequestError(f"invalid DeviceAllocateHint annotation, err: {error}") from None
    for device_type, hint in found.items():
        for name, selector in (("Selector", hint.selector), ("VFSelector", hint.vf_selector)):
            try:
                if selector is not None:
                    check_selector(_mapping(selector))
                    _mapping(selector.get("matchLabels") or {})
            except (ValueError, AttributeError, TypeError) as error:
                raise DeviceRequestError(
                    f"invalid {name} of DeviceHint, deviceType: {device_type}, err: {error}") from None
    return found


def _joint(
    annotations: Mapping[str, Any], requests: Mapping[str, ResourceList], hints: Mapping[str, DeviceHint],
) -> tuple[tuple[str, ...], str]:
    """Return the types that are allocated jointly, among those requested, and their scope."""
    try:
        given = json_object(annotations, DEVICE_JOINT_ALLOCATE_ANNOTATION)
        types, scope = given.get("deviceTypes") or [], _text(given, "requiredScope")
        if not isinstance(types, list) or not all(isinstance(each, str) for each in types):
            raise ValueError("`deviceTypes` must be a list of strings")  # noqa: TRY301 - one kind of complaint
    except ValueError as error:
        raise DeviceRequestError(f"invalid DeviceJointAllocate annotation, err: {error}") from None
    return tuple(
        each for each in types
        if each in requests and hints.get(each, _NO_HINT).strategy != APPLY_FOR_ALL
    ), scope


def _partition(annotations: Mapping[str, Any]) -> PartitionWish | None:
    if GPU_PARTITION_SPEC_ANNOTATION not in annotations:
        return None
    try:
        given = json_object(annotations, GPU_PARTITION_SPEC_ANNOTATION)
        bandwidth = given.get("ringBusBandwidth")
        return PartitionWish(
            _text(given, "allocatePolicy") == RESTRICTED, None if bandwidth is None else Quantity.parse(str(bandwidth)))
    except ValueError as error:
        raise DeviceRequestError(f"invalid GPUPartitionSpec annotation, err: {error}") from None


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("an object is needed")  # noqa: TRY004 - one kind of complaint
    return value


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"`{name}` must be a string")
    return value or ""
