"""CPUSetAllocator: the CPUs of containers, as the scheduler allocated them or shared with others.

The behaviour is that of koordlet's runtime hook (cpuset), by reconciling alone. It reads the pods' annotation
`scheduling.koordinator.sh/resource-status` and the annotations of the node's NodeResourceTopology. Best-effort pods are
left to BECPUSuppress.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.agent.cpuset import format_cpuset, parse_cpuset
from koordpolicy.engine.agent.qos_manager.memory_qos import is_active
from koordpolicy.engine.agent.qos_manager.reconciling import (
    INTERVAL_SECONDS,
    DesiredFile,
    FileReconciler,
    started_containers,
)
from koordpolicy.engine.agent.qos_manager.rounds import read_interval
from koordpolicy.engine.agent.qos_manager.suppression import read_annotation
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Adjustment, Readings
from koordpolicy.engine.kubernetes.vocabulary import (
    BE,
    CPU_MANAGER_POLICY_ANNOTATION,
    CPU_SHARED_POOLS_ANNOTATION,
    LS,
    LSE,
    LSR,
    RESOURCE_STATUS_ANNOTATION,
    SYSTEM,
    SYSTEM_QOS_RESOURCE_ANNOTATION,
    raw_qos_class,
)

CPUS_FILE: Final = "cpuset.cpus"
QUOTA_FILE: Final = "cpu.cfs_quota_us"


@dataclass(frozen=True, slots=True)
class NodeCPUs:
    """The CPUs of a node that pods share, by NUMA node, and those of SYSTEM pods (empty: none of their own)."""

    shared: Mapping[int, frozenset[int]]
    system: frozenset[int]
    kubelet_static: bool

    @property
    def all_shared(self) -> frozenset[int]:
        """All CPUs that pods share."""
        return frozenset(cpu for cpus in self.shared.values() for cpu in cpus)


def read_node_cpus(resource_topology: Mapping[str, Any]) -> NodeCPUs:
    """Read the annotations of a NodeResourceTopology.

    Raises:
        EvaluationError: an annotation is malformed.
    """
    shared: dict[int, frozenset[int]] = {}
    try:
        annotations = (resource_topology.get("metadata") or {}).get("annotations") or {}
        for pool in json.loads(annotations.get(CPU_SHARED_POOLS_ANNOTATION) or "[]"):
            node = int(pool.get("node", 0))
            shared[node] = shared.get(node, frozenset()) | parse_cpuset(str(pool.get("cpuset") or ""))
        system = parse_cpuset(str(
            read_annotation(resource_topology, SYSTEM_QOS_RESOURCE_ANNOTATION).get("cpuset") or "",
        ))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise EvaluationError(f"annotation of the NodeResourceTopology: {error}", reason="InvalidSettings") from None
    policy = read_annotation(resource_topology, CPU_MANAGER_POLICY_ANNOTATION).get("policy")
    return NodeCPUs(shared, system, policy == "static")


def cpus_of(pod: PodInfo, node: NodeCPUs) -> frozenset[int]:
    """Return the CPUs of a pod's containers; empty if they are to be left as they are.

    Raises:
        ValueError: the pod's resource status is malformed.
    """
    qos, status = raw_qos_class(pod.object), _resource_status(pod)
    if qos == BE:
        return frozenset()
    if status.get("cpuset"):
        return parse_cpuset(str(status["cpuset"]))
    if qos == SYSTEM:
        return node.system
    if qos == LS:
        nodes = {int(each["node"]) for each in status.get("numaNodeResources") or ()}
        pools = [cpus for number, cpus in node.shared.items() if not nodes or number in nodes]
        return frozenset(cpu for cpus in pools for cpu in cpus)
    if qos or pod.kubernetes_qos == "BestEffort" or node.kubelet_static:
        return frozenset()
    return node.all_shared


def _resource_status(pod: PodInfo) -> Mapping[str, Any]:
    text = ((pod.object.get("metadata") or {}).get("annotations") or {}).get(RESOURCE_STATUS_ANNOTATION)
    if not text:
        return {}
    try:
        status = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(status, dict):
        raise ValueError(f"it must be an object, not {status!r}")  # noqa: TRY004 - a complaint about content
    return status


class CPUSetAllocator:
    """The reconciler of CPU sets."""

    name = "CPUSetAllocator"

    def __init__(self, args: Mapping[str, Any], handle: object = None) -> None:
        self._interval = read_interval(args, default=INTERVAL_SECONDS)
        self._files = FileReconciler("cpuset")

    @property
    def interval(self) -> int:
        """The interval between two rounds, in nanoseconds."""
        return self._interval

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Set the CPUs of containers, and no CFS quota for those with CPUs of their own."""
        node = read_node_cpus(readings.object("NodeResourceTopology") or {})
        desired = tuple(file for pod in readings.pods if is_active(pod) for file in _desired(pod, node, readings))
        return self._files.reconcile(readings, desired, "CPUs of the pod's containers")

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Restore the former CPUs and quotas."""
        return self._files.recover(readings)


def _desired(pod: PodInfo, node: NodeCPUs, readings: Readings) -> Iterator[DesiredFile]:
    try:
        cpus = cpus_of(pod, node)
        own = raw_qos_class(pod.object) in (LSE, LSR) and bool(_resource_status(pod).get("cpuset"))
    except (ValueError, TypeError, KeyError):
        return  # a malformed status affects its own pod only
    if not cpus:
        return
    if own:
        yield DesiredFile(pod.key, f"{readings.directory(pod)}/{QUOTA_FILE}", "-1")
    for container in started_containers(pod):
        directory = readings.directory(pod, container["name"])
        yield DesiredFile(pod.key, f"{directory}/{CPUS_FILE}", format_cpuset(cpus))
        if own:
            yield DesiredFile(pod.key, f"{directory}/{QUOTA_FILE}", "-1")


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments; raise `ValueError` if they are invalid."""
    read_interval(args, default=INTERVAL_SECONDS)
    return args


def make(args: Mapping[str, Any], handle: object) -> CPUSetAllocator:
    """Make the strategy for one profile."""
    return CPUSetAllocator(args, handle)
