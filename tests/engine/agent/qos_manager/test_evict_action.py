"""The action `evict`: cool-down, budgets, and pods that leave by another strategy."""

from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos import PLUGINS
from koordpolicy.engine.agent.qos_manager.documents import DocumentStrategy
from koordpolicy.engine.agent.recording import MetricsRecording, RecordedReadings
from koordpolicy.engine.agent.replay import replay
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.documents.loader import load
from koordpolicy.engine.framework.qos import Evictions
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError, Source
from tests.engine.agent.conftest import pod

TEXT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: evict}
spec:
  interval: 1s
  window: 1ms
  thresholds:
  - {name: critical, expression: usage.cpu >= 9000}
  actions:
  - name: relieve
    when: usage.cpu > 4000
    evict:
      criteria: [{name: best-effort, expression: "podInfo.qosClass == 'BE'"}]
      sort: [{expression: podUsage.cpu, order: Descending}]
      release: {resource: cpu, amount: usage.cpu - 4000}
      MORE
"""
PODS = (pod("large", "BE"), pod("middle", "BE"), pod("small", "BE"))
USED = {"large": 1000, "middle": 900, "small": 800}


def strategy(more: str = "") -> DocumentStrategy:
    (plugin,) = compile_documents(load([Source("evict.yaml", TEXT.replace("MORE", more))]))
    assert plugin.check_args is not None
    return DocumentStrategy(plugin.make(plugin.check_args({}), None))


def evicted(asked: DocumentStrategy, recorded: MetricsRecording, second: int, **view: Any) -> list[tuple[str, bool]]:
    readings = RecordedReadings(recorded, "n", recorded.start + second * 10**9, {}, Evictions(**view))
    return [(each.subject, each.past_budget) for each in asked.adjust(readings)]


def test_within_the_cool_down_nobody_goes_however_much_is_to_be_released(recording):
    recorded = recording(*((second, 4500 + 900 * second, USED) for second in range(5)), pods=PODS)
    hasty, slow = strategy(), strategy("coolDown: 3s")
    assert [evicted(hasty, recorded, second) for second in range(4)] == [
        [("d/large", False)], [("d/middle", False)], [("d/small", False)], []]
    assert [evicted(slow, recorded, second) for second in range(4)] == [
        [("d/large", False)], [], [], [("d/middle", False), ("d/small", False)]]


def test_a_pod_of_a_budget_stays_until_the_hard_threshold_is_crossed(recording):
    recorded = recording((0, 4500, USED), (1, 4500, USED), (2, 9000, USED), pods=PODS)
    asked = strategy("pastBudget: thresholds.critical")
    view = {"protected": dict.fromkeys(("d/large", "d/middle", "d/small"), "its budget")}
    assert [evicted(asked, recorded, second, **view) for second in range(3)] == [
        [], [], [("d/large", True), ("d/middle", True), ("d/small", True)]]


def test_a_pod_that_another_strategy_evicted_counts(recording):
    recorded = recording((0, 4500, USED), pods=PODS)
    assert evicted(strategy(), recorded, 0, leaving=frozenset({"d/small"})) == []


def test_a_past_budget_that_is_no_bool_is_refused():
    with pytest.raises(PolicyError, match="pastBudget"):
        strategy("pastBudget: usage.cpu")


def test_a_strategy_and_a_document_together_evict_no_pod_twice(recording):
    slo = {"kind": "NodeSLO", "metadata": {"name": "n"}, "spec": {"resourceUsedThresholdWithBE": {
        "enable": True, "cpuEvictThresholdPercent": 41, "cpuEvictLowerPercent": 40,
        "evictEnabledPriorityThreshold": 5999}}}
    enabled = [{**each, "metadata": {**each["metadata"], "uid": f"uid-{each['metadata']['name']}", "labels": {  # type: ignore[dict-item]
        "koordinator.sh/qosClass": "BE", "koordinator.sh/eviction-enabled": "true"}},
        "status": {"phase": "Running"}} for each in PODS]
    recorded = recording(*((second, 5500, USED) for second in range(60)), pods=(*enabled, slo))
    registry = Registry.of((*compile_documents(load([Source("evict.yaml", TEXT.replace("MORE", ""))])), *PLUGINS),
                           generation=1)
    rounds = replay(recorded, registry, gates={"CPUEvict": True}, enable=["CPUEvict"])
    found = [(int(each.elapsed / 1e9), each.plugin, adjustment.subject)
             for each in rounds for adjustment in each.adjustments]
    assert found == [(0, "evict", "d/large"), (0, "evict", "d/middle")]
