"""Types of the plain values in documents, such as params: as a schema declares them, else as the values are."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cel.values.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    Field,
    ObjectType,
    Type,
    list_of,
    map_of,
)


@dataclass(frozen=True, slots=True)
class Typed:
    """The type of plain values, and the object types that it refers to."""

    type: Type
    types: tuple[ObjectType, ...]

    @property
    def signature(self) -> Hashable:
        """A key that is equal for params of the same types."""
        return tuple(
            (
                each.name, each.index,
                *((name, field.type, field.list_type, field.list_keys) for name, field in each.fields.items()),
            )
            for each in self.types
        )


_PLAIN_FIELDS: Final = {bool: Field(BOOL), int: Field(INT), float: Field(DOUBLE), str: Field(STRING)}


def typed(values: Mapping[str, Any], schema: Any = None) -> Typed:
    """Return the type of a document's params: as its schema declares them, else the types of the values.

    Mappings with values of one type are maps, others are objects whose fields are checked.
    """
    types: list[ObjectType] = []
    properties = _properties(schema)
    declared: dict[str, Field] = {}
    for name in {**dict.fromkeys(properties), **values}:
        value, rule = values.get(name), properties.get(name)
        # Many documents may share many params, and most are scalars without a schema.
        plain = _PLAIN_FIELDS.get(value.__class__) if rule is None else None
        declared[name] = plain or _field(_type_of(value, f"Params.{name}", types, rule), rule)
    top = ObjectType("Params", declared, undeclared="declare it under `params`")
    return Typed(top.type, (top, *types))


_FORMATS: Final[Mapping[object, Type]] = {"date-time": TIMESTAMP, "duration": DURATION, "byte": BYTES}
"""String formats that expressions read as another type, as in Kubernetes."""
_SCHEMA_TYPES: Final = {"integer": INT, "number": DOUBLE, "string": STRING, "boolean": BOOL, "null": NULL}


def _properties(schema: Any) -> Mapping[str, Any]:
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _type_of(value: object, path: str, types: list[ObjectType], schema: Any = None) -> Type:
    declared = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(schema, Mapping) and schema.get("x-kubernetes-int-or-string") is True:
        return DYN
    if isinstance(declared, str) and declared in _SCHEMA_TYPES:
        scalar = _SCHEMA_TYPES[declared]
        return _FORMATS.get(schema.get("format"), scalar) if scalar == STRING else scalar
    if isinstance(declared, list):
        return DYN
    if isinstance(value, list) or declared == "array":
        items = value if isinstance(value, list) else []
        rule = schema.get("items") if isinstance(schema, Mapping) else None
        found = {_type_of(each, f"{path}.item", types, rule) for each in items or ([None] if rule else [])}
        return list_of(found.pop() if len(found) == 1 else DYN)
    if isinstance(value, Mapping) or declared == "object":
        return _type_of_mapping(value if isinstance(value, Mapping) else {}, path, types, schema)
    for python_type, type_ in ((bool, BOOL), (int, INT), (float, DOUBLE), (str, STRING)):
        if isinstance(value, python_type):
            return type_
    return DYN


def _field(type_: Type, schema: Any) -> Field:
    """Return a field with the description, list type and list keys of its schema."""
    if not isinstance(schema, Mapping):
        return Field(type_)
    text, kind = schema.get("description"), schema.get("x-kubernetes-list-type")
    keys = schema.get("x-kubernetes-list-map-keys")
    return Field(
        type_, text if isinstance(text, str) else "", list_type=kind if kind in ("set", "map") else "",
        list_keys=tuple(map(str, keys)) if isinstance(keys, list) else (),
    )


def _type_of_mapping(value: Mapping[str, Any], path: str, types: list[ObjectType], schema: Any) -> Type:
    properties = _properties(schema)
    others = schema.get("additionalProperties") if isinstance(schema, Mapping) else None
    if not properties and isinstance(others, Mapping):
        return map_of(STRING, _type_of(next(iter(value.values()), None), f"{path}.entry", types, others))
    names = {**dict.fromkeys(properties), **value}
    fields = {name: _type_of(value.get(name), f"{path}.{name}", types, properties.get(name)) for name in names}
    found = set(fields.values())
    if not properties and len(found) <= 1:
        return map_of(STRING, found.pop() if found else DYN)
    declared = ObjectType(
        path, {name: _field(type_, properties.get(name)) for name, type_ in fields.items()},
        index=None if others is False else DYN,
    )
    types.append(declared)
    return declared.type
