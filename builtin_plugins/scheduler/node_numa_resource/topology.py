"""The NUMA topology of a node: cpus, NUMA nodes with their resources, policies, amplification.

It is read from the node's NodeResourceTopology, its labels, and its annotation of amplification ratios. Malformed
values count as absent, as in Koordinator; only a malformed ratio on the node refuses pods.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import ResourceList, canonical_amount
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.vocabulary import (
    CPU_BIND_POLICY_LABEL,
    CPU_MANAGER_POLICY_ANNOTATION,
    CPU_TOPOLOGY_ANNOTATION,
    NODE_RESERVATION_ANNOTATION,
    NUMA_ALLOCATE_STRATEGY_LABEL,
    NUMA_TOPOLOGY_POLICY_LABEL,
    RESOURCE_AMPLIFICATION_RATIO_ANNOTATION,
    SYSTEM_QOS_RESOURCE_ANNOTATION,
)
from koordpolicy.engine.scheduler.extensions.topology import (
    BEST_EFFORT,
    NO_POLICY,
    POLICIES,
    RESTRICTED,
    SINGLE_NUMA_NODE,
)

from ..allocation.annotations import annotations_of, json_object, labels_of
from .cpus import FULL_PCPUS, SPREAD_BY_PCPUS, CpuTopology, parse_cpus

POD_CPU_ALLOCS_ANNOTATION: Final = "node.koordinator.sh/pod-cpu-allocs"
FACTS: Final = 6
"""The number of columns of `NodeTopology.facts`."""

_BIND_POLICIES: Final = ("", FULL_PCPUS, SPREAD_BY_PCPUS)
_NUMA_POLICIES: Final = (NO_POLICY, *POLICIES)
_REPORTED_POLICIES: Final = {
    "BestEffort": BEST_EFFORT, "Restricted": RESTRICTED, "SingleNUMANodePodLevel": SINGLE_NUMA_NODE,
}
_ZONE: Final = re.compile(r"node-([0-9]{1,2})", re.ASCII)
_MOST_NUMA_NODES: Final = 64
_HIGHEST_RATIO: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """The topology of a node.

    `bind` is the cpu bind policy that the node requires, or empty; `strategy` its NUMA allocate strategy, or empty;
    `ratio` the amplification of bound cpus, 1 or more; `node_ratio` the ratio of the node's own annotation, NaN where
    it is malformed.
    """

    cpus: CpuTopology = field(default_factory=lambda: CpuTopology({}))
    reserved: int = 0
    """Cpus that no pod gets."""
    zones: Mapping[int, ResourceList] = field(default_factory=dict)
    """Resources by NUMA node, ascending."""
    policy: str = NO_POLICY
    bind: str = ""
    strategy: str = ""
    ratio: float = 1.0
    node_ratio: float = 1.0

    @property
    def likeness(self) -> Hashable:
        """The cache key of results of a node; equal cpu topologies share one instance."""
        zones = tuple((node, tuple(amounts.items())) for node, amounts in self.zones.items())
        return id(self.cpus), self.reserved, zones, self.policy, self.bind, self.strategy, self.ratio

    @property
    def facts(self) -> tuple[float, ...]:
        """The topology as numbers, for evaluation of many nodes at once."""
        return (
            _NUMA_POLICIES.index(self.policy), _BIND_POLICIES.index(self.bind), float(bool(self.cpus)),
            self.cpus.cpus_per_core, self.ratio, self.node_ratio,
        )


NO_FACTS: Final = (0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
"""The facts of a node without any topology."""


ALIGNING_POLICIES: Final = (RESTRICTED, SINGLE_NUMA_NODE)
"""The NUMA policies that refuse pods whose resources cannot be aligned."""


def policy_code(policy: str) -> int:
    """Return as what facts hold a NUMA policy."""
    return _NUMA_POLICIES.index(policy)


def bind_code(policy: str) -> int:
    """Return as what facts hold a required bind policy."""
    return _BIND_POLICIES.index(policy)


def known_policy(text: str) -> str:
    """Return a NUMA policy; any text that names none is none."""
    return text if text in POLICIES else NO_POLICY


def amplify(amount: int, ratio: float) -> int:
    """Return an amount as it counts with a ratio, rounded up; ratios up to 1 change nothing."""
    return amount if ratio <= 1 else math.ceil(amount * ratio)


def topology_of(snapshot: Snapshot, row: int) -> NodeTopology | None:
    """Return the topology of a node; None without labels, annotations and objects about it."""
    node = snapshot.node(row)
    labels, annotations = labels_of(node), annotations_of(node)
    reported = snapshot.object("NodeResourceTopology", snapshot.names[row])
    if reported is None and RESOURCE_AMPLIFICATION_RATIO_ANNOTATION not in annotations and not any(
        labels.get(name) for name in (CPU_BIND_POLICY_LABEL, NUMA_TOPOLOGY_POLICY_LABEL)
    ):
        return None
    try:
        own_ratios = _ratios(annotations)
        node_ratio = (own_ratios or {}).get("cpu", 1.0)
    except ValueError:
        own_ratios, node_ratio = None, math.nan
    return _topology(labels, reported or {}, own_ratios, node_ratio)


def _topology(
    labels: Mapping[str, Any], reported: Mapping[str, Any], own_ratios: Mapping[str, float] | None, node_ratio: float,
) -> NodeTopology:
    annotations = annotations_of(reported)
    kubelet = _object(annotations, CPU_MANAGER_POLICY_ANNOTATION)
    cpus = _cpu_topology(str(annotations.get(CPU_TOPOLOGY_ANNOTATION) or ""))
    reserved = _reserved(annotations, kubelet)
    zones = _zones(_list(reported.get("zones")))
    for numa_node, amounts in zones.items():
        if amounts["cpu"]:
            amounts["cpu"] = max(0, amounts["cpu"] - 1000 * (reserved & cpus.of_node(numa_node)).bit_count())
    try:
        ratios = _ratios(annotations)
    except ValueError:
        ratios = None
    if ratios is None:  # else the zones were reported with them
        ratios = own_ratios or {}
        for amounts in zones.values():
            for name in amounts:
                amounts[name] = amplify(amounts[name], ratios.get(name, 1.0))
    label = labels.get(CPU_BIND_POLICY_LABEL)
    whole = kubelet.get("policy") == "static" and _mapping(kubelet.get("options")).get("full-pcpus-only") == "true"
    named = labels.get(NUMA_TOPOLOGY_POLICY_LABEL)
    return NodeTopology(
        cpus, reserved, zones,
        known_policy(named) if named else _reported_policy(reported),
        FULL_PCPUS if label == "FullPCPUsOnly" or whole else SPREAD_BY_PCPUS if label == SPREAD_BY_PCPUS else "",
        str(labels.get(NUMA_ALLOCATE_STRATEGY_LABEL) or ""), max(1.0, ratios.get("cpu", 1.0)), node_ratio,
    )


@lru_cache(maxsize=1_024)
def _cpu_topology(text: str) -> CpuTopology:
    detail = _object({CPU_TOPOLOGY_ANNOTATION: text}, CPU_TOPOLOGY_ANNOTATION).get("detail")
    try:
        return CpuTopology.of(each for each in detail or () if isinstance(each, Mapping))
    except (ValueError, TypeError):
        return CpuTopology({})


def _reserved(annotations: Mapping[str, Any], kubelet: Mapping[str, Any]) -> int:
    """Return the cpus of guaranteed pods that the kubelet placed, of kubelet and system, and those set aside."""
    try:
        allocations = json.loads(annotations.get(POD_CPU_ALLOCS_ANNOTATION) or "[]")
    except (ValueError, TypeError, RecursionError):
        allocations = []
    reserved = 0
    for each in allocations if isinstance(allocations, list) else ():
        if isinstance(each, Mapping) and each.get("managedByKubelet") and each.get("uid"):
            reserved |= _cpus(each.get("cpuset"))
    reserved |= _cpus(kubelet.get("reservedCPUs"))
    reserved |= _cpus(_object(annotations, NODE_RESERVATION_ANNOTATION).get("reservedCPUs"))
    system = _object(annotations, SYSTEM_QOS_RESOURCE_ANNOTATION)
    if system.get("cpusetExclusive", True) is not False:
        reserved |= _cpus(system.get("cpuset"))
    return reserved


def _zones(zones: Sequence[Any]) -> dict[int, ResourceList]:
    found: dict[int, ResourceList] = {}
    for zone in zones:
        name = _ZONE.fullmatch(str(zone.get("name"))) if isinstance(zone, Mapping) else None
        if name is None or zone.get("type") != "Node" or int(name[1]) >= _MOST_NUMA_NODES:
            continue
        amounts = found[int(name[1])] = ResourceList()
        for resource in _list(zone.get("resources")):
            try:
                amounts[resource["name"]] = canonical_amount(resource["name"], resource.get("allocatable", "0"), "")
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
    return dict(sorted(found.items()))


def _reported_policy(reported: Mapping[str, Any]) -> str:
    policies = (_REPORTED_POLICIES.get(str(each)) for each in _list(reported.get("topologyPolicies")))
    return next((policy for policy in policies if policy), NO_POLICY)


def _ratios(annotations: Mapping[str, Any]) -> Mapping[str, float] | None:
    """Return the amplification ratios by resource; None where none are given.

    Raises:
        ValueError: they cannot be read.
    """
    if RESOURCE_AMPLIFICATION_RATIO_ANNOTATION not in annotations:
        return None
    ratios = {}
    for name, ratio in json_object(annotations, RESOURCE_AMPLIFICATION_RATIO_ANNOTATION).items():
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not abs(ratio) <= _HIGHEST_RATIO:
            raise ValueError(f"the ratio of `{name}` is not a number, or out of any range")
        ratios[name] = float(ratio)
    return ratios


def _object(annotations: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    try:
        return json_object(annotations, name)
    except ValueError:
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _cpus(text: Any) -> int:
    try:
        return parse_cpus(text) if isinstance(text, str) else 0
    except ValueError:
        return 0
