from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.sources.go_random import GoRandom


def test_the_first_numbers_of_well_known_seeds_are_those_of_go():
    assert [GoRandom(1).int63(), GoRandom(0).int63()] == [5577006791947779410, 8717895732742165505]
    random = GoRandom(42)
    assert [random.below(100) for _ in range(10)] == [5, 87, 68, 50, 23, 45, 57, 76, 28, 43]


def test_permutations_and_shuffles_hold_every_item_once():
    random = GoRandom(7)
    items = list(range(100))
    random.shuffle(items)
    assert sorted(items) == sorted(random.permutation(100)) == list(range(100))


@pytest.mark.parametrize("bound", [1, 2, 3, 1 << 30, (1 << 31) - 1])
def test_draws_stay_below_their_bound(bound):
    random = GoRandom(3)
    assert all(0 <= random.below(bound) < bound for _ in range(50))


@pytest.mark.parametrize("bound", [0, -1, 1 << 31])
def test_a_bound_that_go_would_panic_on_is_refused(bound):
    with pytest.raises(ValueError, match="a bound from 1 to 2147483647 is needed"):
        GoRandom(1).below(bound)
