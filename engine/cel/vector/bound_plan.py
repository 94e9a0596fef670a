"""Bound plans: plans with their CONSTANT and DECISION values, whose only inputs are numeric columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .codegen import Fused
from .frame import Frame, Rows
from .vectors import Vector


class BoundColumn(Protocol):
    """An input of a bound plan: a numeric column of the frame, or another bound plan."""

    def gathered(self, frame: Frame, rows: Rows, known: Known, /) -> Vector | None:
        """Return the values in these rows (of no overlay); None if one is missing or may fail."""
        ...


class BoundPlan:
    """A generated function with all of its arguments but numeric columns.

    It references no frame, and is valid in all frames with the same CONSTANT and DECISION values.
    """

    __slots__ = ("_doubles", "_fused", "_given", "_inputs", "_kind")

    def __init__(
        self, fused: Fused, kind: str, given: list[Any], inputs: Sequence[tuple[int, BoundColumn]], *,
        doubles: bool,
    ) -> None:
        """`inputs` are the columns, each with the place in `given` of its values, lowest and highest."""
        self._fused = fused
        self._kind = kind
        self._given = given
        self._inputs = inputs
        self._doubles = doubles

    def values(self, frame: Frame, rows: Rows, known: Known) -> NDArray[Any] | None:
        """Return the values of these rows (of no overlay) in a new array; None if one is missing or may fail.

        `known` has the variables of the same rows of the same frame, so that each is computed once.
        """
        given = self._given.copy()
        for at, column in self._inputs:
            vector = column.gathered(frame, rows, known)
            if vector is None:
                return None
            given[at] = vector.values
            given[at + 1] = vector.low
            given[at + 2] = vector.high
        if not self._doubles:
            return self._fused(*given)
        with np.errstate(all="ignore"):
            return self._fused(*given)

    def gathered(self, frame: Frame, rows: Rows, known: Known) -> Vector | None:
        """Return the values as an input column of other expressions."""
        if self in known:
            return known[self]
        values, vector = self.values(frame, rows, known), None
        if values is not None and values.dtype.kind == self._kind and len(values):
            vector = computed_vector(values, self._kind)
        known[self] = vector
        return vector


def computed_vector(values: NDArray[Any], kind: str) -> Vector:
    """Return computed values as an input column of other expressions; ints with the bounds of these values."""
    if kind != "i" or not len(values):
        return Vector(values)
    return Vector(values, None, int(values.min()), int(values.max()))


Known: TypeAlias = dict[BoundPlan, Vector | None]
"""The variables of the same rows of the same frame that are computed already."""
