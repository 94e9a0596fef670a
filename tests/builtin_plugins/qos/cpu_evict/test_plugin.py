from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos import PLUGINS
from koordpolicy.builtin_plugins.qos.cpu_evict.plugin import (
    BestEffortCPU,
    CPUEvict,
    SatisfactionBounds,
    allocatable_batch_cpu,
    satisfaction_release,
)
from koordpolicy.builtin_plugins.qos.eviction_strategy import EvictionStrategy
from koordpolicy.builtin_plugins.qos.memory_evict.plugin import MemoryEvict
from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.recording import MetricsRecording, RecordedReadings
from koordpolicy.engine.agent.settings import fields_read
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Evictions
from koordpolicy.testing import NOW, SECOND, FakeReadings

NODE = {"metadata": {"name": "n"}, "status": {
    "capacity": {"cpu": "10", "memory": "10G"}, "allocatable": {"kubernetes.io/batch-cpu": "10000"}}}
SATISFACTION = {"cpuEvictBESatisfactionLowerPercent": 30, "cpuEvictBESatisfactionUpperPercent": 40}


def pod(name: str, requested: int = 4000, priority: int | None = 5500) -> dict[str, Any]:
    labels = {"koordinator.sh/qosClass": "BE", "koordinator.sh/eviction-enabled": "true"}
    requests = {"kubernetes.io/batch-cpu": str(requested)}
    return {"metadata": {"namespace": "d", "name": name, "uid": f"uid-{name}", "labels": labels},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": {"requests": requests}}]},
            "status": {"phase": "Running"}}


def evicted(strategy: CPUEvict, *pods: dict[str, Any], used: str = "9", second: float = 0, used_by: Any = None,
            best_effort: Any = None, evictions: Evictions | None = None, **thresholds: Any) -> list[tuple[str, str]]:
    section = {"enable": True, "cpuEvictThresholdPercent": 80, "evictEnabledPriorityThreshold": 5999, **thresholds}
    usages = {f"d/{each['metadata']['name']}": {"cpu": "1"} for each in pods}
    readings: Any = FakeReadings(
        NODE, usage={"cpu": used}, pods=pods, pod_usage=used_by or usages, now=NOW + int(second * SECOND),
        objects=[{"kind": "NodeSLO", "spec": {"resourceUsedThresholdWithBE": section}}], best_effort=best_effort,
        evictions=evictions)
    return [(each.subject, each.item) for each in strategy.adjust(readings)]


def test_nobody_goes_in_the_first_twenty_seconds_nor_after_an_eviction():
    strategy = CPUEvict({"features": ["CPUEvict"]})
    for second, found in ((0, []), (19.9, []), (20, [("d/a", "CPUEvict"), ("d/b", "CPUEvict")]), (30, []), (40, [])):
        assert evicted(strategy, pod("a"), pod("b"), used="9", second=second) == found


def test_a_hard_threshold_below_the_soft_one_passes_budgets_above_both(caplog):
    strategy = CPUEvict({"features": ["CPUEvict"], "coolTimeSeconds": 0, "hardThresholdPercent": 50})
    protected = Evictions(protected={"uid-a": "its budget"})
    assert [evicted(strategy, pod("a"), used=used, second=second, evictions=protected)
            for second, used in enumerate(("8.0", "8.1"))] == [[], [("d/a", "CPUEvict")]]
    assert caplog.messages == [
        "node n: hardThresholdPercent: 50 is not above the threshold of evictions: budgets are passed above 80 percent"]


def test_features_run_in_order_and_what_one_releases_counts_for_the_next():
    strategy = CPUEvict({"features": ["CPUEvict", "CPUAllocatableEvict", "BECPUEvict"], "coolTimeSeconds": 0})
    settings = {**SATISFACTION, "cpuAllocatableEvictThresholdPercent": 70, "cpuAllocatableEvictLowerPercent": 60,
                "allocatableEvictPriorityThreshold": 5999}
    tier = {"usage": "3", "request": "12", "realLimit": "3"}
    # BECPUEvict releases 4 of the 6 CPUs that are requested too much, and one CPU of the usage.
    assert evicted(strategy, pod("a"), pod("b"), pod("c"), used="8.1", best_effort=tier, **settings) == [
        ("d/a", "BECPUEvict"), ("d/b", "CPUAllocatableEvict")]


@pytest.mark.parametrize("interval", [SECOND // 10, SECOND // 2, SECOND, 3 * SECOND // 2, 2 * SECOND])
def test_a_window_that_was_measured_counts_whatever_the_interval_of_collections_is(interval: int):
    cache = MetricCache("n", interval)
    for sample in range(120 * SECOND // interval):
        for name, value in (("usage", 1990.0), ("request", 10_000.0), ("realLimit", 2000.0)):
            cache.append("bestEffort", "n", name, NOW + sample * interval, value)
    section = {"enable": True, "cpuEvictThresholdPercent": 101, "cpuEvictTimeWindowSeconds": 60, **SATISFACTION}
    measured = cache.at(NOW + 120 * SECOND - interval)
    readings: Any = FakeReadings(NODE, pods=[pod("a")], now=NOW + 120 * SECOND, usage={"cpu": "2"},
                                 pod_usage={"d/a": {"cpu": "1"}},
                                 objects=[{"kind": "NodeSLO", "spec": {"resourceUsedThresholdWithBE": section}}])
    readings.collect_interval, readings.best_effort_cpu = interval, measured.best_effort_cpu
    strategy = CPUEvict({"features": ["BECPUEvict"], "coolTimeSeconds": 0})
    assert [each.item for each in strategy.adjust(readings)] == ["BECPUEvict"]


def test_best_effort_pods_go_by_priority_then_by_the_share_of_their_request_that_they_use():
    strategy = CPUEvict({"features": ["BECPUEvict"], "coolTimeSeconds": 0})
    pods = pod("half", 4000), pod("all", 1000), pod("low", 500, 5000), pod("none", 3000)
    used = {"d/half": {"cpu": "2"}, "d/all": {"cpu": "1"}}
    tier = {"usage": "1", "request": "100", "realLimit": "1"}
    assert [each for each, _ in evicted(strategy, *pods, used_by=used, best_effort=tier, **SATISFACTION)] == [
        "d/low", "d/all", "d/half", "d/none"]


@pytest.mark.parametrize(("policy", "found"), [("evictByRealLimit", []), ("evictByAllocatable", ["d/a"])])
def test_satisfaction_is_of_the_limit_that_the_policy_names(policy, found):
    strategy = CPUEvict({"features": ["BECPUEvict"], "coolTimeSeconds": 0})
    tier = {"usage": "9500m", "request": "34", "realLimit": "20"}
    chosen = evicted(strategy, pod("a"), best_effort=tier, cpuEvictPolicy=policy, **SATISFACTION)
    assert [each for each, _ in chosen] == found


BOUNDS = SatisfactionBounds(30, 40)


@pytest.mark.parametrize(("average", "current", "release"), [
    (BestEffortCPU(9500, 50_000, 10_000, 59), BestEffortCPU(9500, 50_000, 10_000, 1), 10_000),
    (BestEffortCPU(9500, 50_000, 10_000, 19), BestEffortCPU(9500, 50_000, 10_000, 1), 0),
    (BestEffortCPU(8900, 50_000, 10_000, 59), BestEffortCPU(9500, 50_000, 10_000, 1), 0),
    (BestEffortCPU(0, 50_000, 999, 59), BestEffortCPU(0, 50_000, 999, 1), 19_001),
    (BestEffortCPU(9500, 50_000, 10_000, 59), BestEffortCPU(1000, 50_000, 10_000, 1), 0),
    (BestEffortCPU(9500, 50_000, 10_000, 59), BestEffortCPU(20_000, 50_000, 20_000, 1), 0),
    (BestEffortCPU(9500, 33_000, 10_000, 59), BestEffortCPU(9500, 33_000, 10_000, 1), 0),
    (BestEffortCPU(), BestEffortCPU(), 0),
])
def test_the_release_is_of_the_average_and_of_now(average, current, release):
    assert satisfaction_release(BOUNDS, average, current, window=60, interval=1) == release


@pytest.mark.parametrize(("allocatable", "amount"), [
    ({}, -1), ({"kubernetes.io/batch-cpu": "0"}, 1), ({"kubernetes.io/batch-cpu": "-1"}, -1),
    ({"kubernetes.io/batch-cpu": "7"}, 7),
])
def test_no_allocatable_is_less_than_nothing_and_zero_is_little(allocatable, amount):
    assert allocatable_batch_cpu({"status": {"allocatable": allocatable}}) == amount


class Observed(dict[str, Any]):
    """A mapping that notes the keys that are read."""

    def __init__(self, values: dict[str, Any], seen: set[str]) -> None:
        super().__init__(values)
        self._seen = seen

    def get(self, key: str, default: Any = None) -> Any:
        self._seen.add(key)
        return super().get(key, default)


@pytest.mark.parametrize(("kind", "settings"), [
    (CPUEvict, {**SATISFACTION, "cpuEvictBEUsageThresholdPercent": 1, "cpuEvictTimeWindowSeconds": 1,
                "cpuEvictPolicy": "evictByRealLimit", "cpuEvictThresholdPercent": 1, "cpuEvictLowerPercent": 0,
                "cpuAllocatableEvictThresholdPercent": 1, "cpuAllocatableEvictLowerPercent": 0}),
    (MemoryEvict, {"memoryEvictThresholdPercent": 1, "memoryEvictLowerPercent": 0,
                   "memoryAllocatableEvictThresholdPercent": 1, "memoryAllocatableEvictLowerPercent": 0}),
])
def test_a_strategy_reads_the_fields_that_it_declares(kind: type[EvictionStrategy], settings: dict[str, Any]):
    seen: set[str] = set()
    both = {"enable": True, "evictEnabledPriorityThreshold": 1, "allocatableEvictPriorityThreshold": 1}
    recording = MetricsRecording(nodes={"n": NODE})
    recording.objects["NodeSLO", "n"] = {"spec": {"resourceUsedThresholdWithBE": Observed({**both, **settings}, seen)}}
    recording.pods["n"] = {"d/a": PodInfo.of(pod("a"))}
    strategy = kind({"features": kind.features, "coolTimeSeconds": 0})
    strategy.adjust(RecordedReadings(recording, "n", 0, {}))
    plugin = next(each for each in PLUGINS if each.name == strategy.name)
    assert {("spec", "resourceUsedThresholdWithBE", name) for name in seen} == fields_read(plugin.reads)
