"""Comprehensions as loops, and `cel.bind`."""

from __future__ import annotations

from ...syntax import ast
from ...syntax.ast import Expr, Macro
from ...values.types import Type
from . import python_nodes as py
from . import python_tree as tree
from .growth import count_turns, joined_of, shares
from .reads import CLASSES, checked_read
from .writer import FunctionWriter, RefusedError


def bind(writer: FunctionWriter, node: ast.Bind) -> py.expr:
    """Return the body of a bind, whose variable is a local."""
    # The value is computed even if it is unused; if that fails, the interpreter evaluates.
    local = writer.fresh()
    writer.sharing[local], writer.lengths[local] = shares(writer, node.init), joined_of(writer, node.init)
    writer.block.append(tree.assign(local, writer.value(node.init)))
    outer = writer.locals
    writer.locals = {**outer, node.variable: local}
    writer.known[("local", local), False] = local
    writer.loops += 1  # strings may double in length with every bind
    try:
        return writer.value(node.body)
    finally:
        writer.locals = outer
        writer.loops -= 1


def comprehension(writer: FunctionWriter, node: ast.Comprehension) -> py.expr:
    """Return the result of a macro, which a loop computes."""
    if node.macro in {Macro.TRANSFORM_MAP, Macro.TRANSFORM_MAP_ENTRY, Macro.SORT_BY}:
        raise RefusedError
    declared = writer.type_of(node.range)
    items = writer.fresh()
    writer.block.append(tree.assign(items, writer.value(node.range)))
    first = writer.fresh()
    second = None if node.variable2 is None else writer.fresh()
    writer.sharing[first] = writer.sharing[second or first] = shares(writer, node.range)
    target: py.expr = py.Name(first, py.Store())
    loop_over: py.expr = tree.name(items)
    kinds: list[tuple[str, Type]] = []
    if declared.name == "list":
        element = declared.parameters[0] if declared.parameters else Type("dyn")
        if second is not None:
            loop_over = tree.call("enumerate", loop_over)
            kinds.append((second, element))
            writer.known[("local", first), False] = first
        else:
            kinds.append((first, element))
    elif declared.name == "map" and declared.parameters and declared.parameters[0].name in {"string", "int"}:
        kinds.append((first, declared.parameters[0]))
        if second is not None:
            loop_over = tree.call_method(loop_over, "items")
            kinds.append((second, declared.parameters[1]))
    elif declared.name == "dyn" and second is None:
        is_no_list = tree.compare(py.Attribute(tree.name(items), "__class__", py.Load()), py.IsNot, tree.name("list"))
        writer.block.append(py.If(is_no_list, [tree.assign(items, tree.call("items", tree.name(items)))], []))
        kinds.append((first, Type("dyn")))
    else:
        raise RefusedError
    if second is not None:
        target = py.Tuple([target, py.Name(second, py.Store())], py.Store())
    count_turns(writer, items, 2 + _parts_of(node.predicate) + _parts_of(node.transform))
    result = writer.fresh()
    outer = writer.locals
    writer.locals = {**outer, node.variable: first}
    if second is not None and node.variable2 is not None:
        writer.locals[node.variable2] = second
    writer.loops += 1
    with writer.branch() as body:
        for local, kind in kinds:
            _check_variable(writer, local, kind)
        _write_body(writer, node, result, first)
    writer.loops -= 1
    writer.locals = outer
    start: py.expr
    match node.macro:
        case Macro.ALL | Macro.EXISTS:
            start = tree.constant(node.macro is Macro.ALL)
        case Macro.EXISTS_ONE:
            start = tree.constant(0)
        case _:
            start = py.List([], py.Load())
    writer.block.append(tree.assign(result, start))
    writer.block.append(py.For(target, loop_over, body, []))
    if node.macro is Macro.EXISTS_ONE:
        return tree.compare(tree.name(result), py.Eq, tree.constant(1))
    return tree.name(result)


def _check_variable(writer: FunctionWriter, local: str, kind: Type) -> None:
    """Generate the check of a loop's variable, once per iteration."""
    if kind.name in {"dyn", "*error*"} or kind.variable:
        return
    is_object = kind.name in writer.checked.environment.types
    if is_object or kind.name in CLASSES:
        expected = "dict" if is_object else CLASSES[kind.name]
        actual = py.Attribute(tree.name(local), "__class__", py.Load())
        has_other_class = tree.compare(actual, py.IsNot, tree.name(expected))
        writer.block.append(py.If(has_other_class, [py.Expr(tree.GIVE_UP)], []))
    else:
        value = checked_read(writer, tree.name(local), kind, is_object=False)
        writer.block.append(tree.assign(local, value))
    writer.known[("local", local), False] = local


def _write_body(writer: FunctionWriter, node: ast.Comprehension, result: str, first: str) -> None:
    """Generate the body of a loop."""
    predicate = None if node.predicate is None else writer.condition(node.predicate)
    done: list[py.stmt]
    match node.macro:
        case Macro.ALL | Macro.EXISTS:
            assert predicate is not None
            every = node.macro is Macro.ALL
            done = [tree.assign(result, tree.constant(not every)), py.Break()]
            writer.block.append(py.If(tree.negated(predicate) if every else predicate, done, []))
            return
        case Macro.EXISTS_ONE:
            done = [tree.assign(result, py.BinOp(tree.name(result), py.Add(), tree.constant(1)))]
        case Macro.FILTER:
            done = [py.Expr(tree.call_method(tree.name(result), "append", tree.name(first)))]
        case _:
            assert node.transform is not None
            with writer.branch() as done:
                value = writer.value(node.transform)
                done.append(py.Expr(tree.call_method(tree.name(result), "append", value)))
    writer.block.extend([py.If(predicate, done, [])] if predicate is not None else done)


def _parts_of(node: Expr | None) -> int:
    """Return the number of nodes of an expression."""
    count, pending = 0, [] if node is None else [node]
    while pending:
        each = pending.pop()
        count += 1
        pending.extend(ast.children(each))
    return count
