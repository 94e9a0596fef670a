"""Fields of API objects that nothing reads, and fields that there are not, by the declarations of `types`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cel.values.types import ObjectType, Type
from koordpolicy.engine.source import did_you_mean
from koordpolicy.engine.texts import quoted_list

from . import types

FieldPath = tuple[str, ...]
"""Names of fields from an object downwards; positions of lists are left out. The empty one is the whole object."""

WHOLE: Final[Collection[FieldPath]] = ((),)
"""All fields of an object."""


@dataclass(frozen=True, slots=True)
class UnreadField:
    """A field without effect. `path` has the positions of lists; `known` is empty where the field is declared."""

    path: tuple[str | int, ...]
    known: tuple[str, ...] = ()

    @property
    def names(self) -> FieldPath:
        """The path without positions of lists: the same for all items and objects."""
        return tuple(step for step in self.path if isinstance(step, str))

    @property
    def help(self) -> str:
        """The advice about an unknown field."""
        if not self.known:
            return ""
        return did_you_mean(self.names[-1], self.known) or f"the fields are {quoted_list(self.known)}"


def unread_fields(value: object, declared: Type, read: Collection[FieldPath]) -> Iterator[UnreadField]:
    """Yield the fields of an object of a declared type that are not among those that are read.

    Of a field without any read one below only the field itself is yielded. A field that is null or empty sets
    nothing and is left out, unless there is no such field.
    """
    return _below(value, declared, frozenset(read), ())


def _below(
    value: object, declared: Type, read: Collection[FieldPath], path: tuple[str | int, ...],
) -> Iterator[UnreadField]:
    if declared.name == "list" and isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _below(each, declared.parameters[0], read, (*path, number))
        return
    kind: ObjectType | None = types.load().get(declared.name)
    if kind is None or not isinstance(value, Mapping):
        return  # a map or any JSON, whose keys are data; or malformed, which its reader reports
    fields: Mapping[Any, Any] = value
    for name, each in fields.items():
        here = (*path, str(name))
        field = kind.fields.get(str(name))
        if field is None:
            yield UnreadField(here, tuple(sorted(kind.fields)))
            continue
        below = {()} if () in read else {way[1:] for way in read if way[0] == name}
        if below:
            yield from _below(each, field.type, below, here)
        elif each is not None and each not in ({}, []):
            yield UnreadField(here)
