"""Bound plans: plans that have their CONSTANT and DECISION values, so that numeric columns are their only inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .codegen import Fused
from .frame import Frame, Rows
from .vectors import Vector


class SelectedRows:
    """Rows of one frame, which is no overlay. Each bound plan is computed once for them."""

    __slots__ = ("frame", "plans", "rows", "scratch")

    def __init__(self, frame: Frame, rows: Rows) -> None:
        self.frame = frame
        self.rows = rows
        self.scratch = frame.scratch(rows)
        self.plans: dict[BoundPlan, Vector | None] = {}


class BoundColumn(Protocol):
    """An input of a bound plan: a numeric column of the frame, or another bound plan."""

    def gathered(self, selected: SelectedRows, /) -> Vector | None:
        """Return the values in these rows; None if one is missing or may fail."""
        ...


class BoundPlan:
    """A generated function whose arguments are all bound, except for the numeric columns.

    It references no frame, and is valid in all frames with the same CONSTANT and DECISION values.
    """

    __slots__ = ("_doubles", "_fused", "_given", "_inputs", "_kind")

    def __init__(
        self, fused: Fused, kind: str, given: list[Any], inputs: Sequence[tuple[int, BoundColumn]], *,
        doubles: bool,
    ) -> None:
        """`inputs` are the columns, each with the index in `given` of its values; their minimum and maximum follow."""
        self._fused = fused
        self._kind = kind
        self._given = given
        self._inputs = inputs
        self._doubles = doubles

    def values(self, selected: SelectedRows) -> NDArray[Any] | None:
        """Return the values of these rows in a new array; None if one is missing or may fail."""
        given = self._given.copy()
        for at, column in self._inputs:
            vector = column.gathered(selected)
            if vector is None:
                return None
            given[at] = vector.values
            given[at + 1] = vector.low
            given[at + 2] = vector.high
        if not self._doubles:
            return self._fused(*given)
        with np.errstate(all="ignore"):
            return self._fused(*given)

    def gathered(self, selected: SelectedRows) -> Vector | None:
        """Return the values as an input column of other expressions."""
        known = selected.plans
        if self in known:
            return known[self]
        values, vector = self.values(selected), None
        if values is not None and values.dtype.kind == self._kind and len(values):
            vector = computed_vector(values, self._kind)
        known[self] = vector
        return vector


def computed_vector(values: NDArray[Any], kind: str) -> Vector:
    """Return computed values as an input column of other expressions; ints with the bounds of these values."""
    if kind != "i" or not len(values):
        return Vector(values)
    return Vector(values, None, int(values.min()), int(values.max()))
