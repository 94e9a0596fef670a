"""A checked expression: the tree with its types, references and scopes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from koordpolicy.engine.source import Source

from ..syntax.ast import Call, Expr, Literal, Select, children
from ..values.types import Type
from .environment import Environment, Overload, Scope

Path: TypeAlias = tuple[str, ...]
"""A path that is read: a variable and the fields and constant keys below it, `("node", "metadata", "name")`."""


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
    """The overloads that may run: one if the argument types decide, several if it is decided at run time.

    `qualified`: the target is not a value but part of the function's name (`math.greatest(a)`).
    """

    function: str
    overloads: tuple[Overload, ...]
    qualified: bool = False


Reference: TypeAlias = VariableReference | LocalReference | DefinitionReference | TypeReference | CallReference
VALUES: Final = frozenset((VariableReference, LocalReference, DefinitionReference))
"""The classes of references to values. To look up a class takes an eighth of `isinstance` with a union."""
LEAVES: Final = frozenset((*VALUES, TypeReference))
"""The classes of references of nodes below which nothing is evaluated."""


@dataclass(frozen=True, eq=False)
class Checked:
    """A tree whose names are resolved and whose nodes have types, in the environment that it was checked against."""

    source: Source
    root: Expr = field(repr=False)
    environment: Environment = field(repr=False)
    types: Mapping[int, Type] = field(repr=False)
    references: Mapping[int, Reference] = field(repr=False)
    reads: frozenset[Path]
    """The exact paths read of all variables, by definitions too; a prefix includes all paths below it."""
    scope: Scope
    scopes: Mapping[int, Scope] = field(repr=False)
    """The scope of every node. A node that mentions a local has the scope of the range of that local's loop."""
    locals: Mapping[int, frozenset[str]] = field(repr=False)
    """The variables of *enclosing* comprehensions and binds that a node mentions; nodes without any are absent.

    Such a node has no value outside the loop."""
    plans: dict[object, object] = field(default_factory=dict, init=False, repr=False)
    """Evaluators and plans of the expression, cached by keys of their modules for as long as it lives."""

    @property
    def type(self) -> Type:
        """The type of the whole expression."""
        return self.types[self.root.id]

    def definition(self, name: str) -> Checked:
        """Return a definition of its environment."""
        found = self.environment.definitions[name]
        assert isinstance(found, Checked)
        return found

    @property
    def definitions(self) -> Mapping[str, Checked]:
        """All definitions of its environment, also those that it does not read."""
        return {name: self.definition(name) for name in self.environment.definitions}


def path_of(checked: Checked, node: Expr) -> Path | None:
    """Return the path of a chain of selections and constant keys, None for any other node.

    `has(x.y)` has the path of `x.y`, an element of a list (`x[0]`) that of the list.
    """
    return _path(checked.references, node)


_INDEXES: Final = frozenset(("_[_]", "_[?_]"))


def _path(references: Mapping[int, Reference], node: Expr) -> Path | None:
    steps: list[str] = []
    while True:
        reference = references.get(node.id)
        if reference is None and isinstance(node, Select):
            steps.append(node.field)
            node = node.operand
        elif isinstance(node, Call) and node.function in _INDEXES and isinstance(node.args[1], Literal):
            key = node.args[1].value
            if isinstance(key, str):
                steps.append(key)
            else:
                # What lies below an element is part of the list, whichever element it is.
                steps.clear()
            node = node.args[0]
        else:
            return (reference.name, *reversed(steps)) if isinstance(reference, VariableReference) else None


def reads_of(checked: Checked, node: Expr) -> frozenset[Path]:
    """Return the exact paths of variables that a part of the expression reads, through definitions too.

    A local has no path: the comprehension reads the range of its loop (see `Checked.locals`).
    """
    return reads_below(node, checked.references, checked.environment)


def reads_below(node: Expr, references: Mapping[int, Reference], environment: Environment) -> frozenset[Path]:
    """Return the same as `reads_of` for a tree of which only the references are known."""
    found: set[Path] = set()
    rest = [node]
    while rest:
        each = rest.pop()
        if each.__class__ is Literal:
            continue
        if not isinstance(each, Call) or each.function in _INDEXES:
            path = _path(references, each)
            if path is not None:
                found.add(path)
                continue
        reference = references.get(each.id)
        if reference is None:
            rest.extend(children(each))
        elif isinstance(reference, CallReference):
            rest.extend(
                _read_arguments(references, each, reference, found) if isinstance(each, Call) else children(each),
            )
        elif isinstance(reference, DefinitionReference):
            found |= environment.definitions[reference.name].reads
    return frozenset(found)


def _read_arguments(
    references: Mapping[int, Reference], node: Call, reference: CallReference, found: set[Path],
) -> Sequence[Expr]:
    """Add the paths that a call reads of its arguments to `found`; return the arguments that it does not read so."""
    arguments = node.args if node.target is None or reference.qualified else (node.target, *node.args)
    if len(reference.overloads) != 1 or reference.overloads[0].reads is None:
        return arguments
    rest = []
    for argument, parts in zip(arguments, reference.overloads[0].reads, strict=True):
        path = None if parts is None else _path(references, argument)
        if path is None or parts is None:
            rest.append(argument)
        else:
            found.update((*path, *part) for part in parts)
    return rest
