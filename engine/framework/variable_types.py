"""The object types of expressions' variables that are no API objects, and the units of their fields."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from koordpolicy.engine.cel.values.types import (
    BOOL,
    INT,
    STRING,
    Field,
    ObjectType,
    list_of,
    map_of,
)

_CPU = "milli-cores"
_BYTES = "bytes"
_NATIVE: Final = {"cpu": _CPU, "memory": _BYTES, "pods": "pods", "ephemeral-storage": _BYTES}
_AMOUNTS: Final = {name: Field(INT, f"In {unit}.", unit=unit) for name, unit in _NATIVE.items()}
_DEVICES: Final = "devices"
_GPU: Final = "thousandths of a device"

RESOURCE_LIST: Final = ObjectType(
    "ResourceList", _AMOUNTS, index=INT, absent=0,
    doc="Amounts by resource: cpu in milli-cores, all else in base units. A resource that is absent reads 0.",
)
MEASURED_LIST: Final = ObjectType(
    "MeasuredList", _AMOUNTS, index=INT,
    doc="Measured amounts by resource: cpu in milli-cores, all else in base units. Reading an amount without a metric"
    " is the error `NoMetric`.",
)
_STATISTICS: Final = {
    "avg": "The average over it.", "p50": "The median over it.", "p90": "The 90th percentile over it.",
    "p95": "The 95th percentile over it.", "p99": "The 99th percentile over it.",
}
USAGE_OVER: Final = ObjectType(
    "UsageOver", {name: Field(MEASURED_LIST.type, text) for name, text in _STATISTICS.items()},
    doc="Measured amounts over one duration, per statistic.",
)
USAGE_DURATIONS: Final = ObjectType(
    "UsageDurations", {}, index=USAGE_OVER.type,
    doc="Statistics by the duration that they are over, as the node's NodeMetric reports them, such as `5m` and `1h`. A"
    " duration that is not reported is the error `NoMetric`.",
)
USAGE: Final = ObjectType(
    "Usage",
    {
        **_AMOUNTS,
        "over": Field(USAGE_DURATIONS.type, "Statistics of a NodeMetric by duration: `usage.over['5m'].p95.cpu`."),
        **{name: Field(MEASURED_LIST.type, text) for name, text in {
            "avg": "The average over the longest duration that was aggregated.",
            **{name: text for name, text in _STATISTICS.items() if name != "avg"},
        }.items()},
    },
    index=INT,
    doc="Measured amounts by resource, and per statistic (`usage.p90.cpu`). Without a metric, or with an expired one,"
    " reading it is the error `NoMetric`.",
)
_GPU_FIELDS: Final = {
    "gpuFree": Field(INT, "Free GPU of all devices together, in thousandths of one device.", unit=_GPU),
    "gpuTotal": Field(INT, "GPU of all devices together, in thousandths of one device.", unit=_GPU),
    "gpuFreeDevices": Field(INT, "Number of devices with no allocation.", unit=_DEVICES),
    "gpuDevices": Field(INT, "Number of devices.", unit=_DEVICES),
}
NODE_INFO: Final = ObjectType(
    "NodeInfo",
    {
        "name": Field(STRING, "The node's name."),
        "pods": Field(INT, "Number of pods on the node.", unit="pods"),
        "images": Field(map_of(STRING, INT), "Sizes in bytes of the images on the node, by name.", unit=_BYTES),
        "zone": Field(STRING, "The zone, or an empty string."),
        "region": Field(STRING, "The region, or an empty string."),
        "measured": Field(BOOL, "True if the node has a metric that is not expired."),
        "unschedulable": Field(BOOL, "True if the node is cordoned."),
        **_GPU_FIELDS,
        "gpuModel": Field(STRING, "Model of the devices, or an empty string."),
    },
    doc="Facts derived from a node and its pods.",
)
POD_INFO: Final = ObjectType(
    "PodInfo",
    {
        "name": Field(STRING, "The pod's name."),
        "namespace": Field(STRING, "The pod's namespace."),
        "qosClass": Field(STRING, "Koordinator's QoS class: LSE, LSR, LS, BE, SYSTEM, or an empty string."),
        "kubernetesQoS": Field(STRING, "Kubernetes' QoS class: Guaranteed, Burstable or BestEffort."),
        "priority": Field(INT, "`spec.priority`; 0 if it is not set."),
        "priorityBand": Field(STRING, "koord-prod, koord-mid, koord-batch, koord-free, or an empty string."),
        "requests": Field(RESOURCE_LIST.type, "The pod's effective requests."),
        "limits": Field(RESOURCE_LIST.type, "The pod's effective limits."),
        "gpuCount": Field(INT, "Number of requested GPUs; 0 for none.", unit=_DEVICES),
        "gpuShare": Field(INT, "Share requested of each GPU, in thousandths of one device; 0 for none.", unit=_GPU),
        "gpuRequest": Field(INT, "Share requested of all GPUs together, in thousandths of one device.", unit=_GPU),
        "gpuModels": Field(list_of(STRING), "Accepted models; empty for any."),
    },
    doc="Facts derived from a pod.",
)
PLACEMENT: Final = ObjectType(
    "Placement",
    {
        "anyNode": Field(BOOL, "True if a node, maybe its own, takes the pod: labels, taints, anti-affinity, room."),
        "otherNode": Field(BOOL, "True if another node takes the pod."),
        "preferredWeight": Field(INT, "Sum of the weights of its preferred node affinity that its node matches."),
        "greatestPreferredWeight": Field(INT, "The greatest such sum of a node, may it take the pod or not."),
    },
    doc="The places that a pod has at this time, on the nodes that the descheduler looks at.",
)
DEVICE: Final = ObjectType(
    "Device",
    {
        "type": Field(STRING, "The kind of device: gpu."),
        "minor": Field(INT, "The device's number on its node."),
        "total": Field(INT, "1000 for a healthy device, 0 for an unhealthy one.", unit=_GPU),
        "free": Field(INT, "The free share of the device, in thousandths.", unit=_GPU),
        "model": Field(STRING, "The device's model, or an empty string."),
    },
    doc="One device of a node.",
)
BEST_EFFORT_CPU: Final = ObjectType(
    "BestEffortCPU",
    {
        "usage": Field(INT, "Usage of its pods.", unit=_CPU),
        "request": Field(INT, "The batch CPU that its pods request.", unit=_CPU),
        "realLimit": Field(INT, "The limit of its CPU set and quota.", unit=_CPU),
    },
    doc="CPU of the best-effort tier, averages over the window; a value that was not measured is an error.",
)
TYPES: Final = (
    RESOURCE_LIST, MEASURED_LIST, USAGE, USAGE_DURATIONS, USAGE_OVER, NODE_INFO, POD_INFO, PLACEMENT, DEVICE,
    BEST_EFFORT_CPU,
)
"""The object types of the variables that are not API objects."""


def unit_of_resource(name: str) -> str:
    """Return the unit of a resource in `requests` and `usage`; an empty string for most."""
    return _NATIVE_UNITS.get(name) or next(
        (unit for native, unit in _NATIVE_UNITS.items() if name.endswith(f"-{native}")), "",
    )


def unit_of_field(holder: ObjectType | None, name: str) -> str:
    """Return the unit of a field: the declared one, else by the naming conventions of the Kubernetes API."""
    declared = holder.fields.get(name) if holder is not None else None
    if declared is not None and declared.unit:
        return declared.unit
    if holder is not None and holder.name in _LISTS:
        return unit_of_resource(name)
    return _unit_by_convention(name)


@functools.lru_cache(maxsize=4096)
def _unit_by_convention(name: str) -> str:
    return next((unit for ending, unit in _ENDINGS.items() if name.endswith(ending)), "")


_LISTS: Final = frozenset(each.name for each in (RESOURCE_LIST, MEASURED_LIST, USAGE))
_ENDINGS: Final[Mapping[str, str]] = {
    "Milliseconds": "milliseconds", "Seconds": "seconds", "Percent": "percent", "sizeBytes": _BYTES,
}
_NATIVE_UNITS: Final = {name: unit for name, unit in _NATIVE.items() if name != "pods"}
