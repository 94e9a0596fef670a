"""Variables: of the environment, of loops and binds, and definitions."""

from __future__ import annotations

from typing import Final

from ...syntax import ast
from ...syntax.ast import Expr
from ...values.values import NONE, EvaluationError, Optional, no_overload
from ..evaluation import Evaluation, Step
from .builder import StepBuilder

_MISSING: Final = object()
_UNSET: Final = object()


def variable(builder: StepBuilder, name: str, node: Expr) -> Step:
    """Return the step that reads a variable of the environment."""
    read = builder.reader(node)
    position = node.position

    def read_variable(evaluation: Evaluation) -> object:
        evaluation.cost += 1
        value = evaluation.bindings.get(name, _MISSING)
        if value is _MISSING:
            raise EvaluationError(f"no value for variable `{name}`", offset=position)
        if read is None:
            return value
        try:
            return read(value)
        except EvaluationError as error:
            raise error.at(position) from None

    return read_variable


def local(builder: StepBuilder, name: str) -> Step:
    """Return the step that reads the variable of a loop, a bind or an optional map."""
    slot, lazy = builder.scope[name]
    if not lazy:

        def read_local(evaluation: Evaluation) -> object:
            evaluation.cost += 1
            return evaluation.locals[slot]

        return read_local

    def lazy_local(evaluation: Evaluation) -> object:
        evaluation.cost += 1
        held = evaluation.locals[slot]
        if isinstance(held, _Lazy | _Again):
            held = held.evaluate(evaluation)
            evaluation.locals[slot] = held
        if type(held) is EvaluationError:
            raise held
        return held

    return lazy_local


def definition(builder: StepBuilder, name: str, node: Expr) -> Step:
    """Return the step that reads a definition, which an evaluation evaluates at most once."""
    checked, step = builder.definition(name)
    position = node.position

    def read_definition(evaluation: Evaluation) -> object:
        evaluation.cost += 1
        held = evaluation.definitions.get(checked, _UNSET)
        if held is _UNSET:
            try:
                held = step(evaluation)
            except EvaluationError as error:
                if error.final:
                    raise
                held = error
            evaluation.definitions[checked] = held
        if isinstance(held, EvaluationError):
            # The definition's own error has a place in another text: here it is that of the name.
            raise EvaluationError(held.message, offset=position, reason=held.reason)
        return held

    return read_definition


def bind(builder: StepBuilder, node: ast.Bind) -> Step:
    """Return the step of `cel.bind`, whose variable is evaluated where it is read first."""
    init = builder.build(node.init)
    with builder.inner_scope():
        slot = builder.declare(node.variable, lazy=True)
        body = builder.build(node.body)
    lazy = _Lazy(init)

    def run(evaluation: Evaluation) -> object:
        evaluation.turn()
        evaluation.locals[slot] = lazy
        return body(evaluation)

    return run


def optional_map(builder: StepBuilder, node: ast.OptionalMap) -> Step:
    """Return the step of `optMap` or `optFlatMap`."""
    target = builder.build(node.target)
    with builder.inner_scope():
        slot = builder.declare(node.variable, lazy=True)
        body = builder.build(node.body)
    position, flat = node.position, node.flat

    def run(evaluation: Evaluation) -> object:
        before = evaluation.cost
        held = target(evaluation)
        again = evaluation.cost - before
        evaluation.charge(1)
        if type(held) is not Optional:
            raise no_overload().at(position)
        if held is NONE:
            evaluation.charge(1)
            return NONE
        # The macro's expansion evaluates its target once more, where the variable is read.
        evaluation.locals[slot] = _Again(held.value, again + 1)
        value = body(evaluation)
        if not flat:
            evaluation.charge(1)
            return Optional(value)
        return value  # as in cel-go, which tests only the type that the checker knows

    return run


class _Lazy:
    """The initial value of a bind, not evaluated yet."""

    __slots__ = ("_step",)

    def __init__(self, step: Step) -> None:
        self._step = step

    def evaluate(self, evaluation: Evaluation) -> object:
        """Return the value, or the error in its place."""
        try:
            return self._step(evaluation)
        except EvaluationError as error:
            if error.final:
                raise
            return error


class _Again:
    """A computed value, and the cost of computing it again."""

    __slots__ = ("_units", "_value")

    def __init__(self, value: object, units: int) -> None:
        self._value = value
        self._units = units

    def evaluate(self, evaluation: Evaluation) -> object:
        """Return the value; charge for it."""
        evaluation.charge(self._units)
        return self._value
