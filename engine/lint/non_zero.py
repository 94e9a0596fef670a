"""Comparisons that prove a value to be neither zero nor empty, as `optional.ofNonZeroValue` takes it."""

from __future__ import annotations

from typing import Final

from koordpolicy.engine.cel.values.types import BOOL, BYTES, DOUBLE, INT, STRING, UINT, Type

_NUMBERS: Final = (INT, UINT, DOUBLE)


def proves_non_zero(kind: Type, operator: str, value: object) -> bool:
    """Return whether a value of a type is not zero if it compares so with a constant."""
    if operator == "!=":
        return not value and _is_of(kind, value)
    if operator == "==":
        return bool(value)
    if isinstance(value, str | bytes):
        return operator == ">" or (operator == ">=" and bool(value))
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return {">": value >= 0, ">=": value > 0, "<": value <= 0, "<=": value < 0}[operator]


def _is_of(kind: Type, value: object) -> bool:
    """Return whether a constant is the only zero of a type: a value of an unknown type may be another one."""
    match value:
        case bool():
            return kind == BOOL
        case int() | float():
            return kind in _NUMBERS
        case str():
            return kind == STRING
        case bytes():
            return kind == BYTES
        case list():
            return kind.name == "list"
        case dict():
            return kind.name == "map"
        case _:
            return False
