"""DeviceShare's PreBind: the annotations that record an allocation, and the locks of vendors' device plugins."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.kubernetes.quantity import Quantity
from koordpolicy.engine.kubernetes.vocabulary import DEVICE_ALLOCATED_ANNOTATION, GPU_MEMORY
from koordpolicy.plugin import Deferred, Handle

from ..allocation.annotations import write_annotation
from ..reservation.status import RESIZE
from .adapters import GATE, AdaptionError, Bound, adapt
from .allocation import DeviceAllocation
from .cache import DeviceGrant
from .devices import NodeDevices
from .reserve import total_resources

_RESIZE_GATE: Final = "ResizePod"


def record_allocation(handle: Handle, item: dict[str, Any], grant: DeviceGrant, node: str) -> Refusal | Deferred | None:
    """Write the granted devices into the annotations of a pod or Reservation that is bound to `node`.

    Return the deferred request that sets the node's lock, where the vendor's device plugin requires one.
    """
    if grant.node != node:
        return None
    snapshot = handle.snapshot()
    device = snapshot.object("Device", node)
    if device is None:
        return Refusal("device", f"there is no Device `{node}` any more", Code.ERROR)
    devices = NodeDevices.of(device)
    write_annotation(item, DEVICE_ALLOCATED_ANNOTATION, {
        device_type: [_entry(devices, device_type, each) for each in given]
        for device_type, given in grant.allocation.items()
    })
    if GATE in handle.feature_gates:
        try:
            lock = adapt(Bound(item, grant.allocation, node, snapshot, handle.now()))
        except AdaptionError as error:
            return Refusal("adaption", str(error), Code.ERROR)
        return None if lock is None else Deferred(partial(lock.set, handle.client))
    return None


def record_reservation_allocation(
    handle: Handle, reservation: dict[str, Any], grant: DeviceGrant, node: str,
) -> Refusal | Deferred | None:
    """Write the granted devices, and the resources to resize it to, into the annotations of a Reservation."""
    answer = record_allocation(handle, reservation, grant, node)
    if not isinstance(answer, Refusal) and grant.node == node and _RESIZE_GATE in handle.feature_gates:
        write_annotation(reservation, RESIZE, {"resources": {
            name: _quantity(name, amount) for name, amount in sorted(total_resources(grant.allocation).items())
        }})
    return answer


def _entry(devices: NodeDevices, device_type: str, given: DeviceAllocation) -> dict[str, Any]:
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
