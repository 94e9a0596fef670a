"""DeviceShare's topology hints: the sets of NUMA nodes that have enough devices for a pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.scheduler.extensions.topology import mask_of, masks
from koordpolicy.plugin import TopologyHint

from .allocation import Allocation
from .candidates import CandidateNode
from .devices import Holding, NodeDevices
from .requests import GPU_TYPE

HINT_SCORE: Final = 500
"""The score of a hint that does not change the choice of GPUs: higher than those of cpus."""

_NOT_ON_NUMA: Final = Refusal("numa", "Designated Allocation Lack NUMA Node ID")


def topology_hints(candidate: CandidateNode) -> Mapping[str, Sequence[TopologyHint] | None] | Refusal:
    """Return the hints of each device type, or why all NUMA nodes together do not suffice."""
    if candidate.pod_devices.designated is not None:
        return _designated_hints(candidate.devices, candidate.pod_devices.designated)
    demand = candidate.demand(plan_others=False)
    nodes = candidate.devices.numa_nodes()
    if not nodes:
        return {}
    if isinstance(demand, Refusal):
        return demand
    feasible: list[tuple[int, Allocation]] = []
    last: Allocation | Refusal = {}
    for mask in masks(nodes):
        last = candidate.allocate_on_numa_nodes(demand, mask)
        if not isinstance(last, Refusal):
            feasible.append((mask, last))
    if isinstance(last, Refusal):  # the last mask holds all NUMA nodes
        return last
    best = _gpus(last)
    narrowest = min(mask.bit_count() for mask, _ in feasible)
    hints = [
        TopologyHint(mask, mask.bit_count() == narrowest, HINT_SCORE if _gpus(found) == best else 0)
        for mask, found in feasible
    ]
    return dict.fromkeys(demand.per_device, hints)


def _designated_hints(devices: NodeDevices, designated: Holding) -> Mapping[str, Sequence[TopologyHint]] | Refusal:
    nodes = set()
    for device_type, minors in designated.amounts.items():
        for minor in minors:
            info = devices.of_type(device_type).get(minor)
            if info is None or info.place is None or info.place.numa_node < 0:
                return _NOT_ON_NUMA
            nodes.add(info.place.numa_node)
    hint = TopologyHint(mask_of(nodes), True, HINT_SCORE)
    return {device_type: [hint] for device_type in designated.amounts}


def _gpus(allocation: Allocation) -> frozenset[int]:
    return frozenset(each.minor for each in allocation.get(GPU_TYPE, ()))
