"""Curves and areas as SVG in the page's colours, each with its data for tooltips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from .page import data

SERIES: Final = 9
"""The number of colours; further series have the last one."""

_WIDTH: Final = 560
_HEIGHT: Final = 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 14, 10, 40
_LONGEST: Final = 70


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One curve or area: a value for each x, NaN where there is none."""

    label: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """A system of axes. `titles` are the tooltips of each x; `show` formats a value there."""

    name: str
    """The id of its data, unique on the page."""
    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    titles: Sequence[str]
    series: Sequence[ChartSeries]
    highest: float | None = None
    """The end of the y axis; by default a little above the largest value."""
    show: Callable[[float], str] = "{:.2f}".format
    tick: Callable[[float], str] = "{:,.0f}".format
    """Writes a value of the x axis."""


def curves(chart: Chart) -> str:
    """Return the chart with a line for each series."""
    axes = _Axes(chart, max((value for each in chart.series for value in each.values if _is(value)), default=0.0))
    drawn = "".join(
        f'<path class="curve s{min(number, SERIES - 1)}" d="{path}"/>'
        for number, each in enumerate(chart.series) if (path := _line(axes, chart.x, each.values))
    )
    return _figure(chart, axes, drawn)


def stacked(chart: Chart) -> str:
    """Return the chart with the series as areas, the first at the bottom. Their values are 0 or more."""
    below = [0.0] * len(chart.x)
    layers: list[tuple[list[float], list[float]]] = []
    for each in chart.series:
        above = [low + value for low, value in zip(below, each.values, strict=True)]
        layers.append((below, above))
        below = above
    axes = _Axes(chart, max(below, default=0.0))
    drawn = "".join(
        f'<path class="area s{min(number, SERIES - 1)}" d="M{_points(axes, chart.x, above)}'
        f'L{_points(axes, chart.x[::-1], low[::-1])}z"/>'
        for number, (low, above) in enumerate(layers) if len(chart.x) > 1
    )
    return _figure(chart, axes, drawn)


class _Axes:
    """The mapping of values to positions in the drawing."""

    def __init__(self, chart: Chart, most: float) -> None:
        self.x_from, self.x_to = (chart.x[0], chart.x[-1]) if chart.x else (0.0, 1.0)
        if self.x_to == self.x_from:
            self.x_to += 1
        self.highest = chart.highest if chart.highest is not None else (most * 1.05 or 1.0)

    def x(self, value: float) -> float:
        share = (value - self.x_from) / (self.x_to - self.x_from)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.highest * (_HEIGHT - _TOP - _BOTTOM)


def _figure(chart: Chart, axes: _Axes, drawn: str) -> str:
    key = "".join(
        f'<li><i class="s{min(number, SERIES - 1)}"></i>{escape(shortened(each.label))}</li>'
        for number, each in enumerate(chart.series)
    )
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    grid = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{axes.y(value):.1f}" y2="{axes.y(value):.1f}"/>'
        f'<text x="{_LEFT - 7}" y="{axes.y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        for value in ticks(0, axes.highest, 5)
    ) + "".join(
        f'<line class="axis" x1="{axes.x(value):.1f}" x2="{axes.x(value):.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        f'<text x="{axes.x(value):.1f}" y="{bottom + 17}" text-anchor="middle">{escape(chart.tick(value))}</text>'
        for value in ticks(axes.x_from, axes.x_to, 7)
    )
    content = {
        "left": _LEFT, "right": right, "from": axes.x_from, "to": axes.x_to, "at": list(chart.x),
        "titles": list(chart.titles),
        "series": [[shortened(each.label), [chart.show(value) if _is(value) else "-" for value in each.values]]
                   for each in chart.series],
    }
    return (
        f'<figure><figcaption>{escape(chart.title)}</figcaption><ul class="key">{key}</ul>'
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" data-values="{escape(chart.name)}" '
        f'aria-label="{escape(f"{chart.title}: {chart.y_label}, by {chart.x_label}")}">'
        f'{grid}<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>{drawn}'
        f'<line class="at" y1="{_TOP}" y2="{bottom}"/>'
        f'<text x="{(_LEFT + right) / 2:g}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(chart.x_label)}</text>'
        f'<text x="12" y="{(_TOP + bottom) / 2:g}" text-anchor="middle" '
        f'transform="rotate(-90 12 {(_TOP + bottom) / 2:g})">{escape(chart.y_label)}</text></svg>'
        f"{data(chart.name, content)}</figure>"
    )


def ticks(low: float, high: float, most: int) -> Iterator[float]:
    """Yield about `most` round numbers at most, from `low` to `high`."""
    if not high > low:
        yield low
        return
    rough = (high - low) / most
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= rough * (1 - 1e-9))
    for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        yield round(number * step, 12)


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Return a text in one line, cut to `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _line(axes: _Axes, x: Sequence[float], values: Sequence[float]) -> str:
    path, drawing = [], False
    for at, value in zip(x, values, strict=True):
        if _is(value):
            path.append(f"{'L' if drawing else 'M'}{axes.x(at):.1f} {axes.y(value):.1f}")
            if not drawing:
                path.append("h0")  # an isolated point is a dot
        drawing = _is(value)
    return "".join(path)


def _points(axes: _Axes, x: Sequence[float], values: Sequence[float]) -> str:
    return "L".join(f"{axes.x(at):.1f} {axes.y(value):.1f}" for at, value in zip(x, values, strict=True))


def _is(value: float) -> bool:
    return not math.isnan(value)
