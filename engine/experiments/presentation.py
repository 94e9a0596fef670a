"""Presentation of a sweep: the repeating axis, the axis of the lines, and the figures shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from . import recordings, replays, snapshots
from .axes import Value, show
from .plots import BarGroups, Line, Panel
from .sweep import Finished
from .tables import figure, grouped, mean_and_deviation, without_constant

REPEATED: Final = "seed"
_WORKLOAD: Final = "workload"
_LOAD: Final = "arrived GPU requests (% of the cluster's GPU)"
_ZOOM: Final = 80
_NOTHING: Final = (math.nan, 0.0)

_Key = tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Manner:
    """The presentation of one kind of experiments: the figures of the summary, and the meaning of all figures."""

    figures: tuple[str, ...]
    meanings: Mapping[str, str]
    curves: Mapping[str, str] = field(default_factory=dict)
    """The titles by curve."""


REPLAYS: Final = Manner(
    ("gpu_alloc_pct", "frag_amount_pct", "frag_ratio_pct", "failed"), replays.FIGURES,
    {
        "gpu_alloc_pct": "allocated GPU (% of the cluster's)",
        "frag_amount_pct": "fragmented GPU (% of the cluster's)",
        "frag_ratio_pct": "fragmented GPU (% of the idle)",
    },
)
SNAPSHOTS: Final = Manner(
    ("pending", "misfits", "evictions", "suppressed", "hot", "cpu_usage_spread", "cpu_requested_spread"),
    snapshots.FIGURES,
)
RECORDINGS: Final = Manner(
    ("same", "elsewhere", "later", "never", "only_replayed", "evictions", "wait_mean_s", "cpu_requested_pct"),
    recordings.FIGURES,
)


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """A row per group of experiments that differ only in the repeating axis: mean and deviation."""

    axes: tuple[str, ...]
    """The axes that differ, without the repeating one."""
    figures: tuple[str, ...]
    rows: tuple[tuple[tuple[Value, ...], int, tuple[tuple[float, float] | None, ...]], ...]
    """The axes' values, how many experiments, and each figure."""
    counts: frozenset[str] = frozenset()
    """The figures that are whole numbers in every experiment."""


def summary(finished: Sequence[Finished], manner: Manner) -> SweepSummary:
    """Return the means of a sweep."""
    axes = tuple(name for name in without_constant([each.point for each in finished]) if name != REPEATED)
    rows = []
    for key, group in grouped(finished, REPEATED).items():
        at = dict(key)
        figures = tuple(mean_and_deviation(map(figure(name), group)) for name in manner.figures)
        rows.append((tuple(at[name] for name in axes), len(group), figures))
    counts = (name for name in manner.figures
              if all(isinstance(each.outcome.figures.get(name), int) for each in finished))
    return SweepSummary(axes, manner.figures, tuple(rows), frozenset(counts))


def panels(finished: Sequence[Finished], manner: Manner) -> dict[str, list[Panel | BarGroups]]:
    """Return the panels by heading: curves by load for each workload, and figures by each numeric axis."""
    found: dict[str, list[Panel | BarGroups]] = {}
    overview = _by_workload(finished, manner) + _by_numbers(finished, manner)
    if overview:
        found[""] = overview
    if manner.curves:
        workloads = list(dict.fromkeys(str(each.point.get(_WORKLOAD, "")) for each in finished))
        for workload in workloads:
            among = [each for each in finished if str(each.point.get(_WORKLOAD, "")) == workload]
            drawn = _by_load(among, manner)
            if drawn:
                found[workload] = drawn
    return found


def _by_load(finished: Sequence[Finished], manner: Manner) -> list[Panel | BarGroups]:
    drawn: list[Panel | BarGroups] = []
    for name, title in manner.curves.items():
        lines = tuple(_curve(label, group, name) for label, group in _series(finished, (REPEATED, _WORKLOAD)))
        lines = tuple(line for line in lines if line.x)
        if not lines:
            continue
        drawn.append(Panel(title, _LOAD, "%", lines))
        if name == "gpu_alloc_pct" and max(line.x[-1] for line in lines) > _ZOOM:
            drawn.append(Panel(f"{title}, from {_ZOOM} % load on", _LOAD, "%", lines, start=_ZOOM))
    return drawn


def _curve(label: str, group: Sequence[Finished], name: str) -> Line:
    curves = [each.outcome.curves.get(name, ()) for each in group]
    # Only some of the seeds may reach the last percents, where the mean would jump.
    length = min(map(len, curves), default=0)
    points = [mean_and_deviation(curve[x] for curve in curves) or _NOTHING for x in range(length)]
    return Line(label, tuple(map(float, range(length))), tuple(each[0] for each in points),
                tuple(each[1] for each in points))


def _by_workload(finished: Sequence[Finished], manner: Manner) -> list[Panel | BarGroups]:
    workloads = tuple(dict.fromkeys(str(each.point.get(_WORKLOAD, "")) for each in finished))
    series = _series(finished, (REPEATED, _WORKLOAD))
    if not manner.curves or (len(workloads) < 2 and len(series) < 2):
        return []
    drawn: list[Panel | BarGroups] = []
    for name, title, bars in (("gpu_alloc_pct", "allocated GPU at the end (% of the cluster's)", False),
                                   ("failed", "pods that found no node", True)):
        values = []
        for label, group in series:
            by = {workload: mean_and_deviation(
                figure(name)(each) for each in group if str(each.point.get(_WORKLOAD, "")) == workload
            ) or _NOTHING for workload in workloads}
            values.append((label, tuple(each[0] for each in by.values()), tuple(each[1] for each in by.values())))
        drawn.append(BarGroups(title, "%" if name.endswith("_pct") else "pods", workloads, tuple(values), bars))
    return drawn


def _by_numbers(finished: Sequence[Finished], manner: Manner) -> list[Panel | BarGroups]:
    """Return a panel per figure over the first numeric axis that differs and does not repeat; empty without one."""
    names = without_constant([each.point for each in finished])
    axis = next((name for name in names if name != REPEATED and all(
        isinstance(each.point.get(name), int | float) and not isinstance(each.point.get(name), bool)
        for each in finished)), None)
    if axis is None:
        return []
    drawn: list[Panel | BarGroups] = []
    for name in manner.figures:
        lines = []
        for label, group in _series(finished, (REPEATED, axis)):
            at: dict[float, list[Finished]] = {}
            for each in group:
                at.setdefault(float(each.point[axis]), []).append(each)
            points = {x: mean_and_deviation(map(figure(name), at[x])) for x in sorted(at)}
            known = {x: each for x, each in points.items() if each is not None}
            lines.append(Line(label, tuple(known), tuple(each[0] for each in known.values()),
                              tuple(each[1] for each in known.values())))
        if any(line.x for line in lines):
            drawn.append(Panel(manner.meanings[name], axis, name, tuple(lines), points=True,
                               from_zero=not name.endswith("_pct")))
    return drawn


def _series(finished: Sequence[Finished], without: Sequence[str]) -> list[tuple[str, list[Finished]]]:
    """Return the experiments by the label of their line, made of the differing axes except some."""
    names = [name for name in without_constant([each.point for each in finished]) if name not in without]
    groups: dict[_Key, list[Finished]] = {}
    for each in finished:
        groups.setdefault(tuple((name, each.point[name]) for name in names), []).append(each)
    return [(_label(key), group) for key, group in groups.items()]


def _label(key: _Key) -> str:
    return ", ".join(show(value) if name == "policy" else f"{name}={show(value)}" for name, value in key)
