"""Calls of functions with an implementation on columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from ...check.checked_ast import Path
from ...values.values import EvaluationError
from ..codegen import Term, Writing
from ..context import VectorContext
from ..vectors import UNKNOWN, ErrorColumn, Mask, Operand, Vector, and_masks
from .base import Operator, Rank, RowStrategy, union_of_reads


class CallOperator:
    """A call of a function with an implementation on columns."""

    __slots__ = ("_arguments", "_function")
    strategy: ClassVar[RowStrategy] = RowStrategy.COLUMN
    rank: ClassVar[Rank] = Rank.COLUMN

    def __init__(self, function: Callable[..., Operand], arguments: Sequence[Operator]) -> None:
        self._function = function
        self._arguments = arguments

    def run(self, context: VectorContext) -> Operand:
        operands = [part.run(context) for part in self._arguments]
        error: EvaluationError | None = None
        failed: Mask | None = None
        certain: Mask | None = None
        some = False
        for operand in operands:
            if isinstance(operand, Vector):
                some = True
                if operand.valid is not None:
                    if error is None and operand.error is not None:
                        # The leftmost error is the result if all operands left of it have a value.
                        error, failed = operand.error, and_masks(certain, operand.failed)
                    certain = and_masks(certain, operand.valid)
            elif isinstance(operand, ErrorColumn):
                return ErrorColumn(operand.error, and_masks(certain, operand.rows))
            elif operand is UNKNOWN:
                return UNKNOWN if error is None else ErrorColumn(error, failed)
        if not some:  # both branches of a condition may be equal for all rows
            operands[0] = Vector.full(context.size, operands[0])
        result = self._function(*operands)
        return result if error is None or not isinstance(result, Vector) else result.failing(error, failed)

    def fuse(self, writing: Writing) -> Term:
        return writing.call(self._function, self._arguments)

    def reads(self, context: VectorContext) -> frozenset[Path]:
        return union_of_reads(self._arguments, context)
