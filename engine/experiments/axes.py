"""Axes of experiments: `policy=Random,FGD seed=42..51 params.cpuPercent=55..90:5`."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias

Value: TypeAlias = bool | int | float | str
Point: TypeAlias = Mapping[str, Value]
"""One experiment: a value of each axis."""

_NUMBER: Final = r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?"
_RANGE: Final = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::({_NUMBER}))?")
_MOST_VALUES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Axis:
    """The name of an axis, and its values, in the written order."""

    name: str
    values: tuple[Value, ...]


def parse(text: str) -> Axis:
    """Read an axis: `NAME=VALUE[,VALUE...]`, where a value may be a range `FIRST..LAST[:STEP]` with both its ends.

    Raises:
        ValueError: it is malformed; the message is for its author.
    """
    name, equals, written = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise ValueError(
            f"`{text}` is not an axis: write NAME=VALUE[,VALUE...], where a value may be FIRST..LAST[:STEP]",
        )
    values: list[Value] = []
    for part in map(str.strip, written.split(",")):
        if not part:
            raise ValueError(f"`{text}` has an empty value")
        found = _RANGE.fullmatch(part)
        if found is None:
            values.append(_value(part))
        else:
            values.extend(_range(part, *found.groups()))
        if len(values) > _MOST_VALUES:
            raise ValueError(f"`{name}` has more than {_MOST_VALUES} values")
    # True is 1 to a dict.
    times = Counter((isinstance(value, bool), value) for value in values)
    twice = [value for (_, value), number in times.items() if number > 1]
    if twice:
        raise ValueError(f"`{name}` has the value `{show(twice[0])}` twice")
    return Axis(name, tuple(values))


def points(axes: Sequence[Axis]) -> Iterator[Point]:
    """Yield every combination of the axes' values; the last axis changes fastest."""
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip((axis.name for axis in axes), values, strict=True))


def count(axes: Iterable[Axis]) -> int:
    """Return how many combinations there are."""
    total = 1
    for axis in axes:
        total *= len(axis.values)
    return total


def show(value: Value) -> str:
    """Return a value as it is written on an axis."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe(point: Point) -> str:
    """Return an experiment in one line."""
    return " ".join(f"{name}={show(value)}" for name, value in point.items())


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(_NUMBER, text):
        return float(text) if "." in text else int(text)
    return text


def _range(text: str, first: str, last: str, step: str | None) -> Iterator[Value]:
    # Decimals: ten times 0.1 is exactly 1, so the last value is not lost.
    low, high, by = Decimal(first), Decimal(last), Decimal(step or 1)
    if by <= 0:
        raise ValueError(f"the step of `{text}` must be above 0")
    if high < low:
        raise ValueError(f"`{text}` ends before it begins")
    if (high - low) / by > _MOST_VALUES:
        raise ValueError(f"`{text}` has more than {_MOST_VALUES} values")
    whole = all("." not in part for part in (first, last, step or ""))
    while low <= high:
        yield int(low) if whole else float(low)
        low += by
