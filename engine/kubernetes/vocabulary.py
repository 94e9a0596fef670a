"""Koordinator's vocabulary: labels, annotations, resource names, QoS classes and priority bands.

A pod's QoS class and priority band each have two forms. The *raw* one is the pod's own and may be an empty string. The
other one, which plugins and expressions use, falls back to Kubernetes' QoS class and is never empty. (Koordinator
apis/extension semantics.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .quantity import Quantity

NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"
"""The label that every namespace has; its value is the namespace's name."""

# Labels and annotations of pods
QOS_CLASS_LABEL: Final = "koordinator.sh/qosClass"
PRIORITY_CLASS_LABEL: Final = "koordinator.sh/priority-class"
SUB_PRIORITY_LABEL: Final = "koordinator.sh/priority"
"""An integer that orders pods of one band."""
POD_GROUP_LABEL: Final = "pod-group.scheduling.sigs.k8s.io"
GANG_NAME_ANNOTATION: Final = "gang.scheduling.koordinator.sh/name"
QUOTA_NAME_LABEL: Final = "quota.scheduling.koordinator.sh/name"
PREEMPTIBLE_LABEL: Final = "quota.scheduling.koordinator.sh/preemptible"
"""`"false"`: the pod may not be preempted."""
RESERVATION_IGNORED_LABEL: Final = "scheduling.koordinator.sh/reservation-ignored"
EVICTION_POLICY_ANNOTATION: Final = "koordinator.sh/eviction-policy"
"""JSON list of the features that may evict the pod."""
EVICTION_ENABLED_LABEL: Final = "koordinator.sh/eviction-enabled"
"""`"true"`: features that evict by priority may evict the pod."""
EVICTION_PRIORITY_ANNOTATION: Final = "koordinator.sh/eviction-priority"
"""int32, lower goes first; 0 by default."""
EVICTION_COST_ANNOTATION: Final = "scheduling.koordinator.sh/eviction-cost"
"""int32, lower goes first; 2147483647: never."""
CPU_BURST_ANNOTATION: Final = "koordinator.sh/cpuBurst"
MEMORY_QOS_ANNOTATION: Final = "koordinator.sh/memoryQOS"
BLKIO_QOS_ANNOTATION: Final = "koordinator.sh/blkioQOS"
"""JSON object with `blocks`: the limits of the pod's block devices."""
RESCTRL_ANNOTATION: Final = "node.koordinator.sh/resctrl"
"""A pod that has it is in a resctrl group of its own."""
RESOURCE_SPEC_ANNOTATION: Final = "scheduling.koordinator.sh/resource-spec"
RESOURCE_STATUS_ANNOTATION: Final = "scheduling.koordinator.sh/resource-status"
NUMA_TOPOLOGY_SPEC_ANNOTATION: Final = "scheduling.koordinator.sh/numa-topology-spec"
DEVICE_ALLOCATED_ANNOTATION: Final = "scheduling.koordinator.sh/device-allocated"
DEVICE_ALLOCATE_HINT_ANNOTATION: Final = "scheduling.koordinator.sh/device-allocate-hint"
DEVICE_JOINT_ALLOCATE_ANNOTATION: Final = "scheduling.koordinator.sh/device-joint-allocate"
RESERVATION_AFFINITY_ANNOTATION: Final = "scheduling.koordinator.sh/reservation-affinity"
RESERVATION_ALLOCATED_ANNOTATION: Final = "scheduling.koordinator.sh/reservation-allocated"

# Objects by name
SLO_CONFIG: Final = "slo-controller-config"
"""The name of the ConfigMap that koord-manager makes NodeSLOs of."""

# Labels and annotations of nodes
RAW_ALLOCATABLE_ANNOTATION: Final = "node.koordinator.sh/raw-allocatable"
"""Resource list: the allocatable before amplification."""
RESOURCE_AMPLIFICATION_RATIO_ANNOTATION: Final = "node.koordinator.sh/resource-amplification-ratio"
NODE_RESERVATION_ANNOTATION: Final = "node.koordinator.sh/reservation"
SYSTEM_QOS_RESOURCE_ANNOTATION: Final = "node.koordinator.sh/system-qos-resource"
CPU_TOPOLOGY_ANNOTATION: Final = "node.koordinator.sh/cpu-topology"
CPU_SHARED_POOLS_ANNOTATION: Final = "node.koordinator.sh/cpu-shared-pools"
CPU_NORMALIZATION_RATIO_ANNOTATION: Final = "node.koordinator.sh/cpu-normalization-ratio"
CPU_MANAGER_POLICY_ANNOTATION: Final = "kubelet.koordinator.sh/cpu-manager-policy"
USAGE_THRESHOLDS_ANNOTATION: Final = "scheduling.koordinator.sh/usage-thresholds"
CPU_BIND_POLICY_LABEL: Final = "node.koordinator.sh/cpu-bind-policy"
NUMA_ALLOCATE_STRATEGY_LABEL: Final = "node.koordinator.sh/numa-allocate-strategy"
NUMA_TOPOLOGY_POLICY_LABEL: Final = "node.koordinator.sh/numa-topology-policy"
GPU_VENDOR_LABEL: Final = "node.koordinator.sh/gpu-vendor"
GPU_MODEL_LABEL: Final = "node.koordinator.sh/gpu-model"
GPU_PARTITION_POLICY_LABEL: Final = "node.koordinator.sh/gpu-partition-policy"
NETWORK_BANDWIDTH_ANNOTATION: Final = "node.koordinator.sh/network-bandwidth"
"""Quantity: the bandwidth of the node, instead of the one that is configured."""
COLOCATION_STRATEGY_ANNOTATION: Final = "node.koordinator.sh/colocation-strategy"
"""JSON: the node's own settings of colocation-config."""
CPU_RECLAIM_RATIO_LABEL: Final = "node.koordinator.sh/cpu-reclaim-ratio"
MEMORY_RECLAIM_RATIO_LABEL: Final = "node.koordinator.sh/memory-reclaim-ratio"
MID_STATIC_CPU_RATIO_LABEL: Final = "node.koordinator.sh/mid-static-cpu-reserved-ratio"
MID_STATIC_MEMORY_RATIO_LABEL: Final = "node.koordinator.sh/mid-static-memory-reserved-ratio"
ORIGIN_ALLOCATABLE_ANNOTATION: Final = "node.koordinator.sh/originExtendedAllocatable"
"""JSON: the batch resources before those were subtracted that other systems allocated."""
THIRD_PARTY_ALLOCATIONS_ANNOTATION: Final = "node.koordinator.sh/thirdPartyAllocations"
"""JSON: what other systems, such as YARN, have allocated on the node, with its priority band."""
EXTENDED_RESOURCE_SPEC_ANNOTATION: Final = "node.koordinator.sh/extended-resource-spec"
"""JSON on a pod: the batch resources of its containers, for runtime hooks."""

# Resource names
BATCH_CPU: Final = "kubernetes.io/batch-cpu"
"""In milli-cores, as a plain integer."""
BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
MID_CPU: Final = "kubernetes.io/mid-cpu"
"""In milli-cores, as a plain integer."""
MID_MEMORY: Final = "kubernetes.io/mid-memory"
GPU: Final = "koordinator.sh/gpu"
"""Percent of one GPU, of cores and memory together."""
GPU_CORE: Final = "koordinator.sh/gpu-core"
"""Percent of one GPU's cores."""
GPU_MEMORY: Final = "koordinator.sh/gpu-memory"
"""In bytes."""
GPU_MEMORY_RATIO: Final = "koordinator.sh/gpu-memory-ratio"
"""Percent of one GPU's memory."""
GPU_SHARED: Final = "koordinator.sh/gpu.shared"
"""The number of GPUs that share the request."""
RDMA: Final = "koordinator.sh/rdma"
"""Percent of one device."""
FPGA: Final = "koordinator.sh/fpga"
"""Percent of one device."""
WHOLE_GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")
"""Names that count whole GPUs."""

LSE: Final = "LSE"
LSR: Final = "LSR"
LS: Final = "LS"
BE: Final = "BE"
SYSTEM: Final = "SYSTEM"
QOS_CLASSES: Final = (LSE, LSR, LS, BE, SYSTEM)
"""From latency sensitive with exclusive cores to best effort, and the system's own."""
BURST_CLASSES: Final = frozenset((LS, SYSTEM, ""))
"""Of pods whose CPU may burst, by label, empty without one: they share CPUs and have no batch resources."""

PROD: Final = "koord-prod"
MID: Final = "koord-mid"
BATCH: Final = "koord-batch"
FREE: Final = "koord-free"
PRIORITY_BANDS: Final[Mapping[str, tuple[int, int]]] = {
    PROD: (9000, 9999), MID: (7000, 7999), BATCH: (5000, 5999), FREE: (3000, 3999),
}
"""The lowest and the highest `spec.priority` of each band."""

DEFAULT_PRIORITIES: Final[Mapping[str, int]] = {PROD: 9500, MID: 7500, BATCH: 5500, FREE: 3500}
"""The default `spec.priority` of a band's pods that have none, or 0."""

_QOS_OF_KUBERNETES: Final = {"Guaranteed": LSR, "Burstable": LS, "BestEffort": BE}
_COUNTED: Final = ("cpu", "memory")
"""The resources that decide a Kubernetes QoS class."""
_NAMES_OF_BANDS: Final[Mapping[str, Mapping[str, str]]] = {
    BATCH: {"cpu": BATCH_CPU, "memory": BATCH_MEMORY}, MID: {"cpu": MID_CPU, "memory": MID_MEMORY},
}


def raw_qos_class(pod: Mapping[str, Any]) -> str:
    """Return the QoS class of the pod's label; empty if there is none, or an unknown one."""
    label = _labels(pod).get(QOS_CLASS_LABEL)
    return label if label in QOS_CLASSES else ""


def qos_class(pod: Mapping[str, Any]) -> str:
    """Return the QoS class: that of the label, else Guaranteed is LSR, Burstable LS, BestEffort BE.

    Raises:
        ValueError: the Kubernetes class must be computed and a quantity cannot be read.
    """
    return raw_qos_class(pod) or _QOS_OF_KUBERNETES[kubernetes_qos_class(pod)]


def raw_priority_band(pod: Mapping[str, Any]) -> str:
    """Return the band that the pod's label names, or without the label, the one its `spec.priority` lies in.

    Empty if it is in none, or if the label names none; the number is then ignored.
    """
    labels = _labels(pod)
    if PRIORITY_CLASS_LABEL in labels:
        label = labels[PRIORITY_CLASS_LABEL]
        return label if label in PRIORITY_BANDS else ""
    priority = (pod.get("spec") or {}).get("priority")
    if not isinstance(priority, int):
        return ""
    return next((band for band, (low, high) in PRIORITY_BANDS.items() if low <= priority <= high), "")


def priority_band(pod: Mapping[str, Any]) -> str:
    """Return the band: the raw one, else koord-batch for BE pods and koord-prod for all others.

    Raises:
        ValueError: the Kubernetes QoS class must be computed and a quantity cannot be read.
    """
    return raw_priority_band(pod) or (BATCH if qos_class(pod) == BE else PROD)


def classes_of(pod: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return `kubernetes_qos_class`, `qos_class` and `priority_band`, computed once for all three.

    Raises:
        ValueError: the Kubernetes class must be computed and a quantity cannot be read.
    """
    computed = kubernetes_qos_class(pod)
    qos = raw_qos_class(pod) or _QOS_OF_KUBERNETES[computed]
    return computed, qos, raw_priority_band(pod) or (BATCH if qos == BE else PROD)


def resource_name(name: str, band: str) -> str:
    """Return the name under which pods of a band request `cpu` or `memory`: special ones for batch and mid, none for
    free.

    Other names, and those of the prod band and of no band, stay as they are. (TranslateResourceNameByPriorityClass.)
    """
    if band == FREE:
        return ""
    return _NAMES_OF_BANDS.get(band, {}).get(name, name)


def kubernetes_qos_class(pod: Mapping[str, Any]) -> str:
    """Return Guaranteed, Burstable or BestEffort: that of `status.qosClass`, else as Kubernetes computes it.

    Only cpu and memory count, and only amounts above 0. Pod-level resources, if there are any, replace those of the
    containers. (Kubernetes' ComputePodQOS.)

    Raises:
        ValueError: a quantity cannot be read.
    """
    given = (pod.get("status") or {}).get("qosClass")
    if given in _QOS_OF_KUBERNETES:
        return str(given)
    spec = pod.get("spec") or {}
    of_pod = spec.get("resources") or {}
    owners = [of_pod] if _asks(of_pod) else [
        container.get("resources") or {}
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    ]
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}
    limited = True
    for resources in owners:
        own_limits = _positive(resources.get("limits"))
        limited = limited and len(own_limits) == len(_COUNTED)
        for total, own in ((requests, _positive(resources.get("requests"))), (limits, own_limits)):
            for name, quantity in own.items():
                total[name] = total[name] + quantity if name in total else quantity
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if limited and requests == limits else "Burstable"


def _labels(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return (pod.get("metadata") or {}).get("labels") or {}


def _asks(resources: Mapping[str, Any]) -> bool:
    """Return whether a pod's own resources replace its containers': they name cpu, memory or huge pages."""
    names = [*(resources.get("requests") or ()), *(resources.get("limits") or ())]
    return any(name in _COUNTED or name.startswith("hugepages-") for name in names)


def _positive(amounts: Mapping[str, Any] | None) -> dict[str, Quantity]:
    """Return the amounts of cpu and memory that are above 0; a bare number is read like its text."""
    read = {name: Quantity.parse(str((amounts or {})[name])) for name in _COUNTED if name in (amounts or {})}
    return {name: quantity for name, quantity in read.items() if quantity.sign > 0}
