"""A literal."""

from __future__ import annotations

from typing import Any, ClassVar

from ...check.checked_ast import Path
from ..codegen import Term, Writing
from ..context import VectorContext
from ..vectors import Operand
from .base import NO_PATHS, Rank, RowStrategy


class ConstantOperator:
    """A literal."""

    __slots__ = ("_value",)
    strategy: ClassVar[RowStrategy] = RowStrategy.CONSTANT
    rank: ClassVar[Rank] = Rank.CONSTANT

    def __init__(self, value: Any) -> None:
        self._value: Operand = value

    def run(self, _: VectorContext) -> Operand:
        return self._value

    def fuse(self, writing: Writing) -> Term:
        return writing.constant(self._value)

    def reads(self, _: VectorContext) -> frozenset[Path]:
        return NO_PATHS
