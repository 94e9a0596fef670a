"""A few rows of a frame as a separate frame, to evaluate them without the others."""

from __future__ import annotations

import numpy as np

from ..check.checked_ast import Path
from .frame import Codes, Frame, Numbers, Rows

_NO_ROWS: Rows = np.empty(0, dtype=np.intp)


class SomeRows:
    """The rows `rows` (ascending) of a frame, for one evaluation (implements `frame.Frame`)."""

    __slots__ = ("_frame", "_rows", "cross_version_cache", "decision_cache")

    def __init__(self, frame: Frame, rows: Rows) -> None:
        """`frame` must not be an overlay."""
        self._frame = frame
        self._rows = rows
        self.cross_version_cache: dict[object, object] = {}
        self.decision_cache: dict[object, object] = {}

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self._rows)

    @property
    def base(self) -> tuple[Frame, Rows] | None:
        """None: this is not an overlay."""
        return None

    def value(self, name: str) -> object:
        """Return a CONSTANT or DECISION variable's value."""
        return self._frame.value(name)

    def row_value(self, name: str, row: int) -> object:
        """Return a ROW variable's value at a row."""
        return self._frame.row_value(name, int(self._rows[row]))

    def numbers(self, path: Path) -> Numbers | None:
        """Return the numeric column at a path, or None if it is not numeric."""
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

    def scratch(self, rows: Rows | None) -> dict[object, object]:
        """Return the scratch space of these rows; for a part of them, a new one."""
        return self._frame.scratch(self._rows) if rows is None else {}

    def stamp(self, paths: frozenset[Path]) -> int:  # noqa: ARG002 - one evaluation, one moment
        """Return always the same number."""
        return 0

    def changed(self, paths: frozenset[Path], since: int) -> Rows | None:  # noqa: ARG002 - one evaluation, one moment
        """Return no rows."""
        return _NO_ROWS
