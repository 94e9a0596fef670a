"""Fast check that data is valid against a JSON Schema.

A schema is compiled to a predicate once. The predicate is true only if the data is certainly valid; all other data is
validated by `json_schema`, which alone reports faults. Most documents are valid, and for those this saves nine tenths
of the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

Holds: TypeAlias = Callable[[Any], bool]

_ANNOTATIONS: Final = frozenset((
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "format",
    "$schema", "$id", "$defs", "$comment",
))


class _UnknownKeywordError(Exception):
    """A keyword that this module does not know."""


def predicate(schema: Any) -> Holds:
    """Return a predicate that is true only of valid data (draft 2020-12, without references)."""
    try:
        return _all_of(schema)
    except _UnknownKeywordError:
        return _never


def _never(_: Any) -> bool:
    return False


def _always(_: Any) -> bool:
    return True


def _all_of(schema: Any) -> Holds:
    """Return the predicate of one schema: all of its keywords must hold."""
    if isinstance(schema, bool):
        return _always if schema else _never
    tests: list[Holds] = []
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS or keyword.startswith("x-") or keyword in ("then", "else", "properties"):
            continue
        make = _KEYWORDS.get(keyword)
        if make is None:
            raise _UnknownKeywordError(keyword)
        tests.append(make(value, schema))
    if "properties" in schema and "additionalProperties" not in schema:
        tests.append(_object(True, schema))
    if len(tests) == 1:
        return tests[0]

    def holds(data: Any) -> bool:
        for test in tests:  # noqa: SIM110 - called for every value of every document, and a generator takes twice as long
            if not test(data):
                return False
        return True

    return holds


def _is_integer(data: Any) -> bool:
    return data.__class__ is int or (data.__class__ is float and data.is_integer())


_TYPES: Final[Mapping[str, Holds]] = {
    "string": lambda data: data.__class__ is str,
    "integer": _is_integer,
    "number": lambda data: data.__class__ in (int, float),
    "boolean": lambda data: data.__class__ is bool,
    "array": lambda data: data.__class__ is list,
    "object": lambda data: data.__class__ is dict,
    "null": lambda data: data is None,
}


def _type(value: Any, _: Mapping[str, Any]) -> Holds:
    if isinstance(value, str):
        return _TYPES[value]
    tests = [_TYPES[each] for each in value]
    return lambda data: any(test(data) for test in tests)


def _object(additional: Any, schema: Mapping[str, Any]) -> Holds:
    properties = {name: _all_of(each) for name, each in schema.get("properties", {}).items()}
    other = _all_of(additional)

    def holds(data: Any) -> bool:
        if data.__class__ is not dict:
            return not isinstance(data, Mapping)
        for key, value in data.items():
            test = properties.get(key, other)
            if test is not _always and not test(value):
                return False
        return True

    return holds


def _required(names: Any, _: Mapping[str, Any]) -> Holds:
    return lambda data: data.__class__ is not dict or all(name in data for name in names)


def _items(value: Any, _: Mapping[str, Any]) -> Holds:
    test = _all_of(value)
    return lambda data: data.__class__ is not list or all(test(each) for each in data)


def _among(values: list[Any]) -> Holds:
    # Texts only: the equality of `1`, `1.0` and `true` is left to `json_schema`.
    if not all(isinstance(each, str) for each in values):
        raise _UnknownKeywordError
    known = frozenset(values)
    return lambda data: data.__class__ is str and data in known


def _pattern(value: Any, _: Mapping[str, Any]) -> Holds:
    # Only at the end of the text, as in JSON Schema and RE2: Python's `$` also matches before a last line break.
    search = re.compile(value[:-1] + r"\Z" if value.endswith("$") else value).search
    return lambda data: data.__class__ is not str or search(data) is not None


def _bound(kinds: tuple[type, ...], measure: Callable[[Any], Any], *, least: bool) -> Callable[..., Holds]:
    def make(value: Any, _: Mapping[str, Any]) -> Holds:
        if least:
            return lambda data: data.__class__ not in kinds or measure(data) >= value
        return lambda data: data.__class__ not in kinds or measure(data) <= value

    return make


def _unique(value: Any, _: Mapping[str, Any]) -> Holds:
    def holds(data: Any) -> bool:
        if data.__class__ is not list:
            return True
        return all(each.__class__ is str for each in data) and len(set(data)) == len(data)

    return holds if value else _always


def _each(value: Any, _: Mapping[str, Any]) -> Holds:
    tests = [_all_of(each) for each in value]
    return lambda data: all(test(data) for test in tests)


def _any_of(value: Any, _: Mapping[str, Any]) -> Holds:
    tests = [_all_of(each) for each in value]
    return lambda data: any(test(data) for test in tests)


def _one_of(value: Any, _: Mapping[str, Any]) -> Holds:
    # A predicate may be false of valid data, so it cannot show that the other branches are invalid: only the choice
    # between fields is supported, where both results are certain.
    if not all(isinstance(each, Mapping) and set(each) == {"required"} for each in value):
        raise _UnknownKeywordError
    groups = [each["required"] for each in value]

    def holds(data: Any) -> bool:
        return data.__class__ is dict and sum(all(name in data for name in names) for names in groups) == 1

    return holds


def _if(condition: Any, schema: Mapping[str, Any]) -> Holds:
    # Both results of the condition must be certain: one field that is one of some texts.
    if not isinstance(condition, Mapping) or set(condition) != {"properties", "required"}:
        raise _UnknownKeywordError
    properties = condition["properties"]
    if len(properties) != 1 or list(properties) != condition["required"]:
        raise _UnknownKeywordError
    ((name, required),) = properties.items()
    if not isinstance(required, Mapping) or set(required) not in ({"enum"}, {"const"}):
        raise _UnknownKeywordError
    applies = _among(required.get("enum") or [required["const"]])
    then, otherwise = _all_of(schema.get("then", True)), _all_of(schema.get("else", True))

    def holds(data: Any) -> bool:
        if data.__class__ is not dict:  # the condition does not apply to other types, and so it holds
            return then(data)
        chosen = then if name in data and applies(data[name]) else otherwise
        return chosen(data)

    return holds


_NUMBERS: Final = (int, float)
_KEYWORDS: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], Holds]]] = {
    "type": _type,
    "additionalProperties": _object,
    "required": _required,
    "items": _items,
    "enum": lambda value, _: _among(value),
    "const": lambda value, _: _among([value]),
    "pattern": _pattern,
    "minLength": _bound((str,), len, least=True),
    "maxLength": _bound((str,), len, least=False),
    "minItems": _bound((list,), len, least=True),
    "maxItems": _bound((list,), len, least=False),
    "minProperties": _bound((dict,), len, least=True),
    "maxProperties": _bound((dict,), len, least=False),
    "minimum": _bound(_NUMBERS, lambda data: data, least=True),
    "maximum": _bound(_NUMBERS, lambda data: data, least=False),
    "uniqueItems": _unique,
    "allOf": _each,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "if": _if,
}
