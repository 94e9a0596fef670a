"""A few rows of a frame, as a frame of their own: for asking about what changed without looking at all the rest."""

from __future__ import annotations

import numpy as np

from ..check.checked_ast import Path
from .frame import Codes, Frame, Numbers, Rows

_NO_ROWS: Rows = np.empty(0, dtype=np.intp)


class SomeRows:
    """The rows `rows` (ascending) of a frame, for one evaluation (fulfils `frame.Frame`)."""

    __slots__ = ("_frame", "_rows", "kept", "memo")

    def __init__(self, frame: Frame, rows: Rows) -> None:
        """`frame` is no overlay."""
        self._frame = frame
        self._rows = rows
        self.kept: dict[object, object] = {}
        self.memo: dict[object, object] = {}

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self._rows)

    @property
    def beneath(self) -> tuple[Frame, Rows] | None:
        """No overlay, so nothing lies beneath."""
        return None

    def value(self, name: str) -> object:
        """Return a CONSTANT or DECISION variable's value."""
        return self._frame.value(name)

    def row_value(self, name: str, row: int) -> object:
        """Return a ROW variable's value at a row."""
        return self._frame.row_value(name, int(self._rows[row]))

    def numbers(self, path: Path) -> Numbers | None:
        """Return the numeric column at a path, or None where it holds no numbers."""
        found = self._frame.numbers(path)
        if found is None:
            return None
        present = None if found.present is None else found.present[self._rows]
        if present is not None and present.all():
            present = None
        return Numbers(found.values[self._rows], present, found.bounds)

    def codes(self, path: Path) -> Codes:
        """Return the dictionary-encoded column at a path."""
        found = self._frame.codes(path)
        return Codes(found.values[self._rows], found.count)

    def moment(self, rows: Rows | None) -> dict[object, object]:
        """Return what was computed of these rows; of some of them nothing is shared."""
        return self._frame.moment(self._rows) if rows is None else {}

    def stamp(self, paths: frozenset[Path]) -> int:  # noqa: ARG002 - one evaluation, one moment
        """Return always the same number."""
        return 0

    def changed(self, paths: frozenset[Path], since: int) -> Rows | None:  # noqa: ARG002 - one evaluation, one moment
        """Return no rows."""
        return _NO_ROWS
