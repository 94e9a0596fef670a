from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.states_informer.node_metric_reporter import NodeMetricReporter, spread
from koordpolicy.engine.agent.states_informer.states_informer import StatesInformer
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult
from tests.engine.client.object_server import ObjectServer
from tests.waiting import until

from .conftest import informed, node, of_kind
from .fake_kubelet import FakeKubelet, pod, pod_list

POLICY = {"metricCollectPolicy": {"reportIntervalSeconds": 1, "nodeAggregatePolicy": {"durations": ["5m"]}}}
PATH = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics/node/status"


def measured() -> MetricCache:
    made = MetricCache("node")
    now = time.time_ns()
    for what, name in (("node", "node"), ("system", "node"), ("pod", "default/web")):
        for resource, value in (("cpu", 1500.0), ("memory", 2.0**30)):
            made.append(what, name, resource, now, value)
    return made


@contextmanager
def reporting(
    api: ObjectServer, kubelet: FakeKubelet, statistics: MetricCache | None = None, *, interval: float = 0.2,
) -> Iterator[tuple[StatesInformer, NodeMetricReporter]]:
    with informed(api, kubelet, started=False) as states:
        reporter = NodeMetricReporter(
            states, ClusterWriter(states._transport), statistics or measured(), server_time=lambda: 10**18,
            least_interval=interval)
        states.start()
        until(lambda: states.synced and states._followed["NodeMetric"].heard > 0)
        yield states, reporter


def report(states: StatesInformer, reporter: NodeMetricReporter) -> WriteResult | None:
    return states._io.submit(reporter.report()).result(60)


@pytest.fixture(autouse=True)
def objects(api: ObjectServer, kubelet: FakeKubelet) -> None:
    api.put(node())
    kubelet.answer = lambda: pod_list(pod("web"))


def test_l57_the_first_report_comes_an_interval_after_the_start_and_then_one_each_interval(
    api: ObjectServer, kubelet: FakeKubelet,
):
    api.put(of_kind("NodeMetric", spec=POLICY))
    with reporting(api, kubelet, interval=1.0) as (states, reporter):
        started = time.monotonic()
        states._io.spawn(reporter.run(), "reports")
        until(lambda: reporter.counts.reported >= 1)
        assert time.monotonic() - started > 0.85
        until(lambda: reporter.counts.reported >= 2)
        assert time.monotonic() - started > 1.7
        method, path, body = api.writes[0]
        assert (method, path, body.keys()) == ("PATCH", PATH, {"status"})
        status: Any = api.objects("NodeMetric")["node"]["status"]
        assert status["nodeMetric"]["nodeUsage"] == {"resources": {"cpu": "1500m", "memory": "1073741824"}}
        assert [each["name"] for each in status["podsMetric"]] == ["web"]
        assert status["updateTime"] == "2001-09-09T01:46:40Z"


def test_l57_a_conflict_is_repeated_and_the_patch_has_no_resource_version(api: ObjectServer, kubelet: FakeKubelet):
    api.put(of_kind("NodeMetric", spec=POLICY))
    with reporting(api, kubelet) as (states, reporter):
        until(lambda: states.node_metric)
        api.refusals = [409, 503, 409]
        result = report(states, reporter)
        assert result is not None
        assert (result.done, result.attempts, reporter.counts.reported) == (True, 4, 1)
        assert all("metadata" not in body for _, _, body in api.writes)


def test_l57_a_missing_node_metric_is_not_created(
    api: ObjectServer, kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture,
):
    with reporting(api, kubelet) as (states, reporter):
        assert [report(states, reporter) for _ in range(3)] == [None, None, None]
        assert (api.writes, api.objects("NodeMetric"), reporter.counts.skipped) == ([], {}, 3)
        assert caplog.text.count("there is no NodeMetric of the node") == 1
        api.put(of_kind("NodeMetric", spec=POLICY))
        until(lambda: states.node_metric)
        assert report(states, reporter) is not None
        api.delete("NodeMetric", "node")
        until(lambda: states.node_metric is None)
        assert report(states, reporter) is None
        assert api.objects("NodeMetric") == {}


@pytest.mark.parametrize(("code", "help_"), [(403, "grant `patch` on `nodemetrics/status`"), (404, "manager creates")])
def test_a_refused_report_is_logged_once_with_what_to_do(
    api: ObjectServer, kubelet: FakeKubelet, code: int, help_: str, caplog: pytest.LogCaptureFixture,
):
    api.put(of_kind("NodeMetric", spec=POLICY))
    with reporting(api, kubelet) as (states, reporter):
        until(lambda: states.node_metric)
        for _ in range(2):
            api.refusals = [code]
            report(states, reporter)
        assert reporter.counts.failed == 2
        assert caplog.text.count(help_) == 1


def test_without_measurements_nothing_is_reported(api: ObjectServer, kubelet: FakeKubelet):
    api.put(of_kind("NodeMetric", spec=POLICY))
    with reporting(api, kubelet, MetricCache("node")) as (states, reporter):
        until(lambda: states.node_metric)
        assert report(states, reporter) is None
        assert (api.writes, reporter.counts.skipped) == ([], 1)


def test_memory_that_is_not_measured_as_wanted_is_reported_without_page_cache(
    api: ObjectServer, kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture,
):
    api.put(of_kind("NodeMetric", spec={"metricCollectPolicy": {"nodeMemoryCollectPolicy": "usageWithPageCache"}}))
    statistics = measured()
    with reporting(api, kubelet, statistics) as (states, reporter):
        until(lambda: states.node_metric)
        report(states, reporter)
        assert "memory is not measured as `usageWithPageCache`" in caplog.text
        statistics.append("node", "node", "memory-with-page-cache", time.time_ns(), 5.0)
        report(states, reporter)
        usages = [body["status"]["nodeMetric"]["nodeUsage"]["resources"]["memory"] for _, _, body in api.writes]
        assert usages == ["1073741824", "5"]


def test_a_new_interval_counts_at_once(api: ObjectServer, kubelet: FakeKubelet):
    api.put(of_kind("NodeMetric", spec={"metricCollectPolicy": {"reportIntervalSeconds": 3600}}))
    with reporting(api, kubelet) as (states, reporter):
        states._io.spawn(reporter.run(), "reports")
        until(lambda: states.node_metric)
        api.put(of_kind("NodeMetric", spec=POLICY))
        until(lambda: reporter.counts.reported)


def test_intervals_of_nodes_differ_by_a_tenth_at_most():
    factors = [spread(f"node-{number}") for number in range(200)]
    assert (min(factors) >= 0.9, max(factors) <= 1.1, max(factors) - min(factors) > 0.15) == (True, True, True)
    assert spread("node-1") == factors[1]
