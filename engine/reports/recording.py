"""The replay of a recording as a page: usage, waiting times and evictions over virtual time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from html import escape
from typing import Final

from koordpolicy.engine.explanation import counted
from koordpolicy.engine.recorded.figures import SECOND, RecordingResult, TimeSpan, Waits

from .charts import Chart, ChartSeries, curves, shortened, stacked
from .page import page, table, tiles

_MOST_ROWS: Final = 20
_UNITS: Final = ((86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))


def recording_page(title: str, about: str, result: RecordingResult, points: int, time: Callable[[float], str]) -> str:
    """Return the page, with the time divided into `points` spans; `time` formats seconds for display."""
    spans = result.series(points)
    parts = [tiles(_figures(result, time)), *_errors(result), *_over_time(result, spans, time)]
    parts += ["<h2>Waiting</h2>", _waits(result, time), *_never_ran(result, time), *_evictions(result)]
    return page(title, about, parts, tooltips=True)


def _figures(result: RecordingResult, time: Callable[[float], str]) -> Iterator[tuple[str, str]]:
    mean = result.use()
    yield "pods came", f"{result.arrivals:,}"
    yield "never ran", f"{len(result.never_ran):,}"
    yield "waited, on average", time(result.waits.mean)
    yield "waited longest", time(result.waits.most)
    yield "cpu taken, on average", f"{mean.cpu:.2f} %"
    yield "memory taken", f"{mean.memory:.2f} %"
    if result.capacity.gpu:
        yield "GPU taken", f"{mean.gpu:.2f} %"
    if result.cycles:
        yield "evictions", f"{len(result.evictions):,}"


def _errors(result: RecordingResult) -> Iterator[str]:
    texts = [f"{each.plugin} at {each.point.value}: {each.message}" for each in result.errors]
    texts += result.descheduler_errors
    if texts:
        lines = "<br>".join(escape(shortened(text, 300)) for text in texts[:_MOST_ROWS])
        yield f'<p class="missing">Errors in plugins and expressions, {len(texts):,} kinds:<br>{lines}</p>'


def _over_time(result: RecordingResult, spans: Sequence[TimeSpan], time: Callable[[float], str]) -> Iterator[str]:
    if not spans:
        yield "<h2>Over time</h2><p>No time passed.</p>"
        return
    start, end = result.start / SECOND, result.end / SECOND
    scale, unit = next((each for each in _UNITS if end - start >= 2 * each[0]), _UNITS[-1])
    label = f"{unit} since the first pod came"
    x = [((span.start + span.end) / 2 - start) / scale for span in spans]
    titles = [f"{time(span.start - start) or '0s'} to {time(span.end - start)}" for span in spans]

    def drawn(name: str, title: str, y: str, *series: ChartSeries, highest: float | None = None,
              show: Callable[[float], str] = "{:.2f}".format) -> str:
        return curves(Chart(name, title, label, y, x, titles, series, highest, show, "{:g}".format))

    taken = [ChartSeries("cpu", [span.cpu for span in spans]), ChartSeries("memory", [span.memory for span in spans])]
    if result.capacity.gpu:
        taken.insert(0, ChartSeries("GPU", [span.gpu for span in spans]))
    mean, longest = _waited(result, spans)
    most = max((value for value in longest if not math.isnan(value)), default=0.0)
    by, waited_in = next((each for each in _UNITS if most >= 2 * each[0]), _UNITS[-1])
    charts = [
        drawn("taken", "Taken", "% of the cluster", *taken),
        drawn("running", "Running pods", "pods", ChartSeries("on average", [span.running for span in spans])),
        drawn(
            "waiting",
            "Waiting pods",
            "pods",
            ChartSeries("on average", [span.pending for span in spans]),
            ChartSeries("most at once", [float(span.most_pending) for span in spans]),
        ),
        drawn(
            "waited",
            "Waiting time of the pods that got a node then",
            waited_in,
            ChartSeries("mean", [value / by for value in mean]),
            ChartSeries("longest", [value / by for value in longest]),
            show=f"{{:.2f}} {waited_in}".format,
        ),
    ]
    if result.evictions:
        charts.append(stacked(Chart("evicted", "Evicted", label, "pods", x, titles, [
            ChartSeries("evicted", [float(span.evicted) for span in spans])], None, "{:.0f}".format, "{:g}".format)))
    yield "<h2>Over virtual time</h2>"
    yield "<p>Means over each span of the time.</p>"
    yield f'<div class="pair">{"".join(charts)}</div>'


def _waited(result: RecordingResult, spans: Sequence[TimeSpan]) -> tuple[list[float], list[float]]:
    """Return the waits in seconds of the pods with their first node in each span: mean and maximum; NaN if none."""
    starts = [span.start for span in spans]
    waits: list[list[int]] = [[] for _ in spans]
    for ran, waited in result.first_waits:
        waits[max(0, bisect_right(starts, ran / SECOND) - 1)].append(waited)
    mean = [sum(each) / len(each) / SECOND if each else math.nan for each in waits]
    return mean, [max(each) / SECOND if each else math.nan for each in waits]


def _waits(result: RecordingResult, time: Callable[[float], str]) -> str:
    rows = [_row("until they had a node", result.waits, time)]
    if result.evictions:
        rows.append(_row("after an eviction, until they had one again", result.waits_again, time))
    headings = ["waited", "pods", "mean", "p50", "p90", "p95", "p99", "longest"]
    return table(headings, rows, numbers=range(1, len(headings)))


def _row(name: str, waits: Waits, time: Callable[[float], str]) -> list[str]:
    pods, *seconds = astuple(waits)
    return [name, f"{pods:,}", *map(time, seconds)]


def _never_ran(result: RecordingResult, time: Callable[[float], str]) -> Iterator[str]:
    if not result.never_ran:
        return
    left = sum(each.left for each in result.never_ran)
    longest = time(max(each.waited for each in result.never_ran))
    yield (f"<p>{len(result.never_ran):,} pods never ran: {left:,} left before, {len(result.never_ran) - left:,} wait "
           f"for ever; the longest waited {escape(longest)}.</p>")
    reasons = Counter(reason for each in result.never_ran for reason in each.reasons)
    yield table(["reason at first", "pods"], [
        [shortened(reason, 160), f"{count:,}"] for reason, count in reasons.most_common(_MOST_ROWS)
    ], numbers=(1,))


def _evictions(result: RecordingResult) -> Iterator[str]:
    if not result.cycles:
        return
    yield "<h2>Evictions</h2>"
    yield f"<p>{len(result.evictions):,} in {result.cycles:,} cycles of the descheduler.</p>"
    if result.evictions:
        why = Counter((each.plugin, each.rule, each.proved) for each in result.evictions)
        yield table(["plugin", "rule", "proof", "pods"], [
            [*names, f"{count:,}"] for names, count in why.most_common(_MOST_ROWS)
        ], numbers=(3,))
    if result.useless:
        yield f"<p>{counted(len(result.useless), 'eviction')} would not have helped, so that the pods stayed:</p>"
        yield table(["pod", "node", "plugin", "rule", "proof", "cycles"], [
            [each.pod, each.node, each.plugin, each.rule, each.proof.message, f"{each.cycles:,}"]
            for each in result.useless[:_MOST_ROWS]
        ], numbers=(5,))
