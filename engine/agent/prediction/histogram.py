"""Histograms whose samples lose weight with time, as Kubernetes' vertical autoscaler and koordlet have them."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_LARGEST_EXPONENT: Final = 64.0
"""Half-lives after which weights are scaled down, so that they stay finite."""
_LARGEST_WEIGHT: Final = 10_000
"""The weight of the heaviest bucket of a checkpoint, as the autoscaler has it."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets that grow by a ratio; the first one begins at 0. `starts` has the start of each one, ascending."""

    starts: tuple[float, ...]

    @staticmethod
    def exponential(largest: float, first: float, ratio: float) -> Buckets:
        """Return as many buckets as reach `largest`; the first one has the size `first`, each later one `ratio` more.

        Raises:
            ValueError: the sizes are not positive, or do not grow.
        """
        if not (largest > 0 and first > 0 and ratio > 1):
            raise ValueError("buckets need a positive largest amount and first size, and a ratio above 1")
        count = math.ceil(math.log(largest * (ratio - 1) / first + 1, ratio)) + 1
        return Buckets(tuple(first * (ratio**each - 1) / (ratio - 1) for each in range(count)))

    def index(self, amount: float) -> int:
        """Return the bucket of an amount: the first one for negative amounts, the last one for those beyond it."""
        return max(bisect_right(self.starts, amount) - 1, 0)

    def end(self, index: int) -> float:
        """Return the end of a bucket; of the last one its start, as nothing limits it."""
        return self.starts[min(index + 1, len(self.starts) - 1)]


class DecayingHistogram:
    """The distribution of samples, each of which weighs half as much after `half_life` seconds.

    Times are seconds since the epoch. The weights are those of a reference time: a later sample gets a larger weight
    instead of a smaller one for all earlier samples.
    """

    __slots__ = ("_buckets", "_half_life", "_reference", "_total", "_weights")

    def __init__(self, buckets: Buckets, half_life: float) -> None:
        """`half_life` is above 0."""
        self._buckets = buckets
        self._half_life = half_life
        self._weights = array("d", bytes(8 * len(buckets.starts)))
        self._total = 0.0
        self._reference = 0.0

    def add(self, amount: float, time: float) -> None:
        """Add a sample."""
        if not self._total:
            self._reference = time
        exponent = (time - self._reference) / self._half_life
        if exponent > _LARGEST_EXPONENT:
            self._scale(0.5**exponent)
            self._reference, exponent = time, 0.0
        # A clock that is set far back gives weights close to 0, and never an error.
        weight = 2.0 ** max(exponent, -1000.0)
        self._weights[self._buckets.index(amount)] += weight
        self._total += weight

    def move(self, seconds: float) -> None:
        """Let all samples be so much later, or earlier if it is negative."""
        self._reference += seconds

    def percentile(self, fraction: float) -> float:
        """Return the end of the bucket in which this share (0 to 1) of the weight is reached; 0 without samples."""
        if not self._total:
            return 0.0
        least, reached, found = fraction * self._total, 0.0, 0
        for index, weight in enumerate(self._weights):
            if weight:
                reached, found = reached + weight, index
                if reached >= least:
                    break
        return self._buckets.end(found)

    def checkpoint(self) -> list[int]:
        """Return the weights as integers for `restore`: the number of the first bucket with weight, then the weights.

        Weights are relative to the heaviest bucket, which has 10,000; a bucket with less than half a part of it is
        left out.
        """
        heaviest = max(self._weights)
        if not heaviest:
            return []
        weights = [round(weight / heaviest * _LARGEST_WEIGHT) if weight else 0 for weight in self._weights]
        used = [index for index, weight in enumerate(weights) if weight]
        return [used[0], *weights[used[0]:used[-1] + 1]]

    def restore(self, checkpoint: Any, total: float, time: float) -> bool:
        """Take over the weights of a checkpoint with a total weight at a time; False if it is malformed."""
        if not _is_checkpoint(checkpoint, len(self._buckets.starts)):
            return False
        first, *weights = checkpoint
        summed = sum(weights)
        for index, weight in enumerate(weights, first):
            self._weights[index] = weight / summed * total
        self._total, self._reference = total, time
        return True

    def weight(self, time: float) -> float:
        """Return the weight of all samples at a time."""
        return self._total * math.exp2(min((self._reference - time) / self._half_life, 0.0))

    def _scale(self, factor: float) -> None:
        self._weights = array("d", [weight * factor for weight in self._weights])
        self._total = sum(self._weights)


def _is_checkpoint(value: Any, buckets: int) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or not 2 <= len(value) <= buckets + 1:
        return False
    if not all(type(each) is int and 0 <= each <= _LARGEST_WEIGHT for each in value):
        return False
    return value[0] + len(value) - 1 <= buckets and any(value[1:])
