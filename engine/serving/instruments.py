"""Metrics of a process: the table's rows, and the instruments that count and measure for them.

The instruments may be used from any thread. An observation costs less than a microsecond, as every pod has a dozen.
The text is written series by series: objects for each of 10,000 series, made or freed at once, would hold the
interpreter for milliseconds.
"""

from __future__ import annotations

import enum
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol, TypeAlias

from prometheus_client.utils import floatToGoString

from .long_texts import in_blocks

_INFINITY: Final = "+Inf"


Sample: TypeAlias = tuple[tuple[str, ...], float]
"""The values of the labels of a series, in the order of its row, and its amount."""


class MetricType(enum.StrEnum):
    """The type of a metric, as Prometheus has it; INFO is a gauge of 1 whose labels are the information."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A row of a table of metrics."""

    name: str
    """As queries have it: a counter ends with `_total`, an info with `_info`."""
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram, ascending, without infinity."""
    always_empty: str = ""
    """Why the metric never has a series; empty if it has some. It is named for dashboards that know it."""

    def of(self, *series: Sample) -> Metric:
        """Return a counter or gauge with these series: the values of the labels, and the amount."""
        return Metric(self, series)

    def value(self, amount: float) -> Metric:
        """Return a counter or gauge without labels."""
        return self.of(((), amount))

    def histogram(self, *series: tuple[tuple[str, ...], Sequence[float], float]) -> Metric:
        """Return a histogram: of each series the labels, the observations per bucket and above, and their sum."""
        return Metric(self, histograms=series)

    def info(self, *values: Mapping[str, str]) -> Metric:
        """Return an info, with a series for each set of values."""
        return self.of(*((tuple(each[label] for label in self.labels), 1) for each in values))


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its current series, which are read once, when its text is written."""

    spec: MetricSpec
    series: Iterable[Sample] = ()
    """Of every type but a histogram."""
    histograms: Iterable[tuple[tuple[str, ...], Sequence[float], float]] = ()
    """Of a histogram: the labels, the observations per bucket and above, and their sum."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text, in Prometheus' format: labels in the order of their names."""
        spec = self.spec
        yield f"# HELP {spec.name} {_escaped(spec.help)}\n"
        yield f"# TYPE {spec.name} {'gauge' if spec.type is MetricType.INFO else spec.type.value}\n"
        line = _template(spec.name, spec.labels)
        for labels, amount in self.series:
            yield line(labels, amount)
        bounds = (*map(_number, spec.buckets), _INFINITY)
        bucket, count, total = (
            _template(f"{spec.name}_bucket", (*spec.labels, "le")), _template(f"{spec.name}_count", spec.labels),
            _template(f"{spec.name}_sum", spec.labels))
        for labels, counts, amount in self.histograms:
            up_to = 0.0
            for bound, up_to in zip(bounds, accumulate(counts), strict=True):
                yield bucket((*labels, bound), up_to)
            yield count(labels, up_to)
            yield total(labels, amount)


def _template(name: str, labels: tuple[str, ...]) -> Callable[[Sequence[str], float], str]:
    """Return a function from the values of the labels, and an amount, to a line."""
    order = sorted(range(len(labels)), key=labels.__getitem__)
    shown = [(f'{labels[place]}="', place) for place in order]

    def line(values: Sequence[str], amount: float) -> str:
        if not shown:
            return f"{name} {_number(amount)}\n"
        quoted = ",".join([f'{label}{_quoted(str(values[place]))}"' for label, place in shown])
        return f"{name}{{{quoted}}} {_number(amount)}\n"

    return line


def _number(amount: float) -> str:
    return str(floatToGoString(amount))  # type: ignore[no-untyped-call]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r'\"')


class Collector(Protocol):
    """Yields metrics when they are read."""

    def collect(self) -> Iterable[Metric]:
        """Yield the current state; called in any thread, and must not wait for decisions."""
        ...


class Counter:
    """Amounts by values of labels; also a gauge, with amounts that go down."""

    def __init__(self, spec: MetricSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._amounts: dict[tuple[str, ...], float] = {} if spec.labels else {(): 0}

    def add(self, *labels: str, amount: float = 1) -> None:
        """Add an amount to the series of these labels."""
        with self._lock:
            self._amounts[labels] = self._amounts.get(labels, 0) + amount

    def read(self, *labels: str) -> float:
        """Return the amount of a series; 0 if there is none."""
        return self._amounts.get(labels, 0)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        with self._lock:
            amounts = tuple(self._amounts.items())
        yield Metric(self._spec, amounts)


class Histogram:
    """Observations in buckets by values of labels."""

    def __init__(self, spec: MetricSpec) -> None:
        self._spec = spec
        self._bounds = list(spec.buckets)
        self._lock = threading.Lock()
        self._series: dict[tuple[str, ...], list[float]] = {}
        """By labels the number of observations in each bucket, and last their sum."""
        if not spec.labels:
            self._series[()] = self._empty()

    def observe(self, value: float, *labels: str) -> None:
        """Count an observation in the series of these labels."""
        with self._lock:
            series = self._series.get(labels)
            if series is None:
                series = self._series[labels] = self._empty()
            series[bisect_left(self._bounds, value)] += 1
            series[-1] += value

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        with self._lock:
            copies = [(labels, tuple(series)) for labels, series in self._series.items()]
        yield Metric(self._spec, histograms=((labels, counts, total) for labels, (*counts, total) in copies))

    def _empty(self) -> list[float]:
        return [0.0] * (len(self._bounds) + 2)


class MetricsRegistry:
    """All collectors of a process, in the order of their output."""

    def __init__(self, *collectors: Collector) -> None:
        self._collectors = list(collectors)

    def counter(self, spec: MetricSpec) -> Counter:
        """Return a new counter or gauge, which is collected."""
        made = Counter(spec)
        self._collectors.append(made)
        return made

    def histogram(self, spec: MetricSpec) -> Histogram:
        """Return a new histogram, which is collected."""
        made = Histogram(spec)
        self._collectors.append(made)
        return made

    def add(self, collector: Collector) -> None:
        """Collect from a collector too."""
        self._collectors.append(collector)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        for collector in self._collectors:
            yield from collector.collect()

    def blocks(self) -> Iterator[bytes]:
        """Yield the text in blocks, in Prometheus' format (`prometheus_client.CONTENT_TYPE_LATEST`)."""
        return in_blocks(line for metric in self.collect() for line in metric.lines())

    def text(self) -> bytes:
        """Return the metrics as text (see `blocks`)."""
        return b"".join(self.blocks())


def exponential(first: float, factor: float, count: int) -> tuple[float, ...]:
    """Return bounds of buckets: `count` of them, each `factor` times the one before."""
    # As prometheus.ExponentialBuckets multiplies, so that labels are equal to the last digit.
    bounds, bound = [], first
    for _ in range(count):
        bounds.append(bound)
        bound *= factor
    return tuple(bounds)
