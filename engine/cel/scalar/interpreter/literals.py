"""Literals, and the constants that Kubernetes folds."""

from __future__ import annotations

from functools import partial
from typing import Final

from ...check.call_cost import LIST_COST
from ...check.checked_ast import TypeReference
from ...check.folding import FOLDED
from ...syntax import ast
from ...syntax.ast import Expr
from ...values.values import NONE, EvaluationError, Optional, Uint, key_of, key_value, no_overload, text_of
from ..evaluation import Evaluation, Step
from .builder import StepBuilder

_MAP_COST: Final = 30


def list_literal(builder: StepBuilder, node: ast.ListLiteral) -> Step:
    """Return the step that makes a list."""
    cost = 0 if is_folded(builder, node) else LIST_COST
    steps = tuple((builder.build(each), number in node.optional) for number, each in enumerate(node.elements))
    position = node.position

    def build_list(evaluation: Evaluation) -> object:
        evaluation.charge(cost)
        items = []
        for step, optional in steps:
            value = step(evaluation)
            if not optional:
                items.append(value)
            elif type(value) is not Optional:
                raise no_overload().at(position)
            elif value is not NONE:
                items.append(value.value)
        return items

    return build_list


def map_literal(builder: StepBuilder, node: ast.MapLiteral) -> Step:
    """Return the step that makes a map."""
    cost = 0 if is_folded(builder, node) else _MAP_COST
    steps = tuple(
        (builder.build(each.key), builder.build(each.value), each.optional, each.key.position, each.position)
        for each in node.entries
    )

    doubles = builder.environment.double_keys

    def build_map(evaluation: Evaluation) -> object:
        evaluation.charge(cost)
        entries: dict[object, object] = {}
        for key_step, value_step, optional, key_position, position in steps:
            try:
                key = key_of(key_step(evaluation), doubles=doubles)
            except EvaluationError as error:
                raise error.at(key_position) from None
            value = value_step(evaluation)
            if optional:
                if type(value) is not Optional:
                    raise no_overload().at(position)
                if value is NONE:
                    continue
                value = value.value
            if key in entries:
                raise EvaluationError(
                    f"insert failed: key {text_of(key_value(key))} already exists", offset=key_position,
                )
            entries[key] = value
        return entries

    return build_map


def is_folded(builder: StepBuilder, node: Expr) -> bool:
    """Return whether Kubernetes folds a node when it builds the program: it costs nothing at run time."""
    match node:
        case ast.Literal():
            return True
        case ast.ListLiteral():
            return not node.optional and all(map(partial(is_folded, builder), node.elements))
        case ast.MapLiteral():
            return all(
                not each.optional and is_folded(builder, each.key) and is_folded(builder, each.value)
                for each in node.entries
            )
        case ast.Call(target=None) if node.function in FOLDED:
            return all(map(partial(is_folded, builder), node.args))
        case _:
            return isinstance(builder.references.get(node.id), TypeReference)


def is_folded_set(builder: StepBuilder, node: Expr) -> bool:
    """Return whether Kubernetes folds a list to a set, in which `in` finds a value at no cost."""
    return isinstance(node, ast.ListLiteral) and is_folded(builder, node) and all(map(_is_hashed, node.elements))


def _is_hashed(node: Expr) -> bool:
    """Return whether a constant is a bool, number or string: cel-go makes sets of no others."""
    match node:
        case ast.Literal(value=value):
            return value is not None and not isinstance(value, bytes)
        case ast.Call(target=None, function="dyn", args=[inner]):
            return _is_hashed(inner)
        case _:
            return isinstance(node, ast.Call) and node.function in {"bool", "double", "int", "string", "uint"}


def literal_value(node: ast.Literal) -> object:
    """Return the value of a literal."""
    if node.unsigned:
        return Uint(node.value)  # type: ignore[arg-type]
    return node.value


def is_constant(node: Expr) -> bool:
    """Return whether a node is a literal, or a list or map of literals."""
    match node:
        case ast.Literal():
            return True
        case ast.ListLiteral():
            return not node.optional and all(map(is_constant, node.elements))
        case ast.MapLiteral():
            return all(not each.optional and is_constant(each.key) and is_constant(each.value) for each in node.entries)
        case _:
            return False
