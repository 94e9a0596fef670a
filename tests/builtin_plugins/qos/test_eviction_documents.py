"""The shipped documents evict the same pods as the strategies, where the language can say what these do."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.qos.cpu_evict.plugin import CPUEvict
from koordpolicy.builtin_plugins.qos.eviction_strategy import EvictionStrategy, NodeCooling
from koordpolicy.builtin_plugins.qos.memory_evict.plugin import MemoryEvict
from koordpolicy.engine.agent.metric_cache.series import MetricSeries
from koordpolicy.engine.agent.qos_manager.documents import DocumentStrategy
from koordpolicy.engine.agent.qos_manager.evictions import EvictionMemory
from koordpolicy.engine.agent.recording import MetricsRecording, RecordedReadings
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import CompiledQoS
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.documents.loader import load
from koordpolicy.engine.framework.qos import Evictions
from koordpolicy.engine.source import Source
from tests.golden.suites import read_cases

POLICIES = Path(__file__).parents[3] / "policies" / "qos"
SECOND = 10**9
FAR = -(10**18)
CASES = Path(os.environ.get("KOORD_POLICY_CASES", "")) / "qos_shared.json"
FEATURES = {
    "BEMemoryEvict": "evict-memory", "CPUEvict": "evict-cpu-by-priority", "BECPUEvict": "evict-best-effort-cpu",
    "CPUAllocatableEvict": "evict-cpu-by-requests", "MemoryAllocatableEvict": "evict-memory-by-requests",
}
"""The features that documents say in full: MemoryEvict counts usage a thousandfold. By requests, a document is of one
band."""
BANDS = ("koord-batch", "koord-mid")


def document(feature: str, params: Mapping[str, Any], window: str) -> DocumentStrategy:
    """The shipped document of a feature, with other params and window."""
    path = POLICIES / f"{FEATURES[feature]}.yaml"
    text = path.read_text(encoding="utf-8")
    text = re.sub("(?m)^  window: .*$", f"  window: {window}", text)  # documents that read no usage have none
    (plugin,) = compile_documents(load([Source(path.name, text)]))
    assert plugin.check_args is not None
    made = plugin.make({**plugin.check_args({}), **params}, None)
    assert isinstance(made, CompiledQoS)
    return DocumentStrategy(made)


def strategy(feature: str) -> EvictionStrategy:
    kind = MemoryEvict if "Memory" in feature else CPUEvict
    made = kind({"features": [feature]})
    made.states["n"] = NodeCooling(FAR, FAR)
    return made


def evicted(recording: MetricsRecording, adjust: Any) -> list[tuple[int, str]]:
    """All evictions over a recording, with their second."""
    memory, found = EvictionMemory(), []
    for time in recording.times:
        pods = recording.pods["n"]
        chosen = adjust(RecordedReadings(recording, "n", time, {}, memory.view(time)))
        memory.note((pods[each.subject].uid for each in chosen), time)
        found += [(time // SECOND, each.subject) for each in chosen]
    return found


def recorded(
    node: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], thresholds: Mapping[str, Any],
    samples: Sequence[tuple[int, Mapping[tuple[str, str], Mapping[str, float]]]],
) -> MetricsRecording:
    """A recording of node `n`: samples are (second, usages by what and name)."""
    recording = MetricsRecording()
    recording.nodes["n"] = {**node, "kind": "Node", "metadata": {**node["metadata"], "name": "n"}}
    recording.objects["NodeSLO", "n"] = {
        "kind": "NodeSLO", "metadata": {"name": "n"}, "spec": {"resourceUsedThresholdWithBE": thresholds}}
    read = [PodInfo.of({**each, "kind": "Pod", "spec": {**each["spec"], "nodeName": "n"}}) for each in pods]
    recording.pods["n"] = {pod.key: pod for pod in read}
    for second, usages in samples:
        recording.times.append(second * SECOND)
        for (what, name), amounts in usages.items():
            series = recording.series.setdefault(("n", what, name), {})
            for resource, amount in amounts.items():
                series.setdefault(resource, MetricSeries()).add(second * SECOND, amount)
    return recording


def params_of(feature: str, thresholds: Mapping[str, Any]) -> dict[str, Any]:
    """The params that say the thresholds of a NodeSLO."""
    if feature == "BECPUEvict":
        return {
            "lowerPercent": thresholds["cpuEvictBESatisfactionLowerPercent"],
            "upperPercent": thresholds["cpuEvictBESatisfactionUpperPercent"],
            "usagePercent": thresholds.get("cpuEvictBEUsageThresholdPercent", 90)}
    if "Allocatable" in feature:
        prefix = "memoryAllocatableEvict" if "Memory" in feature else "cpuAllocatableEvict"
        return {"percent": thresholds[f"{prefix}ThresholdPercent"], "lowerPercent": thresholds[f"{prefix}LowerPercent"],
                "priority": thresholds["allocatableEvictPriorityThreshold"]}
    prefix = "memoryEvict" if feature == "BEMemoryEvict" else "cpuEvict"
    percent = thresholds[f"{prefix}ThresholdPercent"]
    found = {"percent": percent, "lowerPercent": thresholds.get(f"{prefix}LowerPercent", percent - 2)}
    return found | ({"priority": thresholds["evictEnabledPriorityThreshold"]} if feature == "CPUEvict" else {})


def sayable_cases() -> list[Any]:
    cases = read_cases(CASES) if CASES.is_file() else []
    return [
        pytest.param(case, id=case["id"]) for case in cases
        if case["point"] in {"memory_evict", "cpu_evict"} and set(case["inputs"]["features"]) <= FEATURES.keys()
        and len(case["inputs"]["features"]) == 1
    ]


@pytest.mark.parametrize("case", sayable_cases())
def test_a_document_evicts_the_pods_of_a_golden_case(case):
    (feature,) = case["inputs"]["features"]
    resource = "memory" if "Memory" in feature else "cpu"
    unit = 1000 if resource == "cpu" else 1
    metrics, pods = case["metrics"], case["pods"]
    keys = {each["metadata"]["uid"]: PodInfo.of(each).key for each in pods}
    usages: dict[tuple[str, str], dict[str, float]] = {
        ("node", "n"): {resource: metrics[f"node_{resource}_used"] * unit}}
    usages |= {("pod", keys[uid]): {resource: used * unit} for uid, used in metrics[f"pod_{resource}_used"].items()}
    recording = recorded(case["node"], pods, case["config"], [(0, usages)])
    params = params_of(feature, case["config"])
    bands = [{"band": band, "resource": f"kubernetes.io/{band.removeprefix('koord-')}-{resource}"} for band in BANDS]
    documents = [document(feature, {**params, **band}, "1s") for band in (bands if "Allocatable" in feature else [{}])]
    found = evicted(recording, lambda readings: [found for each in documents for found in each.adjust(readings)])
    assert found == evicted(recording, strategy(feature).adjust)
    assert [key.partition("/")[2] for _, key in found] == case["derived"]["evicted_in_order"]


PODS = st.lists(st.fixed_dictionaries({
    "qos": st.sampled_from(["BE", "BE", "LS", ""]), "priority": st.sampled_from([3000, 5000, 5500, 7000, 9000]),
    "used": st.integers(1, 20), "requested": st.integers(0, 20),
    "phase": st.sampled_from(["Running", "Running", "Failed"]),
    "enabled": st.sampled_from(["true", "true", "false", None]), "sub": st.sampled_from([None, "1", "7000"]),
    "first": st.sampled_from([None, None, "-5", "5"]),
}), min_size=1, max_size=9)


def pod(number: int, each: Mapping[str, Any]) -> dict[str, Any]:
    labels = {"koordinator.sh/qosClass": each["qos"], "koordinator.sh/eviction-enabled": each["enabled"],
              "koordinator.sh/priority": each["sub"]}
    annotations = {"koordinator.sh/eviction-priority": each["first"]}
    requests = {"kubernetes.io/batch-cpu": str(each["requested"] * 1000)} if each["requested"] else {}
    return {
        "metadata": {"name": f"p{number}", "namespace": "d", "uid": f"uid-{number}",
                     "labels": {name: value for name, value in labels.items() if value},
                     "annotations": {name: value for name, value in annotations.items() if value}},
        "spec": {"priority": each["priority"],
                 "containers": [{"name": "c", "resources": {"requests": requests}}]},
        "status": {"phase": each["phase"]}}


ABOVE = st.lists(st.sampled_from([-2, -1, 0, 0, 1, 10]), min_size=1, max_size=50)
"""Usage of the node over time, in percent above the threshold."""

NODE = {"metadata": {"name": "n"}, "status": {
    "capacity": {"cpu": "100", "memory": "100G"}, "allocatable": {"cpu": "100", "memory": "100G"}}}


@settings(max_examples=40, deadline=None)
@given(PODS, ABOVE, st.integers(50, 90), st.integers(1, 5))
def test_best_effort_pods_go_for_memory_as_by_the_strategy(pods, above, percent, less):
    used = [percent + each for each in above]
    thresholds = {"enable": True, "memoryEvictThresholdPercent": percent, "memoryEvictLowerPercent": percent - less}
    of_pods = {("pod", f"d/p{number}"): {"memory": each["used"] * 10**9} for number, each in enumerate(pods)}
    recording = recorded(NODE, [pod(number, each) for number, each in enumerate(pods)], thresholds, [
        (second, {("node", "n"): {"memory": amount * 10**9}, **of_pods}) for second, amount in enumerate(used)])
    found = evicted(recording, document("BEMemoryEvict", params_of("BEMemoryEvict", thresholds), "1ms").adjust)
    assert found == evicted(recording, strategy("BEMemoryEvict").adjust)


@settings(max_examples=40, deadline=None)
@given(PODS, ABOVE, st.integers(50, 90), st.integers(1, 5), st.sampled_from([4999, 5500, 7999]))
def test_pods_go_for_cpu_by_priority_as_by_the_strategy(pods, above, percent, less, priority):
    used = [percent + each for each in above]
    thresholds = {"enable": True, "cpuEvictThresholdPercent": percent, "cpuEvictLowerPercent": percent - less,
                  "evictEnabledPriorityThreshold": priority}
    of_pods = {("pod", f"d/p{number}"): {"cpu": each["used"] * 1000} for number, each in enumerate(pods)}
    recording = recorded(NODE, [pod(number, each) for number, each in enumerate(pods)], thresholds, [
        (second, {("node", "n"): {"cpu": amount * 1000}, **of_pods}) for second, amount in enumerate(used)])
    found = evicted(recording, document("CPUEvict", params_of("CPUEvict", thresholds), "1s").adjust)
    assert found == evicted(recording, strategy("CPUEvict").adjust)


@settings(max_examples=40, deadline=None)
@given(PODS, st.sampled_from([0, 900, 999, 1000, 3000, 5000, 20_000]), st.sampled_from([2, 10, 30, 50]),
       st.sampled_from([0, 50, 89, 90, 100]), st.sampled_from([10, 30, 50, 60]), st.integers(0, 30))
def test_best_effort_pods_go_for_cpu_as_by_the_strategy_while_the_tier_is_steady(
    pods, limit, request_, share, lower, more,
):
    thresholds = {"enable": True, "cpuEvictBESatisfactionLowerPercent": lower,
                  "cpuEvictBESatisfactionUpperPercent": lower + more}
    best_effort = [each for each in pods if each["qos"] == "BE" and each["requested"]]
    tier = {"usage": limit * share / 100, "request": request_ * 1000, "realLimit": limit}
    usages: dict[tuple[str, str], dict[str, float]] = {
        ("node", "n"): {"cpu": 50_000}, ("bestEffort", "n"): tier}
    usages |= {("pod", f"d/p{number}"): {"cpu": each["used"] * 1000} for number, each in enumerate(best_effort)}
    read = [pod(number, {**each, "priority": 5500 if each["priority"] > 5500 else 5000})
            for number, each in enumerate(best_effort)]
    recording = recorded(NODE, read, thresholds, [(second, usages) for second in range(25)])
    found = evicted(recording, document("BECPUEvict", params_of("BECPUEvict", thresholds), "1s").adjust)
    assert found == evicted(recording, strategy("BECPUEvict").adjust)


@settings(max_examples=60, deadline=None)
@given(PODS, st.integers(0, 40), st.integers(0, 130), st.integers(1, 40), st.sampled_from(["cpu", "memory"]),
       st.sampled_from([4999, 5500, 5999]))
def test_pods_of_a_band_go_for_their_requests_as_by_the_strategy(pods, allocatable, percent, less, resource, priority):
    feature = "CPUAllocatableEvict" if resource == "cpu" else "MemoryAllocatableEvict"
    name, unit = f"kubernetes.io/batch-{resource}", 1000 if resource == "cpu" else 10**9
    prefix = f"{resource}AllocatableEvict"
    thresholds = {"enable": True, f"{prefix}ThresholdPercent": percent, f"{prefix}LowerPercent": percent - less,
                  "allocatableEvictPriorityThreshold": priority}
    node = {**NODE, "status": {**NODE["status"], "allocatable": {
        **NODE["status"]["allocatable"], **({name: str(allocatable * unit)} if allocatable else {})}}}
    read = []
    for number, each in enumerate(pods):  # of the bands prod and batch, where each requests what is of its band
        batch = each["priority"] < 9000
        made = pod(number, {**each, "priority": min(max(each["priority"], 5000), 5500) if batch else 9000,
                            "requested": 0, "qos": "BE" if batch else "LS"})
        made["spec"]["containers"][0]["resources"]["requests"] = {
            name if batch else resource: str(each["requested"] * unit)}
        read.append(made)
    usages = {("pod", f"d/p{number}"): {resource: each["used"] * unit} for number, each in enumerate(pods)}
    recording = recorded(node, read, thresholds, [(second, usages) for second in range(25)])
    found = evicted(recording, document(feature, params_of(feature, thresholds), "1s").adjust)
    assert found == evicted(recording, strategy(feature).adjust)


def test_while_usage_swings_around_the_threshold_each_pod_goes_once():
    """Nothing flaps: pods that leave count, so that only a lasting lack of memory takes more of them."""
    pods = [pod(number, {"qos": "BE", "priority": 5000, "used": 3, "requested": 0, "phase": "Running", "enabled": None,
                         "sub": None, "first": None}) for number in range(20)]
    thresholds = {"enable": True, "memoryEvictThresholdPercent": 70, "memoryEvictLowerPercent": 65}
    of_pods = {("pod", f"d/p{number}"): {"memory": 3e9} for number in range(20)}
    recording = recorded(NODE, pods, thresholds, [
        (second, {("node", "n"): {"memory": (71 if second % 2 else 69) * 1e9}, **of_pods}) for second in range(100)])
    compared = document("BEMemoryEvict", params_of("BEMemoryEvict", thresholds), "1ms")
    for adjust in (strategy("BEMemoryEvict").adjust, compared.adjust):
        assert evicted(recording, adjust) == [(1, "d/p0"), (1, "d/p1")]


def test_documents_take_the_next_candidate_where_one_was_refused_and_pass_budgets_only_if_told():
    pods = [pod(number, {"qos": "BE", "priority": 5000 + number, "used": 3, "requested": 0, "phase": "Running",
                         "enabled": None, "sub": None, "first": None}) for number in range(3)]
    thresholds = {"enable": True, "memoryEvictThresholdPercent": 70, "memoryEvictLowerPercent": 69}
    recording = recorded(NODE, pods, thresholds, [(0, {
        ("node", "n"): {"memory": 71e9}, **{("pod", f"d/p{number}"): {"memory": 3e9} for number in range(3)}})])
    one = document("BEMemoryEvict", params_of("BEMemoryEvict", thresholds), "1ms")
    other = strategy("BEMemoryEvict")
    for adjust in (one.adjust, other.adjust):
        def subjects(second: float, adjust: Any = adjust, **view: Any) -> list[str]:
            readings = RecordedReadings(recording, "n", int(second * SECOND), {}, Evictions(**view))
            return [each.subject for each in adjust(readings)]

        assert subjects(0) == ["d/p0"]
        # The eviction was refused by a budget: the next pod goes at once, in spite of the cool-down.
        assert subjects(0.0001, protected={"uid-0": "its budget"}) == ["d/p1"]
        assert subjects(0.0002, protected={"uid-0": "its budget"}, refused={"uid-1": "a webhook"}) == ["d/p2"]
        assert subjects(0.0003, protected={"uid-0": ""}, refused={"uid-1": ""}, leaving=frozenset({"uid-2"})) == []
