"""Change logs of rows, by which results are cached between decisions and recomputed for the changed rows only."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows

_LONGEST = 8_192
NO_ROWS: Rows = np.empty(0, dtype=np.intp)


class Log:
    """The changed rows of one kind of change, with the version of each; old entries are dropped."""

    __slots__ = ("_floor", "_rows", "_versions", "last")

    def __init__(self, version: int) -> None:
        self._versions: list[int] = []
        self._rows: list[int] = []
        self._floor = version
        self.last = version

    def note(self, version: int, row: int) -> None:
        """Record that a row changed."""
        self._versions.append(version)
        self._rows.append(row)
        self.last = version
        if len(self._rows) > _LONGEST:
            half = _LONGEST // 2
            self._floor = self._versions[half - 1]
            del self._versions[:half], self._rows[:half]

    def forget(self, version: int) -> None:
        """Record that any row may have changed."""
        self._versions.clear()
        self._rows.clear()
        self._floor = self.last = version

    def since(self, version: int) -> set[int] | None:
        """Return the rows that changed after a version; None if that is no longer known."""
        if version < self._floor:
            return None
        return set(self._rows[bisect.bisect_right(self._versions, version):])


def last_of(logs: Sequence[Log]) -> int:
    """Return the stamp of the last change in one of the logs; 0 without logs."""
    last = 0
    for log in logs:
        if log.last > last:  # noqa: PLR1730 - half the time of `max`
            last = log.last
    return last


def ascending(rows: set[int]) -> Rows:
    """Return row numbers as an array."""
    return np.fromiter(sorted(rows), np.intp, len(rows))
