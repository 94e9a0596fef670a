"""Values of the CEL golden files: typed JSON (`{"int": "42"}`) against what the engine computes with."""

from __future__ import annotations

import base64
import math
from typing import Any

from koordpolicy.engine.cel.values.types import Type, list_of, map_of, optional_of, type_of, variable
from koordpolicy.engine.cel.values.values import (
    NONE,
    Duration,
    Optional,
    Timestamp,
    Uint,
    is_map,
    key_of,
    key_value,
    text_of_double,
    type_name,
    type_of_value,
)


def read(value: dict[str, Any]) -> object:
    """Return the value that typed JSON stands for."""
    ((kind, held),) = value.items()
    match kind:
        case "null":
            return None
        case "bool" | "string":
            return held
        case "int":
            return int(held)
        case "uint":
            return Uint(held)
        case "double":
            return float(held)
        case "bytes":
            return base64.b64decode(held)
        case "list":
            return [read(each) for each in held]
        case "map":
            return {key_of(read(key)): read(each) for key, each in held}
        case "duration":
            return Duration.parse(held)
        case "timestamp":
            return Timestamp.parse(held)
        case _:
            raise ValueError(f"not built yet: a {kind} as input")


def show(value: object) -> Any:
    """Return a value in the files' form, numbers as they compare."""
    kind = value.__class__
    if value is None:
        return {"null": None}
    if kind is bool or kind is str:
        return {"bool" if kind is bool else "string": value}
    if kind is int or kind is Uint:
        return {"int" if kind is int else "uint": int(value)}  # type: ignore[call-overload]
    if kind is float:
        return {"double": text_of_double(value)}  # type: ignore[arg-type]
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}  # type: ignore[arg-type]
    if kind is list:
        return {"list": [show(each) for each in value]}  # type: ignore[attr-defined]
    if is_map(value):
        pairs = [(show(key_value(key)), show(each)) for key, each in value.items()]  # type: ignore[attr-defined]
        return {"map": sorted(pairs, key=str)}
    if kind is Type:
        return {"type": type_name(value)}  # type: ignore[arg-type]
    if kind is Optional:
        return {"optional": None if value is NONE else show(value.value)}  # type: ignore[attr-defined]
    if isinstance(value, Timestamp):
        return {"timestamp": value.ns}
    if isinstance(value, Duration):
        return {"duration": value.ns}
    return {type_of_value(value).name.rpartition(".")[2].lower(): str(value)}


def show_wanted(value: dict[str, Any]) -> Any:
    """Return a golden value in the same form."""
    ((kind, held),) = value.items()
    match kind:
        case "optional":
            return {"optional": None if held is None else show_wanted(held)}
        case "type":
            return {"type": held}
        case "double":
            number = float(held)
            return {"double": text_of_double(math.nan if math.isnan(number) else number)}
        case "list":
            return {"list": [show_wanted(each) for each in held]}
        case "map":
            return {"map": sorted(((show_wanted(key), show_wanted(each)) for key, each in held), key=str)}
        case "null" | "bool" | "string" | "int" | "uint" | "bytes" | "duration" | "timestamp":
            return show(read(value))
        case _:
            return {kind: held}


_NAMES = {"null_type": "null", "timestamp": "google.protobuf.Timestamp", "duration": "google.protobuf.Duration"}


def read_type(text: str, variables: tuple[str, ...] = ()) -> Type:
    """Return the type that a text such as `map(string, list(int))` stands for."""
    name, _, rest = text.strip().partition("(")
    name = _NAMES.get(name.strip(), name.strip())
    if name in variables:
        return variable(name)
    parts = _split(rest[:-1]) if rest else []
    parameters = [read_type(each, variables) for each in parts]
    match name, len(parameters):
        case "list", 1:
            return list_of(parameters[0])
        case "map", 2:
            return map_of(*parameters)
        case "type", 1:
            return type_of(parameters[0])
        case ("optional_type" | "optional"), 1:
            return optional_of(parameters[0])
        case _:
            return Type(name, tuple(parameters))


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for position, each in enumerate(text):
        depth += (each == "(") - (each == ")")
        if each == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]] if text.strip() else []
