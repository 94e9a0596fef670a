"""colocation-config: its states, and the strategy of a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordpolicy.engine.slo import defaults
from koordpolicy.engine.slo.colocation import ColocationConfig


def config(**settings: Any) -> ColocationConfig:
    return ColocationConfig().updated({"colocation-config": json.dumps(settings)})


def test_settings_are_merged_over_the_defaults_and_durations_are_written_as_go_does():
    found = config(enable=True, metricAggregatePolicy={"durations": ["90s", "1h"]})
    assert found == ColocationConfig(
        {**defaults.colocation(), "enable": True, "metricAggregatePolicy": {"durations": ["1m30s", "1h0m0s"]}},
        available=True, changed=True)


@pytest.mark.parametrize("settings", [
    {"metricReportIntervalSeconds": 0}, {"degradeTimeMinutes": -1}, {"resourceDiffThreshold": 0},
    {"cpuReclaimThresholdPercent": -1}, {"midCPUThresholdPercent": 101}, {"metricMemoryCollectPolicy": ""},
    {"enable": "true"}, {"metricAggregatePolicy": {"durations": ["soon"]}},
])
def test_an_invalid_strategy_of_the_cluster_leaves_the_previous_state(settings: dict[str, Any]):
    first = config(cpuReclaimThresholdPercent=70)
    found = first.updated({"colocation-config": json.dumps(settings)})
    assert (found.config, found.available, found.error, found.changed) == (first.config, True, True, False)
    assert found.fault


def test_policies_are_not_judged():
    assert not config(cpuCalculatePolicy="", memoryCalculatePolicy="mine").error


def test_an_invalid_entry_becomes_a_copy_of_the_cluster():
    selector = {"matchLabels": {"pool": "a"}}
    found = config(cpuReclaimThresholdPercent=70, nodeConfigs=[
        {"nodeSelector": selector, "cpuReclaimThresholdPercent": -5, "enable": True},
        {"name": "b", "nodeSelector": {}, "enable": True}])
    cluster = {**defaults.colocation(), "cpuReclaimThresholdPercent": 70}
    assert found.config["nodeConfigs"] == [
        {**cluster, "nodeSelector": selector}, {**cluster, "enable": True, "name": "b", "nodeSelector": {}}]


def test_annotation_and_labels_of_a_node_replace_its_strategy():
    found = config(nodeConfigs=[{"nodeSelector": {"matchLabels": {"pool": "a"}}, "cpuReclaimThresholdPercent": 50}])
    node = {"metadata": {"name": "n", "labels": {
        "pool": "a", "node.koordinator.sh/memory-reclaim-ratio": "0.355", "node.koordinator.sh/cpu-reclaim-ratio": "-1",
        "node.koordinator.sh/mid-static-cpu-reserved-ratio": "inf"},
        "annotations": {"node.koordinator.sh/colocation-strategy": '{"enable": true, "degradeTimeMinutes": 5}'}}}
    assert found.of_node(node) == {
        **defaults.colocation(), "cpuReclaimThresholdPercent": 50, "enable": True, "degradeTimeMinutes": 5,
        "memoryReclaimThresholdPercent": 35}


@pytest.mark.parametrize("annotation", ["{", "[]", '{"enable": 1}', "7"])
def test_a_broken_annotation_is_left_out(annotation: str):
    node = {"metadata": {"name": "n", "annotations": {"node.koordinator.sh/colocation-strategy": annotation}}}
    assert ColocationConfig().of_node(node) == defaults.colocation()
