"""Fractions that are written where percent are expected: where they are found, and where 1 may be meant."""

from __future__ import annotations

import json

import pytest

from .conftest import findings, marked, qos_policy, scheduler_policy

_RULE = "KP045"


def told(text: str, configuration: str = "") -> list[str]:
    return [f"{each.found.message}: {each.found.help}" for each in findings(text, configuration)
            if each.rule.id == _RULE]


def places(text: str) -> list[str]:
    return [marked(each) for each in findings(text) if each.rule.id == _RULE]


def of(plugin: str, args: object, kind: str = "DeschedulerConfiguration") -> str:
    return json.dumps({"apiVersion": "descheduler/v1alpha2", "kind": kind, "profiles": [
        {"name": "default", "pluginConfig": [{"name": plugin, "args": args}]}]})


def slo(key: str, value: object) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "slo-controller-config"},
                       "data": {key: json.dumps(value)}})


# -- params of documents -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", [
    "percent(usage.cpu, allocatable.cpu) < params.maxPercent",
    "usage.cpu * 100 / allocatable.cpu <= params.maxPercent",
    "usage.cpu < allocatable.cpu * params.maxPercent / 100",
    "nodeInfo.pods > 3 && !(percent(usage.cpu, allocatable.cpu) >= params.maxPercent)",
    "double(usage.cpu) / double(allocatable.cpu) * 100.0 < double(params.maxPercent)",
    "percent(requested.memory, allocatable.memory) < params.maxPercent",
])
def test_a_level_of_1_percent_in_a_param_is_found_at_the_param(expression: str) -> None:
    text = scheduler_policy(f'params: {{maxPercent: 1}}\nfilter:\n- name: it\n  expression: "{expression}"')
    assert (told(text), places(text)) == (
        ["the param `maxPercent` is 1, and percent are expected: that is 1 of 100: did you mean 100?"], ["maxPercent"])


@pytest.mark.parametrize(("params", "expression"), [
    ("{maxPercent: 65}", "percent(usage.cpu, allocatable.cpu) < params.maxPercent"),
    ("{maxPercent: 2}", "percent(usage.cpu, allocatable.cpu) < params.maxPercent"),
    ("{idlePercent: 1}", "percent(usage.cpu, allocatable.cpu) < params.idlePercent"),
    ("{lowWater: 1}", "percent(usage.cpu, allocatable.cpu) < params.lowWater"),
    ("{cpu_min: 1}", "percent(usage.cpu, allocatable.cpu) > params.cpu_min"),
    ("{share: 1.0}", "double(usage.cpu) / double(allocatable.cpu) < params.share"),
    ("{share: 0.01}", "double(usage.cpu) / double(allocatable.cpu) < params.share"),
    ("{unused: 2}", "percent(usage.cpu, allocatable.cpu) < 1 && params.unused > 1"),
    ("{count: 1}", "nodeInfo.pods < params.count"),
])
def test_other_levels_and_numbers_are_not_found(params: str, expression: str) -> None:
    assert told(scheduler_policy(f'params: {params}\nfilter:\n- name: it\n  expression: "{expression}"')) == []


@pytest.mark.parametrize(("value", "meant"), [("1", "100"), ("0.65", "65")])
def test_a_fraction_as_the_target_of_best_effort_pods_is_found(value: str, meant: str) -> None:
    text = qos_policy(f"params: {{top: {value}}}\nactions:\n- name: it\n  suppressCPU:\n    target: >-\n"
                      "      int(double(allocatable.cpu) * double(params.top) / 100.0) - nonBestEffortUsage.cpu")
    assert told(text) == [
        f"the param `top` is {value}, and percent are expected: that is {value} of 100: did you mean {meant}?"]


@pytest.mark.parametrize(("setting", "found"), [
    ("cpuBurst: {policy: Auto, sharePoolThresholdPercent: '1'}", ["sharePoolThresholdPercent"]),
    ("cpuBurst: {policy: Auto, cpuBurstPercent: '1'}", ["cpuBurstPercent"]),
    ("cpuBurst: {policy: Auto, cpuBurstPercent: '1000', sharePoolThresholdPercent: '50'}", []),
])
def test_a_setting_of_1_percent_is_found(setting: str, found: list[str]) -> None:
    text = qos_policy(f"forEach: pod\nactions:\n- name: it\n  {setting}")
    assert told(text) == [f"`{each}` is 1, and percent are expected: that is 1 of 100: did you mean 100?"
                          for each in found]


# -- component configurations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("plugin", "args", "found"), [
    ("LoadAwareScheduling", {"usageThresholds": {"cpu": 1}}, ["usageThresholds.cpu"]),
    ("LoadAwareScheduling", {"prodUsageThresholds": {"cpu": 1, "memory": 95}}, ["prodUsageThresholds.cpu"]),
    ("LoadAwareScheduling", {"aggregated": {"usageThresholds": {"cpu": 1}}}, ["aggregated.usageThresholds.cpu"]),
    ("LoadAwareScheduling", {"estimatedScalingFactors": {"cpu": 1}}, ["estimatedScalingFactors.cpu"]),
    ("LowNodeLoad", {"highThresholds": {"cpu": 1}}, ["highThresholds.cpu"]),
    ("LowNodeLoad", {"nodePools": [{"name": "a", "prodHighThresholds": {"cpu": 1}}]},
     ["nodePools.0.prodHighThresholds.cpu"]),
    ("LowNodeUtilization", {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 1}}, ["targetThresholds.cpu"]),
])
def test_an_upper_level_of_1_is_found_in_arguments(plugin: str, args: object, found: list[str]) -> None:
    assert told("", of(plugin, args)) == [
        f"`{each}` of `{plugin}` is 1, and percent are expected: that is 1 of 100: did you mean 100?"
        for each in found]


@pytest.mark.parametrize(("plugin", "args", "found"), [
    ("LowNodeLoad", {"lowThresholds": {"cpu": 0.3}, "highThresholds": {"cpu": 70}}, ["lowThresholds.cpu"]),
    ("HighNodeUtilization", {"thresholds": {"cpu": 0.2}}, ["thresholds.cpu"]),
    # 1 is a fraction where others are.
    ("LowNodeUtilization", {"thresholds": {"cpu": 0.2, "pods": 1}, "targetThresholds": {"cpu": 0.8}},
     ["targetThresholds.cpu", "thresholds.cpu", "thresholds.pods"]),
])
def test_fractions_are_found_in_arguments(plugin: str, args: object, found: list[str]) -> None:
    assert [each.split("`")[1] for each in told("", of(plugin, args))] == found


@pytest.mark.parametrize(("plugin", "args"), [
    ("LoadAwareScheduling", {"usageThresholds": {"cpu": 65}, "resourceWeights": {"cpu": 1}}),
    ("LowNodeLoad", {"lowThresholds": {"cpu": 1}, "highThresholds": {"cpu": 70}}),
    ("LowNodeLoad", {"lowThresholds": {"cpu": 0}, "highThresholds": {"cpu": 70}}),
    ("LowNodeLoad", {"useDeviationThresholds": True, "lowThresholds": {"cpu": 0.5}, "highThresholds": {"cpu": 1}}),
    ("LowNodeLoad", {"nodePools": [{"name": "a", "useDeviationThresholds": True, "highThresholds": {"cpu": 1}}]}),
    ("LowNodeLoad", {"resourceWeights": {"cpu": 1}}),
    ("HighNodeUtilization", {"thresholds": {"cpu": 1}}),
    ("MigrationController", {"maxMigratingPerWorkload": 1}),
    ("Unknown", {"thresholds": {"cpu": 0.5}}),
])
def test_a_1_that_may_be_meant_is_not_found(plugin: str, args: object) -> None:
    assert told("", of(plugin, args)) == []


@pytest.mark.parametrize(("ends", "found"), [((0, 1), 1), ((0, 100), 0), ((0, 1, 100), 0), ((1,), 0)])
def test_a_shape_of_scores_that_ends_at_a_utilization_of_1_is_found(ends: tuple[int, ...], found: int) -> None:
    shape = [{"utilization": each, "score": each} for each in ends]
    args = {"scoringStrategy": {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": shape}}}
    assert len(told("", of("NodeResourcesFit", args, "KubeSchedulerConfiguration"))) == found


@pytest.mark.parametrize(("key", "value", "found"), [
    ("resource-threshold-config", {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 1}}, 1),
    ("resource-threshold-config", {"nodeStrategies": [{"name": "a", "memoryEvictThresholdPercent": 1}]}, 1),
    ("resource-threshold-config", {"clusterStrategy": {"memoryEvictThresholdPercent": 70}}, 0),
    ("resource-threshold-config", {"clusterStrategy": {"cpuSuppressMinPercent": 1}}, 0),
    ("colocation-config", {"cpuReclaimThresholdPercent": 1, "resourceDiffThreshold": 0.1}, 1),
    ("cpu-burst-config", {"clusterStrategy": {"sharePoolThresholdPercent": 1}}, 1),
    ("resource-qos-config", {"clusterStrategy": {"beClass": {"resctrlQOS": {"mbaPercent": 1}}}}, 1),
])
def test_settings_of_1_percent_are_found_in_slo_controller_config(key: str, value: object, found: int) -> None:
    assert len(told("", slo(key, value))) == found
