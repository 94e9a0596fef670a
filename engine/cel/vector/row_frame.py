"""Frames over rows that are plain mappings: pods, containers, the nodes of a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..check.checked_ast import Path
from ..values.values import EvaluationError
from .encoding import Absent, CodeColumn, NumberColumn, value_at
from .frame import Codes, Frame, Numbers, Rows

_NO_ROWS: Rows = np.empty(0, dtype=np.intp)


class RowFrame:
    """A frame (see `frame.Frame`) over mappings from ROW variables to values; `values` are all other variables.

    The value of a variable may be an `EvaluationError`, which reading it raises. Rows never change, so columns are
    valid for as long as the frame lives.
    """

    __slots__ = ("_codes", "_numbers", "_rows", "_values", "cross_version_cache", "decision_cache")

    def __init__(self, rows: Sequence[Mapping[str, object]], values: Mapping[str, object]) -> None:
        self._rows = rows
        self._values = values
        self._numbers: dict[Path, NumberColumn | None] = {}
        self._codes: dict[Path, CodeColumn] = {}
        self.cross_version_cache: dict[object, object] = {}
        self.decision_cache: dict[object, object] = {}

    def with_values(self, values: Mapping[str, object]) -> RowFrame:
        """Return a frame over the same rows, columns included, for another decision."""
        twin = RowFrame(self._rows, values)
        twin._numbers, twin._codes, twin.cross_version_cache = self._numbers, self._codes, self.cross_version_cache
        return twin

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self._rows)

    @property
    def base(self) -> tuple[Frame, Rows] | None:
        """None: this is not an overlay."""
        return None

    def value(self, name: str) -> object:
        """Return a CONSTANT or DECISION variable's value; raise `KeyError` if it has none."""
        return self._values[name]

    def row_value(self, name: str, row: int) -> object:
        """Return a ROW variable's value; raise `EvaluationError` if it has none in this row, `KeyError` if it has none
        at all.
        """
        value = self._rows[row][name]
        if isinstance(value, EvaluationError):
            raise value
        return value

    def numbers(self, path: Path) -> Numbers | None:
        """Return the numeric column at a path, or None if it is not numeric."""
        if path not in self._numbers:
            read = self._reader(path)
            self._numbers[path] = NumberColumn.of([read(row) for row in range(self.size)])
        column = self._numbers[path]
        return None if column is None else column.numbers

    def codes(self, path: Path) -> Codes:
        """Return the dictionary-encoded column at a path."""
        column = self._codes.get(path)
        if column is None:
            read = self._reader(path)
            column = self._codes[path] = CodeColumn.of(read(row) for row in range(self.size))
        return column.codes

    def scratch(self, rows: Rows | None) -> dict[object, object]:  # noqa: ARG002 - nothing is shared
        """Return a new dict: nothing is shared."""
        return {}

    def stamp(self, paths: frozenset[Path]) -> int:  # noqa: ARG002 - rows never change
        """Return a constant: rows never change."""
        return 0

    def changed(self, paths: frozenset[Path], since: int) -> Rows | None:  # noqa: ARG002 - rows never change
        """Return no rows."""
        return _NO_ROWS

    def _reader(self, path: Path) -> Callable[[int], object]:
        name, keys = path[0], path[1:]

        def read(row: int) -> object:
            try:
                return value_at(self.row_value(name, row), keys)
            except EvaluationError as error:
                return Absent(0, (error.message, error.reason))
            except KeyError:
                return Absent(-1)  # the error of an absent variable differs from that of an absent field

        return read
