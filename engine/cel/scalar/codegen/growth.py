"""Bounds of time and size: which calls count against the meter, and of how many parts a value may be made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ...check.checked_ast import CallReference, DefinitionReference, LocalReference, VariableReference
from ...check.environment import PLAIN, Overload, Scope
from ...syntax import ast
from ...syntax.ast import Expr, Macro
from ...values.traversal import nothing, texts
from ...values.types import BYTES, STRING, Type
from . import python_nodes as py
from . import python_tree as tree
from .runtime import LOOP_LIMIT
from .writer import FunctionWriter

_SHALLOW: Final = (None, nothing)
_BY_LENGTH: Final = (None, nothing, texts)
"""The steps of calls whose time is at most in proportion to the length of their strings."""
_CONTAINERS: Final = frozenset({"dyn", "list", "map", "optional_type", "*error*", "any"})
_GROWING: Final = frozenset({STRING.name, BYTES.name, "list"})


def _counts_texts(overload: Overload) -> bool:
    """Return whether the time of a call is not bounded by its strings' length: a short pattern may have many states."""
    return overload.walk not in _BY_LENGTH and all(each.name in PLAIN for each in overload.parameters)


def _is_superlinear(overload: Overload) -> bool:
    """Return whether a call may take longer than in proportion to its arguments."""
    return overload.measure is not None or overload.cost.product or overload.result_steps is not None


def metered_call(
    writer: FunctionWriter, evaluate: Callable[..., object], overloads: tuple[Overload, ...], nodes: Sequence[Expr],
) -> Callable[..., object]:
    """Return the implementation of a call of some nodes, metered if it may take long or make a large value.

    Outside of loops, calls on values that are read need no meter: objects and expressions are bounded in size.
    """
    holds = any(each.walk not in _SHALLOW for each in overloads) and any(
        _is_container(writer, writer.type_of(each)) for each in nodes)
    sized = any(each.cost.per_size or each.walk is texts for each in overloads)
    grows = any(each.result.name in _GROWING for each in overloads) and any(_is_made(writer, each) for each in nodes)
    walks = any(map(_counts_texts, overloads)) and any(_varies(writer, each) for each in nodes[1:])
    if not (
        (writer.loops and (sized or holds or grows)) or any(map(_is_superlinear, overloads)) or grows
        or (holds and any(shares(writer, each) for each in nodes)) or walks
    ):
        return evaluate
    writer.any_bounded = True
    return writer.metered.call(evaluate, overloads, holds=holds, walks=walks)


def _is_container(writer: FunctionWriter, of: Type) -> bool:
    """Return whether values of a type may contain others."""
    return of.variable or of.name in _CONTAINERS or of.name in writer.checked.environment.types


def _varies(writer: FunctionWriter, node: Expr) -> bool:
    """Return whether a value may differ between the calls of one decision: it is computed, or read of a row."""
    return not isinstance(node, ast.Literal) and (
        writer.checked.scopes[node.id] is Scope.ROW or _is_made(writer, node))


def _is_made(writer: FunctionWriter, node: Expr) -> bool:
    """Return whether a value is computed by the expression: neither read nor a literal."""
    reference = writer.checked.references.get(node.id)
    if isinstance(reference, DefinitionReference | LocalReference):
        return True
    if isinstance(node, ast.Select) and not node.test:
        return _is_made(writer, node.operand)
    if isinstance(node, ast.Call) and node.function == "_[_]":
        return _is_made(writer, node.args[0])
    return isinstance(reference, CallReference) or (reference is None and not isinstance(node, ast.Literal))


def shares(writer: FunctionWriter, node: Expr) -> bool:
    """Return whether a value may contain a part more than once, and so be larger than its parts."""
    if not _is_container(writer, writer.type_of(node)):
        return False
    match writer.checked.references.get(node.id):
        case VariableReference():
            return False
        case LocalReference(name=name):
            return writer.sharing.get(writer.locals.get(name, ""), True)
        case DefinitionReference(name=name):
            definition = writer.checked.definition(name)
            with writer.inside(definition):
                return shares(writer, definition.root)
        case _:
            pass
    match node:
        case ast.Select():
            return shares(writer, node.operand)
        case ast.ListLiteral():
            return any(_is_container(writer, writer.type_of(each)) for each in node.elements)
        case ast.MapLiteral():
            return any(_is_container(writer, writer.type_of(each.value)) for each in node.entries)
        case ast.Comprehension(macro=Macro.FILTER):
            return shares(writer, node.range)
        case ast.Comprehension(transform=transform):
            return transform is not None and _is_container(writer, writer.type_of(transform))
        case ast.Call(function="_?_:_"):
            return shares(writer, node.args[1]) or shares(writer, node.args[2])
        case ast.Call(target=target, args=arguments):
            # A qualified function's target is a part of its name, and has no type.
            has_type = target is not None and target.id in writer.checked.types
            values = (target, *arguments) if target is not None and has_type else arguments
            return any(shares(writer, each) for each in values)
        case ast.Literal():
            return False
        case _:
            return True


def joined_of(writer: FunctionWriter, node: Expr) -> int:
    """Return the most strings or lists, each read or bounded when it is made, that a value is joined of."""
    match writer.checked.references.get(node.id):
        case LocalReference(name=name):
            return writer.lengths.get(writer.locals.get(name, ""), 1)
        case DefinitionReference(name=name):
            definition = writer.checked.definition(name)
            found = writer.joins.get(definition)
            if found is None:
                with writer.inside(definition):
                    found = writer.joins[definition] = joined_of(writer, definition.root)
            return found
        case _:
            pass
    match node:
        case ast.Call(function="_+_"):
            return sum(map(partial(joined_of, writer), node.args))
        case ast.Comprehension() | ast.Bind():
            # The value of a local counts once for each part that it is joined of.
            return math.prod(map(partial(joined_of, writer), ast.children(node)))
        case _:
            return max(map(partial(joined_of, writer), ast.children(node)), default=1)


def count_turns(writer: FunctionWriter, items: str, units: int) -> None:
    """Generate the bound of all loops: the iterations over a list or map, of a number of units each."""
    count: py.expr = tree.call("len", tree.name(items))
    if units > 1:
        count = py.BinOp(count, py.Mult(), tree.constant(units))
    if writer.any_loop:
        count = py.BinOp(tree.name("turns"), py.Add(), count)
    writer.any_loop = True  # the first loop in the text is also the first that runs
    writer.block.append(tree.assign("turns", count))
    writer.block.append(
        py.If(tree.compare(tree.name("turns"), py.Gt, tree.constant(LOOP_LIMIT)), [py.Expr(tree.GIVE_UP)], []),
    )
