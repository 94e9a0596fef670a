"""The scope of each node, and the locals that it mentions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..syntax.ast import Bind, Call, Comprehension, Expr, Literal, OptionalMap, Select, children
from .checked_ast import CallReference, DefinitionReference, LocalReference, Reference, TypeReference, VariableReference
from .environment import Environment, Scope

_NOTHING: Final[frozenset[str]] = frozenset()


class Survey:
    """The scope of every node, and the locals of enclosing loops that it mentions."""

    def __init__(self, references: Mapping[int, Reference], environment: Environment) -> None:
        self.references = references
        self.environment = environment
        self.scopes: dict[int, Scope] = {}
        self.mentioned: dict[int, frozenset[str]] = {}
        self.bound: list[tuple[str, Scope]] = []

    def visit(self, node: Expr) -> Scope:
        """Record the scopes of a node and of all nodes below it; return its scope."""
        scopes, mentioned, references = self.scopes, self.mentioned, self.references
        scope = Scope.CONSTANT
        if node.__class__ is Literal:
            scopes[node.id] = scope
            return scope
        names = _NOTHING
        reference = references.get(node.id)
        if reference is None and isinstance(node, Select):
            scope = self.visit(node.operand)
            names = mentioned.get(node.operand.id, _NOTHING)
        elif isinstance(reference, CallReference) and isinstance(node, Call):
            for part in node.args if node.target is None or reference.qualified else (node.target, *node.args):
                inside = self.visit(part)
                scope = max(scope, inside)
                if part.id in mentioned:
                    names |= mentioned[part.id]
        elif isinstance(reference, VariableReference):
            scope = self.environment.variables[reference.name].scope
        elif isinstance(reference, LocalReference):
            scope = next(each for name, each in reversed(self.bound) if name == reference.name)
            names = frozenset((reference.name,))
        elif isinstance(reference, DefinitionReference):
            scope = self.environment.definitions[reference.name].scope
        elif not isinstance(reference, TypeReference):
            inner = _NOTHING
            local: tuple[str, ...]
            match node:
                case Comprehension():
                    scope = self.visit(node.range)
                    outer: tuple[Expr, ...] = (node.range,)
                    local = (node.variable,) if node.variable2 is None else (node.variable, node.variable2)
                    parts: tuple[Expr, ...] = children(node)[1:]
                case Bind():
                    scope = self.visit(node.init)
                    outer, local, parts = (node.init,), (node.variable,), (node.body,)
                case OptionalMap():
                    scope = self.visit(node.target)
                    outer, local, parts = (node.target,), (node.variable,), (node.body,)
                case _:
                    outer, local, parts = (), (), children(node)
            self.bound.extend((name, scope) for name in local)
            for part in parts:
                scope = max(scope, self.visit(part))
                inner |= mentioned.get(part.id, _NOTHING)
            if local:
                del self.bound[-len(local) :]
            names = inner.difference(local) if local else inner
            for part in outer:
                names |= mentioned.get(part.id, _NOTHING)
        scopes[node.id] = scope
        if names:
            mentioned[node.id] = names
        return scope
