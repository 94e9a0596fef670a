"""The content of a node's NodeResourceTopology: CPUs, shared pools, and CPUs that the kubelet has bound.

The annotations are koordlet's. All lists are sorted, so that the same state is the same text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Processor
from koordpolicy.engine.kubernetes.quantity import Quantity
from koordpolicy.engine.kubernetes.vocabulary import (
    CPU_MANAGER_POLICY_ANNOTATION,
    CPU_SHARED_POOLS_ANNOTATION,
    CPU_TOPOLOGY_ANNOTATION,
    LSE,
    LSR,
    NODE_RESERVATION_ANNOTATION,
    RESOURCE_STATUS_ANNOTATION,
    SYSTEM_QOS_RESOURCE_ANNOTATION,
)

from ..cpuset import format_cpuset, parse_cpuset
from .pods import is_active

SHARED_POOLS_ANNOTATION: Final = CPU_SHARED_POOLS_ANNOTATION
BE_SHARED_POOLS_ANNOTATION: Final = "node.koordinator.sh/be-cpu-shared-pools"
POD_CPU_ALLOCS: Final = "node.koordinator.sh/pod-cpu-allocs"
ANNOTATIONS: Final = (
    CPU_TOPOLOGY_ANNOTATION, SHARED_POOLS_ANNOTATION, BE_SHARED_POOLS_ANNOTATION, CPU_MANAGER_POLICY_ANNOTATION,
    POD_CPU_ALLOCS, NODE_RESERVATION_ANNOTATION, SYSTEM_QOS_RESOURCE_ANNOTATION,
)
"""The annotations that the agent owns: one that has no content any more is deleted."""
_POLICIES: Final[Mapping[tuple[str, str], str]] = {
    ("single-numa-node", "container"): "SingleNUMANodeContainerLevel",
    ("single-numa-node", "pod"): "SingleNUMANodePodLevel",
    ("restricted", "container"): "Restricted", ("restricted", "pod"): "Restricted",
    ("best-effort", "container"): "BestEffort", ("best-effort", "pod"): "BestEffort",
}
_NO_POLICY: Final = "None"
_STATIC: Final = "static"
_NONE: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class KubeletCpus:
    """CPUs by the kubelet's CPU manager, and its policies."""

    policy: str = ""
    """`none` or `static`; empty if it is not known."""
    options: Mapping[str, str] = field(default_factory=dict)
    reserved: frozenset[int] = _NONE
    allocations: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The CPUs of pods by UID."""
    topology_policy: str = _NO_POLICY
    """The value of `topologyPolicies` for the kubelet's topology manager."""

    @staticmethod
    def of(
        state: str, config: Mapping[str, Any] | None, processors: Sequence[Processor],
    ) -> KubeletCpus:
        """Read the CPU manager's state file (empty if there is none) and the kubelet's configuration, if it is known.

        Raises `ValueError` if the state is malformed.
        """
        found = _state(state)
        policy = str((config or {}).get("cpuManagerPolicy") or found.get("policyName") or "")
        options = (config or {}).get("cpuManagerPolicyOptions")
        topology = str((config or {}).get("topologyManagerPolicy") or "none")
        scope = str((config or {}).get("topologyManagerScope") or "container")
        return KubeletCpus(
            policy, {str(key): str(value) for key, value in sorted(options.items())}
            if isinstance(options, Mapping) else {},
            _kubelet_reserved(config or {}, processors) if policy == _STATIC else _NONE,
            _allocations(found) if policy == _STATIC else {}, _POLICIES.get((topology, scope), _NO_POLICY))


def node_annotations(
    processors: Sequence[Processor], pods: Iterable[PodInfo], node: Mapping[str, Any], kubelet: KubeletCpus,
) -> dict[str, str]:
    """Return the annotations of a node's topology.

    Shared pools are all CPUs without those of pods with CPUs of their own (of the scheduler or the kubelet), reserved
    ones, and exclusive ones of SYSTEM pods. Those of BE pods lack of pods' CPUs only the ones of LSE pods.
    """
    pods = sorted((each for each in pods if is_active(each)), key=lambda each: each.key)
    reservation = _reservation(_annotation(node, NODE_RESERVATION_ANNOTATION), processors)
    system = _annotation(node, SYSTEM_QOS_RESOURCE_ANNOTATION)
    unshared = _cpus(reservation.get("reservedCPUs"))
    if system.get("cpusetExclusive", True) is not False:
        unshared |= _cpus(system.get("cpuset"))
    bound, exclusive = set(unshared), set(unshared)
    allocations = []
    for pod in pods:
        cpus = _cpus(_pod_annotation(pod, RESOURCE_STATUS_ANNOTATION).get("cpuset"))
        bound |= cpus
        if pod.qos_class == LSE:
            exclusive |= cpus
        own = kubelet.allocations.get(pod.uid)
        if own and (pod.qos_class not in (LSE, LSR) or not cpus):
            bound |= own
            allocations.append({"namespace": pod.namespace, "name": pod.name, "uid": pod.uid,
                                "cpuset": format_cpuset(own), "managedByKubelet": True})
    found: dict[str, Any] = {
        CPU_TOPOLOGY_ANNOTATION: {"detail": [
            {"id": each.cpu, "core": each.core, "socket": each.socket, "node": each.numa_node}
            for each in sorted(processors, key=lambda processor: processor.cpu)]},
        SHARED_POOLS_ANNOTATION: _pools(processors, bound),
        BE_SHARED_POOLS_ANNOTATION: _pools(processors, exclusive),
        POD_CPU_ALLOCS: allocations,
    }
    if kubelet.policy:
        found[CPU_MANAGER_POLICY_ANNOTATION] = {
            "policy": kubelet.policy, **({"options": dict(kubelet.options)} if kubelet.options else {}),
            **({"reservedCPUs": format_cpuset(kubelet.reserved)} if kubelet.reserved else {})}
    if reservation:
        found[NODE_RESERVATION_ANNOTATION] = reservation
    if system:
        found[SYSTEM_QOS_RESOURCE_ANNOTATION] = system
    return {name: json.dumps(content, separators=(",", ":")) for name, content in found.items()}


def node_zones(
    processors: Sequence[Processor], memory: Mapping[int, int], known: object,
) -> list[dict[str, Any]]:
    """Return the zones of the NUMA nodes with their CPUs and memory (bytes by NUMA node), by number.

    Other resources of the known zones, such as the manager's batch resources, and other zones stay.
    """
    cpus: dict[int, int] = {}
    for each in processors:
        cpus[each.numa_node] = cpus.get(each.numa_node, 0) + 1
    zones = [dict(each) for each in known if isinstance(each, Mapping)] if isinstance(known, list) else []
    by_name = {each.get("name"): each for each in zones}
    found = []
    for number in sorted(cpus):
        zone = by_name.pop(f"node-{number}", {})
        amounts = {"cpu": str(cpus[number]), **({"memory": str(memory[number])} if memory.get(number) else {})}
        resources = zone.get("resources")
        others = [each for each in resources if isinstance(each, Mapping) and each.get("name") not in amounts
                  ] if isinstance(resources, list) else []
        own = [{"name": name, "capacity": amount, "allocatable": amount, "available": amount}
               for name, amount in amounts.items()]
        found.append({**zone, "name": f"node-{number}", "type": "Node",
                      "resources": sorted([*own, *map(dict, others)], key=lambda each: str(each.get("name")))})
    return found + [each for each in zones if each.get("name") in by_name]


def is_same(one: object, other: object) -> bool:
    """Return whether two texts of JSON, or two values, differ in the order of lists at most."""
    return _canonical(_parsed(one)) == _canonical(_parsed(other))


def _parsed(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _canonical(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key!r}:{_canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(sorted(map(_canonical, value))) + "]"
    return repr(value)


def _pools(processors: Sequence[Processor], without: set[int] | frozenset[int]) -> list[dict[str, Any]]:
    cpus: dict[tuple[int, int], list[int]] = {}
    for each in processors:
        pool = cpus.setdefault((each.socket, each.numa_node), [])
        if each.cpu not in without:
            pool.append(each.cpu)
    return [{"socket": socket, "node": node, "cpuset": format_cpuset(cpus[socket, node])}
            for socket, node in sorted(cpus)]


def _reservation(declared: Mapping[str, Any], processors: Sequence[Processor]) -> dict[str, Any]:
    """Return the reservation of a Node with its CPUs: those it names, else as many as its amount, whole cores first."""
    named = _cpus(declared.get("reservedCPUs"))
    if named:
        return {"reservedCPUs": format_cpuset(named)}
    resources = declared.get("resources")
    amount = resources.get("cpu") if isinstance(resources, Mapping) else None
    count = _whole(amount)
    return {"reservedCPUs": format_cpuset(_take(processors, count))} if count > 0 else {}


def _kubelet_reserved(config: Mapping[str, Any], processors: Sequence[Processor]) -> frozenset[int]:
    """Return the CPUs that the static policy reserves: those named, else as many as kube and system reserve."""
    named = _cpus(config.get("reservedSystemCPUs"))
    if named:
        return named
    parts = [config.get(name) for name in ("kubeReserved", "systemReserved")]
    amounts = [part["cpu"] for part in parts if isinstance(part, Mapping) and part.get("cpu")]
    try:
        milli = sum(Quantity.parse(str(each)).milli for each in amounts)
    except ValueError:
        return _NONE
    return _take(processors, math.ceil(milli / 1000))


def _take(processors: Sequence[Processor], count: int) -> frozenset[int]:
    """Return that many CPUs: whole cores in order, then single CPUs of the next one (as the kubelet's topology)."""
    cores: dict[tuple[int, int], list[int]] = {}
    for each in processors:
        cores.setdefault((each.socket, each.core), []).append(each.cpu)
    taken: list[int] = []
    rest: list[int] = []
    for _, cpus in sorted(cores.items()):
        if len(taken) + len(cpus) <= count:
            taken += cpus
        else:
            rest += sorted(cpus)
    return frozenset(taken + rest[:max(0, count - len(taken))])


def _state(text: str) -> Mapping[str, Any]:
    if not text:
        return {}
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - one kind of complaint
    return found


def _allocations(state: Mapping[str, Any]) -> dict[str, frozenset[int]]:
    entries = state.get("entries")
    found: dict[str, frozenset[int]] = {}
    for uid, containers in entries.items() if isinstance(entries, Mapping) else ():
        if isinstance(containers, Mapping):
            found[uid] = frozenset().union(*(parse_cpuset(str(cpus)) for cpus in containers.values()))
    return found


def _whole(amount: object) -> int:
    try:
        return math.ceil(Quantity.parse(str(amount)).milli / 1000) if amount else 0
    except ValueError:
        return 0


def _cpus(text: object) -> frozenset[int]:
    try:
        return parse_cpuset(text) if isinstance(text, str) else _NONE
    except ValueError:
        return _NONE


def _annotation(item: Mapping[str, Any], name: str) -> dict[str, Any]:
    metadata = item.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    found = _parsed(annotations.get(name)) if isinstance(annotations, Mapping) else None
    return found if isinstance(found, dict) else {}


def _pod_annotation(pod: PodInfo, name: str) -> dict[str, Any]:
    return _annotation(pod.object, name)
