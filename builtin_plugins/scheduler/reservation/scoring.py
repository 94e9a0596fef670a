"""Reservation's scores: nodes with a nominated reservation, by its order and its utilization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Code, Refusal, Scores
from koordpolicy.engine.scheduler.extensions.reservations import is_reserve_pod
from koordpolicy.plugin import SKIP, CycleState, Skip

from .cache import ReservationCache
from .fit import score
from .nomination import ReservationNominations
from .pre_allocation import PreAllocation, PreAllocationChoice
from .state import ReservationState

_PREFERRED: Final = 1000


class ReservationScoring:
    """The scorer of nodes by their nominated reservations."""

    def __init__(self, cache: ReservationCache, nominations: ReservationNominations) -> None:
        self._cache = cache
        self._nominations = nominations

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer nodes with a nominated reservation: the one of the lowest order, then by utilization."""
        raw = self.raw_scores(state, pod, snapshot, rows)
        if not is_reserve_pod(pod):
            raw = normalize(raw)
        values = np.zeros(snapshot.size, np.int64)
        for row, points in raw.items():
            values[row] = points
        return Scores(values)

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Refusal | Skip | None:
        """Nominate a reservation per node; skip pods without reservations."""
        found: ReservationState | None = state.get(ReservationState)
        if found is None or found.requirement.ignored or not found.usable:
            return SKIP
        if is_reserve_pod(pod) and (found.reservation is None or PreAllocation.of(found.reservation) is None):
            return SKIP
        for row in self._rows_with_reservations(found, snapshot, rows):
            refusal = self._nominations.nominate_reservation(state, pod, snapshot, row)
            if refusal is not None and refusal.code is Code.ERROR:
                return refusal
        return None

    def raw_scores(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> dict[int, int]:
        """Return the scores by row before they are normalized; missing rows have 0."""
        found: ReservationState | None = state.get(ReservationState)
        if found is None or found.requirement.ignored:
            return {}
        if is_reserve_pod(pod):
            chosen = self._nominations.pods_of(pod)
            return {row: HIGHEST_SCORE // (1 + len(chosen.get(snapshot.names[row], PreAllocationChoice()).pods))
                    for row in map(int, rows.tolist())} if chosen else {}
        here = self._rows_with_reservations(found, snapshot, rows)
        orders = [(info.order, row) for row in here for info in found.of(snapshot, row).matched if info.order > 0]
        preferred = min(orders)[1] if orders else -1
        nominated = self._nominations.reservations_of(pod)
        scores: dict[int, int] = {}
        for row in here:
            if row == preferred:
                scores[row] = _PREFERRED
                continue
            info = self._cache.get(nominated.get(snapshot.names[row], ""))
            if info is not None:
                scores[row] = score(pod.requests, info.allocated(snapshot.row(row)), info.allocatable)
        return scores

    @staticmethod
    def _rows_with_reservations(found: ReservationState, snapshot: Snapshot, rows: Rows) -> list[int]:
        filtered = set(rows.tolist())
        return sorted(row for node in found.usable if (row := snapshot.index[node]) in filtered)


def normalize(scores: Mapping[Any, int]) -> dict[Any, int]:
    """Return scores in percent of the highest one."""
    most = max(scores.values(), default=0)
    return {key: points * HIGHEST_SCORE // most if most > 0 else points for key, points in scores.items()}
