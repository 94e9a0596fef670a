"""Run-time cost of calls, in Kubernetes' units (apiserver `pkg/cel/library/cost.go`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final

from ..values.traversal import MOST
from ..values.values import is_opaque
from .environment import Overload

__all__ = ["FUNCTION_COSTS", "LIST_COST", "PRICED_AS_FIRST", "PRICED_BY_OVERLOAD", "call_cost", "one_unit", "size_of"]

LIST_COST: Final = 10
"""The cost of making a list."""


_SCALARS: Final = frozenset((type(None), bool, int, float))


def size_of(value: object) -> int:
    """Return the size of a value in cost rules: characters, bytes, elements or entries, else 1."""
    kind = value.__class__
    if kind is str:
        return len(value)  # type: ignore[arg-type]
    if kind in _SCALARS:
        return 1
    if isinstance(value, str | bytes | list | dict | Mapping):
        return len(value)
    return getattr(value, "cel_size", 1)


def call_cost(overload: Overload, arguments: tuple[object, ...]) -> int:
    """Return the cost of a call with these arguments, without theirs."""
    if overload.measure is not None:
        return overload.measure(*arguments)
    cost = overload.cost
    total = cost.base
    if cost.product:
        factor = 1
        for position, per_size in cost.per_size:
            factor *= math.ceil(size_of(arguments[position]) * per_size)
        return total + factor
    for position, per_size in cost.per_size:
        total += math.ceil(size_of(arguments[position]) * per_size)
    return total


def one_unit(_: tuple[object, ...]) -> int:
    """Return 1, whatever the arguments."""
    return 1


def _comparison_cost(arguments: tuple[object, ...]) -> int:
    """Return a tenth of the smaller side."""
    left, right = arguments
    size, other = size_of(left), size_of(right)
    return math.ceil((min(other, size)) * 0.1)


def _equality_cost(arguments: tuple[object, ...]) -> int:
    """Return 1 if the left side is of a library's type, else the cost of a comparison."""
    kind = arguments[0].__class__
    if kind is not str and kind not in _SCALARS and is_opaque(arguments[0]):
        return 1
    return _comparison_cost(arguments)


def _sum_cost(arguments: tuple[object, ...]) -> int:
    """Return a tenth of the length of both strings together; 1 for anything else."""
    if arguments[0].__class__ in {str, bytes}:
        return math.ceil(sum(map(size_of, arguments)) * 0.1)
    return 1


def _search_cost(arguments: tuple[object, ...]) -> int:
    """Return the cost of searching a string for a pattern."""
    return math.ceil((size_of(arguments[0]) + 1) * 0.1) * math.ceil(size_of(arguments[1]) * 0.25)


def _traversal_cost(arguments: tuple[object, ...]) -> int:
    """Return the cost of traversing a value: 1 per scalar, a tenth per byte of a string, rounded down."""
    return _traversed(arguments[0], {})


def _traversed(value: object, known: dict[int, int]) -> int:
    if type(value) is str:
        return (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))) // 10
    if type(value) is bytes:
        return len(value) // 10
    if type(value) is not list and type(value) is not dict:
        return 1
    found = known.get(id(value))
    if found is None:
        inside = chain(value, value.values()) if isinstance(value, dict) else value
        found = known[id(value)] = min(sum(_traversed(each, known) for each in inside), MOST)
    return found


FUNCTION_COSTS: Final[dict[str, Callable[[tuple[object, ...]], int]]] = {
    "_==_": _equality_cost,
    **dict.fromkeys(("_!=_", "_<_", "_<=_", "_>_", "_>=_"), _comparison_cost),
    **dict.fromkeys(("find", "findAll"), _search_cost),
    **dict.fromkeys(("isSorted", "sum", "min", "max", "indexOf", "lastIndexOf"), _traversal_cost),
    "matches": one_unit,  # of the overload of this name, the global one, cel-go does not charge the search
    "matches_string": _search_cost, "_+_": _sum_cost,
    "lists.range": lambda arguments: LIST_COST + 1 + max(arguments[0], 0),  # type: ignore[call-overload]
}
"""Costs that are neither sum nor product of the arguments' sizes, by function or by overload."""
PRICED_BY_OVERLOAD: Final = frozenset((
    "_+_", "_<_", "_<=_", "_>_", "_>=_", "@in", "bytes", "string", "sort",
))
"""Functions for which cel-go charges their own cost only if the types determine one overload, and 1 otherwise."""
PRICED_AS_FIRST: Final = frozenset({"containsIP", "containsCIDR"})
"""Functions for which Kubernetes charges the cost of the first overload unless the types determine another one."""
