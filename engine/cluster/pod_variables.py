"""Variables of expressions about a pod (types: `framework.slots`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from koordpolicy.engine.cel.check.checked_ast import Path

from .objects.pods import SHARED_METADATA, PodInfo, ResourceList


def pod_facts(pod: PodInfo) -> dict[str, Any]:
    """Return the value of `podInfo`."""
    gpu = pod.gpu
    return {
        "name": pod.name,
        "namespace": pod.namespace,
        "qosClass": pod.qos_class,
        "kubernetesQoS": pod.kubernetes_qos,
        "priority": pod.priority,
        "priorityBand": pod.priority_band,
        "requests": pod.requests,
        "limits": pod.limits,
        "gpuCount": gpu.count if gpu is not None else 0,
        "gpuShare": gpu.share if gpu is not None else 0,
        "gpuRequest": gpu.total if gpu is not None else 0,
        "gpuModels": sorted(gpu.models) if gpu is not None else [],
    }


@lru_cache(maxsize=64)
def pod_values(pod: PodInfo) -> Mapping[str, Any]:
    """Return the variables about any pod, by name; cached for the last pods."""
    return {"pod": pod.object, "podInfo": pod_facts(pod), "requests": pod.requests, "limits": pod.limits}


@lru_cache(maxsize=64)
def pending_pod_values(pod: PodInfo) -> Mapping[str, Any]:
    """Return the variables about a pod that is to be placed, by name; cached for the last pods."""
    return {**pod_values(pod), "nonZeroRequests": ResourceList(pod.container_requests())}


def is_of_shape(path: Path) -> bool:
    """Return whether all pods of one `PodInfo.shape` have the same value at a path of these variables."""
    match path:
        case ("requests" | "limits" | "nonZeroRequests", *_) | ("pod", "spec", *_):
            return True
        case ("podInfo", name, *_):
            return name != "name"
        case ("pod", "metadata", name, *_):
            return name in SHARED_METADATA
        case _:
            return False
