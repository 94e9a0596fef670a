from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.descheduler.proof.cover import fewest


def identity(size: int) -> float:
    return size


@pytest.mark.parametrize(("sizes", "excess", "chosen"), [
    ([3, 9, 5, 4], 5, (5,)),
    ([3, 4, 5, 4], 8, (3, 5)),
    ([2, 2, 2], 5, (2, 2, 2)),
    ([2, 2, 2], 7, None),
    ([], 1, None),
    ([4], 0, ()),
])
def test_the_fewest_items_are_chosen_and_of_them_the_smallest(
    sizes: list[int], excess: int, chosen: tuple[int, ...] | None,
):
    assert fewest(sizes, identity, lambda some: sum(some) >= excess) == chosen


def test_beyond_the_limit_the_largest_are_chosen_without_those_that_are_not_needed():
    asked: list[Sequence[int]] = []

    def enough(some: Sequence[int]) -> bool:
        asked.append(some)
        return sum(some) >= 95

    assert fewest([50, *range(1, 31), 40], identity, enough, tests=40) == (50, 30, 40)
    assert len(asked) <= 40


def test_an_item_that_the_others_make_needless_is_left_out():
    # The two largest are not enough together, but either of them is with the third.
    enough = {frozenset(("a", "c")), frozenset(("b", "c")), frozenset(("a", "b", "c"))}
    sizes = {"a": 3, "b": 2, "c": 1}
    assert fewest(["a", "b", "c"], sizes.__getitem__, lambda some: frozenset(some) in enough, tests=0) == ("a", "c")


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 60), st.integers(0, 70))
@settings(max_examples=50)
def test_a_result_is_enough_and_no_smaller_number_is(sizes: list[int], excess: int, tests: int):
    found = fewest(sizes, identity, lambda some: sum(some) >= excess, tests=tests)
    largest = sorted(sizes, reverse=True)
    needed = next((number for number in range(len(sizes) + 1) if sum(largest[:number]) >= excess), None)
    assert (None if found is None else len(found)) == needed
    assert found is None or sum(found) >= excess
