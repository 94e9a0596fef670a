"""Adapters for vendors' device plugins: annotations by which these allocate the chosen devices (DevicePluginAdaption).

Some device plugins identify pods by time alone: the node is locked, by an annotation, until the pod is seen.
(Koordinator device_plugin_adapter.go semantics.)
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cluster.objects.metrics import NANOSECONDS, nanoseconds
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.kubernetes.vocabulary import GPU_CORE, GPU_MEMORY, GPU_MODEL_LABEL, GPU_VENDOR_LABEL
from koordpolicy.plugin import Client

from ..allocation.annotations import annotations_of, labels_of
from .allocation import Allocation, DeviceAllocation
from .devices import NodeDevices
from .requests import GPU_TYPE

GATE: Final = "DevicePluginAdaption"
ISOLATION_LABEL: Final = "koordinator.sh/gpu-isolation-provider"

_BOUND_AT: Final = "scheduling.koordinator.sh/bind-timestamp"
_MINORS: Final = "scheduling.koordinator.sh/gpu-minors"
_HAMI: Final = "HAMi-core"
_HAMI_NODE_LABEL: Final = "hami.io/vgpu-node"
_LOCKED_FOR: Final = 5 * 60 * NANOSECONDS
_CAMBRICON_UNIT: Final = 256 * 1024 * 1024
_METAX_UNIT: Final = 1024 * 1024


class AdaptionError(ValueError):
    """A vendor's device plugin does not support the allocation; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A pod or Reservation that is about to be bound, with its devices; `item` is changed. Times in nanoseconds."""

    item: dict[str, Any]
    allocation: Allocation
    node: str
    snapshot: Snapshot
    now: int

    @property
    def gpus(self) -> Sequence[DeviceAllocation]:
        """Its GPUs."""
        return self.allocation.get(GPU_TYPE, ())


@dataclass(frozen=True, slots=True)
class Lock:
    """A node without and with the lock by which its device plugin finds the pod."""

    node: Mapping[str, Any]
    locked: Mapping[str, Any]

    def set(self, client: Client) -> Refusal | None:
        """Patch the node, or return why that failed; only input and output."""
        try:
            client.patch(self.node, self.locked)
        except OSError as error:
            return Refusal("adaption", str(error), Code.ERROR)
        return None


def adapt(bound: Bound) -> Lock | None:
    """Write the annotations that the device plugins of the node require; return the lock to set, or None.

    Raises:
        AdaptionError: the device plugin does not support the allocation, or the node is locked.
    """
    annotations = bound.item.setdefault("metadata", {}).setdefault("annotations", {})
    annotations[_BOUND_AT] = str(bound.now)
    if not bound.gpus:
        return None
    annotations[_MINORS] = _minors(bound.gpus)
    if labels_of(bound.item).get(ISOLATION_LABEL) == _HAMI:
        bound.item["metadata"]["labels"][_HAMI_NODE_LABEL] = bound.node
    device = bound.snapshot.object("Device", bound.node) or {}
    vendor = _VENDORS.get(str(labels_of(device).get(GPU_VENDOR_LABEL)))
    if vendor is None:
        return None
    annotations.update(vendor.annotations(bound, device))
    return _lock(bound, vendor.lock) if vendor.lock else None


def _huawei(bound: Bound, device: Mapping[str, Any]) -> Mapping[str, str]:
    gpus = bound.gpus
    if labels_of(device).get(GPU_MODEL_LABEL) == "Ascend-310P3-300I-DUO":
        chosen = {"huawei.com/Ascend310P": _minors(gpus, "Ascend310P-")}
    elif gpus[0].template:
        chosen = {"huawei.com/npu-core": f"{gpus[0].minor}-{gpus[0].template}"}
    else:
        chosen = {"huawei.com/npu-core": _minors(gpus)}
    return {"predicate-time": str(bound.now), **chosen}


def _cambricon(bound: Bound, device: Mapping[str, Any]) -> Mapping[str, str]:  # noqa: ARG001 - one kind of function
    if len(bound.gpus) > 1:
        raise AdaptionError("multiple gpu share is not supported on device side")
    gpu, = bound.gpus
    memory = _units(gpu, _CAMBRICON_UNIT)
    return {
        "CAMBRICON_DSMLU_ASSIGHED": "false",  # as the vendor spells it
        "CAMBRICON_DSMLU_PROFILE": f"{gpu.minor}_{gpu.resources[GPU_CORE]}_{memory}",
    }


def _metax(bound: Bound, device: Mapping[str, Any]) -> Mapping[str, str]:
    infos = NodeDevices.of(device).of_type(GPU_TYPE)
    requests = [
        {
            "uuid": infos[gpu.minor].uuid if gpu.minor in infos else "", "compute": gpu.resources[GPU_CORE],
            "vRam": _units(gpu, _METAX_UNIT),
        }
        for gpu in bound.gpus
    ]
    return {"metax-tech.com/gpu-devices-allocated": json.dumps([requests], separators=(",", ":"))}


@dataclass(frozen=True, slots=True)
class _Vendor:
    annotations: Callable[[Bound, Mapping[str, Any]], Mapping[str, str]]
    lock: str = ""
    """The annotation that locks a node, if the device plugin needs one."""


_VENDORS: Final[Mapping[str, _Vendor]] = {
    "huawei": _Vendor(_huawei),
    "cambricon": _Vendor(_cambricon, "cambricon.com/dsmlu.lock"),
    "metax": _Vendor(_metax, "hami.io/mutex.lock"),
}


def _lock(bound: Bound, lock: str) -> Lock:
    node = bound.snapshot.object("Node", bound.node)
    if node is None:
        raise AdaptionError(f"there is no node `{bound.node}` any more")
    held = annotations_of(node).get(lock)
    if held is not None and _is_held(str(held), bound):
        raise AdaptionError(f'node "{bound.node}" has been locked')
    metadata = bound.item["metadata"]
    locked = copy.deepcopy(dict(node))
    locked["metadata"].setdefault("annotations", {})[lock] = ",".join((
        rfc3339(bound.now), str(metadata.get("namespace") or ""), str(metadata.get("name") or ""),
    ))
    return Lock(node, locked)


def _is_held(lock: str, bound: Bound) -> bool:
    """Return whether a lock is valid: recent, and held by an existing pod."""
    try:
        since, namespace, name = lock.split(",")
        taken = nanoseconds(since, "the lock")
    except ValueError as error:
        raise AdaptionError(f'invalid node lock value "{lock}": {error}') from None
    return bound.now - taken <= _LOCKED_FOR and bound.snapshot.object("Pod", f"{namespace}/{name}") is not None


def _units(gpu: DeviceAllocation, unit: int) -> int:
    if GPU_CORE not in gpu.resources:
        raise AdaptionError("gpu core resource is required")
    if gpu.resources[GPU_MEMORY] < unit:
        raise AdaptionError(f"gpu memory must not be less than {unit} bytes")
    return gpu.resources[GPU_MEMORY] // unit


def _minors(gpus: Sequence[DeviceAllocation], prefix: str = "") -> str:
    return ",".join(f"{prefix}{gpu.minor}" for gpu in gpus)
