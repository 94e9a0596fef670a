"""Rows of nodes: the object of a node, its pods and devices, and the facts derived from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.kubernetes.objects import LARGEST_AMOUNT, check_object
from koordpolicy.engine.kubernetes.vocabulary import (
    BATCH_CPU,
    BATCH_MEMORY,
    DEVICE_ALLOCATED_ANNOTATION,
    GPU,
    GPU_CORE,
    GPU_MODEL_LABEL,
    WHOLE_GPUS,
    resource_name,
)

from .metrics import NANOSECONDS, STATISTICS, WINDOWS, MeasuredList, NodeMetric, nanoseconds
from .pods import (
    NONZERO,
    WHOLE_DEVICE,
    DeviceRequest,
    PodInfo,
    ResourceList,
    mapping_at,
    objects_at,
    resource_list,
    text_at,
)

ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
ESTIMATION_FACTORS: Final[Mapping[str, int]] = {"cpu": 85, "memory": 70}
"""Estimated usage of a pod in percent of its request (Koordinator's estimatedScalingFactors)."""

_MODEL_LABELS: Final = ("alibabacloud.com/gpu-card-model", GPU_MODEL_LABEL, "nvidia.com/gpu.product")
_COUNT_RESOURCES: Final = ("alibabacloud.com/gpu-count", *WHOLE_GPUS)
_PERCENT_RESOURCES: Final = (GPU, GPU_CORE)
_MOST_DEVICES: Final = 64
_INDEX: Final = "alibabacloud.com/gpu-index"
_UNREQUESTED: Final[Mapping[str, int]] = {
    "cpu": 250, BATCH_CPU: 250, "memory": 200 * 1024 * 1024, BATCH_MEMORY: 200 * 1024 * 1024,
}


@dataclass(slots=True)
class NodeRow:
    """The row of one node, written by the cluster's owner thread."""

    name: str
    node: Mapping[str, Any]
    allocatable: ResourceList
    requested: ResourceList = field(default_factory=ResourceList)
    """The sums of the pods' requests, at most `LARGEST_AMOUNT`; a resource that none of them requests is absent."""
    pods: dict[str, PodInfo] = field(default_factory=dict)
    metric: NodeMetric | None = None
    total: list[int] = field(default_factory=list)
    """Thousandths per device minor; 0 if there is none, or it is unhealthy."""
    free: list[int] = field(default_factory=list)
    """The unallocated part of `total`; never below 0, even if pods hold more than there is."""
    model: str = ""
    taken: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The minors that each pod holds, also those that the node does not have."""
    used: dict[int, int] = field(default_factory=dict)
    """Thousandths that pods hold, by minor."""
    images: Mapping[str, int] | None = None
    facts: dict[str, Any] | None = None
    """The cached result of `info`, None if it is invalid."""
    nonzero: list[int] = field(default_factory=lambda: [0] * len(NONZERO))
    """The sums of the pods' `nonzero` requests."""
    pod_facts: dict[str, Any] = field(default_factory=dict)
    """Caches of readers about the pods; emptied by every change of them."""

    def copy(self) -> NodeRow:
        """Return an independent copy."""
        return NodeRow(
            self.name, self.node, self.allocatable, ResourceList(self.requested), dict(self.pods), self.metric,
            self.total, list(self.free), self.model, dict(self.taken), dict(self.used), self.images,
            None, list(self.nonzero),
        )

    def nonzero_requested(self) -> ResourceList:
        """Return `requested` with the sums of `nonzero` (Kubernetes' NonZeroRequested)."""
        of_nonzero = {name: amount for name, amount in zip(NONZERO, self.nonzero, strict=True) if amount}
        return ResourceList({**self.requested, **of_nonzero})

    def set_node(self, node: Mapping[str, Any]) -> None:
        """Replace the node object; the owner updates the derived facts."""
        self.node = node
        self.images = self.facts = None

    def add(self, pod: PodInfo, devices: Sequence[int] = ()) -> None:
        """Add a pod; without `devices` a pod that requests some gets the first ones that fit."""
        self.pods[pod.key] = pod
        self.facts = None
        if self.pod_facts:
            self.pod_facts.clear()
        requested = self.requested
        for name, amount in pod.requests.items():
            if amount:
                requested[name] += amount
                if requested[name] > LARGEST_AMOUNT:  # noqa: PLR1730 - half the time of `min`
                    requested[name] = LARGEST_AMOUNT
        for place, amount in enumerate(pod.nonzero):
            self.nonzero[place] += amount
            if self.nonzero[place] > LARGEST_AMOUNT:  # noqa: PLR1730 - as above
                self.nonzero[place] = LARGEST_AMOUNT
        if pod.gpu is not None:
            self._hold(pod, pod.gpu, tuple(devices))

    def remove(self, key: str) -> PodInfo:
        """Remove a pod, with its requests and devices."""
        pod = self.pods.pop(key)
        self.facts = None
        if self.pod_facts:
            self.pod_facts.clear()
        requested = self.requested
        for name, amount in pod.requests.items():
            if amount:
                before = requested[name]
                left = before - amount if before < LARGEST_AMOUNT else self._sum(name)
                if left:
                    requested[name] = left
                else:
                    del requested[name]
        for place, amount in enumerate(pod.nonzero):
            before = self.nonzero[place]
            self.nonzero[place] = before - amount if before < LARGEST_AMOUNT else min(
                LARGEST_AMOUNT, sum(each.nonzero[place] for each in self.pods.values()))
        if pod.gpu is not None:
            self._use(self.taken.pop(key, ()), -pod.gpu.share)
            for other in self.pods.values():
                if other.gpu is not None and len(self.taken.get(other.key, ())) < other.gpu.count:
                    # Pods that lacked devices get the freed ones.
                    self._use(self.taken.pop(other.key, ()), -other.gpu.share)
                    self._hold(other, other.gpu, ())
        return pod

    def _sum(self, name: str) -> int:
        """Return the sum of the pods' requests of a resource, at most `LARGEST_AMOUNT`."""
        return min(LARGEST_AMOUNT, sum(each.requests[name] for each in self.pods.values()))

    def set_devices(self, total: list[int], model: str) -> bool:
        """Replace the devices of the node; return whether anything changed."""
        if total == self.total and model == self.model:
            return False
        self.total, self.model, self.free = total, model, list(total)
        self.facts = None
        former, self.taken, self.used = self.taken, {}, {}
        # A pod keeps its minors, if the new devices have them (or there are none at present).
        usable = {key: minors for key, minors in former.items() if max(minors) < len(total) or not total}
        wanting = [(pod, pod.gpu, usable.get(pod.key) or bound_devices(pod)) for pod in self.pods.values()]
        # Pods with known minors first, then those whose minors are guessed.
        for pod, request, devices in sorted(wanting, key=lambda each: not each[2]):
            if request is not None:
                self._hold(pod, request, devices)
        return True

    def _hold(self, pod: PodInfo, request: DeviceRequest, devices: tuple[int, ...]) -> None:
        minors = devices or bound_devices(pod) or first_fit(self.free, request)
        if minors:
            self.taken[pod.key] = minors
            self._use(minors, request.share)

    def _use(self, minors: Iterable[int], share: int) -> None:
        for minor in minors:
            self.used[minor] = self.used.get(minor, 0) + share
            if minor < len(self.free):
                self.free[minor] = max(0, self.total[minor] - self.used[minor])

    def devices(self) -> list[dict[str, Any]]:
        """Return the devices as expressions see them."""
        return [
            {"type": "gpu", "minor": minor, "total": total, "free": self.free[minor], "model": self.model}
            for minor, total in enumerate(self.total) if total
        ]

    def info(self, measured: bool) -> dict[str, Any]:
        """Return the derived facts of the node, as expressions see them; device amounts are in thousandths.

        Read-only: the result is cached until the row changes.
        """
        if self.facts is not None and self.facts["measured"] is measured:
            return self.facts
        labels = self.node["metadata"].get("labels") or {}
        if self.images is None:
            self.images = _images(self.node)
        self.facts = {
            "name": self.name,
            "pods": len(self.pods),
            "images": self.images,
            "zone": labels.get(ZONE, ""),
            "region": labels.get(REGION, ""),
            "measured": measured,
            "unschedulable": bool((self.node.get("spec") or {}).get("unschedulable")),
            "gpuFree": free_gpu(self),
            "gpuTotal": sum(self.total),
            "gpuFreeDevices": free_gpu_devices(self),
            "gpuDevices": sum(1 for total in self.total if total),
            "gpuModel": self.model,
        }
        return self.facts

    def estimated(self) -> MeasuredList:
        """Return the measured usage plus the estimated usage of pods that the metric does not include yet.

        Empty without a metric (Koordinator load_aware.go: node usage + estimated delta of each pod).
        """
        metric = self.metric
        if metric is None or metric.updated is None:
            return MeasuredList()
        names = [name for name in metric.usage if name not in STATISTICS and name != WINDOWS]
        total: dict[str, int] = {name: metric.usage[name] for name in names}
        reported = metric.updated - metric.report_interval * NANOSECONDS
        for pod in self.pods.values():
            seen = metric.pods.get(pod.key)
            if seen is None or _bound_at(pod) > reported:
                for name in names:
                    total[name] += max(0, estimated_usage(pod, name) - (seen[name] if seen else 0))
        return MeasuredList({name: min(amount, LARGEST_AMOUNT) for name, amount in total.items()})


def free_gpu(row: NodeRow) -> int:
    """Return the free part of the node's GPUs, in thousandths."""
    return sum(row.free)


def free_gpu_devices(row: NodeRow) -> int:
    """Return the number of the node's GPUs that are entirely free."""
    return sum(1 for free, total in zip(row.free, row.total, strict=True) if free == total > 0)


FREE_DEVICES: Final[Mapping[str, Callable[[NodeRow], int]]] = {
    "gpuFree": free_gpu, "gpuFreeDevices": free_gpu_devices,
}
"""The facts of `NodeRow.info` that depend on free devices, by name."""


def allocatable_of(node: Mapping[str, Any]) -> ResourceList:
    """Return a node's allocatable resources; check all declared fields of the node.

    Raises:
        ValueError: one is missing or malformed; the message begins with its path.
    """
    check_object(node, "Node")
    mapping_at(node, "metadata")
    status = mapping_at(node, "status")
    mapping_at(status, "allocatable", "status")
    return resource_list(status, "allocatable", "status")


def devices_of(allocatable: ResourceList, device: Mapping[str, Any] | None) -> list[int]:
    """Return the GPUs of a node in thousandths by minor: from its Device object, else from its allocatable.

    Raises:
        ValueError: the Device object is malformed, or the node claims an absurd number of devices.
    """
    if device is not None:
        return _declared_devices(device)
    for name in _COUNT_RESOURCES:
        if allocatable[name] > 0:
            return _whole_devices(allocatable[name], f"status.allocatable.{name}")
    for name in _PERCENT_RESOURCES:
        if allocatable[name] > 0:
            return _whole_devices(allocatable[name] // 100, f"status.allocatable.{name}")
    return []


def model_of(node: Mapping[str, Any], device: Mapping[str, Any] | None) -> str:
    """Return the model of the node's GPUs, or an empty string."""
    for holder in (node, device or {}):
        labels = (holder.get("metadata") or {}).get("labels") or {}
        for label in _MODEL_LABELS:
            if isinstance(labels.get(label), str) and labels[label]:
                return str(labels[label])
    return ""


def first_fit(free: Sequence[int], request: DeviceRequest) -> tuple[int, ...]:
    """Return the lowest minors with room for the request, or as many as exist."""
    return tuple(minor for minor, left in enumerate(free) if left >= request.share)[: request.count]


def bound_devices(pod: PodInfo) -> tuple[int, ...]:
    """Return the minors in the pod's annotations; empty if there are none, or they are malformed."""
    annotations = (pod.object.get("metadata") or {}).get("annotations") or {}
    allocated = annotations.get(DEVICE_ALLOCATED_ANNOTATION)
    if isinstance(allocated, str):
        try:
            minors = tuple(int(entry["minor"]) for entry in json.loads(allocated).get("gpu", ()))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return ()  # written by another component; if malformed, the first fit is as good a guess
        return minors if all(minor >= 0 for minor in minors) else ()
    index = annotations.get(_INDEX)
    if isinstance(index, str) and index.isascii():
        return tuple(int(minor) for minor in index.split("-") if minor.isdigit() and len(minor) < 4)
    return ()


def estimated_usage(pod: PodInfo, name: str) -> int:
    """Return the estimated usage of a pod of cpu or memory (Koordinator's default estimator).

    85 % of the requested cpu, 70 % of the memory, at most the limit; 250 milli-cores and 200 MiB for a pod that
    requests nothing. Batch and mid pods are estimated by the resources of their band, free pods at nothing.
    """
    factor = ESTIMATION_FACTORS.get(name, 100)
    real = resource_name(name, pod.priority_band)
    limit = pod.limits[real]
    amount = max(pod.requests[real], limit)
    if amount == 0:
        return _UNREQUESTED.get(real, 0)
    estimate = (amount * factor + 50) // 100
    return min(estimate, limit) if limit > 0 else estimate


def _bound_at(pod: PodInfo) -> int:
    """Return when the pod was bound in ns; 0 if unknown, as for pods that the metric includes already."""
    conditions = (pod.object.get("status") or {}).get("conditions") or ()
    for condition in conditions:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            try:
                return nanoseconds(condition.get("lastTransitionTime") or "", "")
            except ValueError:
                return 0
    return 0


def _images(node: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for image in (node.get("status") or {}).get("images") or ():
        size = image.get("sizeBytes")
        for name in image.get("names") or ():
            found[name] = size if isinstance(size, int) else 0
    return found


def _whole_devices(count: int, path: str) -> list[int]:
    if count > _MOST_DEVICES:
        raise ValueError(f"`{path}`: {count} devices on one node, at most {_MOST_DEVICES} are supported")
    return [WHOLE_DEVICE] * count


def _declared_devices(device: Mapping[str, Any]) -> list[int]:
    spec = mapping_at(device, "spec", optional=True)
    minors: set[int] = set()
    for index, entry in enumerate(objects_at(spec, "devices", "spec")):
        if text_at(entry, "type", f"spec.devices[{index}]") != "gpu" or not entry.get("health", True):
            continue
        minor = entry.get("minor", 0)
        if isinstance(minor, bool) or not isinstance(minor, int) or not 0 <= minor < _MOST_DEVICES:
            raise ValueError(f"`spec.devices[{index}].minor` must be a number from 0 to {_MOST_DEVICES - 1}")
        minors.add(minor)
    return [WHOLE_DEVICE if minor in minors else 0 for minor in range(max(minors, default=-1) + 1)]
