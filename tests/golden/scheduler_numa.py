"""Golden cases of NodeNUMAResource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from koordpolicy.builtin_plugins.scheduler.node_numa_resource.allocation import NOT_ENOUGH_CPUS
from koordpolicy.builtin_plugins.scheduler.node_numa_resource.cpus import (
    Cpu,
    CpuSelection,
    CpuTopology,
    Taken,
    cpu_mask,
    cpu_numbers,
    format_cpus,
    parse_cpus,
    take_cpus,
)
from koordpolicy.builtin_plugins.scheduler.node_numa_resource.numa_request import NumaRequest
from koordpolicy.builtin_plugins.scheduler.node_numa_resource.plugin import NodeNUMAResource
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.plugin import SKIP, CycleState

from .scheduler_objects import Case, Runner, answer, filtered, framework, make, pod_info


def _prefilter(case: Case) -> Mapping[str, Any]:
    whole = framework(case)
    state = CycleState()
    found = make(case, whole).pre_filter(state, pod_info(case["pod"]), whole.snapshot())
    if isinstance(found, Refusal):
        return answer(found)
    if found is SKIP:
        return {"status": "Skip"}
    request = state[NumaRequest]
    values = {
        "requestCPUBind": request.bind, "numCPUsNeeded": request.cpus, "requiredCPUBindPolicy": request.required,
        "preferredCPUBindPolicy": request.preferred, "preferredCPUExclusivePolicy": request.exclusive,
        "podNUMATopologyPolicy": request.numa_policy, "podNUMAExclusive": request.numa_exclusive,
    }
    expected = case["expect"].get("state", {})
    return {"status": "Success", "state": {name: values[name] for name in expected}}


def _filter(case: Case) -> Mapping[str, Any]:
    whole = framework(case)
    return filtered(make(case, whole), case, whole.snapshot())


def _score(case: Case) -> Mapping[str, Any]:
    whole = framework(case)
    snapshot, state, pod, plugin = whole.snapshot(), CycleState(), pod_info(case["pod"]), make(case, whole)
    rows = np.arange(snapshot.size)
    if plugin.pre_filter(state, pod, snapshot) is None:
        plugin.filter(state, pod, snapshot, rows)
    scores = plugin.score(state, pod, snapshot, rows)
    return {"status": "Success", "scores": dict(zip(snapshot.names, scores.values.tolist(), strict=True))}


def _take_cpus(case: Case) -> Mapping[str, Any]:
    given = case["state"]
    topology = _topology(given["topology"])
    references: dict[int, int] = {}
    for number in cpu_numbers(parse_cpus(given.get("allocatedCPUs", ""))):
        references[number] = references.get(number, 0) + 1
    exclusive = given.get("allocatedExclusivePolicy", "")
    most = given.get("maxRefCount", 1)
    full = cpu_mask(number for number, count in references.items() if count >= most)
    taken = {number: Taken(count, exclusive) for number, count in references.items()}
    choice = CpuSelection(
        given["cpuBindPolicy"], given.get("cpuExclusivePolicy", ""), given["numaAllocateStrategy"], most,
    )
    cpus = take_cpus(topology, topology.all & ~full, taken, needed=given["numCPUsNeeded"], choice=choice)
    if cpus is None:
        few = given["numCPUsNeeded"] > (topology.all & ~full).bit_count()
        return {"status": "Error", "reason": NOT_ENOUGH_CPUS if few else "failed to allocate cpus"}
    return {"status": "Success", "cpuset": format_cpus(cpus)}


def _topology(shape: Mapping[str, int]) -> CpuTopology:
    cpus: dict[int, Cpu] = {}
    for node in range(shape["sockets"] * shape["nodesPerSocket"]):
        for core in range(node * shape["coresPerNode"], (node + 1) * shape["coresPerNode"]):
            for _ in range(shape["threadsPerCore"]):
                cpus[len(cpus)] = Cpu(core, node, node // shape["nodesPerSocket"])
    return CpuTopology(cpus)


RUNNERS: Mapping[tuple[str, str], Runner] = {
    (NodeNUMAResource.name, "prefilter"): _prefilter,
    (NodeNUMAResource.name, "filter"): _filter,
    (NodeNUMAResource.name, "score"): _score,
    (NodeNUMAResource.name, "take_cpus"): _take_cpus,
}
"""By (plugin, point): returns the answer under the keys of `expect`."""
