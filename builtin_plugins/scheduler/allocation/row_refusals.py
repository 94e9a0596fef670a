"""Refusals by row, collected while a filter evaluates one rule after the other, and the filter's result."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.framework.points import Answer, Code, Refusal

_Booleans = NDArray[np.bool_]


class RowRefusals:
    """The first refusal of each row; rows that are not filtered pass."""

    def __init__(self, size: int, rows: Rows) -> None:
        self.open: _Booleans = np.zeros(size, np.bool_)
        """The filtered rows without a refusal so far."""
        self.open[rows] = True
        self._which: NDArray[np.int32] = np.zeros(size, np.int32)
        self._refusals: list[Refusal] = []
        self._known: dict[tuple[str, str, Code], int] = {}

    def refuse(self, rows: _Booleans, refusal: Refusal) -> None:
        """Refuse the open rows of a mask."""
        refused = rows & self.open
        if refused.any():
            self._which[refused] = self._number(refusal)
            self.open &= ~refused

    def refuse_at(self, rows: Rows, mask: _Booleans, refusal: Refusal) -> None:
        """Refuse the open ones among the rows that `mask` (one bool per row) selects."""
        refused = rows[mask]
        refused = refused[self.open[refused]]
        if len(refused):
            self._which[refused] = self._number(refusal)
            self.open[refused] = False

    def refuse_row(self, row: int, refusal: Refusal) -> None:
        """Refuse one row."""
        if self.open[row]:
            self._which[row] = self._number(refusal)
            self.open[row] = False

    def answer(self) -> Answer:
        """Return the filter's answer."""
        which, refusals = self._which, self._refusals

        def explain(row: int) -> Refusal:
            return refusals[int(which[row]) - 1]

        def reasons(rows: Rows) -> dict[str, Rows]:
            found: dict[str, Rows] = {}
            for number, refusal in enumerate(refusals, start=1):
                these = rows[which[rows] == number]
                if len(these):
                    before = found.get(refusal.message)
                    found[refusal.message] = these if before is None else np.union1d(before, these)
            return found

        def codes(rows: Rows) -> dict[Code, Rows]:
            numbers = which[rows]
            return {
                code: rows[np.isin(numbers, [n for n, each in enumerate(refusals, start=1) if each.code is code])]
                for code in {each.code for each in refusals}
            }

        return Answer(which == 0, explain, reasons=reasons, codes=codes, brief=reasons)

    def _number(self, refusal: Refusal) -> int:
        key = refusal.rule, refusal.message, refusal.code
        if key not in self._known:
            self._refusals.append(refusal)
            self._known[key] = len(self._refusals)
        return self._known[key]
