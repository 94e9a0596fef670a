"""Lists as sets, compared by `==`: cel-go's sets extension (cel-go `ext/sets.go`)."""

from __future__ import annotations

from typing import Final

from ..check.environment import Cost, Function, Overload
from ..values.traversal import product
from ..values.types import BOOL, list_of, variable
from ..values.values import equal

_T: Final = list_of(variable("T"))
_COST: Final = Cost(1, ((0, 1.0), (1, 1.0)), product=True)
_TWICE: Final = Cost(1, ((0, 1.0), (1, 2.0)), product=True)


def _contains(items: list[object], part: list[object]) -> bool:
    if all(type(each) is str for each in part):  # hashable, and equal to nothing of another kind
        texts = {each for each in items if type(each) is str}
        return texts.issuperset(part)
    return all(any(equal(each, other) for other in items) for each in part)


def _equivalent(left: list[object], right: list[object]) -> bool:
    return _contains(left, right) and _contains(right, left)


def _intersects(left: list[object], right: list[object]) -> bool:
    return any(equal(each, other) for each in left for other in right)


SETS: Final = (
    Function(
        "sets.contains", (Overload("list_sets_contains_list", (_T, _T), BOOL, _contains, cost=_COST, walk=product),),
        "True if a list contains every element of another.", "sets.contains([1, 2, 3], [2, 1])",
    ),
    Function(
        "sets.equivalent", (
            Overload(
                "list_sets_equivalent_list", (_T, _T), BOOL, _equivalent, cost=_TWICE, walk=product,
            ),
        ),
        "True if two lists hold the same elements, regardless of repetitions.", "sets.equivalent([1, 2, 2], [2, 1])",
    ),
    Function(
        "sets.intersects", (
            Overload(
                "list_sets_intersects_list", (_T, _T), BOOL, _intersects, cost=_COST, walk=product,
            ),
        ),
        "True if two lists have an element in common.", "sets.intersects([1], [1, 2])",
    ),
)
