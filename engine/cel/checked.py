"""A checked expression: the tree, and beside it what the checker found out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ..source import Source
from .ast import Expr
from .environment import Environment, Overload, Scope
from .types import Type

Path: TypeAlias = tuple[str, ...]
"""What an expression reads: a variable and the fields and constant keys below it, `("node", "metadata", "name")`."""


@dataclass(frozen=True, slots=True)
class VariableReference:
    """The node stands for a declared variable (an `Ident`, or the `Select` chain of a dotted name)."""

    name: str


@dataclass(frozen=True, slots=True)
class LocalReference:
    """The node stands for a variable of an enclosing comprehension or bind."""

    name: str


@dataclass(frozen=True, slots=True)
class DefinitionReference:
    """The node (a `Select`) stands for a definition of the environment: `variables.<name>`."""

    name: str


@dataclass(frozen=True, slots=True)
class TypeReference:
    """The node stands for a type: `int`, `list`."""

    type: Type


@dataclass(frozen=True, slots=True)
class CallReference:
    """The overloads that may run: one where the argument types decide, several where that is left to run time.

    `qualified`: the target is not a value but part of the function's name (`math.greatest(a)`).
    """

    function: str
    overloads: tuple[Overload, ...]
    qualified: bool = False


Reference: TypeAlias = VariableReference | LocalReference | DefinitionReference | TypeReference | CallReference


@dataclass(frozen=True, eq=False)
class Checked:
    """A tree whose names are resolved and whose nodes have types, in the environment that it was checked against."""

    source: Source
    root: Expr
    environment: Environment
    types: Mapping[int, Type]
    references: Mapping[int, Reference]
    reads: frozenset[Path]
    """The exact paths read of all variables, definitions included (a prefix stands for all below it)."""
    scope: Scope

    @property
    def type(self) -> Type:
        """The type of the whole expression."""
        return self.types[self.root.id]
