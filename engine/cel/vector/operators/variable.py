"""Variables of a document: `variables.x`."""

from __future__ import annotations

from typing import ClassVar, Final, Protocol

from ...check.checked_ast import Path
from ...values.values import EvaluationError
from ..bound_plan import BoundPlan
from ..codegen import Term, Writing
from ..context import VectorContext
from ..frame import Frame
from ..vectors import ErrorColumn, Operand, Vector
from .base import Operator, Rank, RowStrategy

_READS: Final = "reads"


class VariablePlan(Protocol):
    """The plan of a variable, as used by expressions that read it."""

    kind: str
    numeric: bool
    operator: Operator

    def operand(self, context: VectorContext, /) -> Operand:
        """Return the operand of the variable in all rows."""
        ...

    def is_fused(self) -> bool:
        """Return whether there is a generated function for the whole variable."""
        ...

    def bind(self, frame: Frame, /) -> BoundPlan | None:
        """Return the plan bound to this frame's CONSTANT and DECISION variables."""
        ...


class VariableOperator:
    """`variables.x`: evaluated once per decision, however many expressions read it."""

    __slots__ = ("_plan", "_position")
    strategy: ClassVar[RowStrategy] = RowStrategy.VARIABLE
    rank: ClassVar[Rank] = Rank.COLUMN

    def __init__(self, plan: VariablePlan, position: int) -> None:
        self._plan = plan
        self._position = position

    def run(self, context: VectorContext) -> Operand:
        operands = context.operands
        operand = operands.get(self._plan)
        if operand is None:
            operand = operands[self._plan] = self._plan.operand(context)
        # The definition's own error has a place in another text: here it is that of the name.
        if isinstance(operand, ErrorColumn):
            return ErrorColumn(self._here(operand.error), operand.rows)
        if isinstance(operand, Vector) and operand.error is not None:
            return operand.failing(self._here(operand.error), operand.failed)
        return operand  # type: ignore[return-value]

    def bind(self, frame: Frame) -> BoundPlan | None:
        """Return the bound plan of the variable."""
        return self._plan.bind(frame)

    def fuse(self, writing: Writing) -> Term:
        # Ints have the bounds of the actual values, which are narrower than those of the expression.
        if self._plan.kind == "f" and self._plan.is_fused():
            return writing.definition(self._plan.operator)
        return writing.input(self, self._plan.kind, is_array=True)

    def reads(self, context: VectorContext) -> frozenset[Path]:
        cache, key = context.decision_cache, (_READS, self._plan)
        found = cache.get(key)
        if found is None:
            found = cache[key] = self._plan.operator.reads(context)
        return found  # type: ignore[return-value]

    def _here(self, error: EvaluationError) -> EvaluationError:
        return EvaluationError(error.message, offset=self._position, reason=error.reason)
