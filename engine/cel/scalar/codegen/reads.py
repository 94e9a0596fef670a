"""Reads of variables, fields, elements and definitions: checked once per path and stored in a local."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from ...check.checked_ast import Checked, LocalReference, VariableReference
from ...syntax import ast
from ...syntax.ast import Expr
from ...values.types import BOOL, DOUBLE, DURATION, INT, STRING, TIMESTAMP, Type
from ..reading import reader
from . import python_nodes as py
from . import python_tree as tree
from .writer import FunctionWriter, RefusedError

CLASSES: Final = {INT.name: "int", STRING.name: "str", BOOL.name: "bool", "list": "list"}
"""The class of values of a type, where there is only one."""


def path_of(writer: FunctionWriter, node: Expr) -> tuple[object, ...] | None:
    """Return the path of a node that reads, or None for one that computes."""
    match writer.checked.references.get(node.id):
        case VariableReference(name=name):
            return ("variable", name)
        case LocalReference(name=name):
            return ("local", writer.locals[name])
        case _:
            pass
    if isinstance(node, ast.Select) and not node.test and not node.optional:
        operand = path_of(writer, node.operand)
        return None if operand is None else (operand, node.field)
    if isinstance(node, ast.Call) and node.function == "_[_]" and isinstance(node.args[1], ast.Literal):
        key = node.args[1].value
        if type(key) is str or (type(key) is int and not node.args[1].unsigned):
            operand = path_of(writer, node.args[0])
            return None if operand is None else (operand, key)
    return None


def read(
    writer: FunctionWriter, value: py.expr, node: Expr, path: tuple[object, ...] | None, *, chain: bool,
) -> py.expr:
    """Return a value that is read, checked once per path."""
    if path is not None:
        key = (path, chain)
        stored = writer.known.get(key) or writer.known.get((path, False))
        if stored is not None:
            return tree.name(stored)
    declared = writer.type_of(node)
    is_object = declared.name in writer.checked.environment.types
    unchecked = chain and (is_object or declared.name in {"dyn", "map"})
    if declared.name == "dyn" and not chain and isinstance(node, ast.Select) and writer.object_type_of(node.operand):
        # A null in a declared field counts as absent.
        if path is not None and path in writer.fields:
            return value
        first, again = writer.stored(value)
        value = py.IfExp(tree.compare(first, py.IsNot, tree.constant(None)), again, tree.GIVE_UP)
    elif not unchecked:
        value = checked_read(writer, value, declared, is_object=is_object)
    if path is None or isinstance(value, py.Name):
        if path is not None and isinstance(value, py.Name) and not unchecked:
            writer.known[path, False] = value.id
        return value
    # The check may have stored the value in a local already.
    if isinstance(value, py.IfExp) and isinstance(value.body, py.Name) and value.orelse is tree.GIVE_UP:
        writer.known[path, chain and unchecked] = value.body.id
        return value
    if id(node) not in writer.repeated:
        return value
    name = writer.fresh()
    writer.known[path, chain and unchecked] = name
    return tree.walrus(name, value)


def checked_read(writer: FunctionWriter, value: py.expr, declared: Type, *, is_object: bool) -> py.expr:
    """Return a value of a declared type, after a check of its class."""
    name = declared.name
    if declared.variable or name in {"dyn", "*error*"}:
        return value
    if name in CLASSES:
        first, again = writer.stored(value)
        return py.IfExp(tree.has_class(first, CLASSES[name]), again, tree.GIVE_UP)
    if is_object or name == "map":
        first, again = writer.stored(value)
        return py.IfExp(tree.has_class(first, "dict"), again, tree.call("as_map", again))
    if name == DOUBLE.name:
        first, again = writer.stored(value)
        return py.IfExp(tree.has_class(first, "float"), again, tree.call("read_double", again))
    if name == TIMESTAMP.name:
        return tree.call("read_timestamp", value)
    if name == DURATION.name:
        return tree.call("read_duration", value)
    read_value = reader(declared, writer.checked.environment)
    if read_value is None:
        return value
    return py.Call(writer.constant(read_value), [value], [])


def field(writer: FunctionWriter, node: ast.Select, *, chain: bool) -> py.expr:
    """Return the value of a field; see `FunctionWriter.chain` for `chain`."""
    if node.optional or _is_optional(writer, node.operand):
        raise RefusedError
    path = path_of(writer, node)
    if path is not None:
        stored = writer.known.get((path, chain)) or writer.known.get((path, False))
        if stored is not None:
            return tree.name(stored)
        field_local = writer.fields.get(path)
        if field_local is not None:
            return read(writer, tree.name(field_local), node, path, chain=chain)
    operand = writer.chain(node.operand)
    declared = writer.object_type_of(node.operand)
    name = tree.constant(node.field)
    if declared is not None and declared.absent is not None:
        value: py.expr = tree.call_method(operand, "get", name, tree.constant(declared.absent))
    else:
        value = tree.item(operand, name)
    return read(writer, value, node, path, chain=chain)


def presence(writer: FunctionWriter, node: ast.Select) -> py.expr:
    """Return whether a field is present: `has(a.b)`."""
    if _is_optional(writer, node.operand):
        raise RefusedError
    name = tree.constant(node.field)
    path = path_of(writer, node.operand)
    # The value is read here, for the reads that follow where it is present.
    repeated = path is not None and id(node) in writer.repeated
    found: py.expr
    if writer.object_type_of(node.operand) is not None:
        absent = tree.constant(None)
        found = tree.call_method(writer.chain(node.operand), "get", name)
    elif repeated:
        absent = tree.ABSENT
        found = tree.call_method(writer.chain(node.operand), "get", name, absent)
    else:
        operand = writer.value(node.operand)
        if writer.type_of(node.operand).name == "map":
            return tree.compare(name, py.In, operand)
        first, again = writer.stored(operand)
        return py.IfExp(tree.has_class(first, "dict"), tree.compare(name, py.In, again), tree.GIVE_UP)
    if repeated:
        local = writer.fresh()
        writer.present[id(node)] = ((path, node.field), local)
        found = tree.walrus(local, found)
    return tree.compare(found, py.IsNot, absent)


def element(writer: FunctionWriter, node: ast.Call, *, chain: bool) -> py.expr:
    """Return `a[b]`."""
    container, key = node.args
    if _is_optional(writer, container) or _is_optional(writer, node):
        raise RefusedError
    path = path_of(writer, node)
    if path is not None:
        stored = writer.known.get((path, chain)) or writer.known.get((path, False))
        if stored is not None:
            return tree.name(stored)
    declared = writer.object_type_of(container)
    kind, key_kind = writer.type_of(container).name, writer.type_of(key).name
    value: py.expr
    if kind == "list":
        items, number = writer.arguments((container, key))
        if isinstance(key, ast.Literal) and type(key.value) is int and not key.unsigned:
            value = tree.item(items, number) if key.value >= 0 else tree.GIVE_UP
        elif key_kind == INT.name:
            first, again = writer.stored(number)
            value = tree.item(items, py.IfExp(tree.compare(first, py.GtE, tree.constant(0)), again, tree.GIVE_UP))
        else:
            value = tree.call("index_list", items, number)
    elif key_kind == STRING.name:
        operand, text = writer.in_order([partial(writer.chain, container), partial(writer.value, key)])
        if declared is not None and declared.absent is not None:
            value = tree.call_method(operand, "get", text, tree.constant(declared.absent))
        else:
            value = tree.item(operand, text)
    else:
        if declared is not None:
            raise RefusedError
        value = _dynamic_element(writer, *writer.arguments((container, key)))
    return read(writer, value, node, path, chain=chain)


def _dynamic_element(writer: FunctionWriter, container: py.expr, key: py.expr) -> py.expr:
    """Return an element of a list or a map by a key of any kind."""
    if isinstance(key, py.Name):
        # Only a map has a string as a key: anything else raises.
        return py.IfExp(tree.has_class(key, "str"), tree.item(container, key), tree.call("index", container, key))
    (first, again), (key_first, key_again) = writer.stored(container), writer.stored(key)
    if not isinstance(key, py.Constant):
        test = tree.all_of([tree.has_class(first, "dict"), tree.has_class(key_first, "str")])
    elif type(key.value) is int and key.value >= 0:
        test = tree.has_class(first, "list")
    else:
        return tree.call("index", container, key)
    return py.IfExp(test, tree.item(again, key_again), tree.call("index", again, key_again))


def _is_optional(writer: FunctionWriter, node: Expr) -> bool:
    return writer.type_of(node).name == "optional_type"


def or_value(writer: FunctionWriter, optional: Expr, default: Expr) -> py.expr:
    """Return `a.?b[?c].orValue(d)`: the value at a chain of fields and elements, or the default if one is absent."""
    types = writer.checked.environment.types
    keys: list[Callable[[], py.expr]] = []
    null_is_absent: list[bool] = []
    node = optional
    while (step := _optional_step(writer, node)) is not None:
        node, key = step
        declared = writer.object_type_of(node) or types.get(_inner_type(writer, node).name)
        if declared is not None and (declared.absent is not None or not isinstance(key, str)):
            raise RefusedError
        keys.append(partial(tree.constant, key) if isinstance(key, str) else partial(writer.value, key))
        null_is_absent.append(declared is not None)
    if not keys or _is_optional(writer, node):
        raise RefusedError
    container, *steps = writer.in_order([partial(writer.value, node), *reversed(keys)])
    flags = writer.constant(tuple(reversed(null_is_absent)))
    reached = tree.call("descend", container, py.Tuple(steps, py.Load()), flags)
    name = writer.fresh()
    with writer.branch() as block:
        inner = _inner_type(writer, optional)
        value = checked_read(writer, tree.name(name), inner, is_object=inner.name in types)
        otherwise = writer.value(default)
    if block:
        raise RefusedError
    return py.IfExp(tree.compare(tree.walrus(name, reached), py.Is, tree.name("MISSING")), otherwise, value)


def _optional_step(writer: FunctionWriter, node: Expr) -> tuple[Expr, Expr | str] | None:
    """Return the operands of `a.?b` or `a[?b]`: the container, and a field's name or an element's key.

    Of an optional container, `a.b` and `a[b]` are such reads too. None for any other node.
    """
    if writer.checked.references.get(node.id) is not None and not isinstance(node, ast.Call):
        return None
    match node:
        case ast.Select(operand=container, field=field, test=False):
            return (container, field) if node.optional or _is_optional(writer, container) else None
        case ast.Call(function="_[?_]" | "_[_]" as function, args=[container, key]):
            return (container, key) if function == "_[?_]" or _is_optional(writer, container) else None
        case _:
            return None


def _inner_type(writer: FunctionWriter, node: Expr) -> Type:
    """Return the type of the value in an optional; of any other value its own type."""
    declared = writer.type_of(node)
    return declared.parameters[0] if declared.name == "optional_type" and declared.parameters else declared


def definition(writer: FunctionWriter, checked: Checked) -> py.expr:
    """Return a definition's value: computed at its first use, then read from a local."""
    stored = writer.known.get(checked)
    if stored is not None:
        return tree.name(stored)
    once = writer.uses.get(checked, 2) < 2 and not writer.loops
    if once:
        with writer.inside(checked):
            return writer.value(checked.root)
    local = writer.definitions.get(checked)
    if local is None:
        local = writer.definitions[checked] = f"d{len(writer.definitions)}"
    with writer.branch() as block:
        with writer.inside(checked):
            value = writer.value(checked.root)
        block.append(tree.assign(local, value))
    writer.block.append(py.If(tree.compare(tree.name(local), py.Is, tree.name("UNSET")), block, []))
    writer.known[checked] = local
    return tree.name(local)
