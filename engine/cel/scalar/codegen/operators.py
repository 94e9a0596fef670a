"""Overloads of CEL's standard library that have an operator in Python, for arguments of their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from ...syntax import ast
from ...syntax.ast import Expr
from ...values.types import DOUBLE
from ...values.values import INT64_MAX
from . import python_nodes as py
from . import python_tree as tree
from .growth import joined_of
from .ranges import fits, range_of
from .writer import FunctionWriter

_FEW_LEAVES: Final = 16
"""Strings or lists that are joined without checking their lengths."""

Generator = Callable[[FunctionWriter, Expr, list[py.expr], tuple[Expr, ...]], "py.expr | None"]
"""Returns the operation of a node on the expressions of its arguments; None if the overload must be called."""


class _IntOperator(NamedTuple):
    symbol: type[py.operator]
    compute: Callable[[int, int], int]


def inline(
    writer: FunctionWriter, node: Expr, overload: str, arguments: list[py.expr], nodes: tuple[Expr, ...],
) -> py.expr | None:
    """Return the Python operation of an overload of the standard library, or None if it must be called."""
    generate = _OPERATORS.get(overload)
    return None if generate is None else generate(writer, node, arguments, nodes)


def _int_arithmetic(
    operator: _IntOperator,
    writer: FunctionWriter, node: Expr, arguments: list[py.expr], nodes: tuple[Expr, ...],
) -> py.expr:
    result = py.BinOp(arguments[0], operator.symbol(), arguments[1])
    if id(node) in writer.unchecked or fits(writer, operator.compute, nodes):
        return result
    first, again = writer.stored(result)
    # Half the time of two comparisons; the lowest int has 64 bits, and is left to the interpreter.
    in_range = tree.compare(tree.call_method(first, "bit_length"), py.Lt, tree.constant(64))
    return py.IfExp(in_range, again, tree.GIVE_UP)


def _division(
    operator: type[py.operator], exact: str,
    writer: FunctionWriter, _node: Expr, arguments: list[py.expr], nodes: tuple[Expr, ...],
) -> py.expr:
    """Return `//` or `%`, which agree with CEL's for operands that are not negative; `exact` is called for others."""
    dividend, dividend_again = writer.stored(arguments[0])
    divisor = arguments[1]
    positive: py.expr = tree.compare(dividend, py.GtE, tree.constant(0))
    if range_of(writer, nodes[0]) is None:  # a number that is read may have any number of digits
        positive = py.Compare(tree.constant(0), [py.LtE(), py.LtE()], [dividend, tree.constant(INT64_MAX)])
    if isinstance(divisor, py.Constant) and isinstance(divisor.value, int) and divisor.value > 0:
        divisor_again: py.expr = divisor
    else:
        stored, divisor_again = writer.stored(divisor)
        test = tree.compare(stored, py.Gt, tree.constant(0))
        # `&`, as both have to be computed.
        positive = tree.joined([positive, test], both=True) if stored is divisor else tree.all_of([positive, test])
    ordinary = py.BinOp(dividend_again, operator(), divisor_again)
    return py.IfExp(positive, ordinary, tree.call(exact, dividend_again, divisor_again))


def _double_arithmetic(
    operator: type[py.operator],
    _writer: FunctionWriter, _node: Expr, arguments: list[py.expr], _nodes: tuple[Expr, ...],
) -> py.expr:
    return py.BinOp(arguments[0], operator(), arguments[1])


def _join(writer: FunctionWriter, node: Expr, arguments: list[py.expr], _nodes: tuple[Expr, ...]) -> py.expr:
    if writer.loops or joined_of(writer, node) > _FEW_LEAVES:
        writer.any_bounded = True
        return tree.call("concatenated", *arguments)
    return py.BinOp(arguments[0], py.Add(), arguments[1])


def _not(_writer: FunctionWriter, _node: Expr, arguments: list[py.expr], _nodes: tuple[Expr, ...]) -> py.expr:
    return tree.negated(arguments[0])


def _size(_writer: FunctionWriter, _node: Expr, arguments: list[py.expr], _nodes: tuple[Expr, ...]) -> py.expr:
    return tree.call("len", arguments[0])


def _contains(
    writer: FunctionWriter, _node: Expr, arguments: list[py.expr], nodes: tuple[Expr, ...],
) -> py.expr | None:
    simple = isinstance(nodes[1], ast.Literal) and not writer.loops
    return tree.compare(arguments[1], py.In, arguments[0]) if simple else None


def _string_method(
    name: str, _writer: FunctionWriter, _node: Expr, arguments: list[py.expr], _nodes: tuple[Expr, ...],
) -> py.expr:
    return tree.call_method(arguments[0], name, arguments[1])


def _compared(
    operator: type[py.cmpop],
    _writer: FunctionWriter, _node: Expr, arguments: list[py.expr], _nodes: tuple[Expr, ...],
) -> py.expr:
    return tree.compare(arguments[0], operator, arguments[1])


def _compared_by_nanoseconds(
    operator: type[py.cmpop],
    _writer: FunctionWriter, _node: Expr, arguments: list[py.expr], _nodes: tuple[Expr, ...],
) -> py.expr:
    left, right = (py.Attribute(each, "ns", py.Load()) for each in arguments)
    return tree.compare(left, operator, right)


def _compared_as_doubles(
    operator: type[py.cmpop],
    writer: FunctionWriter, _node: Expr, arguments: list[py.expr], nodes: tuple[Expr, ...],
) -> py.expr:
    sides: list[py.expr] = []
    tests: list[py.expr] = []
    for node, value in zip(nodes, arguments, strict=True):
        if writer.type_of(node) != DOUBLE:
            first, again = writer.stored(tree.call("float", value))
        elif isinstance(node, ast.Literal):
            sides.append(value)
            continue
        else:
            first, again = writer.stored(value)
        # NaN is not equal to itself, and has no order.
        tests.append(tree.compare(first, py.Eq, again))
        sides.append(again)
    comparison = tree.compare(sides[0], operator, sides[1])
    if not tests:
        return comparison
    test = tests[0] if len(tests) == 1 else py.BinOp(tests[0], py.BitAnd(), tests[1])
    return py.IfExp(test, comparison, tree.GIVE_UP)


_RELATIONS: Final[Mapping[str, type[py.cmpop]]] = {
    "less": py.Lt, "less_equals": py.LtE, "greater": py.Gt, "greater_equals": py.GtE,
}
_COMPARED: Final[Mapping[str, Callable[..., py.expr]]] = {
    **dict.fromkeys(("int64", "uint64", "string", "bytes", "bool", "int64_uint64", "uint64_int64"), _compared),
    **dict.fromkeys(("timestamp", "duration"), _compared_by_nanoseconds),
    **dict.fromkeys(
        ("double", "int64_double", "double_int64", "uint64_double", "double_uint64"), _compared_as_doubles),
}
_OPERATORS: Final[Mapping[str, Generator]] = {
    "add_int64": partial(_int_arithmetic, _IntOperator(py.Add, int.__add__)),
    "subtract_int64": partial(_int_arithmetic, _IntOperator(py.Sub, int.__sub__)),
    "multiply_int64": partial(_int_arithmetic, _IntOperator(py.Mult, int.__mul__)),
    "divide_int64": partial(_division, py.FloorDiv, "divide_int"),
    "modulo_int64": partial(_division, py.Mod, "modulo_int"),
    "add_double": partial(_double_arithmetic, py.Add),
    "subtract_double": partial(_double_arithmetic, py.Sub),
    "multiply_double": partial(_double_arithmetic, py.Mult),
    **{f"add_{kind}": _join for kind in ("string", "bytes", "list")},
    **{f"{size}_{kind}": _size for size in ("size", "member_size") for kind in ("string", "bytes", "list", "map")},
    "logical_not": _not,
    "contains_string": _contains,
    "starts_with_string": partial(_string_method, "startswith"),
    "ends_with_string": partial(_string_method, "endswith"),
    **{
        f"{relation}_{kinds}": partial(compare, operator)
        for relation, operator in _RELATIONS.items() for kinds, compare in _COMPARED.items()
    },
}
