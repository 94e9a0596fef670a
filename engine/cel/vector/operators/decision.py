"""Parts that read no row: one value for all rows."""

from __future__ import annotations

from typing import ClassVar

from ...check.checked_ast import Checked, Path
from ...syntax.ast import Expr
from ...values.values import EvaluationError
from ..codegen import Term, Writing
from ..context import VectorContext
from ..dictionary import UNEVALUATED
from ..kinds import KINDS
from ..scalar_fallback import ScalarFallback
from ..vectors import UNKNOWN, ErrorColumn, Operand
from .base import NO_PATHS, Rank, RowStrategy


class DecisionOperator:
    """A part that reads no row, evaluated once per decision."""

    __slots__ = ("_fallback", "_kind")
    strategy: ClassVar[RowStrategy] = RowStrategy.DECISION
    rank: ClassVar[Rank] = Rank.DECISION

    def __init__(self, checked: Checked, node: Expr) -> None:
        self._fallback = ScalarFallback(checked, node)
        self._kind = KINDS.get(checked.types[node.id], "O")

    def value(self, context: VectorContext) -> object:
        """Return the value or the error."""
        cache = context.decision_cache
        value = cache.get(self, UNEVALUATED)
        if value is UNEVALUATED:
            value = cache[self] = self._fallback.once(context.frame)
        return value

    def run(self, context: VectorContext) -> Operand:
        value = self.value(context)
        if isinstance(value, EvaluationError):
            return UNKNOWN if value.final else ErrorColumn(value)
        return value  # type: ignore[return-value]

    def fuse(self, writing: Writing) -> Term:
        return writing.input(self, self._kind, is_array=False)

    def reads(self, _: VectorContext) -> frozenset[Path]:
        return NO_PATHS
