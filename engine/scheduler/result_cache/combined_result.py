"""The combined result of the plugins of one point: who refused each node first, or the weighted total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.change_log import NO_ROWS, Log
from koordpolicy.engine.cluster.derived import all_rows
from koordpolicy.engine.framework.points import CacheKey, Errors

from ..profiles.profile import Active
from .columns import Booleans, CopyOnWriteArray, ResultColumn

CHEAP: Final = 256
"""Up to this number of rows a function of arrays takes about the same time as for one."""


@dataclass(slots=True)
class DependencyGroup:
    """Columns that depend on the same paths, and the stamp up to which the combined result includes them."""

    paths: frozenset[Path]
    logs: tuple[Log, ...]
    numbers: list[int]
    stamp: int = -1
    vectorized: bool = True
    """True if all its keys are `vectorized`: then many rows take hardly longer than a few."""


class Divided(NamedTuple):
    """Changed rows: those to be scored, and the others."""

    requested: Rows
    others: Rows
    changed: Rows | None = None
    """All changed rows, if scoring them costs no more than leaving the others out."""


NOTHING: Final = Divided(NO_ROWS, NO_ROWS)


class CombinedResult(CopyOnWriteArray):
    """The columns of all plugins of one point for a pod's cache keys, and their combination, refreshed together.

    For filters the combination is the index of the first filter that refuses the node (-1 if none does), for scorers
    the weighted total.
    """

    __slots__ = (
        "_covered",
        "_inside",
        "_left",
        "_totals",
        "actives",
        "cache_keys",
        "columns",
        "epochs",
        "no_epochs",
        "offset",
        "parts",
        "places",
        "stale",
        "uncached",
        "uniform",
        "weights",
        "whole",
    )

    def __init__(
        self, values: NDArray[Any], actives: list[Active], places: list[int], uncached: list[tuple[int, Active]],
    ) -> None:
        super().__init__(values)
        self.actives = actives
        """The plugins whose results are cached."""
        self.places = places
        """The index of each among all plugins of the point."""
        self.uncached = uncached
        """The plugins whose results are not cached, each with its index."""
        self.uniform: list[tuple[int, Active, int]] = []
        """The plugins that score all nodes alike: the index of each, and the score."""
        self.offset = 0
        """The weighted total of the scores of these."""
        self.weights = np.array([active.weight for active in actives], np.int64)
        self.cache_keys: list[CacheKey] = []
        """The cache keys of the columns."""
        self.columns: list[ResultColumn] = []
        self.epochs: list[int | None] = []
        self.no_epochs: list[int | None] = [None] * len(actives)
        """The epochs of keys that have none."""
        self.parts: list[DependencyGroup] = []
        self.stale: Booleans = np.ones(len(values) if values.dtype == np.int64 else 0, np.bool_)
        """Of scores: the rows whose total is out of date. Scores of nodes that no pod can take are not computed."""
        self._covered: Rows | None = None
        self._inside: Booleans | None = None
        """The covered rows as bools; computed when they are read."""
        self._left: dict[int, Rows] = {}
        self.whole = False
        """Of scores: true if all rows are scored again whenever one has changed."""
        self._totals: NDArray[np.int64] | None = None
        """The totals of the covered rows, of a `whole` result; its `values` are not used."""

    def totals(self, rows: Rows) -> NDArray[np.int64]:
        """Return the totals of rows that were just refreshed, read-only."""
        if self._totals is not None:
            assert self.covers(rows)
            return self._totals
        return self.values.copy() if len(rows) == len(self.values) else self.values[rows]

    def replace_totals(self, rows: Rows) -> None:
        """Combine the scores of these rows, which all columns have in `scored`."""
        total: NDArray[np.int64] | None = None
        for active, column in zip(self.actives, self.columns, strict=True):
            assert column.scored is not None
            scores = column.scored[1]
            scores = scores if active.weight == 1 else scores * np.int64(active.weight)
            total = scores if total is None else total + scores
        assert total is not None
        self._totals = total + np.int64(self.offset) if self.offset else total
        self.cover(rows)

    def covers(self, rows: Rows) -> bool:
        """Return whether these rows (the same array) are those whose totals were refreshed last."""
        return rows is self._covered

    def cover(self, rows: Rows) -> None:
        """Record that the totals of these rows are up to date."""
        self._covered, self._inside = rows, None

    def divided(self, rows: Rows) -> Divided:
        """Divide changed rows by whether they are covered."""
        covered = self._covered
        assert covered is not None
        if len(covered) == len(self.values):
            return Divided(rows, NO_ROWS)
        if self._inside is None:
            self._inside = np.zeros(len(self.values), np.bool_)
            self._inside[covered] = True
        inside = self._inside[rows]
        requested = rows[inside]
        if len(requested) == len(rows):
            return Divided(rows, NO_ROWS)
        others = rows[~inside]
        return Divided(requested, others, rows if len(rows) <= CHEAP or len(others) <= len(requested) else None)

    def stale_among(self, rows: Rows) -> Rows:
        """Return which of the rows have a total that is out of date."""
        return rows[self.stale[rows]]

    def left_before(self, place: int) -> Rows:
        """Return the rows that no cached filter before the index `place` refuses, read-only."""
        rows = self._left.get(place)
        if rows is None:
            # As an unsigned number -1, which stands for no filter, is larger than any index.
            rows = (self.values.view(np.uint16) > place).nonzero()[0]
            if len(rows) == len(self.values):
                rows = all_rows(len(rows))
            self._left[place] = rows
        return rows

    def update(self, rows: Rows, values: NDArray[Any]) -> None:
        """Write the combination of some rows."""
        self.write_rows(rows, values)
        self._left.clear()

    def errors(self, rows: Rows) -> dict[int, dict[str, Mapping[int, EvaluationError]]]:
        """Return the errors at some rows, by place."""
        return {place: among(column.errors, rows) for place, column in zip(self.places, self.columns, strict=True)
                if column.errors}

    @property
    def bytes(self) -> int:
        """The approximate memory, without the columns; of a `whole` result with the scores that they hold apart."""
        apart = 2 * self.values.nbytes * (1 + len(self.columns)) if self.whole else 0
        return self.values.nbytes + 2 * self.stale.nbytes + apart


def refused_first(group: CombinedResult, rows: Rows) -> NDArray[np.int16]:
    """Return for each of the rows the index of the first filter that refuses it, -1 if none does."""
    first = np.full(len(rows), -1, np.int16)
    everywhere = len(rows) == len(group.values)
    for place, column in zip(reversed(group.places), reversed(group.columns), strict=True):
        if column.refuses():
            np.putmask(first, ~(column.values if everywhere else column.values[rows]), place)
    return first


def total_of(group: CombinedResult, rows: Rows) -> NDArray[np.int64]:
    """Return the weighted total of the rows' scores."""
    if len(rows) <= CHEAP and group.columns:
        # One product: a sum per column costs more than the amounts of a few rows.
        few: NDArray[np.int64] = group.weights @ np.array([column.values[rows] for column in group.columns])
        few += group.offset
        return few
    total = np.full(len(rows), group.offset, np.int64)
    for active, column in zip(group.actives, group.columns, strict=True):
        scores = column.values[rows]
        total += scores if active.weight == 1 else scores * np.int64(active.weight)
    return total


def among(errors: Errors, rows: Rows) -> dict[str, Mapping[int, EvaluationError]]:
    """Return the errors of these rows."""
    if not errors:
        return {}
    included = set(rows.tolist())
    found = {rule: {row: error for row, error in failed.items() if row in included} for rule, failed in errors.items()}
    return {rule: failed for rule, failed in found.items() if failed}
