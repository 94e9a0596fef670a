from __future__ import annotations

import json
from typing import Any

import pytest

from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.prediction.histogram import Buckets
from koordpolicy.engine.agent.prediction.predictor import BY_PODS, BY_TIER, LEAST, PeakPredictor, PredictorSettings
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.testing import NOW, SECOND
from koordpolicy.testing import pod as pod_object

GIB = 1 << 30
START = NOW / SECOND
HOUR = 3600.0
CAPACITY = {"cpu": 16000.0, "memory": 32.0 * GIB}
AT_ONCE = PredictorSettings(cold_start=0)


def pod(name: str, phase: str = "Running", **more: Any) -> PodInfo:
    return PodInfo.of({**pod_object(name, node="node", **more), "status": {"phase": phase}})


def cpu_peak(amount: float) -> float:
    """The end of the bucket of an amount, and the margin."""
    buckets = Buckets.exponential(1024e3, 25.0, 1.05)
    return 1.1 * buckets.end(buckets.index(amount))


def measured(at: float = START, **cpu: float) -> MetricCache:
    """A minute of constant usage; each pod and the system with 1 GiB."""
    cache = MetricCache("node")
    for second in range(60):
        time = int((at - 59 + second) * SECOND)
        for name, amount in cpu.items():
            if name != "system":
                cache.append("pod", f"default/{name}", "cpu", time, amount)
                cache.append("pod", f"default/{name}", "memory", time, float(GIB))
        cache.append("node", "node", "cpu", time, sum(cpu.values()))
        cache.append("node", "node", "memory", time, float(GIB * len(cpu)))
    return cache


def test_the_smaller_of_what_pods_and_the_tier_leave_is_reclaimable():
    predictor = PeakPredictor(AT_ONCE)
    pods = [pod("a", cpu="2", memory="4Gi"), pod("b", cpu="1", memory="2Gi"),
            pod("batch", cpu="9", labels={"koordinator.sh/qosClass": "BE"})]
    predictor.train("node", pods, measured(a=300, b=300, batch=100, system=1000), START)
    found = predictor.predict(pods, CAPACITY, START)
    of_pods, of_tier = 2 * cpu_peak(300), cpu_peak(600) + cpu_peak(1000)
    assert (of_pods < 750, 1760 < of_tier < 1900) == (True, True)
    assert {name: each["cpu"] for name, each in found.peaks.items()} == {
        BY_PODS: pytest.approx(of_pods), BY_TIER: pytest.approx(of_tier)}
    assert {name: each["cpu"] for name, each in found.reclaimable.items()} == {
        BY_PODS: pytest.approx(3000 - of_pods), BY_TIER: pytest.approx(3000 - of_tier),
        LEAST: pytest.approx(3000 - of_tier)}
    assert found.result == found.reclaimable[LEAST]
    assert 6 * GIB - 3 * 1.1 * 1.05 * GIB <= found.result["memory"] <= 6 * GIB - 3 * 1.1 * GIB


def test_no_more_is_reclaimable_than_the_node_has_beyond_the_peaks():
    predictor, pods = PeakPredictor(AT_ONCE), [pod("a", cpu="4", memory="8Gi")]
    predictor.train("node", pods, measured(a=1000, system=100), START)
    found = predictor.predict(pods, {"cpu": 2000.0, "memory": 2.0 * GIB}, START)
    peaks = found.peaks[BY_TIER]
    assert found.result == {"cpu": pytest.approx(2000 - peaks["cpu"]), "memory": 0.0}


def test_nothing_of_a_pod_is_reclaimable_until_it_was_observed_for_the_cold_start():
    predictor, pods = PeakPredictor(PredictorSettings(cold_start=HOUR)), [pod("a", cpu="2", memory="4Gi")]
    predictor.train("node", pods, measured(a=300, system=100), START)
    assert predictor.predict(pods, CAPACITY, START + HOUR - 1).result == {"cpu": 0.0, "memory": 0.0}
    assert predictor.predict(pods, CAPACITY, START + HOUR).result["cpu"] > 1000


@pytest.mark.parametrize(("changed", "least_cpu"), [
    ({}, 1000), ({"labels": {"koordinator.sh/qosClass": "LSR"}}, 0),
    ({"labels": {"koordinator.sh/qosClass": "LSE"}}, 0), ({"phase": "Succeeded"}, None), ({"deleted": True}, None)])
def test_bound_cpus_and_pods_that_leave_are_not_reclaimable(changed: dict[str, Any], least_cpu: int | None):
    deleted = changed.pop("deleted", False)
    found = pod("a", cpu="2", memory="4Gi", **changed)
    if deleted:
        found.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    predictor = PeakPredictor(AT_ONCE)
    predictor.train("node", [found], measured(a=300, system=100), START)
    result = predictor.predict([found], CAPACITY, START).result
    if least_cpu is None:
        assert result == {"cpu": 0.0, "memory": 0.0}
    else:
        assert (result["cpu"] > 1000, result["memory"] > GIB) == (least_cpu > 0, True)


def test_a_peak_of_yesterday_counts_less_than_the_usage_of_today():
    predictor, pods = PeakPredictor(AT_ONCE), [pod("a", cpu="4", memory="4Gi")]
    time = START
    for _ in range(60):  # an hour at its peak
        predictor.train("node", pods, measured(time, a=3000, system=100), time)
        time += 60
    at_the_peak = predictor.predict(pods, CAPACITY, time).result["cpu"]
    for _ in range(2 * 24 * 60 // 10):
        time += 600
        predictor.train("node", pods, measured(time, a=300, system=100), time)
    assert at_the_peak < 900
    assert predictor.predict(pods, CAPACITY, time).result["cpu"] > 3000


def test_a_pod_is_forgotten_when_it_was_not_measured_for_half_an_hour():
    predictor, pods = PeakPredictor(AT_ONCE), [pod("a", cpu="2")]
    predictor.train("node", pods, measured(a=300, system=100), START)
    nothing = MetricCache("node")
    predictor.train("node", [], nothing, START + 1800)  # as while kubelet's list is not known
    assert predictor.to_json().keys() == {pods[0].uid, "tier/prod", "system"}
    predictor.train("node", pods, nothing, START + 1801)
    assert predictor.to_json() == {}
    assert predictor.predict(pods, CAPACITY, START + 1801).result == {}


def test_a_clock_that_is_set_back_takes_all_samples_along():
    predictor, pods = PeakPredictor(PredictorSettings(cold_start=HOUR)), [pod("a", cpu="4", memory="4Gi")]
    wrong = START + 20 * 24 * HOUR
    for minute in range(61):
        time = wrong + 60 * minute
        predictor.train("node", pods, measured(time, a=3000, system=100), time)
    assert predictor.predict(pods, CAPACITY, time).result["cpu"] < 900
    for minute in range(2 * 24 * 6):
        time = START + 600 * minute
        predictor.train("node", pods, measured(time, a=300, system=100), time)
    assert predictor.predict(pods, CAPACITY, time).result["cpu"] > 3000
    predictor.train("node", [], MetricCache("node"), START - 24 * HOUR)
    assert predictor.to_json() == {}


def test_without_a_measurement_of_the_node_or_its_capacity_there_is_no_prediction():
    predictor, pods = PeakPredictor(AT_ONCE), [pod("a", cpu="2")]
    assert predictor.predict(pods, CAPACITY, START).result == {}
    cache = measured(a=300, system=100)
    cache.forget("node", "node")
    predictor.train("node", pods, cache, START)
    assert predictor.predict(pods, CAPACITY, START).result == {}
    predictor.train("node", pods, measured(a=300, system=100), START)
    assert predictor.predict(pods, {"cpu": 1000.0}, START).result == {}


def test_a_restored_predictor_predicts_the_same():
    predictor, pods = PeakPredictor(AT_ONCE), [pod("a", cpu="2", memory="4Gi")]
    time = START
    for minute in range(50):
        time += 60
        predictor.train("node", pods, measured(time, a=300 + 20 * minute, system=100), time)
    stored = json.loads(json.dumps(predictor.to_json()))
    restored = PeakPredictor(AT_ONCE, stored)
    assert restored.predict(pods, CAPACITY, time) == predictor.predict(pods, CAPACITY, time)
    assert restored.to_json().keys() == predictor.to_json().keys()


GOOD: dict[str, Any] = {"since": 1.0, "updated": 1.0, "cpu": {"weight": 1.0, "buckets": [0, 1]},
                        "memory": {"weight": 1.0, "buckets": [0, 1]}}


@pytest.mark.parametrize("stored", [
    None, 3, {"uid": "x"}, {"uid": [1, 2]}, {"uid": {**GOOD, "since": None}}, {"uid": {**GOOD, "updated": True}},
    {"uid": {**GOOD, "cpu": []}}, {"uid": {**GOOD, "cpu": {"weight": -1, "buckets": [0, 1]}}},
    {"uid": {**GOOD, "memory": {"weight": 1e300, "buckets": [0, 1]}}},
    {"uid": {**GOOD, "memory": {"weight": 1, "buckets": [4000, 1]}}}])
def test_a_malformed_store_is_empty(stored: Any):
    assert PeakPredictor(stored=stored).to_json() == {}
    assert PeakPredictor(stored={"uid": GOOD}).to_json().keys() == {"uid"}
