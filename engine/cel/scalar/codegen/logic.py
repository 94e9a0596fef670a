"""`&&`, `||` and `?:`: Python's, as long as nothing raises. What a condition tests is known where it holds."""

from __future__ import annotations

from itertools import pairwise

from ...syntax import ast
from ...syntax.ast import Expr
from . import python_nodes as py
from . import python_tree as tree
from .writer import FunctionWriter


def logic(writer: FunctionWriter, node: ast.Call) -> py.expr:
    """Return a chain of `&&` or `||`."""
    both = node.function == "_&&_"
    operands = _terms(node, node.function)
    values = [writer.condition(operands[0])]
    with writer.branch():
        # Each further term has a block of its own; one without statements is appended to the expression before it.
        chain: list[tuple[list[py.stmt], py.expr]] = []
        for before, term in pairwise(operands):
            _record_presence(writer, before if both else _denied(before))
            writer.block = []
            chain.append((writer.block, writer.condition(term)))
    result: str | None = None
    current = writer.block
    for statements, value in chain:
        if not statements:
            values.append(value)
            continue
        joined = tree.joined(values, both=both)
        if result is None:
            result = writer.fresh()
        current.append(tree.assign(result, joined))
        test: py.expr = tree.name(result) if both else tree.negated(tree.name(result))
        current.append(py.If(test, statements, []))
        current = statements
        values = [value]
    joined = tree.joined(values, both=both)
    if result is None:
        return joined
    current.append(tree.assign(result, joined))
    return tree.name(result)


def conditional(writer: FunctionWriter, node: ast.Call) -> py.expr:
    """Return `?:`."""
    condition = writer.condition(node.args[0])
    with writer.branch() as then_block:
        _record_presence(writer, node.args[0])
        then = writer.value(node.args[1])
    with writer.branch() as else_block:
        _record_presence(writer, _denied(node.args[0]))
        otherwise = writer.value(node.args[2])
    if not then_block and not else_block:
        return py.IfExp(condition, then, otherwise)
    result = writer.fresh()
    then_block.append(tree.assign(result, then))
    else_block.append(tree.assign(result, otherwise))
    writer.block.append(py.If(condition, then_block, else_block))
    return tree.name(result)


def _record_presence(writer: FunctionWriter, test: Expr | None) -> None:
    """Record what holds where a condition is true: the fields whose presence it tests can be read of locals."""
    for term in _terms(test, "_&&_") if test is not None else ():
        found = writer.present.get(id(term))
        if found is not None:
            path, local = found
            writer.fields[path] = local


def _terms(node: Expr, function: str) -> list[Expr]:
    """Return the operands of a chain of `&&` or `||` from left to right."""
    terms: list[Expr] = []
    pending = [node]
    while pending:
        each = pending.pop()
        if isinstance(each, ast.Call) and each.function == function:
            pending += [each.args[1], each.args[0]]
        else:
            terms.append(each)
    return terms


def _denied(node: Expr) -> Expr | None:
    """Return the condition that a node is the negation of, if it is one."""
    return node.args[0] if isinstance(node, ast.Call) and node.function == "!_" else None
