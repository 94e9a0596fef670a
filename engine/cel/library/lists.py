"""Functions of lists: cel-go's lists extension (cel-go `ext/lists.go`). `sortBy` is a macro and needs no function."""

from __future__ import annotations

import functools
from typing import Final

from ..check.environment import Cost, Function, Overload
from ..values.traversal import elements, levels, nothing, ordering, pairs
from ..values.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    list_of,
    optional_of,
    variable,
)
from ..values.values import NONE, EvaluationError, Optional, compare, equal, no_overload

_T: Final = variable("T")
_PLAIN: Final[frozenset[type]] = frozenset({bool, int, str, bytes})
_LIST: Final = list_of(_T)
_LARGEST: Final = 100_000
"""Most elements of a list that a function makes of a number."""
_TRAVERSAL: Final = Cost(11, ((0, 1.0),))
"""The cost of a new list and of a visit of every element."""
_PAIRS: Final = Cost(11, ((0, 2.1), (0, 1.0)), product=True)
"""The cost of a new list and of comparing every element with every other."""


def _pairs(items: list[object]) -> int:
    """Return the cost of comparing every element of a list with every other."""
    return 11 + int(len(items) ** 2 * (2.1 if items and type(items[0]) in {str, bytes} else 2.0))


def _span(items: list[object], start: int, end: int) -> int:
    """Return the cost of a part of a list."""
    return 11 + max(0, min(end, len(items)) - max(0, start))


def _levels(items: list[object], depth: int = 1) -> int:
    """Return the cost of flattening: a visit of every element per level."""
    return 11 + len(items) * max(0, depth)


def _distinct(items: list[object]) -> list[object]:
    result: list[object] = []
    texts: set[object] = set()
    for each in items:
        if type(each) is str:
            if each not in texts:
                texts.add(each)
                result.append(each)
        elif not any(equal(each, other) for other in result):
            result.append(each)
    return result


def _flatten(items: list[object], depth: int = 1) -> list[object]:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    result = items
    while depth > 0 and any(type(each) is list for each in result):
        flatter: list[object] = []
        length = sum(len(each) if type(each) is list else 1 for each in result)
        if length > _LARGEST:
            raise EvaluationError(f"the list would be longer than {_LARGEST} elements")
        for each in result:
            if type(each) is list:
                flatter.extend(each)
            else:
                flatter.append(each)
        result, depth = flatter, depth - 1
    return list(result)


def _slice(items: list[object], start: int, end: int) -> list[object]:
    if start < 0 or end < 0:
        raise EvaluationError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvaluationError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(items):
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def sort(items: list[object]) -> list[object]:
    """Return the elements in ascending order; all must be of one comparable kind."""
    kinds = set(map(type, items))
    if len(kinds) == 1 and kinds <= _PLAIN:  # Python orders these as CEL does
        return sorted(items)  # type: ignore[type-var]
    for each in items:
        if type(each) is not items[0].__class__:
            raise no_overload()
        compare(each, items[0])
    return sorted(items, key=functools.cmp_to_key(compare))


def _range(count: int) -> list[object]:
    if count > _LARGEST:
        raise EvaluationError(f"lists.range({count}) is too long: at most {_LARGEST} elements")
    return list(range(count))


LISTS: Final = (
    Function(
        "distinct",
        (
            Overload(
                "list_distinct", (_LIST,), _LIST, _distinct, member=True, cost=_PAIRS, measure=_pairs, walk=pairs,
            ),
        ),
        "The elements without repetitions.", "[1, 1, 2].distinct() == [1, 2]",
    ),
    Function(
        "flatten",
        (
            Overload(
                "list_flatten", (list_of(list_of(_T)),), _LIST, _flatten, member=True, cost=_TRAVERSAL, walk=levels,
            ),
            Overload(
                "list_flatten_int", (list_of(DYN), INT), list_of(DYN), _flatten, member=True, cost=_TRAVERSAL,
                measure=_levels, walk=levels,
            ),
        ),
        "The elements of nested lists, one or n levels deep.", "[[1, 2], [3]].flatten() == [1, 2, 3]",
    ),
    Function(
        "slice",
        (
            Overload(
                "list_slice", (_LIST, INT, INT), _LIST, _slice, member=True, cost=_TRAVERSAL, measure=_span,
                walk=nothing,
            ),
        ),
        "The elements from an index up to another.", "[1, 2, 3].slice(1, 3) == [2, 3]",
    ),
    Function(
        "sort",
        tuple(
            Overload(
                f"list_{kind}_sort", (list_of(kind),), list_of(kind), sort, member=True, cost=_PAIRS, measure=_pairs,
                walk=ordering,
            )
            for kind in (INT, UINT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES)
        ),
        "The elements in ascending order.", "[3, 1, 2].sort() == [1, 2, 3]",
    ),
    Function(
        "reverse",
        (Overload("list_reverse", (_LIST,), _LIST, lambda a: a[::-1], member=True, cost=_TRAVERSAL, walk=elements),),
        "The elements in reverse order.", "[1, 2].reverse() == [2, 1]",
    ),
    Function(
        "first",
        (
            Overload(
                "list_first", (_LIST,), optional_of(_T), lambda a: Optional(a[0]) if a else NONE, member=True,
                walk=nothing,
            ),
        ),
        "The first element, if there is one.", "[7, 8].first().value() == 7",
    ),
    Function(
        "last",
        (
            Overload(
                "list_last", (_LIST,), optional_of(_T), lambda a: Optional(a[-1]) if a else NONE, member=True,
                walk=nothing,
            ),
        ),
        "The last element, if there is one.", "[7, 8].last().value() == 8",
    ),
    Function(
        "lists.range",
        (Overload("lists_range", (INT,), list_of(INT), _range, cost=Cost(11), result_steps=elements),),
        "The numbers from 0 up to n.", "lists.range(3) == [0, 1, 2]",
    ),
)
