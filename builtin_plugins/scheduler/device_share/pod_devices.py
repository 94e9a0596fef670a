"""The device request of a pod as the plugin reads it once per scheduling cycle."""

from __future__ import annotations

from dataclasses import dataclass

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal

from ..allocation.annotations import annotations_of, is_hinted
from ..reservation.holdings import ignores_reservations, needs_reservation
from .allocation import NO_TEMPLATE, Templates
from .args import DeviceShareArgs
from .devices import Holding, holding_in
from .requests import DeviceRequestError, PodDeviceRequest, read_request, wants_devices
from .templates import templates_of


@dataclass(frozen=True, slots=True)
class PodDevices:
    """The device request of a pod, the same for all nodes; a key of the cycle state.

    `templates` are the matching templates, None where the pod requires none; `designated` is the recorded allocation
    that the pod has to get again.
    """

    request: PodDeviceRequest
    templates: Templates | None = None
    designated: Holding | None = None
    needs_reservation: bool = False
    ignores_reservations: bool = False

    @property
    def kind(self) -> object:
        """The cache key that pods with equal results share."""
        return self.request.kind, self.needs_reservation, self.ignores_reservations


def read_pod_devices(
    pod: PodInfo, snapshot: Snapshot, args: DeviceShareArgs, plugin: str,
) -> PodDevices | Refusal | None:
    """Return the device request of a pod, None for a pod that requests no devices, or why it is invalid.

    `plugin` is the name under which scheduling hints address the plugin.
    """
    try:
        if not wants_devices(pod.requests):
            return None
        recorded = holding_in(annotations_of(pod.object))
        request = read_request(pod)
        if request is None:
            return None
        templates = None
        if request.gpu is not None and request.shared and args.templated & request.gpu.per_gpu.keys():
            templates = templates_of(snapshot.object("ConfigMap", args.templates), request.gpu.per_gpu)
            if not templates:
                return Refusal("template", NO_TEMPLATE, Code.UNRESOLVABLE)
        needs = needs_reservation(pod)
    except DeviceRequestError as error:
        return Refusal("request", str(error), Code.UNRESOLVABLE)
    except ValueError as error:
        return Refusal("annotations", str(error), Code.UNRESOLVABLE)
    designated = recorded if recorded and is_hinted(pod, plugin) else None
    return PodDevices(request, templates, designated, needs, ignores_reservations(pod))
