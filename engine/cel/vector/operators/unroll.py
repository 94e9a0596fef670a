"""Loops over a few strings that are the same for all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import ClassVar, Final, TypeGuard

from ...check.checked_ast import Checked, Path
from ...check.environment import Scope
from ...check.substitution import looks_up, with_text
from ...syntax.ast import Comprehension, Expr, Macro
from ...values.values import EvaluationError
from ..codegen import CannotFuse, Term, Writing
from ..context import VectorContext
from ..vectors import Operand
from .base import Operator, Rank, RowStrategy
from .decision import DecisionOperator
from .distinct import DistinctOperator
from .logic import LogicOperator

_MOST_TEXTS: Final = 16
"""Most iterations of a loop that is unrolled."""
_MOST_BODIES: Final = 256


class UnrollOperator:
    """`all` or `exists` over strings that are the same for all rows: a chain of `&&` or `||` with a term for each."""

    __slots__ = ("_bodies", "_checked", "_conjunction", "_loop", "_otherwise", "_plan", "_range")
    strategy: ClassVar[RowStrategy] = RowStrategy.COLUMN
    rank: ClassVar[Rank] = Rank.COLUMN

    def __init__(self, checked: Checked, loop: Comprehension, plan: Callable[[Checked], Operator]) -> None:
        """`plan` makes the operator of the body."""
        self._checked = checked
        self._loop = loop
        self._plan = plan
        self._conjunction = loop.macro is Macro.ALL
        self._range = DecisionOperator(checked, loop.range)
        self._otherwise = DistinctOperator(checked, loop)
        self._bodies: dict[str, Operator] = {}
        """The operator of the body by string, cached: the strings of few selectors repeat."""

    def run(self, context: VectorContext) -> Operand:
        value = self._range.value(context)
        if isinstance(value, EvaluationError):
            return self._range.run(context)
        if not isinstance(value, list | Mapping):
            return self._otherwise.run(context)
        items: Iterable[object] = value
        texts = [item for item in islice(items, _MOST_TEXTS + 1) if isinstance(item, str)]
        if len(texts) > _MOST_TEXTS or len(texts) < len(value):
            return self._otherwise.run(context)
        if not texts:
            return self._conjunction
        return LogicOperator([self._body(text) for text in texts], conjunction=self._conjunction).run(context)

    def fuse(self, _: Writing) -> Term:
        raise CannotFuse

    def reads(self, context: VectorContext) -> frozenset[Path]:
        return self._otherwise.reads(context)

    def _body(self, text: str) -> Operator:
        part = self._bodies.get(text)
        if part is None:
            if len(self._bodies) >= _MOST_BODIES:
                self._bodies.clear()
            part = self._bodies[text] = self._plan(with_text(self._checked, self._loop, text))
        return part


def unrolls(node: Expr, checked: Checked) -> TypeGuard[Comprehension]:
    """Return whether a loop is evaluated as a chain of terms, one for each string."""
    return (
        isinstance(node, Comprehension) and node.macro in (Macro.ALL, Macro.EXISTS) and node.variable2 is None
        and checked.scopes[node.range.id] is not Scope.ROW and looks_up(checked, node)
    )
