"""Arithmetic and comparisons of values of unknown kinds, which are ints as a rule: one test for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from ...check.checked_ast import CallReference
from ...check.environment import Overload
from ...syntax import ast
from ...syntax.ast import Expr
from ...values.types import INT, STRING
from . import python_nodes as py
from . import python_tree as tree
from .growth import metered_call
from .operators import inline
from .ranges import STANDARD, leave_unchecked
from .reads import path_of
from .runtime import dispatcher
from .writer import FunctionWriter, RefusedError

_FUNCTIONS: Final = frozenset({"_+_", "_-_", "_*_", "_/_", "_%_"})
_RELATIONS: Final = frozenset({"_<_", "_<=_", "_>_", "_>=_"})
OPERATIONS: Final = _FUNCTIONS | _RELATIONS
"""Functions that may be operations on ints."""


def usual_overload(overloads: tuple[Overload, ...], count: int) -> Overload | None:
    """Return the most likely overload for arguments of unknown types: that of ints, or else of strings."""
    if not count:
        return None
    # Without a checker a call may have too few arguments, or too many.
    fitting = [each for each in overloads if len(each.parameters) == count]
    kinds = [(each, {parameter.name for parameter in each.parameters}) for each in fitting]
    ints = (each for each, names in kinds if names == {INT.name})
    plain = (each for each, names in kinds if names <= {INT.name, STRING.name})
    return next(ints, None) or next(plain, None)


def integers(writer: FunctionWriter, node: ast.Call) -> py.expr | None:
    """Return operations on values of unknown kinds: those of ints if all of them are ints, else dispatched calls.

    None if a value is known to be something else, or if all are known to be ints.
    """
    leaves: list[Expr] = []
    if node.id in writer.typed or not _find_leaves(writer, node, leaves):
        return None
    if writer.loops and _adds(writer, node):
        raise RefusedError  # texts that grow in a loop are metered
    values = writer.in_order([partial(_readable, writer, each) for each in leaves])
    tests: list[py.expr] = []
    plain: dict[int, py.expr] = {}
    exact: dict[int, py.expr] = {}
    tested: set[str] = set()
    for leaf, value in zip(leaves, values, strict=True):
        first, again = writer.stored(value)
        plain[id(leaf)], exact[id(leaf)] = again, value
        if isinstance(value, py.Constant) or (isinstance(value, py.Name) and writer.type_of(leaf) == INT):
            continue
        if isinstance(again, py.Name) and again.id not in tested:
            tested.add(again.id)
            tests.append(tree.has_class(first, "int"))
    # The values are read again for the other calls: a test that fails ends the reading.
    return py.IfExp(tree.joined(tests, both=True), _of_ints(writer, node, plain), _of_any(writer, node, exact))


def _find_leaves(writer: FunctionWriter, node: ast.Call, leaves: list[Expr]) -> bool:
    """Find the operands of nested operations from left to right; True if they may be ints, and not all must be."""
    if _usual_of(writer, node) is None:
        return False
    inner, pending, unknown = [node.id], list(node.args[::-1]), False
    while pending:
        each = pending.pop()
        kind = writer.type_of(each).name
        if isinstance(each, ast.Call) and each.function in _FUNCTIONS and kind in {"dyn", INT.name}:
            if _usual_of(writer, each) is None:
                return False
            inner.append(each.id)
            pending.extend(each.args[::-1])
            continue
        if isinstance(each, ast.Literal):
            if type(each.value) is not int or each.unsigned:
                return False
        elif kind == "dyn":
            unknown = True
        elif kind != INT.name:
            return False
        leaves.append(each)
    if not unknown:
        writer.typed.update(inner)
    return unknown


def _adds(writer: FunctionWriter, node: Expr) -> bool:
    """Return whether nested operations have a sum of values of unknown kinds, which may be strings."""
    return isinstance(node, ast.Call) and node.function in OPERATIONS and (
        (node.function == "_+_" and any(writer.type_of(each).name == "dyn" for each in node.args))
        or any(_adds(writer, each) for each in node.args)
    )


def _readable(writer: FunctionWriter, node: Expr) -> py.expr:
    """Return a value that may be read twice: what is computed is stored in a local by a statement."""
    value = writer.value(node)
    if isinstance(value, py.Name | py.Constant) or path_of(writer, node) is not None:
        return value
    name = writer.fresh()
    writer.block.append(tree.assign(name, value))
    return tree.name(name)


def _of_ints(writer: FunctionWriter, node: Expr, values: Mapping[int, py.expr]) -> py.expr:
    """Return an operation for ints, given the operands that are no operations, by their identities."""
    if id(node) in values:
        return values[id(node)]
    assert isinstance(node, ast.Call)
    usual = _usual_of(writer, node)
    assert usual is not None
    leave_unchecked(writer, usual, node.args)
    arguments = [_of_ints(writer, each, values) for each in node.args]
    found = inline(writer, node, usual.id, arguments, node.args)
    assert found is not None
    return found


def _usual_of(writer: FunctionWriter, node: ast.Call) -> Overload | None:
    """Return the overload of a call for ints, if it has one."""
    reference = writer.checked.references.get(node.id)
    if not isinstance(reference, CallReference):
        return None
    usual = usual_overload(reference.overloads, len(node.args))
    return usual if usual is not None and STANDARD.get(usual.id) is usual and usual.parameters[0] == INT else None


def _of_any(writer: FunctionWriter, node: Expr, values: Mapping[int, py.expr]) -> py.expr:
    """Return the same with operands of any kinds."""
    if id(node) in values:
        return values[id(node)]
    assert isinstance(node, ast.Call)
    reference = writer.checked.references[node.id]
    assert isinstance(reference, CallReference)
    found = dispatcher(reference.overloads, writer.checked.environment.types)
    arguments = [_of_any(writer, each, values) for each in node.args]
    return py.Call(writer.constant(metered_call(writer, found, reference.overloads, node.args)), arguments, [])
