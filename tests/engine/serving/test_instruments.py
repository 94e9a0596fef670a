"""Instruments count and measure, and their text is what Prometheus and kube-scheduler's dashboards expect."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from koordpolicy.engine.serving.instruments import Metric, MetricSpec, MetricsRegistry, MetricType, exponential

BINDS = MetricSpec("binds_total", MetricType.COUNTER, "Bindings", ("result",))
TIMES = MetricSpec("bind_seconds", MetricType.HISTOGRAM, "Duration of bindings", ("result",), (0.001, 0.01, 1.0))


@dataclass
class _Once:
    """Yields one metric."""

    metric: Metric

    def collect(self) -> Iterator[Metric]:
        yield self.metric


def test_the_text_has_the_types_labels_and_buckets_of_the_table():
    registry = MetricsRegistry()
    binds, times = registry.counter(BINDS), registry.histogram(TIMES)
    binds.add("ok")
    binds.add("ok", amount=2)
    binds.add("error")
    for seconds in (0.001, 0.002, 5.0):
        times.observe(seconds, "ok")
    assert registry.text().decode() == """\
# HELP binds_total Bindings
# TYPE binds_total counter
binds_total{result="ok"} 3.0
binds_total{result="error"} 1.0
# HELP bind_seconds Duration of bindings
# TYPE bind_seconds histogram
bind_seconds_bucket{le="0.001",result="ok"} 1.0
bind_seconds_bucket{le="0.01",result="ok"} 2.0
bind_seconds_bucket{le="1.0",result="ok"} 2.0
bind_seconds_bucket{le="+Inf",result="ok"} 3.0
bind_seconds_count{result="ok"} 3.0
bind_seconds_sum{result="ok"} 5.003
"""


def test_instruments_without_labels_begin_at_zero():
    registry = MetricsRegistry()
    registry.counter(MetricSpec("some_total", MetricType.COUNTER, "Some"))
    registry.histogram(MetricSpec("size", MetricType.HISTOGRAM, "Size", (), (1.0,)))
    found = {sample.name: sample.value for family in text_string_to_metric_families(registry.text().decode())
             for sample in family.samples}
    assert found == {"some_total": 0, "size_bucket": 0, "size_count": 0, "size_sum": 0}


def test_a_gauge_goes_down_and_an_info_has_its_labels():
    registry = MetricsRegistry()
    waiting = registry.counter(MetricSpec("waiting", MetricType.GAUGE, "Waiting", ("plugin",)))
    waiting.add("zone")
    waiting.add("zone", amount=-1)
    assert waiting.read("zone") == 0
    info = MetricSpec("config_info", MetricType.INFO, "Hash", ("hash",)).info({"hash": "abc"})
    assert [*info.lines()] == [
        "# HELP config_info Hash\n", "# TYPE config_info gauge\n", 'config_info{hash="abc"} 1.0\n']


def test_texts_of_labels_and_helps_are_read_as_they_were_written():
    hostile = 'a "b"\\n\nc\\'
    spec = MetricSpec("some_total", MetricType.COUNTER, hostile, ("z", "a"))
    registry = MetricsRegistry(_Once(spec.of((("1", hostile), 2), (("", "\u00e4"), 1e21))))
    (family,) = text_string_to_metric_families(registry.text().decode())
    assert (family.documentation, [(sample.labels, sample.value) for sample in family.samples]) == (
        hostile, [({"a": hostile, "z": "1"}, 2), ({"a": "\u00e4", "z": ""}, 1e21)])


def test_no_observation_of_several_threads_is_lost():
    registry = MetricsRegistry()
    binds, times = registry.counter(BINDS), registry.histogram(TIMES)

    def observe(_: int) -> None:
        for _ in range(2000):
            binds.add("ok")
            times.observe(0.5, "ok")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(observe, range(4)))
    assert binds.read("ok") == 8000
    assert 'bind_seconds_count{result="ok"} 8000.0' in registry.text().decode()


@pytest.mark.parametrize(("bounds", "shown"), [
    (exponential(0.001, 2, 6), "0.001 0.002 0.004 0.008 0.016 0.032"), (exponential(1, 2, 5), "1 2 4 8 16"),
])
def test_buckets_grow_by_their_factor(bounds: tuple[float, ...], shown: str):
    assert bounds == tuple(map(float, shown.split()))
