"""Literals of scalars, lists and maps."""

from __future__ import annotations

import math

from ...syntax import ast
from ...syntax.ast import Expr
from ..interpreter.literals import is_constant, literal_value
from . import python_nodes as py
from . import python_tree as tree
from .writer import FunctionWriter, RefusedError


def scalar_literal(writer: FunctionWriter, node: ast.Literal) -> py.expr:
    """Return a number, a string, a bool or null."""
    if node.unsigned:
        return writer.constant(literal_value(node))
    if isinstance(node.value, float) and not math.isfinite(node.value):
        return writer.constant(node.value)
    return tree.constant(node.value)


def list_literal(writer: FunctionWriter, node: ast.ListLiteral) -> py.expr:
    """Return a list; one of constants is made once, as no value is ever changed."""
    if is_constant(node):
        return writer.constant([constant_value(each) for each in node.elements])
    return py.List(writer.arguments(node.elements), py.Load())


def map_literal(writer: FunctionWriter, node: ast.MapLiteral) -> py.expr:
    """Return a map; all its keys are different strings."""
    keys = [each.key.value for each in node.entries if isinstance(each.key, ast.Literal)]
    texts = [key for key in keys if type(key) is str]
    if len(set(texts)) != len(node.entries) or any(each.optional for each in node.entries):
        raise RefusedError
    return py.Dict([tree.constant(key) for key in texts], writer.arguments([each.value for each in node.entries]))


def constant_value(node: Expr) -> object:
    """Return the value of a constant node."""
    match node:
        case ast.Literal():
            return literal_value(node)
        case ast.ListLiteral():
            return [constant_value(each) for each in node.elements]
        case ast.MapLiteral() if all(
            isinstance(each.key, ast.Literal) and type(each.key.value) is str for each in node.entries
        ):
            if len({constant_value(each.key) for each in node.entries}) == len(node.entries):
                return {constant_value(each.key): constant_value(each.value) for each in node.entries}
    raise RefusedError
