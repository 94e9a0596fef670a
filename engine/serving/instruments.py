"""Metrics of a process: the table's rows, and the instruments that count and measure for them.

The instruments may be used from any thread. An observation costs less than a microsecond, as every pod has a dozen;
prometheus_client writes the text.
"""

from __future__ import annotations

import enum
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol

from prometheus_client import disable_created_metrics, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

_INFINITY: Final = "+Inf"


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

    def family(self) -> Metric:
        """Return an empty family: `add_metric` adds series to it."""
        match self.type:
            case MetricType.COUNTER:
                return CounterMetricFamily(self.name.removesuffix("_total"), self.help, labels=self.labels)
            case MetricType.GAUGE:
                return GaugeMetricFamily(self.name, self.help, labels=self.labels)
            case MetricType.HISTOGRAM:
                return HistogramMetricFamily(self.name, self.help, labels=self.labels)
            case MetricType.INFO:
                return InfoMetricFamily(self.name.removesuffix("_info"), self.help)

    def of(self, *series: tuple[tuple[str, ...], float]) -> Metric:
        """Return a family of a counter or gauge with these series: the values of the labels, and the amount."""
        family = self.family()
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        for labels, amount in series:
            family.add_metric(labels, amount)
        return family

    def value(self, amount: float) -> Metric:
        """Return the family of a counter or gauge without labels."""
        return self.of(((), amount))

    def histogram(self, *series: tuple[tuple[str, ...], Sequence[float], float]) -> Metric:
        """Return a family of a histogram: of each series the labels, the observations per bucket and above, and their
        sum.
        """
        family = self.family()
        assert isinstance(family, HistogramMetricFamily)
        bounds = [*map(floatToGoString, self.buckets), _INFINITY]
        for labels, counts, total in series:
            family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
        return family

    def info(self, *values: dict[str, str]) -> Metric:
        """Return the family of an info, with a series for each set of values."""
        family = self.family()
        assert isinstance(family, InfoMetricFamily)
        for each in values:
            family.add_metric([], each)
        return family


class Collector(Protocol):
    """Yields families when metrics are read."""

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
        """Yield the family."""
        with self._lock:
            amounts = tuple(self._amounts.items())
        yield self._spec.of(*amounts)


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
        """Yield the family."""
        with self._lock:
            copies = [(labels, tuple(series)) for labels, series in self._series.items()]
        yield self._spec.histogram(*((labels, counts, total) for labels, (*counts, total) in copies))

    def _empty(self) -> list[float]:
        return [0.0] * (len(self._bounds) + 2)


class MetricsRegistry:
    """All collectors of a process, in the order of their output."""

    def __init__(self, *collectors: Collector) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would add an unused series to each counter
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
        """Yield all families."""
        for collector in self._collectors:
            yield from collector.collect()

    def text(self) -> bytes:
        """Return the metrics as text, in Prometheus' format (`prometheus_client.CONTENT_TYPE_LATEST`)."""
        return generate_latest(self)


def exponential(first: float, factor: float, count: int) -> tuple[float, ...]:
    """Return bounds of buckets: `count` of them, each `factor` times the one before."""
    # As prometheus.ExponentialBuckets multiplies, so that labels are equal to the last digit.
    bounds, bound = [], first
    for _ in range(count):
        bounds.append(bound)
        bound *= factor
    return tuple(bounds)
