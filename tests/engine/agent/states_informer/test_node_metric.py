from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.states_informer.node_metric import CollectPolicy, NodeMetricReport, format_seconds
from koordpolicy.engine.cluster.objects.metrics import NodeMetric
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.testing import NOW, SECOND, assert_placed, assert_refused, node, node_metric, schedule
from koordpolicy.testing import pod as pod_object

GIB = 1 << 30


def pod(name: str, **more: Any) -> PodInfo:
    return PodInfo.of({**pod_object(name, node="node", **more), "status": {"phase": "Running"}})


def cache(seconds: int = 400) -> MetricCache:
    """CPU rises by a milli-core a second; memory stays."""
    made = MetricCache("node")
    made.require("node", 1800 * SECOND)
    for second in range(seconds):
        time = NOW - (seconds - 1 - second) * SECOND
        for what, name, cpu in (("node", "node", 1000.0), ("system", "node", 100.0), ("pod", "default/b", 500.0),
                                ("pod", "default/a", 200.0), ("application", "nginx", 50.0)):
            made.append(what, name, "cpu", time, cpu + second)
            made.append(what, name, "memory", time, float(GIB))
    return made


def report(**more: Any) -> NodeMetricReport:
    given: dict[str, Any] = {
        "pods": [pod("b", labels={"koordinator.sh/qosClass": "BE"}), pod("a"), pod("unmeasured")],
        "applications": [{"name": "nginx", "qos": "LS", "priority": "koord-prod"}, {"name": "absent"}, {}],
        "policy": CollectPolicy(), **more}
    return NodeMetricReport("node", NOW, NOW + 5 * SECOND, **given)


def resources(cpu: int, memory: int = GIB) -> dict[str, Any]:
    return {"resources": {"cpu": f"{cpu}m", "memory": str(memory)}}


def test_a_report_has_averages_of_the_window_and_percentiles_of_the_durations():
    status = report(reclaimable={"cpu": 1500.7, "memory": 3.0}).status(cache())
    assert status is not None
    # The window are the samples 99 to 399.
    aggregated = {"p50": resources(1248), "p90": resources(1368), "p95": resources(1383), "p99": resources(1395),
                  "avg": resources(1249)}
    empty: dict[str, Any] = {statistic: {} for statistic in ("avg", "p50", "p90", "p95", "p99")}
    system = status["nodeMetric"].pop("aggregatedSystemUsages")
    assert [each["duration"] for each in system] == ["5m0s", "10m0s", "30m0s"]
    ten_minutes = status["nodeMetric"]["aggregatedNodeUsages"].pop(1)
    assert status == {
        "updateTime": "2026-01-01T00:00:05Z",
        "nodeMetric": {
            "nodeUsage": resources(1249), "systemUsage": resources(349),
            "aggregatedNodeUsages": [
                {"duration": "5m0s", "usage": aggregated}, {"duration": "30m0s", "usage": empty}]},
        "podsMetric": [
            {"namespace": "default", "name": "a", "priority": "koord-prod", "qos": "LS", "podUsage": resources(449)},
            {"namespace": "default", "name": "b", "priority": "koord-batch", "qos": "BE", "podUsage": resources(749)}],
        "hostApplicationMetric": [
            {"name": "nginx", "priority": "koord-prod", "qos": "LS", "usage": resources(299)}],
        "prodReclaimableMetric": {"resource": resources(1500, 3)}}
    assert (ten_minutes["duration"], ten_minutes["usage"]["avg"]) == ("10m0s", resources(1199))


@pytest.mark.parametrize(("seconds", "reported"), [(150, False), (151, True)])
def test_a_duration_of_which_less_than_half_is_measured_is_empty(seconds: int, reported: bool):
    status = report().status(cache(seconds))
    assert status is not None
    assert ("resources" in status["nodeMetric"]["aggregatedNodeUsages"][0]["usage"]["p95"]) is reported


def test_without_a_measurement_of_the_node_nothing_is_reported():
    assert report().status(MetricCache("node")) is None


def test_amounts_that_are_not_known_any_more_are_deleted():
    status = report(pods=[], applications=[]).status(cache())
    assert status is not None
    assert (status["podsMetric"], status["hostApplicationMetric"], status["prodReclaimableMetric"]) == (
        [], [], {"resource": {"resources": {"cpu": None, "memory": None}}})


def object_of(status: dict[str, Any] | None, name: str = "node") -> dict[str, Any]:
    return {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": name},
            "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}}, "status": _without_none(status)}


def test_the_scheduler_reads_the_usage_back():
    metric = NodeMetric.of(object_of(report().status(cache())))
    assert metric.updated == NOW + 5 * SECOND
    assert (metric.usage["cpu"], metric.usage["memory"], metric.usage["p95"]["cpu"]) == (1249, GIB, 1379)
    assert {key: dict(usage) for key, usage in metric.pods.items()} == {
        "default/a": {"cpu": 449, "memory": GIB}, "default/b": {"cpu": 749, "memory": GIB}}


def test_load_aware_scheduling_decides_by_our_reports_alone():
    status = report().status(cache())
    load_aware = [each for each in PLUGINS if each.name == "LoadAwareScheduling"]
    objects = [node(name, cpu="1500m", memory="8Gi") for name in ("node", "idle")]
    verdict = schedule(pod_object("new", cpu="100m", memory="1Mi"), *objects, object_of(status),
                       node_metric("idle", cpu="100m", memory="1Mi", at=NOW), plugins=load_aware, now=NOW + 6 * SECOND)
    # 1.25 of 1.5 cores are more than 65 percent.
    assert_refused(verdict, "node", by="LoadAwareScheduling")
    assert_placed(verdict, "idle")


def _without_none(value: Any) -> Any:
    """An object after a merge patch onto nothing."""
    if not isinstance(value, dict):
        return value
    return {key: _without_none(each) for key, each in value.items() if each is not None}


@pytest.mark.parametrize(("spec", "policy"), [
    ({}, CollectPolicy(60, 300, (300, 600, 1800))),
    ({"metricCollectPolicy": {
        "reportIntervalSeconds": 10, "aggregateDurationSeconds": 30, "nodeMemoryCollectPolicy": "usageWithPageCache",
        "nodeAggregatePolicy": {"durations": ["1h0m0s", "5m", "90s", "x", "", 3, "0s"]}}},
     CollectPolicy(30, 60, (90, 300, 3600), "usageWithPageCache")),
    ({"metricCollectPolicy": {"reportIntervalSeconds": "60", "aggregateDurationSeconds": -1,
                              "nodeMemoryCollectPolicy": 7, "nodeAggregatePolicy": {"durations": "5m"}}},
     CollectPolicy()),
    ({"metricCollectPolicy": []}, CollectPolicy()),
])
def test_malformed_and_absent_policies_are_the_defaults(spec: Any, policy: CollectPolicy):
    assert CollectPolicy.of({"spec": spec}) == policy


def test_durations_are_printed_as_go_does():
    assert [format_seconds(each) for each in (59, 60, 3600, 5405)] == ["59s", "1m0s", "1h0m0s", "1h30m5s"]
