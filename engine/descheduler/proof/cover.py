"""The fewest pods whose eviction relieves a node: a bounded search over subsets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

MOST_TESTS: Final = 400
"""The most subsets that one search tests."""


def fewest(
    items: Sequence[T], size: Callable[[T], float], enough: Callable[[Sequence[T]], bool], *, tests: int = MOST_TESTS,
) -> tuple[T, ...] | None:
    """Return the shortest set of items that is `enough`, of several the one of the smallest total size.

    None if all items together are not enough.

    Sets are tested in the order of their length. Before the tests of a length would exceed `tests` in all, the search
    ends with an approximation: the largest items are taken until they are enough, then those are dropped that are not
    needed. `enough` must stay true if items are added. Items keep their order.
    """
    if not items or not enough(items):
        return None
    left, sizes = tests, [size(each) for each in items]
    places = range(len(items))
    for number in places:
        sets = math.comb(len(items), number)
        if sets > left:
            return _largest_first(items, sizes, enough)
        left -= sets
        found = [each for each in itertools.combinations(places, number) if enough([items[place] for place in each])]
        if found:
            best = min(found, key=lambda each: sum(sizes[place] for place in each))
            return tuple(items[place] for place in best)
    return tuple(items)


def _largest_first(items: Sequence[T], sizes: Sequence[float], enough: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    chosen: list[int] = []
    for place in sorted(range(len(items)), key=lambda each: -sizes[each]):
        chosen.append(place)
        if enough([items[each] for each in chosen]):
            break
    for place in reversed(chosen[:-1]):
        fewer = [each for each in chosen if each != place]
        if enough([items[each] for each in fewer]):
            chosen = fewer
    return tuple(items[place] for place in sorted(chosen))
