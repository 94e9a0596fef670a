"""Series of measurements and their aggregations over a window, as koordlet's metric cache computes them."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return a percentile as koordlet computes it: the value at int(float32(n) * fraction) - 1 of the sorted ones.

    Raises:
        ValueError: there are no values, or the fraction is outside (0, 1] or has more than three decimals.
    """
    import numpy as np  # noqa: PLC0415 - only for the rounding of a 32-bit product

    if not 0 < fraction <= 1 or abs(fraction * 1000 - round(fraction * 1000)) > 1e-6:
        raise ValueError(f"`{fraction}` is not a percentile: it must be above 0 and at most 1, with at most 3 decimals")
    if not values:
        raise ValueError("there are no values")
    index = int(np.float32(len(values)) * np.float32(fraction)) - 1
    return sorted(values)[max(index, 0)]


def last(samples: Sequence[tuple[int, float]]) -> float:
    """Return the value with the largest time of (time, value) pairs; raise `ValueError` if there are none."""
    if not samples:
        raise ValueError("there are no values")
    return max(samples, key=lambda sample: sample[0])[1]


STATISTICS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "avg": lambda values: sum(values) / len(values),
    "p50": lambda values: percentile(values, 0.5),
    "p90": lambda values: percentile(values, 0.9),
    "p95": lambda values: percentile(values, 0.95),
    "p99": lambda values: percentile(values, 0.99),
    "last": lambda values: values[-1],
}
"""Aggregations of the values of a window, in order of time."""


@dataclass(slots=True)
class MetricSeries:
    """One metric over time; times in nanoseconds, ascending."""

    times: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, time: int, value: float) -> None:
        """Append a value; values may come out of order."""
        if self.times and time < self.times[-1]:
            at = bisect.bisect_right(self.times, time)
            self.times.insert(at, time)
            self.values.insert(at, value)
        else:
            self.times.append(time)
            self.values.append(value)

    def between(self, start: int, end: int) -> list[float]:
        """Return the values measured from `start` to `end`, both included."""
        return self.values[bisect.bisect_left(self.times, start) : bisect.bisect_right(self.times, end)]
