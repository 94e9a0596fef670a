"""NodeNUMAResource's scores: how much of a node, or of the NUMA nodes that the pod would get, is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived, DerivedOfBase
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Scores
from koordpolicy.engine.scheduler.extensions.topology import affinity_of
from koordpolicy.plugin import CycleState

from ..allocation.resource_scoring import AllocationScorer, sum_of_amounts
from ..allocation.trials import TrialOutcomes, score_one_by_one
from .admission import NumaAdmission
from .allocation import PodAllocation
from .allocator import NumaAllocator
from .cache import OUTCOME_PATHS, NumaCache
from .numa_request import NumaRequest
from .topology import ALIGNING_POLICIES, amplify


class NumaScorer:
    """The scorer, with the cached scores of pods of the same kind."""

    def __init__(
        self, scorer: AllocationScorer, cache: NumaCache, allocator: NumaAllocator, admission: NumaAdmission,
    ) -> None:
        self._scorer = scorer
        self._cache = cache
        self._allocator = allocator
        self._admission = admission
        self._scores: dict[frozenset[Path], DerivedOfBase[TrialOutcomes]] = {}
        self._score_column = Derived(OUTCOME_PATHS, np.int64, vectorized=True)

    def score(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows, request: NumaRequest,
    ) -> Scores:
        """Prefer nodes, or the NUMA nodes that the pod would get there, by how much of them is allocated."""
        topologies = self._cache.topologies(snapshot)
        values = self._node_scores(request, snapshot, rows)
        numa_rows = rows if request.bind or request.numa_policy else topologies.present
        if len(numa_rows):
            policy, bind, valid, _, _, node_ratio = topologies.numbers[numa_rows].T
            binding = request.binding(bind)
            # 0 where CPUs would be bound, but the topology is invalid or parts of CPUs are requested, and where the
            # ratio is malformed.
            unscorable = (binding & (valid == 0)) | np.isnan(node_ratio)
            if not request.bind and request.milli_cpu % 1000:
                unscorable |= binding
            by_zone = np.zeros(snapshot.size, np.bool_)
            by_zone[numa_rows] = ~unscorable & ((policy != 0) | bool(request.numa_policy))
            if numa_rows is not rows:
                scored = np.zeros(snapshot.size, np.bool_)
                scored[rows] = True
                by_zone &= scored
            if by_zone.any():
                score_one_by_one(
                    values, snapshot, by_zone, lambda row: self._zone_score(state, pod, snapshot, row, request),
                    self._admission.trials(self._scores, state, pod, snapshot, request),
                )
            values[numa_rows[unscorable]] = 0
        return Scores(values)

    def _node_scores(self, request: NumaRequest, snapshot: Snapshot, rows: Rows) -> NDArray[np.int64]:
        """Return the scores of whole nodes, in an array that the caller may change."""
        return self._score_column.of(
            snapshot, request.kind, lambda view, some: self._whole_scores(request, view, some), rows=rows,
        ).copy()

    def _whole_scores(self, request: NumaRequest, snapshot: Snapshot, rows: Rows) -> NDArray[np.int64]:
        topologies = self._cache.topologies(snapshot)
        scorer = self._scorer
        names = [name for name in scorer.weights if scorer.counts(name, request.requests)]
        requested = {name: snapshot.requested(name)[rows] for name in names}
        pod_requests = {name: np.full(len(rows), request.requests[name], np.int64) for name in names}
        if "cpu" in names and request.milli_cpu and len(topologies.present):
            ratio = topologies.numbers[rows, 4]
            if (ratio > 1).any():
                bound = self._cache.bound_cpus(snapshot)[rows] * 1000
                extra = np.where(ratio > 1, np.ceil(bound * ratio) - bound, 0)
                requested["cpu"] = requested["cpu"] + extra.astype(np.int64)
                binding = request.binding(topologies.numbers[rows, 1])
                amplified = np.where(binding & (ratio > 1), np.ceil(request.milli_cpu * ratio), request.milli_cpu)
                pod_requests["cpu"] = amplified.astype(np.int64)
        values = scorer.scores(requested, {name: snapshot.allocatable(name)[rows] for name in names}, pod_requests)
        return np.zeros(len(rows), np.int64) if values is None else values

    def _zone_score(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, request: NumaRequest,
    ) -> int:
        """Return the score of the NUMA nodes that the pod would get, 0 for none."""
        request = replace(request, designated=None)
        aligning = request.policy_on(self._cache.topology(snapshot, row)) in ALIGNING_POLICIES
        if aligning and affinity_of(state, snapshot, row) is None:
            refusal = self._admission.admit(state, pod, snapshot, row, request)
            if refusal is not None:
                return 0
        found = self._allocator.allocate(state, pod, snapshot, row, request)
        allocations, topology = self._cache.held_in_cycle(state, snapshot, row), self._cache.topology(snapshot, row)
        if not isinstance(found, PodAllocation) or allocations is None or topology is None:
            return 0
        given_back = (found.reservation,) if found.reservation else ()
        node_row = snapshot.row(row)
        capacity: Mapping[str, int] = node_row.allocatable
        requested: dict[str, int] = dict(node_row.requested)
        if found.zones:
            used = allocations.used(given_back)
            capacity = sum_of_amounts(topology.zones[node] for node in found.zones if node in topology.zones)
            requested = sum_of_amounts(used[node] for node in found.zones if node in used)
        if found.cpus:
            requested["cpu"] = amplify(1000 * len(allocations.room(given_back).taken), topology.ratio)
        return self._scorer.score(requested, capacity, request.amplified_on(topology))
