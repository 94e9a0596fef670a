"""Planner: splits an expression into operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..check.analysis import column_path
from ..check.checked_ast import CallReference, Checked, DefinitionReference
from ..check.environment import Scope
from ..syntax.ast import Call, Expr, ListLiteral, Literal
from ..values.types import DYN, INT
from .kinds import KINDS, NUMERIC
from .operators.base import Operator
from .operators.call import CallOperator
from .operators.choice import ChoiceOperator
from .operators.column import ColumnOperator
from .operators.constant import ConstantOperator
from .operators.decision import DecisionOperator
from .operators.distinct import DistinctOperator
from .operators.guard import GuardOperator
from .operators.logic import LogicOperator
from .operators.membership import MembershipOperator
from .operators.unroll import UnrollOperator, unrolls
from .operators.variable import VariableOperator, VariablePlan
from .vectors import OPERATORS, Operand, invert, vectorized

_LONGEST_LIST: Final = 32
_MOST_PARTS: Final = 200
"""The maximum number of parts of one expression: each may become a program of its own."""


class Planner:
    """Planner of one expression."""

    def __init__(
        self, checked: Checked, plan_of: Callable[[Checked], VariablePlan],
        record: Callable[[Expr, Callable[[], Operator]], Operator] | None = None,
    ) -> None:
        """`plan_of` returns the plan of a variable. `record` is called for each node, outermost first, to plan it."""
        self._checked = checked
        self._plan_of = plan_of
        self._split_up: Callable[[Expr], Operator] = self._planned
        """Returns the operator of a node."""
        if record is not None:
            self._split_up = lambda node: record(node, lambda: self._planned(node))
        self._parts = 0
        self.numeric = True
        """True if nothing is evaluated once per distinct input."""
        self.operator = self._guarded(checked.root)

    def _guarded(self, node: Expr) -> Operator:
        part = self._split_up(node)
        if isinstance(part, (CallOperator, MembershipOperator, ColumnOperator, ChoiceOperator)):
            return GuardOperator(self._checked, node, part)
        return part

    def _planned(self, node: Expr) -> Operator:
        """Return the operator of a node, with those of the nodes below it."""
        checked = self._checked
        if checked.scopes[node.id] is not Scope.ROW:
            if isinstance(node, Literal) and not node.unsigned and node.value.__class__ in (bool, int, float):
                return ConstantOperator(node.value)
            return DecisionOperator(checked, node)
        reference = checked.references.get(node.id)
        if isinstance(reference, DefinitionReference):
            plan = self._plan_of(checked.definition(reference.name))
            self.numeric = self.numeric and plan.numeric
            return VariableOperator(plan, node.position)
        path = column_path(checked, node)
        if path is not None:
            kind = KINDS.get(checked.types[node.id], "b")
            return self._distinct(node) if kind == "b" else ColumnOperator(checked, node, path, kind)
        if isinstance(node, Call):
            return self._call(node, reference)
        if unrolls(node, checked):
            self.numeric = False
            return UnrollOperator(checked, node, lambda body: Planner(body, self._plan_of).operator)
        return self._distinct(node)

    def _distinct(self, node: Expr) -> DistinctOperator:
        self.numeric = False
        return DistinctOperator(self._checked, node)

    def _call(self, node: Call, reference: object) -> Operator:
        match node.function:
            case "_&&_" | "_||_":
                terms = _terms(node, node.function)
                self._parts += len(terms)
                if self._parts > _MOST_PARTS:
                    return self._distinct(node)
                return LogicOperator([self._guarded(term) for term in terms], conjunction=node.function == "_&&_")
            case "_?_:_":
                condition, first, second = node.args
                return ChoiceOperator(self._guarded(condition), self._split_up(first), self._split_up(second))
            case "!_":
                return CallOperator(invert, [self._guarded(node.args[0])])
            case "@in":
                numbers = _constant_ints(node.args[1])
                if numbers is not None and self._checked.types[node.args[0].id] in (INT, DYN):
                    return MembershipOperator(self._split_up(node.args[0]), numbers)
            case _:
                pass
        if isinstance(reference, CallReference):
            function = OPERATORS.get(reference.function)
            arguments = node.args if node.target is None or reference.qualified else (node.target, *node.args)
            if function is None:
                function = _by_column(reference)
            if function is not None and all(self._checked.types[each.id] in NUMERIC for each in arguments):
                return CallOperator(function, [self._split_up(each) for each in arguments])
        return self._distinct(node)


def _by_column(reference: CallReference) -> Callable[..., Operand] | None:
    """Return the implementation of a function on columns, if it has one."""
    if len(reference.overloads) != 1:
        return None
    (overload,) = reference.overloads
    kinds = [KINDS.get(each, "?") for each in (*overload.parameters, overload.result)]
    if overload.by_column is None or "?" in kinds:
        return None
    return vectorized(overload.by_column, "".join(kinds))


def _terms(node: Call, function: str) -> list[Expr]:
    """Return the operands of a chain of one operator, left to right."""
    found: list[Expr] = []
    rest: list[Expr] = [node]
    while rest:
        each = rest.pop()
        if isinstance(each, Call) and each.function == function:
            rest += [each.args[1], each.args[0]]
        else:
            found.append(each)
    return found


def _constant_ints(node: Expr) -> tuple[int, ...] | None:
    """Return the numbers of a list of literal ints, None for any other node."""
    if not isinstance(node, ListLiteral) or node.optional or len(node.elements) > _LONGEST_LIST:
        return None
    numbers = [each.value for each in node.elements if isinstance(each, Literal) and not each.unsigned]
    if len(numbers) != len(node.elements) or not all(number.__class__ is int for number in numbers):
        return None
    return tuple(numbers)  # type: ignore[arg-type]
