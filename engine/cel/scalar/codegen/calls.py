"""Calls of functions: inline, of an overload, or of the overload that is found at run time."""

from __future__ import annotations

from ...check.checked_ast import CallReference
from ...check.environment import Overload
from ...syntax import ast
from ...syntax.ast import Expr
from . import python_nodes as py
from . import python_tree as tree
from .comparisons import equality, membership
from .growth import metered_call
from .integers import OPERATIONS, integers, usual_overload
from .operators import inline
from .ranges import STANDARD, leave_unchecked
from .reads import CLASSES, or_value
from .runtime import dispatcher
from .writer import FunctionWriter, RefusedError


def call(writer: FunctionWriter, node: ast.Call) -> py.expr:
    """Return a call of a function or an operator that evaluates all its arguments."""
    reference = writer.checked.references.get(node.id)
    if not isinstance(reference, CallReference):
        raise RefusedError
    nodes = node.args if node.target is None or reference.qualified else (node.target, *node.args)
    if node.function in {"_==_", "_!=_"}:
        return equality(writer, nodes[0], nodes[1], negated=node.function == "_!=_")
    if node.function == "@in":
        return membership(writer, nodes[0], nodes[1], reference.overloads)
    if node.function in OPERATIONS:
        operation = integers(writer, node)
        if operation is not None:
            return operation
    overloads = reference.overloads
    if overloads[0].id == "optional_orValue_value":
        return or_value(writer, nodes[0], nodes[1])
    if overloads[0].id == "optional_or_optional":
        raise RefusedError
    if len(overloads) != 1 or not _is_certain(writer, nodes, overloads[0]):
        if writer.loops and node.function == "_+_":
            raise RefusedError  # texts that grow in a loop are metered
        return _dispatched(writer, node, overloads, nodes)
    leave_unchecked(writer, overloads[0], nodes)
    return _applied(writer, node, overloads[0], writer.arguments(nodes), nodes)


def _dispatched(
    writer: FunctionWriter, node: Expr, overloads: tuple[Overload, ...], nodes: tuple[Expr, ...],
) -> py.expr:
    """Return a call that finds its overload at run time, after a test for the most likely one."""
    usual = usual_overload(overloads, len(nodes))
    leave_unchecked(writer, usual, nodes)
    values = writer.arguments(nodes)
    found = dispatcher(overloads, writer.checked.environment.types)
    dispatch = writer.constant(metered_call(writer, found, overloads, nodes))
    if usual is None:
        return py.Call(dispatch, values, [])
    pairs = [writer.stored(each) for each in values]
    again = [each[1] for each in pairs]
    tests = [
        tree.has_class(first, CLASSES[parameter.name])
        for (first, _), node, parameter in zip(pairs, nodes, usual.parameters, strict=True)
        if not (isinstance(first, py.Name | py.Constant) and writer.type_of(node) == parameter)
    ]
    if not tests:
        return py.Call(dispatch, again, [])
    return py.IfExp(tree.all_of(tests), _applied(writer, node, usual, again, nodes), py.Call(dispatch, again, []))


def _applied(
    writer: FunctionWriter, node: Expr, overload: Overload, arguments: list[py.expr], nodes: tuple[Expr, ...],
) -> py.expr:
    """Return the Python expression of an overload for arguments of its types."""
    operation = inline(writer, node, overload.id, arguments, nodes) if STANDARD.get(overload.id) is overload else None
    if operation is not None:
        return operation
    return py.Call(writer.constant(metered_call(writer, overload.evaluate, (overload,), nodes)), arguments, [])


def _is_certain(writer: FunctionWriter, nodes: tuple[Expr, ...], overload: Overload) -> bool:
    """Return whether the arguments have the types of the parameters, as far as the checker knows."""
    for node, parameter in zip(nodes, overload.parameters, strict=True):
        if parameter.variable or parameter.name == "dyn":
            continue
        known = writer.type_of(node)
        if known.variable or known.name != parameter.name:
            return False
    return True
