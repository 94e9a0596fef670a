"""Odd values at the places of a document, one at a time: no reader may fail otherwise than with an error of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

ABSENT: Final = object()
ODD: Final[tuple[Any, ...]] = (
    ABSENT, None, True, 0, -1, 0.5, 2**70, float("inf"), float("nan"), "", "x", "1e400", "NaN", "-1", "::error::x",
    "\x1b[31m\u202e", "0001-01-01T00:00:00Z", "(a+)+$", [], {}, [None], {"x": None}, [[[]]],
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value below a value, and of the value itself."""
    yield path
    if isinstance(value, (dict, list)):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(below, (*path, key))


def with_value(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with another value at a place; with `ABSENT` there is none."""
    if not path:
        return {} if value is ABSENT else value
    found = copy.deepcopy(content)
    holder = found
    for step in path[:-1]:
        holder = holder[step]
    if value is ABSENT:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return found


def with_odd_values(content: Any) -> Iterator[Any]:
    """Yield the content with each of `ODD` at each place."""
    for path in places(content):
        for value in ODD:
            yield with_value(content, path, value)
