"""Columns of the values of rows: numbers as arrays, other values dictionary-encoded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..check.checked_ast import Path
from ..values.values import EvaluationError
from .frame import Codes, Numbers, Rows

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Absent:
    """An absent value: the number of steps of the path that exist, and the value at the last of them.

    -1 steps: the variable itself has no value.
    """

    depth: int
    found: Hashable = None


def value_at(value: object, keys: Sequence[str]) -> object:
    """Return the value below `value` at these keys, or `Absent`."""
    for depth, key in enumerate(keys):
        if not isinstance(value, Mapping):
            return Absent(depth, (key_of(value),))
        try:
            if key not in value:
                return Absent(depth)
            value = value[key]
        except EvaluationError as error:
            return Absent(depth, (error.message, error.reason))
    return value


def key_of(value: object) -> Hashable:
    """Return a key that two values share only if no expression can distinguish them."""
    # 1, 1.0 and True are equal in Python but not in CEL; the order of a map shows when it is iterated.
    if value.__class__ is str:
        return value
    if isinstance(value, Absent):
        return value
    if value is None or value.__class__ is bool or value.__class__ is int:
        return value.__class__, value
    return value.__class__, repr(value)


def is_number(value: object) -> bool:
    """Return whether a numeric column can hold the value: an int of 64 bits, or a double; not a bool."""
    kind = value.__class__
    return kind is float or (kind is int and _INT64_MIN <= value <= _INT64_MAX)  # type: ignore[operator]


class NumberColumn:
    """A cached numeric column, refreshed row by row. A value of another kind than the column's is absent."""

    __slots__ = ("_absent", "_bounds", "_kind", "_present", "_values")

    def __init__(self, values: NDArray[np.int64] | NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        self._values = values
        self._present = present
        self._absent = len(present) - int(np.count_nonzero(present))
        self._kind: type = int if values.dtype == np.int64 else float
        self._bounds: tuple[int, int] | None = None
        if self._kind is int and len(values):
            self._bounds = int(values.min()), int(values.max())

    @classmethod
    def of(cls, values: Sequence[object]) -> NumberColumn | None:
        """Return the values as a column; None if there are no numbers, or more of other values."""
        ints = sum(1 for value in values if value.__class__ is int and is_number(value))
        floats = sum(1 for value in values if value.__class__ is float)
        absent = sum(1 for value in values if value.__class__ is Absent)
        if ints + floats == 0 or 2 * (ints + floats) < len(values) - absent:
            return None
        kind = int if ints >= floats else float
        present = np.array([value.__class__ is kind and is_number(value) for value in values], dtype=np.bool_)
        filled = [value if has else 0 for value, has in zip(values, present.tolist(), strict=True)]
        if kind is int:
            return cls(np.array(filled, dtype=np.int64), present)
        return cls(np.array(filled, dtype=np.float64), present)

    def write(self, row: int, value: object) -> None:
        """Rewrite one row."""
        has = value.__class__ is self._kind and is_number(value)
        if has != bool(self._present[row]):
            self._absent += -1 if has else 1
            self._present[row] = has
        if has:
            self._values[row] = value  # type: ignore[call-overload]
            if self._bounds is not None:
                low, high = self._bounds
                self._bounds = min(low, int(value)), max(high, int(value))  # type: ignore[call-overload]

    def copy(self) -> NumberColumn:
        """Return an independent copy."""
        return NumberColumn(self._values.copy(), self._present.copy())

    @property
    def numbers(self) -> Numbers:
        """The column as frames return it."""
        return Numbers(self._values, self._present if self._absent else None, self._bounds)


class CodeColumn:
    """A cached dictionary-encoded column, refreshed row by row."""

    __slots__ = ("_table", "_values")

    def __init__(self, values: NDArray[np.int32], table: dict[Hashable, int]) -> None:
        self._values = values
        self._table = table

    @classmethod
    def of(cls, values: Iterable[object]) -> CodeColumn:
        """Return the values as a column."""
        table: dict[Hashable, int] = {}
        codes = [table.setdefault(key_of(value), len(table)) for value in values]
        return cls(np.array(codes, dtype=np.int32), table)

    def write(self, row: int, value: object) -> None:
        """Rewrite one row."""
        self._values[row] = self._table.setdefault(key_of(value), len(self._table))

    def copy(self) -> CodeColumn:
        """Return an independent copy."""
        return CodeColumn(self._values.copy(), dict(self._table))

    @property
    def overgrown(self) -> bool:
        """True if so many codes are unused that all rows should be encoded again."""
        return len(self._table) > 2 * len(self._values) + 64

    @property
    def codes(self) -> Codes:
        """The column as frames return it."""
        return Codes(self._values, len(self._table))


@dataclass(slots=True)
class _Cached:
    """A column (None: not numeric) and the stamp of its last refresh."""

    column: NumberColumn | CodeColumn | None
    stamp: int


class PathColumns:
    """Cached columns by path, refreshed row by row."""

    __slots__ = ("_codes", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[Path, _Cached] = {}
        self._codes: dict[Path, _Cached] = {}

    def numbers(
        self, path: Path, size: int, value: Callable[[int], object], stamp: int, changed: Callable[[int], Rows | None],
    ) -> NumberColumn | None:
        """Return the numeric column of a path, None if it is not numeric.

        `value` reads a row; `stamp` is the current stamp of the path; `changed` returns the rows that changed since a
        stamp.
        """
        cached = self._numbers.get(path)
        if cached is None or not _refresh(cached, value, stamp, changed):
            cached = self._numbers[path] = _Cached(NumberColumn.of([value(row) for row in range(size)]), stamp)
        assert not isinstance(cached.column, CodeColumn)
        return cached.column

    def codes(
        self, path: Path, size: int, value: Callable[[int], object], stamp: int, changed: Callable[[int], Rows | None],
    ) -> CodeColumn:
        """Return the dictionary-encoded column of a path; arguments as for `numbers`."""
        cached = self._codes.get(path)
        if cached is None or not _refresh(cached, value, stamp, changed):
            cached = self._codes[path] = _Cached(CodeColumn.of(value(row) for row in range(size)), stamp)
        assert isinstance(cached.column, CodeColumn)
        return cached.column


def _refresh(
    cached: _Cached, value: Callable[[int], object], stamp: int, changed: Callable[[int], Rows | None],
) -> bool:
    """Refresh a cached column; return False if it must be built again."""
    if cached.stamp == stamp:
        return True
    rows = changed(cached.stamp)
    if rows is None:
        return False
    cached.stamp = stamp
    column = cached.column
    if column is None:
        return not any(is_number(value(row)) for row in rows.tolist())
    for row in rows.tolist():
        column.write(row, value(row))
    return not (isinstance(column, CodeColumn) and column.overgrown)
