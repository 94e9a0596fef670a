"""Calls of operators and functions, and their cost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from ...check.call_cost import (
    FUNCTION_COSTS,
    PRICED_AS_FIRST,
    PRICED_BY_OVERLOAD,
    call_cost,
    one_unit,
    size_of,
)
from ...check.checked_ast import CallReference
from ...check.dispatch import choose
from ...check.environment import PLAIN, Overload
from ...syntax import ast
from ...syntax.ast import Expr
from ...values.traversal import nothing, result_size
from ...values.types import BYTES, STRING
from ...values.values import NONE, EvaluationError, Optional, Uint, no_overload
from ..evaluation import Evaluation, Step
from ..list_types import LIST_OPERATORS, list_field, listed_walk
from .builder import StepBuilder, failing
from .literals import is_folded, is_folded_set
from .logic import conditional, logic
from .reads import element

_SHALLOW: Final = (None, nothing)
_EQUALITY: Final = frozenset({"_==_", "_!=_"})
_PAIRED: Final = _EQUALITY | {"@in"}
_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes, Uint})
_BUILT: Final = frozenset({STRING.name, BYTES.name, "list", "map"})
"""Types of results whose size is counted: Kubernetes' units include it for few functions only."""


def call(builder: StepBuilder, node: ast.Call) -> Step:
    """Return the step of a call: of an operator with steps of its own, or of a function."""
    return _OPERATORS.get(node.function, _function)(builder, node)


def _function(builder: StepBuilder, node: ast.Call) -> Step:
    reference = builder.references.get(node.id)
    position = node.position
    if not isinstance(reference, CallReference):
        return failing("no such overload", position)
    arguments_nodes = node.args if node.target is None or reference.qualified else (node.target, *node.args)
    lazy = _LAZY.get(reference.overloads[0].id)
    if lazy is not None:
        return lazy(builder, arguments_nodes)
    steps = tuple(builder.build(each) for each in arguments_nodes)
    overloads, objects = reference.overloads, builder.environment.types
    declared = list_field(builder.checked, node)
    special = None if declared is None else LIST_OPERATORS[reference.function](declared)
    priced = FUNCTION_COSTS.get(overloads[0].id) or FUNCTION_COSTS.get(reference.function)
    only = overloads[0] if len(overloads) == 1 and _is_certain(builder, arguments_nodes, overloads[0]) else None
    if len(overloads) > 1 and reference.function in PRICED_BY_OVERLOAD:
        priced = one_unit
    elif len(overloads) > 1 and reference.function in PRICED_AS_FIRST:
        priced = partial(call_cost, overloads[0])
    # cel-go joins lists lazily, and does not charge joining values of unknown types.
    joins = reference.function == "_+_" and (len(overloads) > 1 or any(each.id == "add_list" for each in overloads))
    free = is_folded(builder, node) or (node.function == "@in" and is_folded_set(builder, arguments_nodes[1]))
    walks = special is not None or any(each.walk not in _SHALLOW for each in overloads)
    if walks and reference.function in _PAIRED and not _may_be_large(builder, reference.function, arguments_nodes):
        walks = False
    compares = reference.function in _EQUALITY  # the cost of strings is counted
    builds = joins or any(each.result.name in _BUILT for each in overloads)
    unpriced = priced is one_unit

    def apply(evaluation: Evaluation) -> object:
        try:
            arguments = tuple([step(evaluation) for step in steps])
        except EvaluationError:
            evaluation.cost += 1
            raise
        try:
            overload = only if only is not None else choose(overloads, arguments, objects)
            if not free:
                evaluation.charge(call_cost(overload, arguments) if priced is None else priced(arguments))
            if walks and not (compares and arguments[0].__class__ in _ATOMS):
                walk = overload.walk if special is None else listed_walk
                if walk is not None:
                    evaluation.turn(walk(*arguments))
            elif unpriced:
                evaluation.turn(sum(map(result_size, arguments)))
            value = overload.evaluate(*arguments) if special is None else special(*arguments)
            if builds:
                evaluation.turn(size_of(value) if joins else result_size(value))
                if overload.result_steps is not None:
                    evaluation.turn(overload.result_steps(value, *arguments))
        except EvaluationError as error:
            raise error.at(position) from None
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
            # A list(int) of a malformed object may contain anything.
            raise no_overload().at(position) from None
        return value

    return apply


def _may_be_large(builder: StepBuilder, function: str, nodes: tuple[Expr, ...]) -> bool:
    """Return whether comparing two values, or one with the elements of a list, may take longer than its cost."""
    if function == "@in":
        return builder.types[nodes[0].id].name not in PLAIN and not is_folded_set(builder, nodes[1])
    return all(builder.types[each.id].name not in PLAIN for each in nodes)


def _is_certain(builder: StepBuilder, nodes: tuple[Expr, ...], overload: Overload) -> bool:
    """Return whether the arguments' static types alone prove that the overload fits."""
    for node, parameter in zip(nodes, overload.parameters, strict=True):
        if parameter.variable or parameter.name == "dyn":
            continue
        known = builder.types[node.id]
        if known.name != parameter.name or known.variable:
            return False
    return True


def _or_value(builder: StepBuilder, nodes: tuple[Expr, ...]) -> Step:
    target, default = (builder.build(each) for each in nodes)

    def or_value(evaluation: Evaluation) -> object:
        held = target(evaluation)
        if held is NONE:
            return default(evaluation)
        return held.value if type(held) is Optional else held  # as in cel-go, where nothing else is tested

    return or_value


def _or(builder: StepBuilder, nodes: tuple[Expr, ...]) -> Step:
    target, other = (builder.build(each) for each in nodes)

    def or_(evaluation: Evaluation) -> object:
        held = target(evaluation)
        return other(evaluation) if held is NONE else held  # as in cel-go, where nothing else is tested

    return or_


_OPERATORS: Final[dict[str, Callable[[StepBuilder, ast.Call], Step]]] = {
    "_&&_": partial(logic, decisive=False),
    "_||_": partial(logic, decisive=True),
    "_?_:_": conditional,
    "_[_]": partial(element, optional=False),
    "_[?_]": partial(element, optional=True),
}
_LAZY: Final[dict[str, Callable[[StepBuilder, tuple[Expr, ...]], Step]]] = {
    "optional_orValue_value": _or_value, "optional_or_optional": _or,
}
"""Functions that evaluate only the arguments that they need."""
