"""Ranges of ints, by which checks of 64 bits are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...check.checked_ast import CallReference
from ...check.environment import Overload
from ...library.core import CORE, divide_int
from ...syntax import ast
from ...syntax.ast import Expr
from ...values.values import INT64_MAX, INT64_MIN
from .writer import FunctionWriter

STANDARD: Final = {overload.id: overload for function in CORE for overload in function.overloads}
"""The overloads of the standard library, which an environment may replace by others of the same identifiers."""


def leave_unchecked(writer: FunctionWriter, overload: Overload | None, nodes: tuple[Expr, ...]) -> None:
    """Record a value that needs no range check: a number times a literal fits only if the number itself does.

    (Except times -1: the lowest int has no counterpart.)
    """
    if overload is not STANDARD["multiply_int64"]:
        return
    for node, other in (nodes, nodes[::-1]):
        if isinstance(node, ast.Literal) and type(node.value) is int and node.value > 0:
            writer.unchecked.add(id(other))


def range_of(writer: FunctionWriter, node: Expr) -> tuple[int, int] | None:
    """Return bounds of an int, None if none are known.

    A number that is read may have more than 64 bits; computed ones were checked.
    """
    if isinstance(node, ast.Literal):
        return (node.value, node.value) if type(node.value) is int else None
    reference = writer.checked.references.get(node.id)
    if not isinstance(node, ast.Call) or not isinstance(reference, CallReference) or id(node) in writer.unchecked:
        return None
    if not all(STANDARD.get(each.id) is each for each in reference.overloads):
        return None
    last = node.args[-1] if node.args else None
    divisor = last.value if isinstance(last, ast.Literal) and type(last.value) is int else 0
    match node.function:
        case "_+_" | "_-_" | "_*_":
            return INT64_MIN, INT64_MAX
        case "_%_" if divisor > 0:
            return 1 - divisor, divisor - 1
        case "_/_":
            dividend = range_of(writer, node.args[0])
            if dividend is None or divisor <= 0:
                return None if dividend is None else (INT64_MIN, INT64_MAX)
            return divide_int(dividend[0], divisor), divide_int(dividend[1], divisor)
        case _:
            return None


def fits(writer: FunctionWriter, operation: Callable[[int, int], int], nodes: tuple[Expr, ...]) -> bool:
    """Return whether the result of an operation on ints fits into 64 bits by its bounds."""
    left, right = (range_of(writer, each) for each in nodes)
    if left is None or right is None:
        return False
    ends = [operation(one, other) for one in left for other in right]
    return min(ends) >= INT64_MIN and max(ends) <= INT64_MAX
