"""Unification of types: bindings of type variables, and assignability, as in cel-go (`checker/types.go`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..values.types import DYN, ERROR, NULL, Type, variable
from .environment import Overload

_NEVER_NULL: Final = frozenset(("bool", "int", "uint", "double", "string", "bytes", "list", "map", "type"))
_ANYTHING: Final = frozenset((DYN.name, ERROR.name))


class Unifier:
    """The type variables of one expression, with their bindings so far."""

    def __init__(self) -> None:
        self._bindings: dict[str, Type] = {}
        self._variables = 0

    def fresh(self) -> Type:
        """Return a new type variable."""
        self._variables += 1
        return variable(f"_{self._variables}")

    def substitute(self, type_: Type) -> Type:
        """Replace the bound variables of a type."""
        if type_.variable:
            bound = self._bindings.get(type_.name)
            return type_ if bound is None else self.substitute(bound)
        if not type_.parameters:
            return type_
        return Type(type_.name, tuple(map(self.substitute, type_.parameters)))

    def ground(self, type_: Type) -> Type:
        """Replace all variables of a type, unbound ones by dyn."""
        if type_.variable:
            bound = self._bindings.get(type_.name)
            return DYN if bound is None else self.ground(bound)
        if not type_.parameters:
            return type_
        return Type(type_.name, tuple(map(self.ground, type_.parameters)))

    def assignable(self, given: Type, constraint: Type) -> bool:
        """Return whether one type is assignable to the other; binds variables if so."""
        if given == constraint:
            return True
        saved = self._bindings.copy()
        if self._meet(given, constraint):
            return True
        self._bindings = saved
        return False

    def all_assignable(self, given: Sequence[Type], constraint: Sequence[Type]) -> bool:
        """Return whether each type is assignable to the one at its place; binds variables if so."""
        if len(given) != len(constraint):
            return False
        saved = self._bindings.copy()
        for left, right in zip(given, constraint, strict=True):
            if left is not right and not self._meet(left, right):
                self._bindings = saved
                return False
        return True

    def _meet(self, first: Type, second: Type) -> bool:
        """Unify two types; return whether they can be unified. Variables stay bound if they cannot."""
        if second.variable:
            valid, bound = self._bind(first, second)
            if valid:
                return True
            if bound:
                return False
        if first.variable:
            return self._bind(second, first)[0]
        left, right = first.name, second.name
        if left in _ANYTHING or right in _ANYTHING:
            return True
        if left != right:
            return (left == NULL.name and right not in _NEVER_NULL) or (right == NULL.name and left not in _NEVER_NULL)
        if left == "type":
            return True
        if len(first.parameters) != len(second.parameters):
            return False
        return all(map(self._meet, first.parameters, second.parameters))

    def _bind(self, type_: Type, name: Type) -> tuple[bool, bool]:
        """Bind a variable to a type; return whether it can be bound, and whether it was bound before."""
        if type_ == name:
            return True, True
        bound = self._bindings.get(name.name)
        if bound is not None:
            if type_ == bound:
                return True, True
            if self._meet(type_, bound):
                general = _more_general(type_, bound)
                if not self._occurs(name, general):
                    self._bindings[name.name] = general
                return True, True
            return False, True
        if self._occurs(name, type_):
            return False, False
        self._bindings[name.name] = type_
        return True, False

    def _occurs(self, name: Type, type_: Type) -> bool:
        if type_ == name:
            return True
        if type_.variable:
            bound = self._bindings.get(type_.name)
            return bound is not None and self._occurs(name, bound)
        return any(self._occurs(name, each) for each in type_.parameters)

    def join(self, types: Iterable[Type]) -> Type:
        """Return the element type of a list with elements of these types: the most general one, or dyn."""
        joined: Type | None = None
        for each in types:
            if joined is None:
                joined = each
            elif self.assignable(joined, each):
                joined = _more_general(joined, each)
            else:
                joined = DYN
        return self.fresh() if joined is None else joined

    def instantiate(self, overload: Overload) -> tuple[Sequence[Type], Type]:
        """Return parameters and result of an overload with new variables."""
        names: dict[str, Type] = {}

        def refresh(type_: Type) -> Type:
            if type_.variable:
                if type_.name not in names:
                    names[type_.name] = self.fresh()
                return names[type_.name]
            if not type_.parameters:
                return type_
            return Type(type_.name, tuple(map(refresh, type_.parameters)))

        return [refresh(each) for each in overload.parameters], refresh(overload.result)


def _more_general(first: Type, second: Type) -> Type:
    if first == NULL or second == DYN:
        return second
    return first if second == NULL or _less_specific(first, second) else second


def _less_specific(first: Type, second: Type) -> bool:
    """Return whether the first type allows at least what the second does."""
    if first == DYN or first.variable:
        return True
    if second == DYN or second.variable or first.name != second.name:
        return False
    if first.name == "type":
        return True
    return len(first.parameters) == len(second.parameters) and all(
        map(_less_specific, first.parameters, second.parameters),
    )
