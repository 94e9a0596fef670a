"""Metrics of a server: its text in Prometheus' format, as amounts by name and labels."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""

MOST_SERIES: Final = 4000
"""The maximum number of series that are read of one server."""
_LONGEST_LINE: Final = 4096
# Nothing of them is tried twice: a hostile line must take time in proportion to its length.
_LINE: Final = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})? ++([^ ]++)(?: ++-?\d++)? *+')
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*+)="((?:[^"\\]|\\.)*+)"(?:,|\Z)')
_ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Exposition:
    """The amounts of a server's metrics at one time."""

    series: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    left_out: int = 0
    """Series beyond `MOST_SERIES`, and lines that are malformed or too long."""

    def of(self, name: str) -> Mapping[Labels, float]:
        """Return the series of a metric."""
        return self.series.get(name, {})

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of the series with these labels; None if there is none."""
        found = [amount for known, amount in self.of(name).items() if labels.items() <= dict(known).items()]
        return sum(found) if found else None


def read_exposition(text: str, names: Collection[str]) -> Exposition:
    """Return the series of these names, as samples have them (a histogram's end with `_bucket`, `_sum`, `_count`).

    Amounts that are no finite number are left out. Of hostile texts no more than `MOST_SERIES` series are read.
    """
    found: dict[str, dict[Labels, float]] = {}
    count = left_out = 0
    for line in text.split("\n"):
        name = re.split("[{ ]", line, maxsplit=1)[0] if line[:1] not in ("#", "") else ""
        if name not in names:
            continue
        parsed = _parsed(line) if count < MOST_SERIES else None
        if parsed is None:
            left_out += 1
        elif math.isfinite(parsed[1]):
            found.setdefault(name, {})[parsed[0]] = parsed[1]
            count += 1
    return Exposition(found, left_out)


def _parsed(line: str) -> tuple[Labels, float] | None:
    match = _LINE.fullmatch(line) if len(line) <= _LONGEST_LINE else None
    if match is None:
        return None
    try:
        return tuple(sorted(_labels(match[2] or ""))), float(match[3])
    except ValueError:
        return None


def _labels(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and values; raises `ValueError` if a text is no list of them."""
    place = 0
    while place < len(text):
        match = _LABEL.match(text, place)
        if match is None:
            raise ValueError(text)
        yield match[1], _ESCAPED.sub(lambda each: "\n" if each[1] == "n" else each[1], match[2])
        place = match.end()


def increase(amounts: Collection[float]) -> float:
    """Return by how much a counter has grown over readings in the order of time; after a restart it begins at 0."""
    total, before = 0.0, math.nan
    for amount in amounts:
        if amount >= before:
            total += amount - before
        elif not math.isnan(before):
            total += amount
        before = amount
    return total


def growth(readings: Sequence[Exposition], name: str) -> Iterator[tuple[Labels, float]]:
    """Yield by how much each series of a counter that the last reading has grew over the readings.

    One that was not there before begins at 0, as a counter with labels has none until it counts.
    """
    over_time = [each.of(name) for each in readings]
    for labels in over_time[-1] if over_time else ():
        yield labels, increase([series.get(labels, 0.0) for series in over_time])


def upper_bound(labels: Labels) -> float | None:
    """Return the upper bound of a histogram's bucket; None if its labels name none."""
    try:
        return float(dict(labels)["le"])
    except (KeyError, ValueError):
        return None


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return the quantile of a histogram, as Prometheus' `histogram_quantile`; None without observations.

    `buckets` are the cumulative numbers of observations by their upper bound, infinity among them.
    """
    bounds = sorted(buckets)
    whole = buckets[bounds[-1]] if bounds else 0.0
    if whole <= 0:
        return None
    rank, lower, below = share * whole, 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * ((rank - below) / (count - below) if count > below else 1.0)
        lower, below = bound, count
    return lower
