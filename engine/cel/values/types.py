"""The static types of CEL.

A `Type` is a name with parameters. Object types (`kubernetes.Pod`) are names too; the `ObjectType` of that name in an
environment has their fields.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, eq=False)
class Type:
    """A type: `int`, `list(string)`, `kubernetes.Quantity`, or a type variable of an overload (`A`)."""

    name: str
    parameters: tuple[Type, ...] = ()
    variable: bool = False

    # By hand, for speed: most compared types are the same object, and few share a name.
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Type):
            return NotImplemented
        return self.name == other.name and self.parameters == other.parameters and self.variable == other.variable

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})" if self.parameters else self.name


_TOKEN: Final = re.compile(r"[\w.]+|[^\w.\s]")

DYN: Final = Type("dyn")
ERROR: Final = Type("*error*")
NULL: Final = Type("null")
BOOL: Final = Type("bool")
INT: Final = Type("int")
UINT: Final = Type("uint")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
BYTES: Final = Type("bytes")
TIMESTAMP: Final = Type("google.protobuf.Timestamp")
DURATION: Final = Type("google.protobuf.Duration")


def list_of(element: Type) -> Type:
    """Return `list(element)`."""
    return Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """Return `map(key, value)`."""
    return Type("map", (key, value))


def type_of(of: Type) -> Type:
    """Return `type(of)`: the type of a type."""
    return Type("type", (of,))


def optional_of(of: Type) -> Type:
    """Return `optional_type(of)`."""
    return Type("optional_type", (of,))


def variable(name: str) -> Type:
    """Return a type variable, bound anew at each call of the overload that mentions it."""
    return Type(name, (), variable=True)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object type: its type, its description, and whether it is required.

    `type` is that of the value *in CEL*. `TIMESTAMP` and `DURATION` fields hold RFC 3339 and Go duration strings in the
    JSON object; the evaluator parses them where they are read.
    """

    type: Type
    doc: str = ""
    required: bool = False
    list_type: str = ""
    """Equality of the list, as in `x-kubernetes-list-type`: `set` (the same elements in any order), `map`
    (the same entries by `list_keys`), else element by element. `+` unites sets and merges maps of that kind."""
    list_keys: tuple[str, ...] = ()
    unit: str = ""
    """The unit of its numbers (`milli-cores`, `bytes`, `seconds`); empty if it has none."""


@dataclass(frozen=True, slots=True)
class ObjectType:
    """The declared fields of an object type.

    `index` is the type of `object["any key"]` where that is allowed (a resource list is an object with native
    resources as checked fields and any other under its quoted name). `absent` is the value of an absent field
    (0 for resource lists); None means that reading it is the error `no such key`. `undeclared` says what to do about
    reading a field of an object that has none; empty where there is nothing to say.
    """

    name: str
    fields: Mapping[str, Field]
    index: Type | None = None
    absent: int | None = None
    doc: str = ""
    undeclared: str = ""

    @property
    def type(self) -> Type:
        """The object type as a type."""
        return Type(self.name)


@functools.cache
def parse_type(text: str) -> Type:
    """Return the type of its spelling, the reverse of `str`: `map(string, list(kubernetes.Taint))`.

    Names are not looked up: any dotted identifier is accepted, with any number of parameters.

    Raises:
        ValueError: `text` is not a type.
    """
    tokens = [*_TOKEN.findall(text), "the end"]
    tokens.reverse()
    found = _take_type(tokens, text)
    if len(tokens) > 1:
        raise ValueError(f"`{text}` is not a type: nothing is expected before `{tokens[-1]}`")
    return found


def _take_type(tokens: list[str], text: str) -> Type:
    """Remove one type from the end of `tokens`, which are in reverse order, and return it."""
    name = tokens.pop()
    if not name.replace(".", "_").isidentifier():
        raise ValueError(f"`{text}` is not a type: a name is expected, not `{name}`")
    if tokens[-1] != "(":
        return Type(name)
    parameters = []
    while tokens.pop() in ("(", ","):
        parameters.append(_take_type(tokens, text))
        if tokens[-1] not in (",", ")"):
            raise ValueError(f"`{text}` is not a type: `,` or `)` is expected, not `{tokens[-1]}`")
    return Type(name, tuple(parameters))
