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

from collections.abc import Callable
from typing import Final

from ...check.checked_ast import Checked, DefinitionReference, LocalReference, TypeReference, VariableReference
from ...syntax import ast
from ...syntax.ast import Expr
from ...values.types import Type
from ..budget import Meter
from ..list_types import list_field
from . import python_nodes as py
from . import python_tree as tree
from .calls import call
from .literals import list_literal, map_literal, scalar_literal
from .logic import conditional, logic
from .loops import bind, comprehension
from .reads import definition, element, field, presence, read
from .runtime import GLOBALS
from .writer import FunctionWriter, RefusedError

_NODE_LIMIT: Final = 4_000


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


class _Emitter(FunctionWriter):
    """Writer that generates each kind of node by the module for it."""

    def __init__(self, checked: Checked, names: tuple[str, ...], meter: Meter) -> None:
        super().__init__(checked, names, meter)
        self._nodes = 0

    def function_body(self) -> list[py.stmt]:
        """Return the statements of the function."""
        value = self.value(self.checked.root)
        prologue: list[py.stmt] = [tree.assign(each, tree.name("UNSET")) for each in self.definitions.values()]
        if self.definitions:
            self.constants["UNSET"] = object()
        if not self.any_loop:
            return [*prologue, *self.block, py.Return(value)]
        if isinstance(value, py.Name | py.Constant):
            return [*prologue, *self.block, *self.account(), py.Return(value)]
        return [*prologue, *self.block, tree.assign("result", value), *self.account(), py.Return(tree.name("result"))]

    def opening(self) -> list[py.stmt]:
        """Return the first statements of a call, which reset its counters."""
        found: list[py.stmt] = []
        if self.any_loop:
            found.append(tree.assign("turns", tree.constant(0)))
        if self.any_bounded:
            found.append(py.Assign([py.Attribute(tree.name("meter"), "inner", py.Store())], tree.constant(0)))
        return found

    def account(self) -> list[py.stmt]:
        """Return the statement that adds the iterations of the call to the meter."""
        if not self.any_loop:
            return []
        spent = py.Attribute(tree.name("meter"), "spent", py.Store())
        return [py.AugAssign(spent, py.Add(), tree.name("turns"))]

    def value(self, node: Expr) -> py.expr:
        """Return the Python expression of a node; a value that is read is checked."""
        return self._emit(node, chain=False)

    def chain(self, node: Expr) -> py.expr:
        """Return the Python expression of a node that is only subscripted by a string or read by `.get`."""
        return self._emit(node, chain=True)

    def _emit(self, node: Expr, *, chain: bool) -> py.expr:
        self._nodes += 1
        if self._nodes > _NODE_LIMIT:
            raise RefusedError
        reference = self.checked.references.get(node.id)
        match reference:
            case VariableReference(name=name):
                return read(self, tree.name(self.parameters[name]), node, ("variable", name), chain=chain)
            case LocalReference(name=name):
                return read(self, tree.name(self.locals[name]), node, ("local", self.locals[name]), chain=chain)
            case DefinitionReference(name=name):
                return definition(self, self.checked.definition(name))
            case TypeReference(type=of):
                return self.constant(Type(of.name))
            case _:
                pass
        match node:
            case ast.Literal():
                return scalar_literal(self, node)
            case ast.Select(test=True):
                return presence(self, node)
            case ast.Select():
                return field(self, node, chain=chain)
            case ast.Call():
                if list_field(self.checked, node) is not None:
                    raise RefusedError
                return self._call(node, chain=chain)
            case ast.ListLiteral(optional=optional) if not optional:
                return list_literal(self, node)
            case ast.MapLiteral():
                return map_literal(self, node)
            case ast.Comprehension():
                return comprehension(self, node)
            case ast.Bind():
                return bind(self, node)
            case _:
                raise RefusedError

    def _call(self, node: ast.Call, *, chain: bool) -> py.expr:
        match node.function:
            case "_&&_" | "_||_":
                return logic(self, node)
            case "_?_:_":
                return conditional(self, node)
            case "_[_]":
                return element(self, node, chain=chain)
            case "_[?_]":
                raise RefusedError
            case _:
                return call(self, node)
