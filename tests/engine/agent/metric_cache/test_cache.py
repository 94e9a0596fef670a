from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.metric_cache.readings import MetricReadings
from koordpolicy.engine.agent.metric_cache.series import STATISTICS, MetricSeries
from koordpolicy.engine.cel.values.values import EvaluationError

SECOND = 10**9
MINUTE = 60 * SECOND


@pytest.fixture
def cache():
    return MetricCache("n")


def fill(cache: MetricCache, seconds: range) -> None:
    for second in seconds:
        cache.append("node", "n", "cpu", second * SECOND, float(second))
        cache.append("pod", "d/p", "cpu", second * SECOND, second / 2)


def test_each_statistic_is_read_over_its_window(cache):
    fill(cache, range(1, 101))
    readings = cache.at(100 * SECOND)
    assert {name: readings.node_usage("cpu", name, 9 * SECOND) for name in (*STATISTICS, "count")} == {
        "avg": 95.5, "p50": 95, "p90": 99, "p95": 99, "p99": 99, "last": 100, "count": 10,
    }
    assert (readings.pod_usage("d/p", "cpu"), readings.age(), cache.at(103 * SECOND).age()) == (50, 0, 3 * SECOND)
    assert readings.measured("pod", "d/p", "last", 0) == {"cpu": 50}


def test_what_was_not_measured_in_the_window_is_an_error_and_never_0(cache):
    with pytest.raises(EvaluationError, match="no sample of node `n` yet"):
        cache.at(0).age()
    fill(cache, range(1, 5))
    for read in (lambda at: at.node_usage("cpu"), lambda at: at.pod_usage("d/p", "memory"),
                 lambda at: at.best_effort_cpu("usage")):
        with pytest.raises(EvaluationError) as caught:
            read(cache.at(7 * SECOND))
        assert caught.value.reason == "NoMetric"
    readings = cache.at(7 * SECOND)
    assert (readings.node_usage("cpu", "count"), readings.measured("node", "n", "avg", SECOND)) == (0, {})


@given(st.lists(st.tuples(st.integers(1, 3), st.floats(0, 1e9)), min_size=1, max_size=60), st.integers(0, 60))
def test_readings_are_those_of_an_unbounded_series(samples, window: int):
    cache, series, time = MetricCache("n"), MetricSeries(), 0

    class Unbounded(MetricReadings):
        def _series(self, what, name):
            return {"cpu": series}

    for distance, value in samples:
        time += distance * SECOND
        cache.append("container", "d/p/c", "cpu", time, value)
        series.add(time, value)
    mine, other = cache.at(time), Unbounded("n", time, SECOND)
    for statistic in (*STATISTICS, "count"):
        arguments = "d/p/c", "cpu", statistic, window * SECOND
        assert mine.container_usage(*arguments) == other.container_usage(*arguments)


def test_a_node_is_kept_for_half_an_hour_and_a_pod_for_five_minutes(cache):
    fill(cache, range(4000))
    now = cache.at(3999 * SECOND)
    assert now.node_usage("cpu", "count", 30 * MINUTE) == 1801
    assert now.pod_usage("d/p", "cpu", "count", 5 * MINUTE) == 301
    found = cache.aggregate("node", "n", "cpu", 3999 * SECOND - 30 * MINUTE, 3999 * SECOND)
    assert (found.count, found.span, found.p50) == (1801, 30 * MINUTE, 3098)
    assert cache.aggregate("node", "n", "gpu", 0, 1) is None


def test_the_last_values_of_all_subjects_are_those_of_two_intervals(cache):
    slow = cache.table("pod", "psi", 10 * SECOND)
    slow.append_all(90 * SECOND, {"d/p": 1.0, "d/q": 2.0})
    slow.append_all(100 * SECOND, {"d/p": 3.0})
    fill(cache, range(100))
    now = 110 * SECOND
    assert (cache.latest("pod", "psi", now), cache.latest("pod", "psi", now + 1), cache.latest("pod", "cpu", now)) == (
        {"d/p": 3, "d/q": 2}, {"d/p": 3}, {})
    assert (cache.latest("pod", "none", now), cache.resources("pod")) == ({}, ("psi", "cpu"))


def test_a_longer_window_is_kept_once_it_is_required(cache):
    fill(cache, range(200))
    cache.require("pod", 30 * MINUTE)
    cache.require("pod", MINUTE)
    fill(cache, range(200, 2000))
    assert cache.at(1999 * SECOND).pod_usage("d/p", "cpu", "count", 30 * MINUTE) == 1801
    assert cache.retention("pod") == 30 * MINUTE


def test_a_longer_window_is_kept_once_it_is_read(cache, caplog):
    fill(cache, range(3000))
    for read in (lambda at: at.pod_usage("d/p", "cpu", "count", 40 * MINUTE),
                 lambda at: len(at.measured("pod", "d/p", "avg", 40 * MINUTE))):
        read(cache.at(2999 * SECOND))
    assert (cache.retention("pod"), caplog.text) == (40 * MINUTE, "")
    cache.at(2999 * SECOND).pod_usage("d/p", "cpu", "avg", 25 * 60 * MINUTE)
    cache.at(2999 * SECOND).pod_usage("d/p", "cpu", "avg", 25 * 60 * MINUTE)
    assert (cache.retention("pod"), cache.retention("node")) == (60 * MINUTE, 30 * MINUTE)
    assert caplog.text.count("windows of a pod are longer than an hour") == 1


def test_a_day_ends_where_an_hour_ended(cache):
    # A day of one collection every 30 seconds, against the first hour of it.
    cache = MetricCache("n", 30 * SECOND)
    sizes, traced = [], []
    tracemalloc.start()
    for tick in range(24 * 120 + 1):
        time = tick * 30 * SECOND
        cache.append("node", "n", "cpu", time, 1.0)
        cache.table("pod", "cpu").append_all(time, {f"d/{tick // 200}-{number}": 1.0 for number in range(20)})
        if tick in (120, 24 * 120):
            gc.collect()
            sizes.append(cache.size)
            snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/metric_cache/*")])
            traced.append(sum(trace.size for trace in snapshot.traces))
    tracemalloc.stop()
    assert (sizes[0], len(cache.names("pod"))) == (sizes[1], 20)
    assert abs(traced[1] - traced[0]) < 10_000


def test_a_subject_that_is_gone_leaves_nothing(cache):
    fill(cache, range(3))
    cache.forget("pod", "d/p")
    cache.forget("pod", "d/q")
    assert (cache.names("pod"), cache.names("node"), cache.at(2 * SECOND).measured("pod", "d/p", "avg", MINUTE)) == (
        frozenset(), {"n"}, {})


def test_series_of_many_subjects_are_rounded_only_if_they_are_long(cache):
    cache.append("pod", "d/p", "cpu", 1, 0.1)
    cache.require("application", 30 * MINUTE)
    cache.append("application", "a", "cpu", 1, 0.1)
    readings = cache.at(1)
    assert (readings.pod_usage("d/p", "cpu"), readings.application_usage("a", "cpu")) == (0.1, pytest.approx(0.1, 1e-7))
    assert readings.application_usage("a", "cpu") != 0.1  # rounded
