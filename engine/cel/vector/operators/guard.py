"""Numeric operators with dictionary-encoded evaluation as fallback."""

from __future__ import annotations

from typing import ClassVar

from ...check.checked_ast import Checked, Path
from ...syntax.ast import Expr
from ..codegen import Term, Writing
from ..context import VectorContext
from ..vectors import NotColumnar, Operand
from .base import Operator, Rank, RowStrategy
from .distinct import DistinctOperator


class GuardOperator:
    """A numeric operator with a fallback: if values are no numbers, one evaluation per distinct input."""

    __slots__ = ("_checked", "_node", "_otherwise", "part")
    strategy: ClassVar[RowStrategy] = RowStrategy.COLUMN
    rank: ClassVar[Rank] = Rank.COLUMN

    def __init__(self, checked: Checked, node: Expr, part: Operator) -> None:
        self._checked = checked
        self._node = node
        self.part = part
        self._otherwise: DistinctOperator | None = None

    def run(self, context: VectorContext) -> Operand:
        try:
            return self.part.run(context)
        except NotColumnar:
            if self._otherwise is None:
                self._otherwise = DistinctOperator(self._checked, self._node)
            return self._otherwise.run(context)

    def fuse(self, writing: Writing) -> Term:
        return self.part.fuse(writing)

    def reads(self, context: VectorContext) -> frozenset[Path]:
        return self.part.reads(context)
