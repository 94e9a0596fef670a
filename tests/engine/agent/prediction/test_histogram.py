from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

import pytest

from koordpolicy.engine.agent.prediction.histogram import Buckets, DecayingHistogram

DAY = 86400.0
TENS = Buckets(tuple(float(each) for each in range(0, 110, 10)))


def test_exponential_buckets_begin_at_zero_and_reach_the_largest_amount():
    assert Buckets.exponential(500.0, 40.0, 1.5).starts == (0.0, 40.0, 100.0, 190.0, 325.0, 527.5)


@pytest.mark.parametrize(("largest", "first", "ratio"), [(0.0, 1.0, 2.0), (1.0, 0.0, 2.0), (1.0, 1.0, 1.0)])
def test_buckets_that_do_not_grow_are_refused(largest: float, first: float, ratio: float):
    with pytest.raises(ValueError, match="ratio above 1"):
        Buckets.exponential(largest, first, ratio)


@pytest.mark.parametrize(("amount", "index"), [(-1.0, 0), (0.0, 0), (9.9, 0), (10.0, 1), (99.0, 9), (1e9, 10)])
def test_an_amount_is_in_one_bucket(amount: float, index: int):
    assert TENS.index(amount) == index


def test_a_percentile_is_the_end_of_its_bucket():
    histogram = DecayingHistogram(TENS, DAY)
    assert histogram.percentile(0.95) == 0.0
    for amount in range(100):
        histogram.add(float(amount), 1000.0)
    assert [histogram.percentile(each) for each in (0.05, 0.5, 0.9, 0.95, 1.0)] == [10.0, 50.0, 90.0, 100.0, 100.0]
    histogram.add(1e9, 1000.0)
    assert histogram.percentile(1.0) == 100.0


def test_a_sample_weighs_half_as_much_after_the_half_life():
    histogram = DecayingHistogram(TENS, DAY)
    histogram.add(85.0, 0.0)
    histogram.add(5.0, DAY)
    # 0.5 of 1.5 is above the last tenth, and so is the peak; after further samples it is below it.
    assert (histogram.percentile(0.6), histogram.percentile(0.9)) == (10.0, 90.0)
    for _ in range(5):
        histogram.add(5.0, DAY)
    assert histogram.percentile(0.9) == 10.0
    assert (histogram.weight(DAY), histogram.weight(2 * DAY)) == (6.5, 3.25)


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_those_of_the_samples_with_their_weights(seed: int):
    chance = random.Random(seed)
    histogram, samples = DecayingHistogram(TENS, 3600.0), []
    for minute in range(600):
        samples.append((chance.uniform(0, 99), minute * 60.0 * chance.choice((1, 1, 1, 0.5))))
        histogram.add(*samples[-1])
    now = samples[-1][1]
    weighted = sorted((TENS.end(TENS.index(amount)), 0.5 ** ((now - time) / 3600.0)) for amount, time in samples)
    for fraction in (0.5, 0.9, 0.95, 0.98):
        least = fraction * sum(weight for _, weight in weighted)
        reached = zip(weighted, accumulate(weight for _, weight in weighted), strict=True)
        assert histogram.percentile(fraction) == next(amount for (amount, _), weight in reached if weight >= least)


def test_weights_stay_finite_over_years_and_when_the_clock_is_set_back():
    histogram = DecayingHistogram(TENS, 3600.0)
    for day in range(3000):
        histogram.add(15.0 + day % 2 * 50, day * DAY)
    assert (histogram.percentile(0.5), histogram.weight(2999 * DAY)) == (70.0, pytest.approx(1.0, abs=1e-6))
    histogram.add(95.0, 0.0)
    assert histogram.percentile(0.98) == 70.0


def test_a_restored_checkpoint_has_the_same_percentiles_and_weights():
    chance = random.Random(1)
    histogram = DecayingHistogram(TENS, DAY)
    for minute in range(2000):
        histogram.add(chance.gauss(50, 10), minute * 60.0)
    now = 2000 * 60.0
    restored = DecayingHistogram(TENS, DAY)
    assert restored.restore(histogram.checkpoint(), histogram.weight(now), now)
    for each in (histogram, restored):
        each.add(25.0, now + 60)
    assert [restored.percentile(each) for each in (0.01, 0.5, 0.95, 0.98)] == [
        histogram.percentile(each) for each in (0.01, 0.5, 0.95, 0.98)]
    assert restored.weight(now) == pytest.approx(histogram.weight(now), rel=1e-3)


def test_a_checkpoint_has_the_used_buckets_relative_to_the_heaviest():
    histogram = DecayingHistogram(TENS, DAY)
    assert histogram.checkpoint() == []
    for amount, times in ((25.0, 4), (45.0, 1)):
        for _ in range(times):
            histogram.add(amount, 0.0)
    assert histogram.checkpoint() == [2, 10000, 0, 2500]


@pytest.mark.parametrize("checkpoint", [
    None, 3, "12", [], [1], [1, 0], [-1, 5], [1, -5], [1, 1.5], [1, True], [1, 10001], [10, 1, 1], [0, *[1] * 12]])
def test_a_malformed_checkpoint_changes_nothing(checkpoint: Any):
    histogram = DecayingHistogram(TENS, DAY)
    assert not histogram.restore(checkpoint, 1.0, 0.0)
    assert histogram.checkpoint() == []


def test_moved_samples_keep_their_weights_among_each_other():
    histogram, moved = DecayingHistogram(TENS, DAY), DecayingHistogram(TENS, DAY)
    for amount, day in ((85.0, 0), (45.0, 1), (5.0, 3)):
        histogram.add(amount, day * DAY)
        moved.add(amount, (day + 400) * DAY)
    moved.move(-400 * DAY)
    for each in (histogram, moved):
        each.add(25.0, 4 * DAY)
    assert moved.checkpoint() == histogram.checkpoint()
    assert moved.weight(4 * DAY) == pytest.approx(histogram.weight(4 * DAY))
