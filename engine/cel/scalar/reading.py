"""Checks of the values that an expression reads against their declared types.

API objects come from a cluster and may be malformed. Types that JSON does not have are converted from strings.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final, TypeAlias

from ..check.environment import Environment
from ..values.types import BOOL, BYTES, DOUBLE, DURATION, INT, NULL, STRING, TIMESTAMP, UINT, Type
from ..values.values import Duration, EvaluationError, Timestamp, Uint, is_map, type_name, type_of_value

Reader: TypeAlias = Callable[[object], object]


def _wrong_kind(value: object, expected: Type) -> EvaluationError:
    return EvaluationError(f"no such overload: expected {type_name(expected)}, found {type_name(type_of_value(value))}")


def _reader_of_class(kind: type, expected: Type) -> Reader:
    def read(value: object) -> object:
        if type(value) is kind:
            return value
        raise _wrong_kind(value, expected)

    return read


def _read_uint(value: object) -> object:
    if type(value) is Uint:
        return value
    if type(value) is int and 0 <= value < 2**64:
        return Uint(value)
    raise _wrong_kind(value, UINT)


def read_double(value: object) -> object:
    """Return a number of a JSON object as a double: JSON has whole ones without a point."""
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise EvaluationError("a number is too large for a double") from None
    raise _wrong_kind(value, DOUBLE)


def _read_bytes(value: object) -> object:
    if type(value) is bytes:
        return value
    if type(value) is str:
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error:
            raise EvaluationError("a bytes field does not hold base64") from None
    raise _wrong_kind(value, BYTES)


def read_timestamp(value: object) -> object:
    """Return a timestamp, parsed if it is a string of a JSON object."""
    if type(value) is Timestamp:
        return value
    if type(value) is str:
        return Timestamp.parse(value)
    raise _wrong_kind(value, TIMESTAMP)


def read_duration(value: object) -> object:
    """Return a duration, parsed if it is a string of a JSON object."""
    if type(value) is Duration:
        return value
    if type(value) is str:
        return Duration.parse(value)
    raise _wrong_kind(value, DURATION)


def _reader_of_map(expected: Type) -> Reader:
    def read(value: object) -> object:
        if is_map(value):
            return value
        raise _wrong_kind(value, expected)

    return read


def _read_object(value: object) -> object:
    # A null object stays null: its fields are absent.
    if value is None or is_map(value):
        return value
    raise _wrong_kind(value, Type("map"))


def _reader_of_opaque(expected: Type) -> Reader:
    def read(value: object) -> object:
        if type_of_value(value).name == expected.name:
            return value
        raise _wrong_kind(value, expected)

    return read


_READERS: Final[dict[str, Reader]] = {
    **{
        expected.name: _reader_of_class(kind, expected)
        for expected, kind in ((INT, int), (STRING, str), (BOOL, bool), (Type("list"), list))
    },
    NULL.name: _reader_of_class(type(None), NULL),
    UINT.name: _read_uint, DOUBLE.name: read_double, BYTES.name: _read_bytes, TIMESTAMP.name: read_timestamp,
    DURATION.name: read_duration, "map": _reader_of_map(Type("map")),
}


def reader(declared: Type, environment: Environment) -> Reader | None:
    """Return the function that checks (and converts) a value by its declared type, or None if any value is valid."""
    if declared.variable or declared.name in {"dyn", "*error*", "any"}:
        return None
    known = _READERS.get(declared.name)
    if known is not None:
        return known
    if declared.name in environment.types:
        return _read_object
    return _reader_of_opaque(declared)
