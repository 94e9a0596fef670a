from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos import PLUGINS
from koordpolicy.builtin_plugins.qos.memory_evict.plugin import MemoryEvict, check_args
from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.framework.qos import Adjustment, Evictions
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.testing import NOW, SECOND, FakeReadings

NODE = {"metadata": {"name": "n"}, "status": {
    "capacity": {"memory": "100G"}, "allocatable": {"kubernetes.io/batch-memory": "50G"}}}
BEST_EFFORT = {"features": ["BEMemoryEvict"]}


def pod(name: str, *, priority: int | None = 5500, **metadata: Any) -> dict[str, Any]:
    labels = {"koordinator.sh/qosClass": "BE", "koordinator.sh/eviction-enabled": "true"}
    requests = {"kubernetes.io/batch-memory": "20G"}
    return {"metadata": {"namespace": "d", "name": name, "uid": f"uid-{name}", "labels": labels, **metadata},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": {"requests": requests}}]},
            "status": {"phase": "Running"}}


def readings(used: str | None = "75G", *pods: dict[str, Any], second: float = 0, evictions: Evictions | None = None,
             node: Any = NODE, enable: object = True, pod_used: Any = None, **thresholds: Any) -> Any:
    section = {"enable": enable, "memoryEvictThresholdPercent": 70, "evictEnabledPriorityThreshold": 5999, **thresholds}
    pods = pods or (pod("a"), pod("b"))
    usages = {f"d/{each['metadata']['name']}": {"memory": "5G"} for each in pods}
    return FakeReadings(
        node, usage=None if used is None else {"memory": used}, pods=pods, pod_usage=pod_used or usages,
        objects=[{"kind": "NodeSLO", "spec": {"resourceUsedThresholdWithBE": section}}],
        now=NOW + int(second * SECOND), evictions=evictions)


def evicted(strategy: MemoryEvict, *args: Any, **more: Any) -> list[str]:
    return [each.subject for each in strategy.adjust(readings(*args, **more))]


def test_an_eviction_says_why_and_how_much():
    assert MemoryEvict(BEST_EFFORT).adjust(readings("73G")) == (Adjustment(
        "evict", "d/a", "trigger by koordlet feature BEMemoryEvict, kill pod: a", "BEMemoryEvict",
        {"target": "podUsed", "toRelease": {"memory": 5 * 10**9}, "releases": {"memory": 5 * 10**9}}),)


def test_between_two_rounds_of_evictions_there_are_four_seconds_and_pods_that_leave_count():
    strategy = MemoryEvict(BEST_EFFORT)
    assert evicted(strategy, "73G") == ["d/a"]
    assert evicted(strategy, "80G", second=3.9) == []
    assert evicted(strategy, "73G", second=4) == []
    assert evicted(strategy, "80G", second=5) == ["d/b"]
    assert evicted(strategy, "80G", second=100) == []
    assert evicted(strategy, "80G", second=120) == ["d/a"]


def test_a_pod_without_an_answer_or_that_is_terminating_counts_as_leaving():
    view = Evictions(frozenset({"uid-a"}))
    assert evicted(MemoryEvict(BEST_EFFORT), "73G", evictions=view) == []
    ending = pod("a", deletionTimestamp="2026-01-01T00:00:00Z")
    assert evicted(MemoryEvict(BEST_EFFORT), "73G", ending, pod("b")) == []
    assert evicted(MemoryEvict(BEST_EFFORT), "75G", ending, pod("b")) == ["d/b"]


def test_where_all_evictions_were_refused_others_go_at_once():
    strategy = MemoryEvict(BEST_EFFORT)
    assert evicted(strategy, "73G") == ["d/a"]
    assert evicted(strategy, "73G", second=1, evictions=Evictions(refused={"uid-a": "a webhook"})) == ["d/b"]
    assert evicted(strategy, "73G", second=2, evictions=Evictions(refused={"uid-a": "", "uid-b": ""})) == []


def test_where_some_evictions_succeeded_the_others_are_made_up_for_after_the_cool_down():
    strategy = MemoryEvict(BEST_EFFORT)
    pods = pod("a"), pod("b"), pod("c")
    view = Evictions(frozenset({"uid-b"}), refused={"uid-a": "a webhook"})
    assert evicted(strategy, "76G", *pods) == ["d/a", "d/b"]
    assert evicted(strategy, "76G", *pods, second=1, evictions=view) == []
    assert evicted(strategy, "76G", *pods, second=4, evictions=view) == ["d/c"]


def test_budgets_are_passed_above_the_hard_threshold_and_for_usage_only():
    strategy = MemoryEvict({**BEST_EFFORT, "hardThresholdPercent": 90, "coolTimeSeconds": 0})
    view = Evictions(protected={"uid-a": "its budget", "uid-b": "its budget"})
    assert evicted(strategy, "89G", evictions=view) == []
    found = strategy.adjust(readings("90G", evictions=view))
    assert [(each.subject, each.past_budget) for each in found] == [("d/a", True), ("d/b", True)]
    by_request = MemoryEvict({"features": ["MemoryAllocatableEvict"], "hardThresholdPercent": 90})
    settings = {"memoryAllocatableEvictThresholdPercent": 70, "memoryAllocatableEvictLowerPercent": 50,
                "allocatableEvictPriorityThreshold": 5999}
    assert [each.past_budget for each in by_request.adjust(readings("95G", **settings))] == [False]


@pytest.mark.parametrize("hard", [1, 69, 70])
def test_a_hard_threshold_that_is_not_above_the_soft_one_passes_budgets_above_both_and_is_logged_once(caplog, hard):
    strategy = MemoryEvict({**BEST_EFFORT, "hardThresholdPercent": hard, "coolTimeSeconds": 0})
    view = Evictions(protected={"uid-a": "its budget", "uid-b": "its budget"})
    assert evicted(strategy, "70.9G", evictions=view) == []
    assert [(each.subject, each.past_budget) for each in strategy.adjust(readings("70.9G"))] == [("d/a", False)]
    found = strategy.adjust(readings("71G", second=1, evictions=view))
    assert [(each.subject, each.past_budget) for each in found] == [("d/a", True)]
    said = (f"node n: hardThresholdPercent: {hard} is not above the threshold of evictions: budgets are passed above "
            "{} percent")
    assert caplog.messages == [said.format(70)]
    for threshold in (0, 80, 80):  # above; then anew
        strategy.adjust(readings("60G", second=2, memoryEvictThresholdPercent=threshold))
    assert caplog.messages == [said.format(70), said.format(80)]


def test_requests_of_batch_pods_go_down_to_the_lower_bound_of_the_allocatable():
    strategy = MemoryEvict({"features": ["MemoryAllocatableEvict"]})
    found = strategy.adjust(readings(
        None, pod("a"), pod("b"), memoryAllocatableEvictThresholdPercent=70, memoryAllocatableEvictLowerPercent=50,
        allocatableEvictPriorityThreshold=5999))
    assert [(each.subject, each.values["toRelease"], each.values["releases"]) for each in found] == [
        ("d/a", {"kubernetes.io/batch-memory": 15 * 10**9}, {"kubernetes.io/batch-memory": 20 * 10**9})]


def test_pods_by_priority_count_a_thousandfold_so_that_one_goes_at_a_time():
    strategy = MemoryEvict({"features": ["MemoryEvict"]})
    assert evicted(strategy, "85G") == ["d/a"]


def test_best_effort_pods_go_by_priority_then_usage_and_unmeasured_ones_last_by_name():
    pods = [pod(name, priority=priority) for name, priority in (
        ("x", 5500), ("y", 5500), ("low", 5000), ("large", 5500), ("small", 5500))]
    used = {"d/large": {"memory": "3G"}, "d/small": {"memory": "1G"}}
    assert evicted(MemoryEvict(BEST_EFFORT), "99G", *pods, pod_used=used) == [
        "d/low", "d/large", "d/small", "d/y", "d/x"]


@pytest.mark.parametrize(("given", "message"), [
    ({"enable": None}, "does not say `resourceUsedThresholdWithBE.enable`"),
    ({"node": {"metadata": {"name": "n"}, "status": {}}}, "node `n` has no capacity of memory"),
    ({"memoryEvictThresholdPercent": None}, "BEMemoryEvict: threshold percent is nil"),
    ({"memoryEvictThresholdPercent": "70"}, "`memoryEvictThresholdPercent` must be a whole number, not '70'"),
    ({"memoryEvictLowerPercent": 70}, "lower percent.70. should less than threshold percent.70."),
])
def test_what_cannot_be_decided_is_an_error(given, message):
    with pytest.raises(EvaluationError, match=message):
        MemoryEvict(BEST_EFFORT).adjust(readings("75G", **given))


def test_invalid_settings_of_one_feature_stop_no_other_and_are_logged_once(caplog):
    strategy = MemoryEvict({"features": ["BEMemoryEvict", "MemoryAllocatableEvict"], "coolTimeSeconds": 0})
    assert evicted(strategy, "73G") == ["d/a"]
    evicted(strategy, "73G", second=1)
    assert [each.message for each in caplog.records] == [
        "node n: MemoryAllocatableEvict: MemoryAllocatableEvictThresholdPercent not config"]


@pytest.mark.parametrize("given", [{"enable": False}, {"used": None}, {"used": "69G"}])
def test_a_disabled_unmeasured_or_calm_node_is_left_alone(given):
    assert evicted(MemoryEvict(BEST_EFFORT), **given) == []


def test_a_round_is_explained_without_changing_anything():
    strategy = MemoryEvict({"features": ["BEMemoryEvict", "MemoryAllocatableEvict"]})
    for _ in range(2):
        assert [each.text for each in strategy.explain_round(readings("73G"))] == [
            "BEMemoryEvict: 5000000000 of memory to release, 2 candidates",
            "MemoryAllocatableEvict: MemoryAllocatableEvictThresholdPercent not config",
            "MemoryEvict: its feature gate is off"]
    strategy.adjust(readings("73G"))
    assert strategy.explain_round(readings("73G", second=1))[0].text == "cooling down for 3s more"
    assert strategy.recover(readings()) == ()


@pytest.mark.parametrize(("args", "message"), [
    ({"interval": 1}, "unknown argument `interval`: known are `intervalSeconds`, `coolTimeSeconds`"),
    ({"intervalSeconds": 0}, "`intervalSeconds` must be a number above 0"),
    ({"intervalSeconds": True}, "`intervalSeconds` must be a number above 0"),
    ({"coolTimeSeconds": -1}, "`coolTimeSeconds` must be a number of 0 or more"),
    ({"coolTimeSeconds": float("inf")}, "`coolTimeSeconds` must be a number of 0 or more"),
    ({"features": "MemoryEvict"}, "`features` must be a list of names"),
    ({"features": ["CPUEvict"]}, "unknown feature `CPUEvict`: known are `BEMemoryEvict`"),
    ({"hardThresholdPercent": 101}, "`hardThresholdPercent` must be a whole number from 1 to 100"),
])
def test_arguments_are_checked(args, message):
    with pytest.raises(ValueError, match=message):
        check_args(args)


def test_each_feature_has_its_gate_and_the_strategy_runs_if_one_is_on():
    registry = Registry.of(PLUGINS, generation=1)
    for gates, features in (({"MemoryEvict": True}, {"MemoryEvict"}), ({}, None)):
        manager = Manager(gates, frozenset({"memoryEvict"}))
        manager.use(registry)
        running = manager.running.get("memoryEvict")
        assert (running.strategy.args.features if running is not None else None) == features
    assert manager.idle["memoryEvict"] == (
        "its feature gates BEMemoryEvict, MemoryAllocatableEvict, MemoryEvict are off")
