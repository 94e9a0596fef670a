"""Plots of curves and bars. Only this module imports matplotlib.

Repeated experiments are drawn as their mean, with a band of one standard deviation on either side.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3fbf", "#8c564b", "#555555")
"""The colours of lines, in order, repeatedly: distinguishable with colour blindness (Okabe and Ito)."""

_DASHES: Final = ("-", "--", ":", "-.")
_WIDTH: Final = 5.2
_HEIGHT: Final = 3.4
_RESOLUTION: Final = 144


@dataclass(frozen=True, slots=True)
class Line:
    """A mean and its deviation over x; NaN where there is none. All three are as long."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    deviation: Sequence[float]


@dataclass(frozen=True, slots=True)
class Panel:
    """One system of axes. `points` marks each x, where there are few of them."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    points: bool = False
    start: float | None = None
    """The lowest x that is shown; None for all."""
    from_zero: bool = False
    """True if y begins at 0, so that small differences look small."""


@dataclass(frozen=True, slots=True)
class BarGroups:
    """Grouped values: for each label one value and its deviation per group.

    Drawn as bars if they begin at zero, else as points: a truncated bar shows a wrong proportion.
    """

    title: str
    y: str
    groups: tuple[str, ...]
    values: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...]
    bars: bool = True


def svg(panels: Sequence[Panel | BarGroups], *, columns: int = 2, name: str = "plot") -> str:
    """Return the panels as one SVG element for a page; `name` makes its ids unique in the page."""
    import matplotlib as mpl  # noqa: PLC0415 - 0.4 s

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        out = io.StringIO()
        _draw(panels, columns).savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg"):]


def png(panels: Sequence[Panel | BarGroups], *, columns: int = 2) -> bytes:
    """Return the panels as a PNG file."""
    out = io.BytesIO()
    _draw(panels, columns).savefig(out, format="png", dpi=_RESOLUTION, metadata={"Software": None})
    return out.getvalue()


def _draw(panels: Sequence[Panel | BarGroups], columns: int) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 - without pyplot: there is no window, and nothing to clean up

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_axis_off()
            continue
        panel = panels[place]
        axes.set_title(panel.title, fontsize=10, loc="left")
        axes.set_ylabel(panel.y, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        if isinstance(panel, Panel):
            _lines(axes, panel)
        else:
            _groups(axes, panel)
    return figure


def _lines(axes: Axes, panel: Panel) -> None:
    axes.set_xlabel(panel.x, fontsize=9)
    for number, line in enumerate(panel.lines):
        x, mean, deviation = _from(panel.start, line)
        colour = COLOURS[number % len(COLOURS)]
        dashes = _DASHES[number // len(COLOURS) % len(_DASHES)]
        axes.plot(x, mean, label=line.label, color=colour, linestyle=dashes, linewidth=1.4,
                  marker="o" if panel.points else None, markersize=3.5)
        if any(each > 0 for each in deviation):
            low = [a - b for a, b in zip(mean, deviation, strict=True)]
            high = [a + b for a, b in zip(mean, deviation, strict=True)]
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    if panel.from_zero:
        axes.set_ylim(0, max([1.0, *(a + b for line in panel.lines for a, b in
                                     zip(line.mean, line.deviation, strict=True))]) * 1.05)
    if len(panel.lines) > 1:
        axes.legend(fontsize=8, frameon=False)


def _from(start: float | None, line: Line) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    if start is None:
        return line.x, line.mean, line.deviation
    first = next((place for place, x in enumerate(line.x) if x >= start), len(line.x))
    return line.x[first:], line.mean[first:], line.deviation[first:]


def _groups(axes: Axes, panel: BarGroups) -> None:
    width = 0.8 / max(1, len(panel.values))
    thin: dict[str, Any] = {"linewidth": 0.8, "ecolor": "#000000a0", "capsize": 1.5}
    for number, (label, values, deviations) in enumerate(panel.values):
        places = [group + (number - (len(panel.values) - 1) / 2) * width for group in range(len(panel.groups))]
        spread = deviations if any(deviations) else None
        colour = COLOURS[number % len(COLOURS)]
        if panel.bars:
            axes.bar(places, values, width, label=label, color=colour)
            axes.errorbar(places, values, spread, fmt="none", **thin)
        else:
            axes.errorbar(places, values, spread, fmt="o", markersize=4.5, label=label, color=colour, **thin)
    crowded = len(panel.groups) > 4
    axes.set_xticks(range(len(panel.groups)), panel.groups, rotation=45 if crowded else 0,
                    ha="right" if crowded else "center")
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.1)
    axes.set_title(panel.title, fontsize=10, loc="left", pad=6 + 14 * -(-len(panel.values) // 3))
