"""Frames: the values that an expression reads when it is evaluated for many rows at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..check.checked_ast import Path
from ..values.values import EvaluationError

_Number = TypeVar("_Number", bound=np.generic)
Rows: TypeAlias = NDArray[np.intp]
"""Row numbers, ascending."""


class Numbers(NamedTuple):
    """A numeric column of a frame: int64 or float64 values, and the rows that have one.

    `present` is None if every row has a value. `values` of absent rows are arbitrary. `bounds` are a lower and an upper
    bound of all int64 `values`, not necessarily the closest; they replace a search for overflows.
    """

    values: NDArray[np.int64] | NDArray[np.float64]
    present: NDArray[np.bool_] | None = None
    bounds: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Codes:
    """A dictionary-encoded column: rows with equal codes agree on everything at and below the path.

    Codes are small ints from 0; `count` is one more than the largest in use. Absent values have a code of their own.
    """

    values: NDArray[np.int32]
    count: int


class Frame(Protocol):
    """The input of one decision: values for all rows, values per row, and cached columns of the latter.

    Returned arrays are not copies: callers must not write to them.
    """

    @property
    def size(self) -> int:
        """The number of rows."""
        ...

    def value(self, name: str) -> object:
        """Return a CONSTANT or DECISION variable's value."""
        ...

    def row_value(self, name: str, row: int) -> object:
        """Return a ROW variable's value at a row, as plain data; raise `EvaluationError` if it has none."""
        ...

    def numbers(self, path: Path) -> Numbers | None:
        """Return the numeric column at a path below a ROW variable, or None if there is none."""
        ...

    def codes(self, path: Path) -> Codes:
        """Return the dictionary-encoded column at a path below a ROW variable (computed once, then cached)."""
        ...

    def stamp(self, paths: frozenset[Path]) -> int:
        """Return a number that grows whenever a row may have changed at one of the ROW paths."""
        ...

    def changed(self, paths: frozenset[Path], since: int) -> Rows | None:
        """Return the rows that changed at one of the paths since that stamp; None if that is unknown."""
        ...

    @property
    def base(self) -> tuple[Frame, Rows] | None:
        """Of an overlay: its base, with the same values, and the overridden rows; else None."""
        ...

    @property
    def decision_cache(self) -> dict[object, object]:
        """The cache of this one decision."""
        ...

    def scratch(self, rows: Rows | None) -> dict[object, object]:
        """Return the scratch space of these rows (the very array; None for all) at this version of the cluster."""
        ...

    @property
    def cross_version_cache(self) -> dict[object, object]:
        """The cache that outlives versions, of results over the same rows; each user bounds its own entries."""
        ...


def gather(scratch: dict[object, object], values: NDArray[_Number], rows: Rows) -> NDArray[_Number]:
    """Return `values[..., rows]` from the scratch space of the rows: gathered once for all that read it. Read-only."""
    found = cast("tuple[NDArray[_Number], NDArray[_Number]] | None", scratch.get(id(values)))
    if found is None:
        found = scratch[id(values)] = (values, values[rows] if values.ndim == 1 else values.take(rows, axis=-1))
    return found[1]


class Column(NamedTuple):
    """One value for each required row, and an error for the rows that have none.

    `values` is of dtype bool, int64, float64 or object, and arbitrary for rows of `errors`.
    """

    values: NDArray[np.bool_] | NDArray[np.int64] | NDArray[np.float64] | NDArray[np.object_]
    errors: Mapping[int, EvaluationError] = MappingProxyType({})
    """Errors by row of the frame."""


class ByColumn(Protocol):
    """Evaluation of an expression for all rows of a frame at once."""

    def column(self, frame: Frame, rows: Rows | None = None) -> Column:
        """Return the values of all rows, or of `rows`; see `plan.evaluate`."""
        ...
