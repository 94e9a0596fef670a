"""The interpreter: every node, every error, every unit of cost.

A checked tree becomes closures over one `Evaluation`. They are complete rather than fast: the functions of `codegen`
compute the ordinary case and fall back to the interpreter for everything else (errors and their absorption, unusual
kinds, budgets). Only the interpreter defines errors and their places.

Values that an expression *reads* (a variable, a field, an element, an iterated key) are checked against their declared
type when they are read: API objects come from a cluster and may be malformed. Computed values are trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from ...check.checked_ast import (
    Checked,
    DefinitionReference,
    LocalReference,
    TypeReference,
    VariableReference,
)
from ...syntax import ast
from ...syntax.ast import Expr
from ...values.types import Type
from ...values.values import EvaluationError
from ..budget import EXACTLY, Meter
from ..evaluation import Evaluation, Step
from .builder import StepBuilder, failing
from .calls import call
from .literals import list_literal, literal_value, map_literal
from .loops import comprehension
from .reads import field, presence
from .variables import bind, definition, local, optional_map, variable

Decorate: TypeAlias = Callable[[Checked, Expr, Step], Step]
"""Returns a replacement of a node's step, in the expression or in one of its definitions; for tracing."""


class Interpreter:
    """Interpreter of one checked expression. Immutable once built; any number of evaluations may run at a time."""

    __slots__ = ("_slots", "_step", "checked")

    def __init__(self, checked: Checked, *, decorate: Decorate | None = None) -> None:
        self.checked = checked
        builder = _Builder(checked, decorate)
        self._step = builder.build(checked.root)
        self._slots = builder.slots

    def evaluate(
        self, bindings: Mapping[str, object], limit: float = math.inf, meter: Meter | None = None,
    ) -> tuple[object, int]:
        """Return value and cost; raise `EvaluationError` with the offset of the node that failed.

        `limit` bounds the cost. `meter` counts it, also that of an evaluation that fails.
        """
        evaluation = Evaluation(bindings, limit, self._slots, self.checked)
        try:
            value = self._step(evaluation)
        except RecursionError:
            raise EvaluationError("the expression is nested too deeply", offset=self.checked.root.position) from None
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
            # Only for inputs that are not plain data (a mapping class with errors of its own).
            raise EvaluationError("an input is not plain data", offset=self.checked.root.position) from None
        finally:
            if meter is not None:
                # An operation that was refused because of its cost did not run.
                cost, turns = evaluation.cost, evaluation.turns
                meter.spent += EXACTLY * int((min(limit, cost)) + (min(limit, turns)))
        return value, evaluation.cost

    def within(self, outer: Evaluation) -> object:
        """Return the value as a part of another evaluation: same inputs, same budget, same definitions."""
        evaluation = Evaluation(outer.bindings, outer.limit, self._slots, self.checked)
        evaluation.cost, evaluation.turns, evaluation.definitions = outer.cost, outer.turns, outer.definitions
        try:
            return self._step(evaluation)
        finally:
            outer.cost, outer.turns = evaluation.cost, evaluation.turns


class _Builder(StepBuilder):
    """Builder that builds each kind of node by the module for it."""

    def __init__(self, checked: Checked, decorate: Decorate | None = None) -> None:
        super().__init__(checked)
        self._decorate = decorate

    def build(self, node: Expr) -> Step:
        step = self._build(node)
        return step if self._decorate is None else self._decorate(self.checked, node, step)

    def definition(self, name: str) -> tuple[Checked, Step]:
        checked = self.checked.definition(name)
        return checked, interpreter_of(checked, self._decorate).within

    def _build(self, node: Expr) -> Step:
        reference = self.references.get(node.id)
        match reference:
            case VariableReference(name=name):
                return variable(self, name, node)
            case LocalReference(name=name):
                return local(self, name)
            case DefinitionReference(name=name):
                return definition(self, name, node)
            case TypeReference(type=of):
                value = Type(of.name)
                return lambda _: value
            case _:
                pass
        match node:
            case ast.Literal():
                constant = literal_value(node)
                return lambda _: constant
            case ast.Select(test=True):
                return presence(self, node)
            case ast.Select():
                return field(self, node)
            case ast.Call():
                return call(self, node)
            case ast.ListLiteral():
                return list_literal(self, node)
            case ast.MapLiteral():
                return map_literal(self, node)
            case ast.Comprehension():
                return comprehension(self, node)
            case ast.Bind():
                return bind(self, node)
            case ast.OptionalMap():
                return optional_map(self, node)
            case _:
                text = self.checked.source.text[node.start : node.end]
                return failing(f"`{text}` cannot be evaluated", node.position)


def interpreter_of(checked: Checked, decorate: Decorate | None = None) -> Interpreter:
    """Return the interpreter of a checked expression; cached, as definitions are shared by many expressions.

    Built for each mention, a chain of n definitions that each mention the one before twice would take 2^n.
    """
    key = Interpreter if decorate is None else decorate
    found = checked.plans.get(key)
    if not isinstance(found, Interpreter):
        found = checked.plans[key] = Interpreter(checked, decorate=decorate)
    return found
