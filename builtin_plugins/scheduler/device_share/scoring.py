"""DeviceShare's scores: the allocated share of the devices of a node, or of a reservation there."""

from __future__ import annotations

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Scores
from koordpolicy.engine.scheduler.cycle.normalize import normalize_by_max
from koordpolicy.engine.scheduler.extensions.reservations import is_reserve_pod
from koordpolicy.engine.scheduler.extensions.topology import affinities_of
from koordpolicy.plugin import CycleState, Handle

from ..allocation.resource_scoring import AllocationScorer
from ..allocation.trials import derived_outcomes, score_one_by_one
from ..reservation.holdings import Reserved, nominated_reservation
from .cache import OUTCOME_PATHS, DeviceCache
from .candidates import Candidates


class DeviceScorer:
    """The scorer of nodes and of reservations, with the cached scores of pods of the same kind."""

    def __init__(
        self, scorer: AllocationScorer, cache: DeviceCache, candidates: Candidates, handle: Handle,
    ) -> None:
        self._scorer = scorer
        self._cache = cache
        self._candidates = candidates
        self._handle = handle
        self._scores = derived_outcomes(OUTCOME_PATHS)

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer nodes by the allocated share of their devices; the best one gets 100."""
        raw = np.zeros(snapshot.size, np.int64)
        pod_devices = self._candidates.pod_devices(state, pod, snapshot)
        if pod_devices is None:
            return Scores(raw)
        scored = np.zeros(snapshot.size, np.bool_)
        scored[rows] = True
        scored &= self._cache.nodes_with_devices(snapshot)

        def score(row: int) -> int:
            return self._score_node(state, pod, snapshot, row)

        chosen = affinities_of(state).rows(snapshot)
        if chosen:  # for these the score depends on the NUMA nodes too
            aligned = np.zeros(snapshot.size, np.bool_)
            aligned[chosen] = True
            score_one_by_one(raw, snapshot, scored & aligned, score, None)
            scored &= ~aligned
        score_one_by_one(
            raw, snapshot, scored, score, self._candidates.trials(self._scores, state, snapshot, pod_devices))
        return Scores(normalize_by_max(raw, rows, HIGHEST_SCORE), raw={"": raw})

    def score_reservation(
        self, state: CycleState, pod: PodInfo, reservation: Reserved, snapshot: Snapshot, row: int,
    ) -> int:
        """Prefer reservations by the allocated share of their devices; at most 100 if there are several types."""
        candidate = None if is_reserve_pod(pod) else self._candidates.of(state, pod, snapshot, row)
        if candidate is None or reservation.uid not in candidate.holdings.claims:
            return 0
        return min(HIGHEST_SCORE, candidate.score(self._scorer, candidate.reservation_scope(reservation)))

    def _score_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> int:
        """Return the sum over the types of devices: of the nominated reservation, else of the node."""
        candidate = self._candidates.of(state, pod, snapshot, row)
        if candidate is None:
            return 0
        may_use = candidate.matched and not is_reserve_pod(pod)
        nominated = nominated_reservation(self._handle, state, pod, snapshot, row) if may_use else None
        if nominated is None:
            return candidate.score(self._scorer, candidate.scope())
        if nominated.uid not in candidate.holdings.claims:
            return 0
        return candidate.score(self._scorer, candidate.reservation_scope(nominated))
