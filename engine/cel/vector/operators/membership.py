"""`x in [1, 2, 3]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ...check.checked_ast import Path
from ..codegen import Term, Writing
from ..context import VectorContext
from ..vectors import ErrorColumn, Operand, Unknown, Vector, within
from .base import Operator, Rank, RowStrategy


class MembershipOperator:
    """`x in [1, 2, 3]`."""

    __slots__ = ("_item", "_numbers")
    strategy: ClassVar[RowStrategy] = RowStrategy.COLUMN
    rank: ClassVar[Rank] = Rank.COLUMN

    def __init__(self, item: Operator, numbers: Sequence[int]) -> None:
        self._item = item
        self._numbers = numbers

    def run(self, context: VectorContext) -> Operand:
        item = self._item.run(context)
        if isinstance(item, ErrorColumn | Unknown):
            return item
        found = within(item, self._numbers)
        if isinstance(item, Vector) and isinstance(found, Vector) and item.error is not None:
            return found.failing(item.error, item.failed)
        return found

    def fuse(self, writing: Writing) -> Term:
        return writing.within(self._item, self._numbers)

    def reads(self, context: VectorContext) -> frozenset[Path]:
        return self._item.reads(context)
