"""A numeric column of the frame."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ...check.checked_ast import Checked, Path
from ...syntax.ast import Expr
from ...values.values import EvaluationError
from ..bound_plan import SelectedRows
from ..codegen import Term, Writing
from ..context import VectorContext
from ..frame import Numbers, gather
from ..kinds import DTYPES
from ..scalar_fallback import ScalarFallback
from ..some_rows import SomeRows
from ..vectors import Mask, NotColumnar, Operand, Vector, to_double
from .base import Rank, RowStrategy


class ColumnOperator:
    """A numeric column of the frame."""

    __slots__ = ("_fallback", "_key", "_kind", "_path")
    strategy: ClassVar[RowStrategy] = RowStrategy.NUMBERS
    rank: ClassVar[Rank] = Rank.COLUMN

    def __init__(self, checked: Checked, node: Expr, path: Path, kind: str) -> None:
        self._fallback = ScalarFallback(checked, node)
        self._path = path
        self._kind = kind
        self._key = (path, kind)

    def run(self, context: VectorContext) -> Operand:
        cache = context.numbers
        key = self._key
        vector = cache.get(key)
        if vector is None:
            numbers = context.frame.numbers(self._path)
            if numbers is None:
                if self._kind == "?":
                    raise NotColumnar
                # declared as a number, and no row has one
                nothing = np.zeros(context.size, dtype=DTYPES[self._kind])
                numbers = Numbers(nothing, np.zeros(context.size, dtype=np.bool_))
            vector = Vector.of(numbers)
            found = vector.values.dtype.kind
            if self._kind == "f" and found == "i":
                vector = to_double(vector)
            elif self._kind not in ("?", found):
                raise NotColumnar
            cache[key] = vector
        assert isinstance(vector, Vector)
        return vector if vector.valid is None else self._failing(context, vector, vector.valid)

    def gathered(self, selected: SelectedRows) -> Vector | None:
        """Return the column of these rows; None if a row has no number of the declared kind."""
        scratch = selected.scratch
        vector = scratch.get(self._key)
        if vector is None:
            frame, rows = selected.frame, selected.rows
            numbers = frame.numbers(self._path)
            if numbers is not None and numbers.present is None and numbers.values.dtype.kind == self._kind:
                vector = scratch[self._key] = Vector(
                    gather(scratch, numbers.values, rows), None, *(numbers.bounds or ()))
                vector.borrowed = True  # shared by all that read these rows
            else:
                try:
                    vector = self.run(VectorContext(SomeRows(frame, rows)))
                except NotColumnar:
                    return None
        return vector if isinstance(vector, Vector) and vector.valid is None else None

    def fuse(self, writing: Writing) -> Term:
        return writing.input(self, self._kind, is_array=True)

    def reads(self, _: VectorContext) -> frozenset[Path]:
        return frozenset((self._path,))

    def _failing(self, context: VectorContext, vector: Vector, valid: Mask) -> Vector:
        """Return the error of the first row without a number, in all rows with the same error."""
        known = context.decision_cache.get(self)
        if known is None:
            known = vector
            row = int(valid.argmin())
            value = self._fallback.reader(context.frame)(row)
            if isinstance(value, EvaluationError) and not value.final:
                codes = context.frame.codes(self._path).values
                known = vector.failing(value, (codes == codes[row]) & ~valid)
            context.decision_cache[self] = known
        return known  # type: ignore[return-value]
