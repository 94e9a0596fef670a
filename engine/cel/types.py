"""The types of the language: what a checker knows of a value before there is one.

A `Type` is a name with parameters. Object types (`kubernetes.Pod`) are names too; what fields they have says an
`ObjectType`, found by that name in an environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Type:
    """A type: `int`, `list(string)`, `kubernetes.Quantity`, or a type variable of an overload (`A`)."""

    name: str
    parameters: tuple[Type, ...] = ()
    variable: bool = False

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})" if self.parameters else self.name


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
    """A field of an object type: its type, a sentence for people, and whether it must be there.

    `type` is that of the value *in CEL*. `TIMESTAMP` and `DURATION` fields hold RFC 3339 and Go duration texts in the
    JSON object; the evaluator parses them where they are read.
    """

    type: Type
    doc: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class ObjectType:
    """The declared fields of an object type.

    `index` is the type of `object["any key"]` where that is allowed (a resource list is an object with native
    resources as checked fields and any other under its quoted name). `absent` is what a field that is not there reads
    as (0 for resource lists); None means that reading it is the error `no such key`.
    """

    name: str
    fields: Mapping[str, Field]
    index: Type | None = None
    absent: int | None = None
    doc: str = ""

    @property
    def type(self) -> Type:
        """The object type as a type."""
        return Type(self.name)
