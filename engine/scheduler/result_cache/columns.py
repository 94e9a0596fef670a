"""Columns of cached results, which verdicts share with the cache until the next write."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.framework.points import Errors

Booleans = NDArray[np.bool_]


class CopyOnWriteArray:
    """An array that is written in place and shared with verdicts: a shared one is copied before the next write."""

    __slots__ = ("_shared", "values")

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        """Read-only; valid until the next decision, see `share`."""
        self._shared = False

    def share(self) -> NDArray[Any]:
        """Return the current values, read-only; later writes do not change the returned array."""
        self._shared = True
        return self.values

    def write_rows(self, rows: Rows, values: NDArray[Any]) -> None:
        """Write some rows, or all of them."""
        if len(rows) == len(self.values):
            self.values, self._shared = values.astype(self.values.dtype), False
            return
        if self._shared:
            self.values, self._shared = self.values.copy(), False
        self.values[rows] = values


class ResultColumn(CopyOnWriteArray):
    """One plugin's results for one cache key, a row per node, with all changes up to `stamp`."""

    __slots__ = ("__weakref__", "_refuses", "altered", "epoch", "errors", "last_epoch", "scored", "stale", "stamp")

    def __init__(self, size: int, dtype: type[np.generic]) -> None:
        super().__init__(np.zeros(size, dtype))
        self._refuses: bool | None = None
        self.stale: Booleans = np.ones(0 if dtype is np.bool_ else size, np.bool_)
        """Of scores: the rows that changed since the plugin scored them. Filters have none."""
        self.scored: tuple[Rows, NDArray[np.int64]] | None = None
        """Rows and their scores, if only these are valid: neither `values` nor `stale` include them yet."""
        self.stamp = -1
        """All changes up to this stamp are included; -1 before the first result."""
        self.altered = -1
        """The stamp of the last change of a value."""
        self.epoch: int | None = None
        """The number of the epoch of the values."""
        self.last_epoch: tuple[Hashable, int] = (None, 0)
        """The last epoch of the cache key, and its number."""
        self.errors: dict[str, dict[int, EvaluationError]] = {}

    @property
    def bytes(self) -> int:
        """The approximate memory of the column."""
        return self.values.nbytes + self.stale.nbytes

    def epoch_of(self, epoch: Hashable) -> int:
        """Return the number of an epoch; a changed epoch has a new number. Comparing epochs may raise."""
        before, number = self.last_epoch
        if number == 0 or before != epoch:
            number += 1
            self.last_epoch = epoch, number
        return number

    def write(self, rows: Rows, values: NDArray[Any], errors: Errors, stamp: int) -> None:
        """Write the results of some rows."""
        if self.errors or errors:
            self._take_over(rows, errors)
        self.stamp = stamp
        # Recomputed scores mostly differ; unchanged results of a filter need not be combined again.
        if values.dtype.kind == "b":
            before = self.values if len(rows) == len(self.values) else self.values[rows]
            if before.tobytes() == values.tobytes():
                return
        self.write_rows(rows, values)
        self._refuses = None
        self.altered = stamp

    def replace_scores(self, rows: Rows, values: NDArray[np.int64], errors: Errors, stamp: int) -> None:
        """Replace all scores by those of some rows; the array must not be written any more."""
        self.scored, self.stamp = (rows, values), stamp
        self.errors = {rule: dict(found) for rule, found in errors.items() if found}

    def expand(self) -> None:
        """Write the rows of `scored`, if there are any, into `values`."""
        if self.scored is not None:
            rows, values = self.scored
            self.scored = None
            self.stale[:] = True
            self.write_rows(rows, values)
            self.stale[rows] = False

    def lend(self) -> tuple[Rows | None, NDArray[Any]]:
        """Return the current scores of some rows, or of all (None), read-only; later writes do not change them."""
        return (None, self.share()) if self.scored is None else self.scored

    def refuses(self) -> bool:
        """Return whether the filter refuses any node; computed once per change."""
        found = self._refuses
        if found is None:
            found = self._refuses = np.count_nonzero(self.values) != len(self.values)
        return found

    def _take_over(self, rows: Rows, errors: Errors) -> None:
        written = rows.tolist()  # only the written rows: the errors may be of thousands
        for rule, found in list(self.errors.items()):
            for row in written:
                found.pop(row, None)
            if not found:
                del self.errors[rule]
        for rule, added in errors.items():
            if added:
                self.errors.setdefault(rule, {}).update(added)
