"""Kinds of the values of columns, as numpy's letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ..check.checked_ast import Checked
from ..values.types import BOOL, DOUBLE, DYN, INT
from .encoding import is_number
from .vectors import NotColumnar, Vector

KINDS: Final = {BOOL: "b", INT: "i", DOUBLE: "f", DYN: "?"}
"""`?`: known from the values only."""
CLASSES: Final = {"b": bool, "i": int, "f": float}
DTYPES: Final[Mapping[str, Any]] = {"b": np.bool_, "i": np.int64, "f": np.float64}
NUMERIC: Final = frozenset({INT, DOUBLE, DYN, BOOL})


def letter_of(value: object) -> str:
    """Return numpy's letter of the array of such values."""
    if value.__class__ is bool:
        return "b"
    return "O" if not is_number(value) else "i" if value.__class__ is int else "f"


def is_of_kind(value: object, kind: str) -> bool:
    """Return whether a value is of a kind, and a number that columns hold."""
    return value.__class__ is CLASSES.get(kind) and (not isinstance(value, int) or abs(value) < 2**63)


def dtype_of(checked: Checked) -> Any:
    """Return the dtype of an expression's column."""
    return {BOOL: np.bool_, INT: np.int64, DOUBLE: np.float64}.get(checked.type, np.object_)


def filled(size: int, value: object) -> Vector:
    """Return a vector with one value in all rows."""
    try:
        return Vector.full(size, value)
    except NotColumnar:
        values = np.empty(size, dtype=np.object_)
        values.fill(value)
        return Vector(values)
