"""Sort keys of `sort`, for rows that are evaluated one by one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.compile.programs import SortProgram
from koordpolicy.engine.documents import SortOrder


def sort_key(programs: Iterable[SortProgram], bindings: Mapping[str, object]) -> tuple[Any, ...]:
    """Return a key that sorts by the programs in turn, ascending or descending, for strings and numbers.

    Raises `EvaluationError` if a program has no value, or one that is not a number: that has no place in an order.
    """
    values = [(each.order, each.program.evaluate(bindings)) for each in programs]
    if any(isinstance(value, float) and math.isnan(value) for _, value in values):
        raise EvaluationError("a value is not a number")
    return tuple(_Reversed(value) if order is SortOrder.DESCENDING else value for order, value in values)


class _Reversed:
    """A value that sorts in reverse order."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]
