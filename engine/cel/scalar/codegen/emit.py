"""Code generator: compiles a checked tree to one Python function, by `ast` and `compile`.

The function is *optimistic*. It computes the ordinary case by plain Python operations, and raises on anything else: a
missing field, a value of another kind than declared, an overflow, NaN, a long loop. On any exception the interpreter
evaluates the expression from the start and returns CEL's value or error. (Expressions have no side effects, so only
time is lost.) The invariant of every generated line: it raises, or it computes exactly what CEL computes.

Hence `&&`, `||`, `all` and `exists` are Python's `and`, `or` and loops: as long as nothing raises, they agree.

Computed values are trusted; values that are read are checked (`.__class__ is int`) once per path and stored in a local.
User text never becomes Python text: names are numbered, strings are constants, and no expression names an attribute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Final

from ...check.checked_ast import (
    CallReference,
    Checked,
    DefinitionReference,
    LocalReference,
    TypeReference,
    VariableReference,
)
from ...check.environment import PLAIN, Overload, Scope
from ...library.core import CORE, divide_int
from ...syntax import ast
from ...syntax.ast import Expr, Macro
from ...values.traversal import nothing
from ...values.types import BOOL, BYTES, DOUBLE, DURATION, INT, STRING, TIMESTAMP, UINT, ObjectType, Type
from ...values.values import INT64_MAX, INT64_MIN
from ..budget import Meter
from ..interpreter import is_constant, literal_value
from ..list_types import list_field
from ..reading import reader
from . import python_nodes as py
from . import python_tree as tree
from .paths import repeated_paths
from .runtime import GLOBALS, LOOP_LIMIT, MeteredCalls, dispatcher

_NODE_LIMIT: Final = 4_000
_FEW_LEAVES: Final = 16
"""Strings or lists that are joined without checking their lengths."""

_SCALARS: Final = {INT.name: "int", STRING.name: "str", BOOL.name: "bool", "list": "list"}
_COMPARISONS: Final[dict[str, type[py.cmpop]]] = {
    "less": py.Lt, "less_equals": py.LtE, "greater": py.Gt, "greater_equals": py.GtE,
}
_PLAIN_ORDER: Final = frozenset({"int64", "uint64", "string", "bytes", "bool", "int64_uint64", "uint64_int64"})
_ORDER: Final = _PLAIN_ORDER | {
    "timestamp", "duration", "double", "int64_double", "double_int64", "uint64_double", "double_uint64",
}
_STANDARD: Final = {overload.id: overload for function in CORE for overload in function.overloads}
_INT_ARITHMETIC: Final[dict[str, type[py.operator]]] = {
    "add_int64": py.Add, "subtract_int64": py.Sub, "multiply_int64": py.Mult,
}
_INT_FUNCTIONS: Final = frozenset({"_+_", "_-_", "_*_", "_/_", "_%_"})
_INT_RELATIONS: Final = frozenset({"_<_", "_<=_", "_>_", "_>=_"})
_INT_OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "add_int64": int.__add__, "subtract_int64": int.__sub__, "multiply_int64": int.__mul__,
}
_DOUBLE_ARITHMETIC: Final[dict[str, type[py.operator]]] = {
    "add_double": py.Add, "subtract_double": py.Sub, "multiply_double": py.Mult,
}


class RefusedError(Exception):
    """The tree has a node that only the interpreter supports."""


_SHALLOW: Final = (None, nothing)
_HOLDING: Final = frozenset({"dyn", "list", "map", "optional_type", "*error*", "any"})
_GROWING: Final = frozenset({STRING.name, BYTES.name, "list"})


def _counts_texts(overload: Overload) -> bool:
    """Return whether the time of a call is not bounded by its strings' length: a short pattern may have many states."""
    return overload.walk is not None and all(each.name in PLAIN for each in overload.parameters)


def _is_superlinear(overload: Overload) -> bool:
    """Return whether a call may take longer than in proportion to its arguments."""
    return overload.measure is not None or overload.cost.product or overload.result_steps is not None


def _usual(overloads: tuple[Overload, ...], count: int) -> Overload | None:
    """Return the most likely overload for arguments of unknown types: that of ints, or else of strings."""
    if not count:
        return None
    # Without a checker a call may have too few arguments, or too many.
    fitting = [each for each in overloads if len(each.parameters) == count]
    kinds = [(each, {parameter.name for parameter in each.parameters}) for each in fitting]
    ints = (each for each, names in kinds if names == {INT.name})
    plain = (each for each, names in kinds if names <= {INT.name, STRING.name})
    return next(ints, None) or next(plain, None)


def emit(
    checked: Checked, names: tuple[str, ...], otherwise: Callable[..., object],
    meter: Meter | None = None,
) -> Callable[..., object]:
    """Return a function of the variables `names` that gives the expression's value.

    If it cannot, it returns what `otherwise` returns (or raises) for the same arguments. `meter` counts its loops.
    Raises `RefusedError` for trees with nodes that only the interpreter supports.
    """
    meter = meter or Meter()
    emitter = _Emitter(checked, names, meter)
    try:
        body = emitter.function_body()
    except RecursionError:
        raise RefusedError from None
    parameters = [emitter.parameters[name] for name in names]
    fallback = py.Return(tree.call("otherwise", *map(tree.name, parameters)))
    guarded = py.Try(body, [py.ExceptHandler(tree.name("Exception"), None, [*emitter.account(), fallback])], [], [])
    statements: list[py.stmt] = [*emitter.opening(), guarded]
    function = py.FunctionDef("rule", tree.parameters(parameters), statements, [])
    module = py.Module([function], [])
    metered = emitter.metered
    scope: dict[str, object] = {
        **emitter.constants, **GLOBALS, "otherwise": otherwise, "meter": meter, "equal": metered.equal,
        "in_list": metered.in_list, "concatenated": metered.concatenated,
    }
    try:
        code = compile(module, "<expression>", "exec")
    except (SyntaxError, RecursionError):
        raise RefusedError from None  # Python limits the number and the depth of nested blocks
    exec(code, scope)  # noqa: S102 - of a tree that was built here, not of text
    rule = scope["rule"]
    assert callable(rule)
    return rule


class _Emitter:
    """Generator of one function. Statements are added to `block`; most nodes are one Python expression without any."""

    def __init__(self, checked: Checked, names: tuple[str, ...], meter: Meter) -> None:
        self._checked = checked
        self.parameters = {name: f"v{number}" for number, name in enumerate(names)}
        self.constants: dict[str, object] = {}
        self._block: list[py.stmt] = []
        self._known: dict[object, str] = {}
        """The local of every path that is read and checked in all branches that lead here."""
        self._numbers = 0
        self._locals: dict[str, str] = {}
        self._loops = 0
        self._any_loop = False
        self._any_bounded = False
        self.metered = MeteredCalls(meter)
        self._sharing: dict[str, bool] = {}
        """Locals of loops and binds: whether their value may contain a part more than once."""
        self._joins: dict[Checked, int] = {}
        self._lengths: dict[str, int] = {}
        """Locals of binds: the number of strings or lists that their value is joined of."""
        self._definitions: dict[Checked, str] = {}
        self._nodes = 0
        self._unchecked: set[int] = set()
        self._typed: set[int] = set()
        """Operations whose operands are all known to be ints."""
        self._root_uses = _uses_of_definitions(checked)
        self._repeated = repeated_paths([checked, *self._root_uses])
        self._present: dict[int, tuple[object, str]] = {}
        """By the identity of a presence test: the path, and the local that holds its value where the test holds."""
        self._fields: dict[object, str] = {}
        """The local of every path whose presence was tested in all branches that lead here; its value is unchecked."""

    def function_body(self) -> list[py.stmt]:
        """Return the statements of the function."""
        value = self._value(self._checked.root)
        prologue: list[py.stmt] = [tree.assign(each, tree.name("UNSET")) for each in self._definitions.values()]
        if self._definitions:
            self.constants["UNSET"] = object()
        if not self._any_loop:
            return [*prologue, *self._block, py.Return(value)]
        if isinstance(value, py.Name | py.Constant):
            return [*prologue, *self._block, *self.account(), py.Return(value)]
        return [*prologue, *self._block, tree.assign("result", value), *self.account(), py.Return(tree.name("result"))]

    def opening(self) -> list[py.stmt]:
        """Return the first statements of a call, which reset its counters."""
        found: list[py.stmt] = []
        if self._any_loop:
            found.append(tree.assign("turns", tree.constant(0)))
        if self._any_bounded:
            found.append(py.Assign([py.Attribute(tree.name("meter"), "inner", py.Store())], tree.constant(0)))
        return found

    def account(self) -> list[py.stmt]:
        """Return the statement that adds the iterations of the call to the meter."""
        if not self._any_loop:
            return []
        spent = py.Attribute(tree.name("meter"), "spent", py.Store())
        return [py.AugAssign(spent, py.Add(), tree.name("turns"))]

    # names and places

    def _fresh(self) -> str:
        self._numbers += 1
        return f"t{self._numbers}"

    def _global(self, value: object) -> py.expr:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return tree.name(name)

    def _stored(self, value: py.expr) -> tuple[py.expr, py.expr]:
        """Return an expression that computes a value and stores it in a local, and one that reads the local."""
        if isinstance(value, py.Name | py.Constant):
            return value, value
        if isinstance(value, py.NamedExpr):
            return value, tree.name(value.target.id)
        name = self._fresh()
        return tree.walrus(name, value), tree.name(name)

    @contextmanager
    def _branch(self) -> Iterator[list[py.stmt]]:
        """Generate into a new block, which may not run."""
        outer, known, fields = self._block, self._known, self._fields
        self._block, self._known, self._fields = [], dict(known), dict(fields)
        try:
            yield self._block
        finally:
            self._block, self._known, self._fields = outer, known, fields

    def _type(self, node: Expr) -> Type:
        return self._checked.types[node.id]

    def _object(self, node: Expr) -> ObjectType | None:
        return self._checked.environment.types.get(self._type(node).name)

    # values

    def _value(self, node: Expr) -> py.expr:
        """Return the Python expression of a node; a value that is read is checked."""
        return self._emit(node, chain=False)

    def _chain(self, node: Expr) -> py.expr:
        """Return the Python expression of a node that is only subscripted by a string or read by `.get`.

        Anything but a map raises then, so it needs no check.
        """
        return self._emit(node, chain=True)

    def _emit(self, node: Expr, *, chain: bool) -> py.expr:
        self._nodes += 1
        if self._nodes > _NODE_LIMIT:
            raise RefusedError
        reference = self._checked.references.get(node.id)
        match reference:
            case VariableReference(name=name):
                return self._read(tree.name(self.parameters[name]), node, ("variable", name), chain=chain)
            case LocalReference(name=name):
                return self._read(tree.name(self._locals[name]), node, ("local", self._locals[name]), chain=chain)
            case DefinitionReference(name=name):
                return self._definition(self._checked.definition(name))
            case TypeReference(type=of):
                return self._global(Type(of.name))
            case _:
                pass
        match node:
            case ast.Literal(unsigned=True):
                return self._global(literal_value(node))
            case ast.Literal(value=float() as number) if not math.isfinite(number):
                return self._global(number)
            case ast.Literal(value=constant):
                return tree.constant(constant)
            case ast.Select(test=True):
                return self._presence(node)
            case ast.Select():
                return self._select(node, chain=chain)
            case ast.Call():
                if list_field(self._checked, node) is not None:
                    raise RefusedError
                return self._call(node, chain=chain)
            case ast.ListLiteral(optional=optional) if not optional:
                if is_constant(node):
                    return self._global([_plain(each) for each in node.elements])
                return py.List(self._arguments(node.elements), py.Load())
            case ast.MapLiteral():
                return self._map(node)
            case ast.Comprehension():
                return self._comprehension(node)
            case ast.Bind():
                return self._bind(node)
            case _:
                raise RefusedError

    def _path(self, node: Expr) -> tuple[object, ...] | None:
        """Return the path of a node that reads, or None for one that computes."""
        match self._checked.references.get(node.id):
            case VariableReference(name=name):
                return ("variable", name)
            case LocalReference(name=name):
                return ("local", self._locals[name])
            case _:
                pass
        if isinstance(node, ast.Select) and not node.test and not node.optional:
            operand = self._path(node.operand)
            return None if operand is None else (operand, node.field)
        if isinstance(node, ast.Call) and node.function == "_[_]" and isinstance(node.args[1], ast.Literal):
            key = node.args[1].value
            if type(key) is str or (type(key) is int and not node.args[1].unsigned):
                operand = self._path(node.args[0])
                return None if operand is None else (operand, key)
        return None

    def _read(self, value: py.expr, node: Expr, path: tuple[object, ...] | None, *, chain: bool) -> py.expr:
        """Return a value that is read, checked once per path."""
        if path is not None:
            key = (path, chain)
            stored = self._known.get(key) or self._known.get((path, False))
            if stored is not None:
                return tree.name(stored)
        declared = self._type(node)
        is_object = declared.name in self._checked.environment.types
        unchecked = chain and (is_object or declared.name in {"dyn", "map"})
        if declared.name == "dyn" and not chain and isinstance(node, ast.Select) and self._object(node.operand):
            # A null in a declared field counts as absent.
            if path is not None and path in self._fields:
                return value
            first, again = self._stored(value)
            value = py.IfExp(tree.compare(first, py.IsNot, tree.constant(None)), again, tree.GIVE_UP)
        elif not unchecked:
            value = self._checked_read(value, declared, is_object=is_object)
        if path is None or isinstance(value, py.Name):
            if path is not None and isinstance(value, py.Name) and not unchecked:
                self._known[path, False] = value.id
            return value
        # The check may have stored the value in a local already.
        if isinstance(value, py.IfExp) and isinstance(value.body, py.Name) and value.orelse is tree.GIVE_UP:
            self._known[path, chain and unchecked] = value.body.id
            return value
        if id(node) not in self._repeated:
            return value
        name = self._fresh()
        self._known[path, chain and unchecked] = name
        return tree.walrus(name, value)

    def _checked_read(self, value: py.expr, declared: Type, *, is_object: bool) -> py.expr:
        name = declared.name
        if declared.variable or name in {"dyn", "*error*"}:
            return value
        if name in _SCALARS:
            first, again = self._stored(value)
            return py.IfExp(tree.has_class(first, _SCALARS[name]), again, tree.GIVE_UP)
        if is_object or name == "map":
            first, again = self._stored(value)
            return py.IfExp(tree.has_class(first, "dict"), again, tree.call("as_map", again))
        if name == DOUBLE.name:
            first, again = self._stored(value)
            return py.IfExp(tree.has_class(first, "float"), again, tree.call("read_double", again))
        if name == TIMESTAMP.name:
            return tree.call("read_timestamp", value)
        if name == DURATION.name:
            return tree.call("read_duration", value)
        read = reader(declared, self._checked.environment)
        if read is None:
            return value
        return py.Call(self._global(read), [value], [])

    def _is_optional(self, node: Expr) -> bool:
        return self._type(node).name == "optional_type"

    def _select(self, node: ast.Select, *, chain: bool) -> py.expr:
        if node.optional or self._is_optional(node.operand):
            raise RefusedError
        path = self._path(node)
        if path is not None:
            stored = self._known.get((path, chain)) or self._known.get((path, False))
            if stored is not None:
                return tree.name(stored)
            field_local = self._fields.get(path)
            if field_local is not None:
                return self._read(tree.name(field_local), node, path, chain=chain)
        operand = self._chain(node.operand)
        declared = self._object(node.operand)
        field = tree.constant(node.field)
        if declared is not None and declared.absent is not None:
            value: py.expr = tree.call_method(operand, "get", field, tree.constant(declared.absent))
        else:
            value = tree.item(operand, field)
        return self._read(value, node, path, chain=chain)

    def _presence(self, node: ast.Select) -> py.expr:
        if self._is_optional(node.operand):
            raise RefusedError
        field = tree.constant(node.field)
        path = self._path(node.operand)
        # What is read later, where it is present, is read here.
        repeated = path is not None and id(node) in self._repeated
        found: py.expr
        if self._object(node.operand) is not None:
            absent = tree.constant(None)
            found = tree.call_method(self._chain(node.operand), "get", field)
        elif repeated:
            absent = tree.ABSENT
            found = tree.call_method(self._chain(node.operand), "get", field, absent)
        else:
            operand = self._value(node.operand)
            if self._type(node.operand).name == "map":
                return tree.compare(field, py.In, operand)
            first, again = self._stored(operand)
            return py.IfExp(tree.has_class(first, "dict"), tree.compare(field, py.In, again), tree.GIVE_UP)
        if repeated:
            local = self._fresh()
            self._present[id(node)] = ((path, node.field), local)
            found = tree.walrus(local, found)
        return tree.compare(found, py.IsNot, absent)

    def _is_present(self, test: Expr | None) -> None:
        """Record what holds where a condition is true: the fields whose presence it tests can be read of locals."""
        for term in _terms(test, "_&&_") if test is not None else ():
            found = self._present.get(id(term))
            if found is not None:
                path, local = found
                self._fields[path] = local

    def _index(self, node: ast.Call, *, chain: bool) -> py.expr:
        container, key = node.args
        if self._is_optional(container) or self._is_optional(node):
            raise RefusedError
        path = self._path(node)
        if path is not None:
            stored = self._known.get((path, chain)) or self._known.get((path, False))
            if stored is not None:
                return tree.name(stored)
        declared, kind, key_kind = self._object(container), self._type(container).name, self._type(key).name
        value: py.expr
        if kind == "list":
            items, number = self._arguments((container, key))
            if isinstance(key, ast.Literal) and type(key.value) is int and not key.unsigned:
                value = tree.item(items, number) if key.value >= 0 else tree.GIVE_UP
            elif key_kind == INT.name:
                first, again = self._stored(number)
                value = tree.item(items, py.IfExp(tree.compare(first, py.GtE, tree.constant(0)), again, tree.GIVE_UP))
            else:
                value = tree.call("index_list", items, number)
        elif key_kind == STRING.name:
            operand, text = self._in_order([partial(self._chain, container), partial(self._value, key)])
            if declared is not None and declared.absent is not None:
                value = tree.call_method(operand, "get", text, tree.constant(declared.absent))
            else:
                value = tree.item(operand, text)
        else:
            if declared is not None:
                raise RefusedError
            value = self._dynamic_index(*self._arguments((container, key)))
        return self._read(value, node, path, chain=chain)

    def _dynamic_index(self, container: py.expr, key: py.expr) -> py.expr:
        """Return an element of a list or a map by a key of any kind."""
        if isinstance(key, py.Name):
            # Only a map has a string as a key: anything else raises.
            return py.IfExp(tree.has_class(key, "str"), tree.item(container, key), tree.call("index", container, key))
        (first, again), (key_first, key_again) = self._stored(container), self._stored(key)
        if not isinstance(key, py.Constant):
            test = tree.all_of([tree.has_class(first, "dict"), tree.has_class(key_first, "str")])
        elif type(key.value) is int and key.value >= 0:
            test = tree.has_class(first, "list")
        else:
            return tree.call("index", container, key)
        return py.IfExp(test, tree.item(again, key_again), tree.call("index", again, key_again))

    def _definition(self, checked: Checked) -> py.expr:
        """Return a definition's value: computed at its first use, then read from a local."""
        stored = self._known.get(checked)
        if stored is not None:
            return tree.name(stored)
        once = self._root_uses.get(checked, 2) < 2 and not self._loops
        if once:
            with self._inside(checked):
                return self._value(checked.root)
        local = self._definitions.get(checked)
        if local is None:
            local = self._definitions[checked] = f"d{len(self._definitions)}"
        with self._branch() as block:
            with self._inside(checked):
                value = self._value(checked.root)
            block.append(tree.assign(local, value))
        self._block.append(py.If(tree.compare(tree.name(local), py.Is, tree.name("UNSET")), block, []))
        self._known[checked] = local
        return tree.name(local)

    @contextmanager
    def _inside(self, checked: Checked) -> Iterator[None]:
        outer, locals_ = self._checked, self._locals
        self._checked, self._locals = checked, {}
        try:
            yield
        finally:
            self._checked, self._locals = outer, locals_

    # calls

    def _call(self, node: ast.Call, *, chain: bool) -> py.expr:
        match node.function:
            case "_&&_" | "_||_":
                return self._logic(node)
            case "_?_:_":
                return self._conditional(node)
            case "_[_]":
                return self._index(node, chain=chain)
            case "_[?_]":
                raise RefusedError
            case _:
                return self._function(node)

    def _condition(self, node: Expr) -> py.expr:
        """Return a value that is checked to be a bool."""
        value = self._value(node)
        if self._type(node) == BOOL:
            return value
        first, again = self._stored(value)
        return py.IfExp(tree.has_class(first, "bool"), again, tree.GIVE_UP)

    def _logic(self, node: ast.Call) -> py.expr:
        both = node.function == "_&&_"
        terms = _terms(node, node.function)
        values = [self._condition(terms[0])]
        with self._branch() as outermost:
            blocks = [outermost]
            # Each further term has a block of its own; one without statements is appended to the expression before it.
            chain: list[tuple[list[py.stmt], py.expr]] = []
            for before, term in pairwise(terms):
                self._is_present(before if both else _denied(before))
                self._block = []
                blocks.append(self._block)
                chain.append((self._block, self._condition(term)))
        result: str | None = None
        current = self._block
        for statements, value in chain:
            if not statements:
                values.append(value)
                continue
            joined = _joined(values, both=both)
            if result is None:
                result = self._fresh()
            current.append(tree.assign(result, joined))
            test: py.expr = tree.name(result) if both else tree.negated(tree.name(result))
            current.append(py.If(test, statements, []))
            current = statements
            values = [value]
        joined = _joined(values, both=both)
        if result is None:
            return joined
        current.append(tree.assign(result, joined))
        return tree.name(result)

    def _conditional(self, node: ast.Call) -> py.expr:
        condition = self._condition(node.args[0])
        with self._branch() as then_block:
            self._is_present(node.args[0])
            then = self._value(node.args[1])
        with self._branch() as else_block:
            self._is_present(_denied(node.args[0]))
            otherwise = self._value(node.args[2])
        if not then_block and not else_block:
            return py.IfExp(condition, then, otherwise)
        result = self._fresh()
        then_block.append(tree.assign(result, then))
        else_block.append(tree.assign(result, otherwise))
        self._block.append(py.If(condition, then_block, else_block))
        return tree.name(result)

    def _function(self, node: ast.Call) -> py.expr:
        reference = self._checked.references.get(node.id)
        if not isinstance(reference, CallReference):
            raise RefusedError
        nodes = node.args if node.target is None or reference.qualified else (node.target, *node.args)
        if node.function in {"_==_", "_!=_"}:
            return self._equality(nodes[0], nodes[1], negated=node.function == "_!=_")
        if node.function == "@in":
            return self._membership(nodes[0], nodes[1], reference.overloads)
        if node.function in _INT_FUNCTIONS or node.function in _INT_RELATIONS:
            integers = self._integers(node)
            if integers is not None:
                return integers
        overloads = reference.overloads
        if overloads[0].id == "optional_orValue_value":
            return self._or_value(nodes[0], nodes[1])
        if overloads[0].id == "optional_or_optional":
            raise RefusedError
        if len(overloads) != 1 or not self._certain(nodes, overloads[0]):
            if self._loops and node.function == "_+_":
                raise RefusedError  # texts that grow in a loop are metered
            return self._dispatched(node, overloads, nodes)
        self._leave_unchecked(overloads[0], nodes)
        return self._applied(node, overloads[0], self._arguments(nodes), nodes)

    def _or_value(self, optional: Expr, default: Expr) -> py.expr:
        """Return `a.?b.?c.orValue(d)`: the value at a chain of fields, or the default if one is absent."""
        fields: list[tuple[str, bool]] = []
        node = optional
        while isinstance(node, ast.Select) and not node.test and self._is_optional(node) and not self._path(node):
            declared = self._object(node.operand) or self._checked.environment.types.get(self._inner(node.operand).name)
            if declared is not None and declared.absent is not None:
                raise RefusedError
            fields.append((node.field, declared is not None))
            node = node.operand
        if not fields or self._is_optional(node):
            raise RefusedError
        reached = tree.call("descend", self._value(node), self._global(tuple(reversed(fields))))
        name = self._fresh()
        with self._branch() as block:
            value = self._checked_read(
                tree.name(name), self._inner(optional),
                is_object=self._inner(optional).name in self._checked.environment.types,
            )
            otherwise = self._value(default)
        if block:
            raise RefusedError
        return py.IfExp(tree.compare(tree.walrus(name, reached), py.Is, tree.name("MISSING")), otherwise, value)

    def _inner(self, node: Expr) -> Type:
        """Return the type of the value in an optional; of any other value its own type."""
        declared = self._type(node)
        return declared.parameters[0] if declared.name == "optional_type" and declared.parameters else declared

    def _dispatched(self, node: Expr, overloads: tuple[Overload, ...], nodes: tuple[Expr, ...]) -> py.expr:
        """Return a call that finds its overload at run time, after a test for the most likely one."""
        usual = _usual(overloads, len(nodes))
        self._leave_unchecked(usual, nodes)
        values = self._arguments(nodes)
        found = dispatcher(overloads, self._checked.environment.types)
        dispatch = self._global(self._bounded(found, overloads, nodes))
        if usual is None:
            return py.Call(dispatch, values, [])
        pairs = [self._stored(each) for each in values]
        again = [each[1] for each in pairs]
        tests = [
            tree.has_class(first, _SCALARS[parameter.name])
            for (first, _), node, parameter in zip(pairs, nodes, usual.parameters, strict=True)
            if not (isinstance(first, py.Name | py.Constant) and self._type(node) == parameter)
        ]
        if not tests:
            return py.Call(dispatch, again, [])
        return py.IfExp(tree.all_of(tests), self._applied(node, usual, again, nodes), py.Call(dispatch, again, []))

    def _integers(self, node: ast.Call) -> py.expr | None:
        """Return operations on values of unknown kinds: those of ints if all of them are ints, else dispatched calls.

        None if a value is known to be something else, or if all are known to be ints.
        """
        leaves: list[Expr] = []
        if node.id in self._typed or not self._find_leaves(node, leaves):
            return None
        if self._loops and self._adds(node):
            raise RefusedError  # texts that grow in a loop are metered
        values = self._in_order([partial(self._readable, each) for each in leaves])
        tests: list[py.expr] = []
        plain: dict[int, py.expr] = {}
        exact: dict[int, py.expr] = {}
        tested: set[str] = set()
        for leaf, value in zip(leaves, values, strict=True):
            first, again = self._stored(value)
            plain[id(leaf)], exact[id(leaf)] = again, value
            if isinstance(value, py.Constant) or (isinstance(value, py.Name) and self._type(leaf) == INT):
                continue
            if isinstance(again, py.Name) and again.id not in tested:
                tested.add(again.id)
                tests.append(tree.has_class(first, "int"))
        # The values are read again for the other calls: a test that fails ends the reading.
        return py.IfExp(_joined(tests, both=True), self._of_ints(node, plain), self._of_any(node, exact))

    def _find_leaves(self, node: ast.Call, leaves: list[Expr]) -> bool:
        """Find the operands of nested operations from left to right; True if they may be ints, and not all must be."""
        if self._usual_of(node) is None:
            return False
        inner, pending, unknown = [node.id], list(node.args[::-1]), False
        while pending:
            each = pending.pop()
            kind = self._type(each).name
            if isinstance(each, ast.Call) and each.function in _INT_FUNCTIONS and kind in {"dyn", INT.name}:
                if self._usual_of(each) is None:
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
            self._typed.update(inner)
        return unknown

    def _adds(self, node: Expr) -> bool:
        """Return whether nested operations have a sum of values of unknown kinds, which may be strings."""
        return isinstance(node, ast.Call) and node.function in _INT_FUNCTIONS | _INT_RELATIONS and (
            (node.function == "_+_" and any(self._type(each).name == "dyn" for each in node.args))
            or any(map(self._adds, node.args))
        )

    def _readable(self, node: Expr) -> py.expr:
        """Return a value that may be read twice: what is computed is stored in a local by a statement."""
        value = self._value(node)
        if isinstance(value, py.Name | py.Constant) or self._path(node) is not None:
            return value
        name = self._fresh()
        self._block.append(tree.assign(name, value))
        return tree.name(name)

    def _of_ints(self, node: ast.Call, values: Mapping[int, py.expr]) -> py.expr:
        usual = self._usual_of(node)
        assert usual is not None
        self._leave_unchecked(usual, node.args)
        arguments = [
            values[id(each)] if id(each) in values else self._of_ints(each, values)  # type: ignore[arg-type]
            for each in node.args
        ]
        found = self._inline(node, usual.id, arguments, node.args)
        assert found is not None
        return found

    def _usual_of(self, node: ast.Call) -> Overload | None:
        """Return the overload of a call for ints, if it has one."""
        reference = self._checked.references.get(node.id)
        if not isinstance(reference, CallReference):
            return None
        usual = _usual(reference.overloads, len(node.args))
        return usual if usual is not None and _STANDARD.get(usual.id) is usual and usual.parameters[0] == INT else None

    def _of_any(self, node: ast.Call, values: Mapping[int, py.expr]) -> py.expr:
        reference = self._checked.references[node.id]
        assert isinstance(reference, CallReference)
        found = dispatcher(reference.overloads, self._checked.environment.types)
        arguments = [
            values[id(each)] if id(each) in values else self._of_any(each, values)  # type: ignore[arg-type]
            for each in node.args
        ]
        return py.Call(self._global(self._bounded(found, reference.overloads, node.args)), arguments, [])

    def _applied(
        self, node: Expr, overload: Overload, arguments: list[py.expr], nodes: tuple[Expr, ...],
    ) -> py.expr:
        """Return the Python expression of an overload for arguments of its types."""
        inline = self._inline(node, overload.id, arguments, nodes) if _STANDARD.get(overload.id) is overload else None
        if inline is not None:
            return inline
        return py.Call(self._global(self._bounded(overload.evaluate, (overload,), nodes)), arguments, [])

    def _leave_unchecked(self, overload: Overload | None, nodes: tuple[Expr, ...]) -> None:
        """Record a value that needs no range check: a number times a literal fits only if the number itself does.

        (Except times -1: the lowest int has no counterpart.)
        """
        if overload is not _STANDARD["multiply_int64"]:
            return
        for node, other in (nodes, nodes[::-1]):
            if isinstance(node, ast.Literal) and type(node.value) is int and node.value > 0:
                self._unchecked.add(id(other))

    def _range(self, node: Expr) -> tuple[int, int] | None:
        """Return bounds of an int, None if none are known.

        A number that is read may have more than 64 bits; computed ones were checked.
        """
        if isinstance(node, ast.Literal):
            return (node.value, node.value) if type(node.value) is int else None
        reference = self._checked.references.get(node.id)
        if not isinstance(node, ast.Call) or not isinstance(reference, CallReference) or id(node) in self._unchecked:
            return None
        if not all(_STANDARD.get(each.id) is each for each in reference.overloads):
            return None
        last = node.args[-1] if node.args else None
        divisor = last.value if isinstance(last, ast.Literal) and type(last.value) is int else 0
        match node.function:
            case "_+_" | "_-_" | "_*_":
                return INT64_MIN, INT64_MAX
            case "_%_" if divisor > 0:
                return 1 - divisor, divisor - 1
            case "_/_":
                dividend = self._range(node.args[0])
                if dividend is None or divisor <= 0:
                    return None if dividend is None else (INT64_MIN, INT64_MAX)
                return divide_int(dividend[0], divisor), divide_int(dividend[1], divisor)
            case _:
                return None

    def _fits(self, id_: str, nodes: tuple[Expr, ...]) -> bool:
        """Return whether the result of an operation on ints fits into 64 bits by its bounds."""
        left, right = map(self._range, nodes)
        if left is None or right is None:
            return False
        operation = _INT_OPERATIONS[id_]
        ends = [operation(one, other) for one in left for other in right]
        return min(ends) >= INT64_MIN and max(ends) <= INT64_MAX

    def _arguments(self, nodes: Sequence[Expr]) -> list[py.expr]:
        return self._in_order([partial(self._value, node) for node in nodes])

    def _in_order(self, parts: Sequence[Callable[[], py.expr]]) -> list[py.expr]:
        """Return expressions that are evaluated in this order, even where a later one needs statements.

        A local that one part sets may be read by the next, so correctness depends on the order.
        """
        values: list[py.expr] = []
        for part in parts:
            before = len(self._block)
            value = part()
            if len(self._block) > before:
                # The expressions so far are computed before those statements.
                for position, earlier in enumerate(values):
                    if not isinstance(earlier, py.Name | py.Constant):
                        name = self._fresh()
                        self._block.insert(before, tree.assign(name, earlier))
                        before += 1
                        values[position] = tree.name(name)
            values.append(value)
        return values

    def _certain(self, nodes: tuple[Expr, ...], overload: Overload) -> bool:
        for node, parameter in zip(nodes, overload.parameters, strict=True):
            if parameter.variable or parameter.name == "dyn":
                continue
            known = self._type(node)
            if known.variable or known.name != parameter.name:
                return False
        return True

    def _inline(
        self, node: Expr, id_: str, arguments: list[py.expr], nodes: tuple[Expr, ...],
    ) -> py.expr | None:
        """Return the Python operation of an overload, or None if it must be called."""
        if id_ in _INT_ARITHMETIC:
            result = py.BinOp(arguments[0], _INT_ARITHMETIC[id_](), arguments[1])
            if id(node) in self._unchecked or self._fits(id_, nodes):
                return result
            first, again = self._stored(result)
            # Half the time of two comparisons; the lowest int has 64 bits, and is left to the interpreter.
            in_range = tree.compare(tree.call_method(first, "bit_length"), py.Lt, tree.constant(64))
            return py.IfExp(in_range, again, tree.GIVE_UP)
        if id_ in _DOUBLE_ARITHMETIC:
            return py.BinOp(arguments[0], _DOUBLE_ARITHMETIC[id_](), arguments[1])
        operation = id_.rpartition("_")[0]
        if id_ in {"divide_int64", "modulo_int64"}:
            return self._division(id_, arguments, bounded=self._range(nodes[0]) is not None)
        if id_ == "logical_not":
            return tree.negated(arguments[0])
        if id_ in {"add_string", "add_bytes", "add_list"}:
            if self._loops or self._joined_of(node) > _FEW_LEAVES:
                self._any_bounded = True
                return tree.call("concatenated", *arguments)
            return py.BinOp(arguments[0], py.Add(), arguments[1])
        if operation in {"size", "member_size"}:
            return tree.call("len", arguments[0])
        if id_ == "contains_string":
            simple = isinstance(nodes[1], ast.Literal) and not self._loops
            return tree.compare(arguments[1], py.In, arguments[0]) if simple else None
        if id_ in {"starts_with_string", "ends_with_string"}:
            return tree.call_method(arguments[0], "startswith" if id_[0] == "s" else "endswith", arguments[1])
        return self._order(id_, arguments, nodes)

    def _order(self, id_: str, arguments: list[py.expr], nodes: tuple[Expr, ...]) -> py.expr | None:
        for word, operator in _COMPARISONS.items():
            kinds = id_.removeprefix(word + "_")
            if kinds == id_ or kinds not in _ORDER:
                continue
            if kinds in _PLAIN_ORDER:
                return tree.compare(arguments[0], operator, arguments[1])
            if kinds in {"timestamp", "duration"}:
                left, right = (py.Attribute(each, "ns", py.Load()) for each in arguments)
                return tree.compare(left, operator, right)
            sides: list[py.expr] = []
            tests: list[py.expr] = []
            for node, value in zip(nodes, arguments, strict=True):
                if self._type(node) != DOUBLE:
                    first, again = self._stored(tree.call("float", value))
                elif isinstance(node, ast.Literal):
                    sides.append(value)
                    continue
                else:
                    first, again = self._stored(value)
                # NaN is not equal to itself, and has no order.
                tests.append(tree.compare(first, py.Eq, again))
                sides.append(again)
            comparison = tree.compare(sides[0], operator, sides[1])
            if not tests:
                return comparison
            test = tests[0] if len(tests) == 1 else py.BinOp(tests[0], py.BitAnd(), tests[1])
            return py.IfExp(test, comparison, tree.GIVE_UP)
        return None

    def _division(self, id_: str, arguments: list[py.expr], *, bounded: bool) -> py.expr:
        operator: py.operator = py.FloorDiv() if id_ == "divide_int64" else py.Mod()
        exact = "divide_int" if id_ == "divide_int64" else "modulo_int"
        dividend, dividend_again = self._stored(arguments[0])
        divisor = arguments[1]
        positive: py.expr = tree.compare(dividend, py.GtE, tree.constant(0))
        if not bounded:  # a number that is read may have any number of digits
            positive = py.Compare(tree.constant(0), [py.LtE(), py.LtE()], [dividend, tree.constant(INT64_MAX)])
        if isinstance(divisor, py.Constant) and divisor.value > 0:  # type: ignore[operator]
            divisor_again: py.expr = divisor
        else:
            stored, divisor_again = self._stored(divisor)
            test = tree.compare(stored, py.Gt, tree.constant(0))
            # `&`, as both have to be computed.
            positive = _joined([positive, test], both=True) if stored is divisor else tree.all_of([positive, test])
        ordinary = py.BinOp(dividend_again, operator, divisor_again)
        return py.IfExp(positive, ordinary, tree.call(exact, dividend_again, divisor_again))

    def _equality(self, left: Expr, right: Expr, *, negated: bool) -> py.expr:
        operator: type[py.cmpop] = py.NotEq if negated else py.Eq
        for node, other in ((left, right), (right, left)):
            if isinstance(other, ast.Literal) and other.value is None:
                value = self._chain(node) if self._is_null_allowed(node) else self._value(node)
                return tree.compare(value, py.IsNot if negated else py.Is, tree.constant(None))
        kinds = {self._type(left).name, self._type(right).name}
        values = self._arguments((left, right))
        if len(kinds) == 1 and kinds <= {INT.name, UINT.name, DOUBLE.name, STRING.name, BOOL.name, BYTES.name}:
            return tree.compare(values[0], operator, values[1])
        if kinds == {INT.name, UINT.name} or (len(kinds) == 1 and kinds <= {TIMESTAMP.name, DURATION.name}):
            return tree.compare(values[0], operator, values[1])
        if kinds == {"dyn", STRING.name}:
            return tree.compare(values[0], operator, values[1])
        if self._loops and not kinds & {"dyn", INT.name, STRING.name, BOOL.name}:
            raise RefusedError  # large structures compared in a loop are metered
        pairs = [self._stored(each) for each in values]
        result: py.expr = tree.call("equal", *(again for _, again in pairs))
        if negated:
            result = tree.negated(result)
        if not kinds <= {"dyn", INT.name}:
            return tree.negated(tree.call("equal", *values)) if negated else tree.call("equal", *values)
        if INT.name not in kinds:
            # A string is equal to strings only, so the kind of the other one does not matter.
            first, again = self._stored(values[0])
            result = tree.call("equal", again, values[1])
            ordinary = tree.compare(again, operator, values[1])
            return py.IfExp(tree.has_class(first, "str"), ordinary, tree.negated(result) if negated else result)
        tests = [tree.has_class(first, "int") for first, _ in pairs if not isinstance(first, py.Constant)]
        return py.IfExp(tree.all_of(tests), tree.compare(pairs[0][1], operator, pairs[1][1]), result)

    def _is_null_allowed(self, node: Expr) -> bool:
        """Return whether a null is a value there: in a variable or an element, not in a declared field."""
        reference = self._checked.references.get(node.id)
        return self._object(node) is not None and isinstance(reference, VariableReference | LocalReference)

    def _membership(self, item: Expr, container: Expr, overloads: tuple[Overload, ...]) -> py.expr:
        kind = self._type(container).name
        item_kind = self._type(item).name
        if kind == "list" and isinstance(container, ast.ListLiteral) and is_constant(container):
            plain = [_plain(each) for each in container.elements]
            classes = {each.__class__ for each in plain}
            if (item_kind, classes) in ((STRING.name, {str}), (INT.name, {int})):
                value = self._value(item)
                return tree.compare(value, py.In, tree.constants(plain))
            if (item_kind, classes) == ("dyn", {str}):
                # No other value is equal to a string.
                return tree.compare(self._value(item), py.In, tree.constants(plain))
        values = self._arguments((item, container))
        if kind == "list":
            if self._loops:
                # Every iteration searches the whole list: it counts as that many iterations.
                sought, items = self._fresh(), self._fresh()
                self._block += [tree.assign(sought, values[0]), tree.assign(items, values[1])]
                self._count_turns(items, 1)
                values = [tree.name(sought), tree.name(items)]
            if item_kind == STRING.name:
                return tree.compare(values[0], py.In, values[1])
            return tree.call("in_list", *values)
        if kind == "map":
            if item_kind == STRING.name:
                return tree.compare(values[0], py.In, values[1])
            return tree.call("in_map", *values)
        found = dispatcher(overloads, self._checked.environment.types)
        dispatch = self._global(self._bounded(found, overloads, (item, container)))
        (first, again), (second, second_again) = map(self._stored, values)
        tests: list[py.expr] = [tree.has_class(first, "str"), tree.has_class(second, "dict")]
        ordinary = tree.compare(again, py.In, second_again)
        if isinstance(values[0], py.Name) and self._path(container) is not None:
            return py.IfExp(_joined(tests, both=True), ordinary, py.Call(dispatch, values, []))
        return py.IfExp(tree.all_of(tests), ordinary, py.Call(dispatch, [again, second_again], []))

    # literals, loops

    def _map(self, node: ast.MapLiteral) -> py.expr:
        keys = [each.key.value for each in node.entries if isinstance(each.key, ast.Literal)]
        texts = [key for key in keys if type(key) is str]
        if len(set(texts)) != len(node.entries) or any(each.optional for each in node.entries):
            raise RefusedError
        return py.Dict([tree.constant(key) for key in texts], self._arguments([each.value for each in node.entries]))

    def _bind(self, node: ast.Bind) -> py.expr:
        # The value is computed even if it is unused; if that fails, the interpreter evaluates.
        local = self._fresh()
        self._sharing[local], self._lengths[local] = self._shares(node.init), self._joined_of(node.init)
        self._block.append(tree.assign(local, self._value(node.init)))
        outer = self._locals
        self._locals = {**outer, node.variable: local}
        self._known[("local", local), False] = local
        self._loops += 1  # strings may double in length with every bind
        try:
            return self._value(node.body)
        finally:
            self._locals = outer
            self._loops -= 1

    def _comprehension(self, node: ast.Comprehension) -> py.expr:
        if node.macro in {Macro.TRANSFORM_MAP, Macro.TRANSFORM_MAP_ENTRY, Macro.SORT_BY}:
            raise RefusedError
        declared = self._type(node.range)
        items = self._fresh()
        self._block.append(tree.assign(items, self._value(node.range)))
        first = self._fresh()
        second = None if node.variable2 is None else self._fresh()
        self._sharing[first] = self._sharing[second or first] = self._shares(node.range)
        target: py.expr = py.Name(first, py.Store())
        loop_over: py.expr = tree.name(items)
        kinds: list[tuple[str, Type]] = []
        if declared.name == "list":
            element = declared.parameters[0] if declared.parameters else Type("dyn")
            if second is not None:
                loop_over = tree.call("enumerate", loop_over)
                kinds.append((second, element))
                self._known[("local", first), False] = first
            else:
                kinds.append((first, element))
        elif declared.name == "map" and declared.parameters and declared.parameters[0].name in {"string", "int"}:
            kinds.append((first, declared.parameters[0]))
            if second is not None:
                loop_over = tree.call_method(loop_over, "items")
                kinds.append((second, declared.parameters[1]))
        elif declared.name == "dyn" and second is None:
            other = tree.compare(py.Attribute(tree.name(items), "__class__", py.Load()), py.IsNot, tree.name("list"))
            self._block.append(py.If(other, [tree.assign(items, tree.call("items", tree.name(items)))], []))
            kinds.append((first, Type("dyn")))
        else:
            raise RefusedError
        if second is not None:
            target = py.Tuple([target, py.Name(second, py.Store())], py.Store())
        self._count_turns(items, 2 + _parts_of(node.predicate) + _parts_of(node.transform))
        result = self._fresh()
        outer = self._locals
        self._locals = {**outer, node.variable: first}
        if second is not None and node.variable2 is not None:
            self._locals[node.variable2] = second
        self._loops += 1
        with self._branch() as body:
            for local, kind in kinds:
                self._head(local, kind)
            self._turn(node, result, first)
        self._loops -= 1
        self._locals = outer
        start: py.expr
        match node.macro:
            case Macro.ALL | Macro.EXISTS:
                start = tree.constant(node.macro is Macro.ALL)
            case Macro.EXISTS_ONE:
                start = tree.constant(0)
            case _:
                start = py.List([], py.Load())
        self._block.append(tree.assign(result, start))
        self._block.append(py.For(target, loop_over, body, []))
        if node.macro is Macro.EXISTS_ONE:
            return tree.compare(tree.name(result), py.Eq, tree.constant(1))
        return tree.name(result)

    # metering

    def _bounded(
        self, evaluate: Callable[..., object], overloads: tuple[Overload, ...], nodes: Sequence[Expr],
    ) -> Callable[..., object]:
        """Return the implementation of a call of some nodes, metered if it may take long or make a large value.

        Outside of loops, calls on values that are read need no meter: objects and expressions are bounded in size.
        """
        holds = any(each.walk not in _SHALLOW for each in overloads) and any(map(self._holds, map(self._type, nodes)))
        sized = any(each.cost.per_size for each in overloads)
        grows = any(each.result.name in _GROWING for each in overloads) and any(map(self._is_made, nodes))
        walks = any(map(_counts_texts, overloads)) and any(map(self._varies, nodes[1:]))
        if not (
            (self._loops and (sized or holds or grows)) or any(map(_is_superlinear, overloads)) or grows
            or (holds and any(map(self._shares, nodes))) or walks
        ):
            return evaluate
        self._any_bounded = True
        return self.metered.call(evaluate, overloads, holds=holds, walks=walks)

    def _holds(self, of: Type) -> bool:
        """Return whether values of a type may contain others."""
        return of.variable or of.name in _HOLDING or of.name in self._checked.environment.types

    def _varies(self, node: Expr) -> bool:
        """Return whether a value may differ between the calls of one decision: it is computed, or read of a row."""
        return not isinstance(node, ast.Literal) and (
            self._checked.scopes[node.id] is Scope.ROW or self._is_made(node))

    def _is_made(self, node: Expr) -> bool:
        """Return whether a value is computed by the expression: neither read nor a literal."""
        reference = self._checked.references.get(node.id)
        if isinstance(reference, DefinitionReference | LocalReference):
            return True
        if isinstance(node, ast.Select) and not node.test:
            return self._is_made(node.operand)
        if isinstance(node, ast.Call) and node.function == "_[_]":
            return self._is_made(node.args[0])
        return isinstance(reference, CallReference) or (reference is None and not isinstance(node, ast.Literal))

    def _shares(self, node: Expr) -> bool:
        """Return whether a value may contain a part more than once, and so be larger than its parts."""
        if not self._holds(self._type(node)):
            return False
        match self._checked.references.get(node.id):
            case VariableReference():
                return False
            case LocalReference(name=name):
                return self._sharing.get(self._locals.get(name, ""), True)
            case DefinitionReference(name=name):
                definition = self._checked.definition(name)
                with self._inside(definition):
                    return self._shares(definition.root)
            case _:
                pass
        match node:
            case ast.Select():
                return self._shares(node.operand)
            case ast.ListLiteral():
                return any(self._holds(self._type(each)) for each in node.elements)
            case ast.MapLiteral():
                return any(self._holds(self._type(each.value)) for each in node.entries)
            case ast.Comprehension(macro=Macro.FILTER):
                return self._shares(node.range)
            case ast.Comprehension(transform=transform):
                return transform is not None and self._holds(self._type(transform))
            case ast.Call(function="_?_:_"):
                return self._shares(node.args[1]) or self._shares(node.args[2])
            case ast.Call(target=target, args=arguments):
                # A qualified function's target is a part of its name, and has no type.
                has_type = target is not None and target.id in self._checked.types
                return any(map(self._shares, (target, *arguments) if target is not None and has_type else arguments))
            case ast.Literal():
                return False
            case _:
                return True

    def _joined_of(self, node: Expr) -> int:
        """Return the most strings or lists, each read or bounded when it is made, that a value is joined of."""
        match self._checked.references.get(node.id):
            case LocalReference(name=name):
                return self._lengths.get(self._locals.get(name, ""), 1)
            case DefinitionReference(name=name):
                definition = self._checked.definition(name)
                found = self._joins.get(definition)
                if found is None:
                    with self._inside(definition):
                        found = self._joins[definition] = self._joined_of(definition.root)
                return found
            case _:
                pass
        match node:
            case ast.Call(function="_+_"):
                return sum(map(self._joined_of, node.args))
            case ast.Comprehension() | ast.Bind():
                # The value of a local counts once for each part that it is joined of.
                return math.prod(map(self._joined_of, ast.children(node)))
            case _:
                return max(map(self._joined_of, ast.children(node)), default=1)

    def _count_turns(self, items: str, units: int) -> None:
        """Generate the bound of all loops: the iterations over a list or map, of a number of units each."""
        count: py.expr = tree.call("len", tree.name(items))
        if units > 1:
            count = py.BinOp(count, py.Mult(), tree.constant(units))
        if self._any_loop:
            count = py.BinOp(tree.name("turns"), py.Add(), count)
        self._any_loop = True  # the first loop in the text is also the first that runs
        self._block.append(tree.assign("turns", count))
        self._block.append(
            py.If(tree.compare(tree.name("turns"), py.Gt, tree.constant(LOOP_LIMIT)), [py.Expr(tree.GIVE_UP)], []),
        )

    def _head(self, local: str, kind: Type) -> None:
        """Generate the check of a loop's variable, once per iteration."""
        if kind.name in {"dyn", "*error*"} or kind.variable:
            return
        is_object = kind.name in self._checked.environment.types
        if is_object or kind.name in _SCALARS:
            expected = "dict" if is_object else _SCALARS[kind.name]
            wrong = tree.compare(py.Attribute(tree.name(local), "__class__", py.Load()), py.IsNot, tree.name(expected))
            self._block.append(py.If(wrong, [py.Expr(tree.GIVE_UP)], []))
        else:
            value = self._checked_read(tree.name(local), kind, is_object=False)
            self._block.append(tree.assign(local, value))
        self._known[("local", local), False] = local

    def _turn(self, node: ast.Comprehension, result: str, first: str) -> None:
        """Generate the body of a loop."""
        predicate = None if node.predicate is None else self._condition(node.predicate)
        done: list[py.stmt]
        match node.macro:
            case Macro.ALL | Macro.EXISTS:
                assert predicate is not None
                every = node.macro is Macro.ALL
                done = [tree.assign(result, tree.constant(not every)), py.Break()]
                self._block.append(py.If(tree.negated(predicate) if every else predicate, done, []))
                return
            case Macro.EXISTS_ONE:
                done = [tree.assign(result, py.BinOp(tree.name(result), py.Add(), tree.constant(1)))]
            case Macro.FILTER:
                done = [py.Expr(tree.call_method(tree.name(result), "append", tree.name(first)))]
            case _:
                assert node.transform is not None
                with self._branch() as done:
                    value = self._value(node.transform)
                    done.append(py.Expr(tree.call_method(tree.name(result), "append", value)))
        self._block.extend([py.If(predicate, done, [])] if predicate is not None else done)


def _parts_of(node: Expr | None) -> int:
    """Return the number of nodes of an expression."""
    count, pending = 0, [] if node is None else [node]
    while pending:
        each = pending.pop()
        count += 1
        pending.extend(ast.children(each))
    return count


def _joined(values: list[py.expr], *, both: bool) -> py.expr:
    if len(values) == 1:
        return values[0]
    return py.BoolOp(py.And() if both else py.Or(), values)


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


def _plain(node: Expr) -> object:
    """Return the value of a constant node."""
    match node:
        case ast.Literal():
            return literal_value(node)
        case ast.ListLiteral():
            return [_plain(each) for each in node.elements]
        case ast.MapLiteral() if all(
            isinstance(each.key, ast.Literal) and type(each.key.value) is str for each in node.entries
        ):
            if len({_plain(each.key) for each in node.entries}) == len(node.entries):
                return {_plain(each.key): _plain(each.value) for each in node.entries}
    raise RefusedError


def _uses_of_definitions(checked: Checked) -> Mapping[Checked, int]:
    """Return the number of mentions of each definition, by the expression and by definitions that it mentions."""
    uses: dict[Checked, int] = {}
    pending = [checked]
    while pending:
        each = pending.pop()
        for reference in each.references.values():
            if isinstance(reference, DefinitionReference):
                definition = each.definition(reference.name)
                if definition not in uses:
                    pending.append(definition)
                uses[definition] = uses.get(definition, 0) + 1
    return uses
