"""Series of measurements and their aggregations over a window, as koordlet's metric cache computes them."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

_SINGLE: Final = struct.Struct("f")


def _rounded(value: float) -> float:
    """Return the value rounded to 32 bits."""
    return float(_SINGLE.unpack(_SINGLE.pack(value))[0])


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return a percentile as koordlet computes it: the value at int(float32(n) * fraction) - 1 of the sorted ones.

    Raises:
        ValueError: there are no values, or the fraction is outside (0, 1] or has more than three decimals.
    """
    if not 0 < fraction <= 1 or abs(fraction * 1000 - round(fraction * 1000)) > 1e-6:
        raise ValueError(f"`{fraction}` is not a percentile: it must be above 0 and at most 1, with at most 3 decimals")
    if not values:
        raise ValueError("there are no values")
    return _of_sorted(sorted(values), fraction)


def _of_sorted(values: Sequence[float], fraction: float) -> float:
    # The product of two 32-bit numbers is exact in 64 bits, so it is rounded once, as in 32-bit arithmetic.
    index = int(_rounded(_rounded(len(values)) * _rounded(fraction))) - 1
    return values[max(index, 0)]


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


@dataclass(frozen=True, slots=True)
class WindowStatistics:
    """All statistics of one series over one window; `span` is the time from its first to its last sample, in ns."""

    count: int
    span: int
    avg: float
    p50: float
    p90: float
    p95: float
    p99: float
    last: float

    @classmethod
    def of(cls, times: Sequence[int], values: Sequence[float]) -> WindowStatistics | None:
        """Return the statistics of samples in order of time; None if there are none."""
        if not values:
            return None
        ordered = sorted(values)
        return cls(
            len(values), times[-1] - times[0], sum(values) / len(values), _of_sorted(ordered, 0.5),
            _of_sorted(ordered, 0.9), _of_sorted(ordered, 0.95), _of_sorted(ordered, 0.99), values[-1],
        )


class UsageStatistics(Protocol):
    """The measurements of a node, as reports and predictions read them; times in ns since the epoch."""

    def aggregate(self, what: str, name: str, resource: str, start: int, end: int) -> WindowStatistics | None:
        """Return the statistics of a series from `start` to `end`; None without a sample."""
        ...

    def require(self, what: str, window: int) -> None:
        """Keep the samples of a kind for at least `window` ns."""
        ...


class Series(Protocol):
    """One metric over time, as statistics read it; times in nanoseconds."""

    def between(self, start: int, end: int) -> Sequence[float]:
        """Return the values measured from `start` to `end`, both included, in order of time."""
        ...

    def newest(self, end: int) -> int | None:
        """Return the time of the last value until `end`; None if there is none."""
        ...


@dataclass(slots=True)
class MetricSeries:
    """One metric over time, unbounded (a `Series`); times in nanoseconds, ascending."""

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

    def newest(self, end: int) -> int | None:
        """Return the time of the last value until `end`; None if there is none."""
        at = bisect.bisect_right(self.times, end)
        return self.times[at - 1] if at else None
