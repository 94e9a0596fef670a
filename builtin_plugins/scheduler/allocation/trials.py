"""Trials of pods on single nodes, and their outcomes, cached for the next pod of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import DerivedOfBase
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.plugin import TopologyHint

from .row_refusals import RowRefusals

_Booleans = NDArray[np.bool_]


class TrialOutcomes:
    """The cached outcomes of pods of one kind: a number by row, and the chosen affinities."""

    __slots__ = ("_places", "_refusals", "affinities", "known", "numbers")

    def __init__(self, size: int) -> None:
        self.known: _Booleans = np.zeros(size, np.bool_)
        self.numbers: NDArray[np.int64] = np.zeros(size, np.int64)
        self.affinities: dict[int, TopologyHint] = {}
        self._refusals: list[Refusal] = []
        self._places: dict[Refusal, int] = {}

    def refresh(self, snapshot: Snapshot, rows: Rows) -> None:
        """Drop the outcomes of these rows."""
        self.known[rows] = False
        if self.affinities:
            for row in rows.tolist():
                self.affinities.pop(row, None)

    def note(self, row: int, number: int) -> None:
        """Cache a row's number."""
        self.known[row] = True
        self.numbers[row] = number

    def learn(self, rows: Rows, compute: Callable[[int], int], alike: Callable[[int], Hashable]) -> None:
        """Cache the numbers of rows; among equivalent rows only one is computed."""
        first: dict[Hashable, int] = {}
        for row in rows.tolist():
            known = first.setdefault(alike(row), row)
            if known == row:
                self.note(row, compute(row))
                continue
            self.note(row, int(self.numbers[known]))
            if known in self.affinities:
                self.affinities[row] = self.affinities[known]

    def number_of(self, refusal: Refusal | None) -> int:
        """Return the number that stands for a refusal; 0 for none."""
        if refusal is None:
            return 0
        if refusal not in self._places:
            self._refusals.append(refusal)
            self._places[refusal] = len(self._refusals)
        return self._places[refusal]

    def refuse(self, refusals: RowRefusals, rows: _Booleans) -> None:
        """Refuse the rows with a cached refusal."""
        rows = rows & self.known
        for number in np.unique(self.numbers[rows]).tolist():
            if number:
                refusals.refuse(rows & (self.numbers == number), self._refusals[number - 1])


def derived_outcomes(paths: frozenset[Path]) -> DerivedOfBase[TrialOutcomes]:
    """Return the outcomes by kind of pod, each cached until its row changes at `paths`."""
    return DerivedOfBase(paths, TrialOutcomes, most=128)


@dataclass(frozen=True, slots=True)
class Trials:
    """The cached outcomes for pods of one kind, and the key of equivalent rows, of which only one is tried.

    An overridden row is tried every time, because a trial also writes its choice into the cycle state.
    """

    outcomes: TrialOutcomes
    alike: Callable[[int], Hashable]

    def note_affinity(self, snapshot: Snapshot, row: int, affinity: TopologyHint | None) -> None:
        """Cache the affinity that a trial chose, for later pods."""
        if affinity is not None and not snapshot.is_overridden(row):
            self.outcomes.affinities[row] = affinity

    def numbers(
        self, snapshot: Snapshot, open_rows: _Booleans, compute: Callable[[int], int],
    ) -> tuple[_Booleans, _Booleans]:
        """Compute the missing outcomes of the rows; return the cached rows, and the overridden ones."""
        overlaid = np.zeros(len(open_rows), np.bool_)
        overlaid[list(snapshot.overridden)] = True
        known = open_rows & ~overlaid
        self.outcomes.learn(np.flatnonzero(known & ~self.outcomes.known), compute, self.alike)
        return known, open_rows & overlaid


def refuse_one_by_one(
    refusals: RowRefusals, snapshot: Snapshot, tried: _Booleans, attempt: Callable[[int], Refusal | None],
    trials: Trials | None,
) -> None:
    """Refuse the open rows for which a trial returns a refusal; without `trials` all of them are tried."""
    open_rows = tried & refusals.open
    if trials is not None:
        outcomes = trials.outcomes
        known, open_rows = trials.numbers(snapshot, open_rows, lambda row: outcomes.number_of(attempt(row)))
        outcomes.refuse(refusals, known)
    for row in np.flatnonzero(open_rows).tolist():
        refusal = attempt(row)
        if refusal is not None:
            refusals.refuse_row(row, refusal)


def score_one_by_one(
    values: NDArray[np.int64], snapshot: Snapshot, open_rows: _Booleans, score: Callable[[int], int],
    trials: Trials | None,
) -> None:
    """Write the scores of the rows; without `trials` each of them is computed."""
    if trials is not None:
        known, open_rows = trials.numbers(snapshot, open_rows, score)
        values[known] = trials.outcomes.numbers[known]
    for row in np.flatnonzero(open_rows).tolist():
        values[row] = score(row)
