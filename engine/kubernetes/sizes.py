"""Assumed sizes of the lists, maps and strings of API objects, for cost estimates of expressions.

One table, by object type and field; `*` means the elements of a list and the values of a map. The numbers are the
limits that the API server or the kubelet enforces, if any (a label's value has at most 63 characters, a node reports 50
images), else generous estimates. Larger objects are evaluated too, within the limits at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_NAME: Final = 253
_LABEL: Final = 63
_KEY: Final = 317
"""A DNS subdomain, a slash and a name."""

_TABLE: Final[Mapping[str, Mapping[str, int | tuple[int, int]]]] = {
    "kubernetes.ObjectMeta": {
        "name": _NAME, "namespace": _LABEL, "generateName": _NAME, "uid": 36, "resourceVersion": 20,
        "labels": (100, _LABEL), "annotations": (100, 1024), "finalizers": (20, _KEY), "ownerReferences": 20,
        "managedFields": 50,
    },
    "kubernetes.PodSpec": {
        "containers": 50, "initContainers": 50, "ephemeralContainers": 50, "volumes": 100, "tolerations": 100,
        "imagePullSecrets": 20, "hostAliases": 50, "readinessGates": 20, "schedulingGates": 20, "resourceClaims": 20,
        "topologySpreadConstraints": 20, "nodeSelector": (50, _LABEL), "overhead": (20, 32), "evictionResponders": 20,
        "nodeName": _NAME, "schedulerName": _NAME, "priorityClassName": _NAME, "serviceAccountName": _NAME,
        "restartPolicy": 16, "preemptionPolicy": 32,
    },
    "kubernetes.PodStatus": {
        "conditions": 20, "containerStatuses": 50, "initContainerStatuses": 50, "ephemeralContainerStatuses": 50,
        "hostIPs": 2, "podIPs": 2, "resourceClaimStatuses": 20, "allocatedResources": (20, 32), "phase": 16,
        "qosClass": 16,
    },
    "kubernetes.Container": {
        "name": _LABEL, "image": 512, "command": 100, "args": 200, "env": 500, "envFrom": 50, "ports": 100,
        "volumeMounts": 100, "volumeDevices": 100, "resizePolicy": 10, "restartPolicyRules": 20, "imagePullPolicy": 16,
    },
    "kubernetes.ResourceRequirements": {"limits": (20, 32), "requests": (20, 32), "claims": 20},
    "kubernetes.Toleration": {"key": _KEY, "operator": 16, "value": _LABEL, "effect": 32},
    "kubernetes.Taint": {"key": _KEY, "value": _LABEL, "effect": 32},
    "kubernetes.NodeSpec": {"taints": 50, "podCIDRs": (2, 64), "providerID": 512},
    "kubernetes.NodeStatus": {
        "images": 50, "conditions": 50, "addresses": 20, "allocatable": (50, 32), "capacity": (50, 32),
        "volumesAttached": 500, "volumesInUse": (500, _NAME), "runtimeHandlers": 20, "declaredFeatures": (100, _NAME),
    },
    "kubernetes.ContainerImage": {"names": (5, 512)},
    "kubernetes.NodeSelector": {"nodeSelectorTerms": 20},
    "kubernetes.NodeSelectorTerm": {"matchExpressions": 20, "matchFields": 5},
    "kubernetes.NodeSelectorRequirement": {"key": _KEY, "operator": 16, "values": (100, _LABEL)},
    "kubernetes.NodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": 20},
    "kubernetes.PodAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": 20, "requiredDuringSchedulingIgnoredDuringExecution": 20,
    },
    "kubernetes.PodAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": 20, "requiredDuringSchedulingIgnoredDuringExecution": 20,
    },
    "kubernetes.PodAffinityTerm": {
        "namespaces": (100, _LABEL), "matchLabelKeys": (20, _KEY), "mismatchLabelKeys": (20, _KEY),
    },
    "kubernetes.TopologySpreadConstraint": {"topologyKey": _KEY, "matchLabelKeys": (20, _KEY)},
    "kubernetes.LabelSelector": {"matchLabels": (50, _LABEL), "matchExpressions": 20},
    "kubernetes.LabelSelectorRequirement": {"key": _KEY, "operator": 16, "values": (100, _LABEL)},
    "kubernetes.OwnerReference": {"kind": _LABEL, "name": _NAME, "apiVersion": _KEY, "uid": 36},
    "koordinator.NodeMetricStatus": {"podsMetric": 500, "hostApplicationMetric": 50},
    "koordinator.NodeMetricInfo": {"aggregatedNodeUsages": 10, "aggregatedSystemUsages": 10, "numaUsages": 16},
    "koordinator.AggregatedUsage": {"usage": 10},
    "koordinator.ResourceMap": {"devices": 32, "resources": (20, 32)},
    "koordinator.DeviceSpec": {"devices": 32},
    "koordinator.NodeSLOSpec": {"hostApplications": 50},
    "koordinator.NodeResourceTopology": {"zones": 16},
    "koordinator.TopologyZone": {"attributes": 20, "costs": 16, "resources": 20},
}


def _entries(type_: str, field: str, size: int | tuple[int, int]) -> dict[tuple[str, ...], int]:
    if isinstance(size, int):
        return {(type_, field): size}
    whole, each = size
    return {(type_, field): whole, (type_, field, "*"): each}


ASSUMED_SIZES: Final[Mapping[tuple[str, ...], int]] = MappingProxyType({
    key: value
    for type_, fields in _TABLE.items()
    for field, size in fields.items()
    for key, value in _entries(type_, field, size).items()
})
"""Elements, entries or characters by `(type, field)`, and those of the elements by `(type, field, "*")`."""
