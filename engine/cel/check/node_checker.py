"""The tree that is being checked: types and references found so far, the names in scope, the problems.

The modules beside this one check the nodes, each those of some kinds, by functions of a `NodeChecker`; `checker` has
the one that chooses among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from koordpolicy.engine.source import Problem, Source

from ..syntax.ast import Expr, Ident, Select
from ..values.types import DYN, ERROR, Type, type_of
from .checked_ast import Reference, TypeReference, VariableReference
from .environment import Environment
from .folding import Folding
from .signatures import show
from .unification import Unifier


class NodeChecker(Unifier, ABC):
    """Checker of the nodes of one tree."""

    def __init__(self, source: Source, environment: Environment, lenient: bool) -> None:
        super().__init__()
        self.source = source
        self.environment = environment
        self.lenient = lenient
        """True if wrong types are errors at run time only."""
        self.types: dict[int, Type] = {}
        self.references: dict[int, Reference] = {}
        self.problems: list[Problem] = []
        self.locals: list[tuple[str, Type]] = []
        """The variables of the loops and binds around the node, the innermost last."""
        self.literals: list[tuple[list[Expr], frozenset[int]]] = []
        """The elements of literals that must have one type, and the indexes of optional ones.

        They are compared when all type variables are bound, and only in an expression without errors.
        """
        self.open_calls: set[int] = set()
        """The calls with a value of unknown type, whose result Kubernetes takes for whatever type is needed."""
        self.mixed = 0
        """The calls around the node whose literals may mix types."""
        self.loops = 0
        """The loops around the node."""
        self.folding: Folding | None = None
        """The budget of the expression's constants, once one was computed."""

    @abstractmethod
    def check(self, node: Expr) -> Type:
        """Return the type of a node and record it."""

    def complain(
        self, message: str, node: Expr, *, end: int | None = None, help: str = "", code: str = "cel-type",  # noqa: A002 - as `Problem` calls it
    ) -> Type:
        """Record an error at a node; return ERROR as its type (`dyn` if the checker is lenient)."""
        if self.lenient and code == "cel-type":
            return DYN
        stop = node.position + 1 if end is None else end
        self.problems.append(Problem(message, self.source.span(node.position, stop), help, code=code))
        return ERROR

    def shown(self, type_: Type) -> str:
        """Return a type as messages show it."""
        return show(self.substitute(type_))

    def candidates(self, name: str) -> list[str]:
        """Return the candidates for a name, innermost container first."""
        if name.startswith("."):
            return [name[1:]]
        if not self.environment.container:
            return [name]
        names = []
        container = self.environment.container
        while container:
            names.append(f"{container}.{name}")
            container = container.rpartition(".")[0]
        return [*names, name]

    def local(self, name: str) -> Type | None:
        """Return the type of the innermost variable of a loop or bind with this name."""
        for known, type_ in reversed(self.locals):
            if known == name:
                return type_
        return None

    def resolve(self, node: Expr, name: str) -> Type | None:
        """Resolve a node to the variable or type of this name, if there is one; return its type."""
        environment = self.environment
        for each in self.candidates(name):
            declared = environment.variables.get(each)
            if declared is not None:
                self.references[node.id] = VariableReference(each)
                return declared.type
            named = environment.type_names.get(each)
            if named is not None:
                # As a value a type has no parameters: the type of [1] and of ['a'] is `list`.
                self.references[node.id] = TypeReference(Type(named.name))
                return type_of(named)
        return None

    def qualified(self, node: Expr) -> str | None:
        """Return the dotted name that a chain spells, None where it is none or begins with a local."""
        parts: list[str] = []
        while isinstance(node, Select):
            if node.test or node.optional:
                return None
            parts.append(node.field)
            node = node.operand
        if not isinstance(node, Ident):
            return None
        parts.append("." + node.name if node.rooted else node.name)
        return ".".join(reversed(parts))
