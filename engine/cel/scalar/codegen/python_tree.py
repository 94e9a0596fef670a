"""Constructors of nodes of Python's syntax tree, for the code generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import python_nodes as py


def name(text: str) -> py.Name:
    """Return the read of a name."""
    return py.Name(text, py.Load())


def parameters(names: Sequence[str]) -> py.arguments:
    """Return positional parameters."""
    return py.arguments([], [py.arg(each) for each in names], None, [], [], None, [])


def assign(target: str, value: py.expr) -> py.Assign:
    """Return `target = value`."""
    return py.Assign([py.Name(target, py.Store())], value)


def walrus(target: str, value: py.expr) -> py.NamedExpr:
    """Return `(target := value)`."""
    return py.NamedExpr(py.Name(target, py.Store()), value)


def constant(value: float | str | bytes | None) -> py.Constant:
    """Return a literal."""
    return py.Constant(value)


def constants(values: Sequence[object]) -> py.Constant:
    """Return a set of ints or strings for `in`, or a few of them as a tuple."""
    return py.Constant(frozenset(values) if len(values) > 3 else tuple(values))  # type: ignore[arg-type]


def call(function: str, *arguments: py.expr) -> py.Call:
    """Return a call of a function by name."""
    return py.Call(name(function), list(arguments), [])


def call_method(receiver: py.expr, name: str, *arguments: py.expr) -> py.Call:
    """Return `receiver.name(...)`."""
    return py.Call(py.Attribute(receiver, name, py.Load()), list(arguments), [])


def item(container: py.expr, key: py.expr) -> py.Subscript:
    """Return `container[key]`."""
    return py.Subscript(container, key, py.Load())


def compare(left: py.expr, operator: type[py.cmpop], right: py.expr) -> py.Compare:
    """Return a comparison of two values."""
    return py.Compare(left, [operator()], [right])


def has_class(value: py.expr, kind: str) -> py.Compare:
    """Return whether a value is of exactly this class."""
    return compare(py.Attribute(value, "__class__", py.Load()), py.Is, name(kind))


def all_of(tests: Sequence[py.expr]) -> py.expr:
    """Return whether all hold. All are computed, as later code reads the locals that they set."""
    joined = tests[0]
    for each in tests[1:]:
        joined = py.BinOp(joined, py.BitAnd(), each)
    return joined


def joined(values: list[py.expr], *, both: bool) -> py.expr:
    """Return the values with `and`, or else `or`, between them; a single one as it is."""
    if len(values) == 1:
        return values[0]
    return py.BoolOp(py.And() if both else py.Or(), values)


def negated(value: py.expr) -> py.expr:
    """Return `not value`."""
    return py.UnaryOp(py.Not(), value)


GIVE_UP: Final = call("give_up")
ABSENT: Final = py.Constant(...)
"""The result of `get` for an absent field: no value of an expression is an ellipsis."""
