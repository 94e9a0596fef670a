"""NodeNUMAResource's topology hints: the sets of NUMA nodes that have enough of what a pod requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.scheduler.extensions.topology import RESTRICTED, masks
from koordpolicy.plugin import CycleState, TopologyHint

from ..allocation.resource_scoring import AllocationScorer, sum_of_amounts
from ..reservation.holdings import restored_on
from .allocation import trimmed
from .allocator import NumaAllocator
from .cache import NumaCache
from .numa_request import NOT_INTEGER, NumaRequest

_NO_HINTS: Final = Refusal("numa", "node(s) Insufficient NUMA Node resources")


def topology_hints(  # noqa: PLR0917 - the parameters of a decision on one node
    state: CycleState, snapshot: Snapshot, row: int, request: NumaRequest, cache: NumaCache, allocator: NumaAllocator,
    scorer: AllocationScorer,
) -> Mapping[str, Sequence[TopologyHint] | None] | Refusal:
    """Return for each requested resource of the NUMA nodes the sets of NUMA nodes that have enough of it."""
    topology = cache.topology(snapshot, row)
    if request.binds(topology) and request.milli_cpu % 1000:
        return NOT_INTEGER
    held = cache.held_in_cycle(state, snapshot, row)
    if topology is None or held is None or not topology.zones:
        return _NO_HINTS
    demand = allocator.demand(request, topology)
    here = restored_on(state, snapshot.names[row])
    free = trimmed(topology, demand, held.room([each.uid for each in here.matched])).free
    pod_requests = request.amplified_on(topology)
    names = sorted({name for amounts in topology.zones.values() for name in amounts} & request.requests.keys())
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    for mask in masks(list(topology.zones)):
        if isinstance(allocator.allocate_anywhere(held, request, here.matched, mask), Refusal):
            continue
        nodes = [node for node in topology.zones if mask >> node & 1]
        total = sum_of_amounts(topology.zones[node] for node in nodes)
        left = sum_of_amounts(free[node] for node in nodes)
        used = {name: max(0, amount - left[name]) for name, amount in total.items()}
        score = scorer.score(used, total, pod_requests)
        for name in names:
            if all(free[node][name] for node in nodes):
                found[name].append((mask, score))
    all_preferred = request.policy_on(topology) == RESTRICTED
    return {name: _hints(of_name, all_preferred=all_preferred) for name, of_name in found.items()}


def _hints(found: Sequence[tuple[int, int]], *, all_preferred: bool) -> list[TopologyHint]:
    """Return the hints of pairs (mask, score); the narrowest masks are preferred, or all of them."""
    narrowest = min((mask.bit_count() for mask, _ in found), default=0)
    return [TopologyHint(mask, all_preferred or mask.bit_count() == narrowest, score) for mask, score in found]
