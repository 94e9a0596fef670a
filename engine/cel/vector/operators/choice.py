"""`condition ? a : b`."""

from __future__ import annotations

from typing import ClassVar

from ...check.checked_ast import Path
from ..codegen import Term, Writing
from ..context import VectorContext
from ..vectors import UNKNOWN, ErrorColumn, Operand, Vector, choose
from .base import Operator, Rank, RowStrategy, union_of_reads


class ChoiceOperator:
    """`condition ? a : b`; a branch that no row takes is not evaluated."""

    __slots__ = ("_condition", "_first", "_second")
    strategy: ClassVar[RowStrategy] = RowStrategy.COLUMN
    rank: ClassVar[Rank] = Rank.COLUMN

    def __init__(self, condition: Operator, first: Operator, second: Operator) -> None:
        self._condition = condition
        self._first = first
        self._second = second

    def run(self, context: VectorContext) -> Operand:
        condition = self._condition.run(context)
        if condition is True:
            return self._first.run(context)
        if condition is False:
            return self._second.run(context)
        if isinstance(condition, ErrorColumn):
            return condition
        if not isinstance(condition, Vector) or condition.values.dtype.kind != "b":
            return UNKNOWN
        if condition.valid is None:
            if condition.values.all():
                return self._first.run(context)
            if not condition.values.any():
                return self._second.run(context)
        return choose(condition, self._first.run(context), self._second.run(context))

    def fuse(self, writing: Writing) -> Term:
        return writing.choose(self._condition, self._first, self._second)

    def reads(self, context: VectorContext) -> frozenset[Path]:
        parts = [self._condition, self._first, self._second]
        if self._condition.rank <= Rank.DECISION:
            taken = self._condition.run(context)
            parts = [self._first] if taken is True else [self._second] if taken is False else parts
        return union_of_reads(parts, context)
