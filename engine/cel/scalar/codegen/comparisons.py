"""`==`, `!=` and `in`."""

from __future__ import annotations

from ...check.checked_ast import LocalReference, VariableReference
from ...check.environment import Overload
from ...syntax import ast
from ...syntax.ast import Expr
from ...values.types import BOOL, BYTES, DOUBLE, DURATION, INT, STRING, TIMESTAMP, UINT
from ..interpreter.literals import is_constant
from . import python_nodes as py
from . import python_tree as tree
from .growth import count_turns, metered_call
from .literals import constant_value
from .reads import path_of
from .runtime import dispatcher
from .writer import FunctionWriter, RefusedError


def equality(writer: FunctionWriter, left: Expr, right: Expr, *, negated: bool) -> py.expr:
    """Return `==`, or `!=` if it is negated."""
    operator: type[py.cmpop] = py.NotEq if negated else py.Eq
    for node, other in ((left, right), (right, left)):
        if isinstance(other, ast.Literal) and other.value is None:
            value = writer.chain(node) if _is_null_allowed(writer, node) else writer.value(node)
            return tree.compare(value, py.IsNot if negated else py.Is, tree.constant(None))
    kinds = {writer.type_of(left).name, writer.type_of(right).name}
    values = writer.arguments((left, right))
    if len(kinds) == 1 and kinds <= {INT.name, UINT.name, DOUBLE.name, STRING.name, BOOL.name, BYTES.name}:
        return tree.compare(values[0], operator, values[1])
    if kinds == {INT.name, UINT.name} or (len(kinds) == 1 and kinds <= {TIMESTAMP.name, DURATION.name}):
        return tree.compare(values[0], operator, values[1])
    if kinds == {"dyn", STRING.name}:
        return tree.compare(values[0], operator, values[1])
    if writer.loops and not kinds & {"dyn", INT.name, STRING.name, BOOL.name}:
        raise RefusedError  # large structures compared in a loop are metered
    pairs = [writer.stored(each) for each in values]
    result: py.expr = tree.call("equal", *(again for _, again in pairs))
    if negated:
        result = tree.negated(result)
    if not kinds <= {"dyn", INT.name}:
        return tree.negated(tree.call("equal", *values)) if negated else tree.call("equal", *values)
    if INT.name not in kinds:
        # A string is equal to strings only, so the kind of the other one does not matter.
        first, again = writer.stored(values[0])
        result = tree.call("equal", again, values[1])
        ordinary = tree.compare(again, operator, values[1])
        return py.IfExp(tree.has_class(first, "str"), ordinary, tree.negated(result) if negated else result)
    tests = [tree.has_class(first, "int") for first, _ in pairs if not isinstance(first, py.Constant)]
    return py.IfExp(tree.all_of(tests), tree.compare(pairs[0][1], operator, pairs[1][1]), result)


def _is_null_allowed(writer: FunctionWriter, node: Expr) -> bool:
    """Return whether a null is a value there: in a variable or an element, not in a declared field."""
    reference = writer.checked.references.get(node.id)
    return writer.object_type_of(node) is not None and isinstance(reference, VariableReference | LocalReference)


def membership(writer: FunctionWriter, item: Expr, container: Expr, overloads: tuple[Overload, ...]) -> py.expr:
    """Return `in`."""
    kind = writer.type_of(container).name
    item_kind = writer.type_of(item).name
    if kind == "list" and isinstance(container, ast.ListLiteral) and is_constant(container):
        constants = [constant_value(each) for each in container.elements]
        classes = {each.__class__ for each in constants}
        if (item_kind, classes) in ((STRING.name, {str}), (INT.name, {int})):
            value = writer.value(item)
            return tree.compare(value, py.In, tree.constants(constants))
        if (item_kind, classes) == ("dyn", {str}):
            # No other value is equal to a string.
            return tree.compare(writer.value(item), py.In, tree.constants(constants))
    values = writer.arguments((item, container))
    if kind == "list":
        if writer.loops:
            # Every iteration searches the whole list: it counts as that many iterations.
            sought, items = writer.fresh(), writer.fresh()
            writer.block += [tree.assign(sought, values[0]), tree.assign(items, values[1])]
            count_turns(writer, items, 1)
            values = [tree.name(sought), tree.name(items)]
        if item_kind == STRING.name:
            return tree.compare(values[0], py.In, values[1])
        return tree.call("in_list", *values)
    if kind == "map":
        if item_kind == STRING.name:
            return tree.compare(values[0], py.In, values[1])
        return tree.call("in_map", *values)
    found = dispatcher(overloads, writer.checked.environment.types)
    dispatch = writer.constant(metered_call(writer, found, overloads, (item, container)))
    (first, again), (second, second_again) = map(writer.stored, values)
    tests: list[py.expr] = [tree.has_class(first, "str"), tree.has_class(second, "dict")]
    ordinary = tree.compare(again, py.In, second_again)
    if isinstance(values[0], py.Name) and path_of(writer, container) is not None:
        return py.IfExp(tree.joined(tests, both=True), ordinary, py.Call(dispatch, values, []))
    return py.IfExp(tree.all_of(tests), ordinary, py.Call(dispatch, [again, second_again], []))
