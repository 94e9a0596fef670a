"""slo-controller-config: merged configurations, and the spec of a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordpolicy.engine.slo import defaults
from koordpolicy.engine.slo.config_map import SYSTEM_KEY, THRESHOLD_KEY, ConfigFault, SloConfig, merged_config


def data(**values: Any) -> dict[str, str]:
    return {key.replace("_", "-"): each if isinstance(each, str) else json.dumps(each) for key, each in values.items()}


def node(annotations: dict[str, str] | None = None, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "n", "labels": labels, "annotations": annotations or {}}}


POOL_A = {"matchLabels": {"pool": "a"}}


def test_an_entry_is_merged_over_the_cluster_and_keeps_name_and_selector():
    found = merged_config(THRESHOLD_KEY, data(resource_threshold_config={
        "clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 60},
        "nodeStrategies": [{"name": "a", "nodeSelector": POOL_A, "cpuSuppressThresholdPercent": 50}]}))
    cluster = {**defaults.threshold(), "enable": True, "cpuSuppressThresholdPercent": 60}
    assert found == {"clusterStrategy": cluster, "nodeStrategies": [
        {**cluster, "cpuSuppressThresholdPercent": 50, "name": "a", "nodeSelector": POOL_A}]}


def test_an_entry_that_sets_something_resets_the_bandwidth_and_one_that_sets_nothing_does_not():
    found = merged_config(SYSTEM_KEY, data(system_config={
        "clusterStrategy": {"totalNetworkBandwidth": "10G"},
        "nodeStrategies": [{"nodeSelector": POOL_A, "watermarkScaleFactor": 100}, {"nodeSelector": {}}]}))
    assert [each["totalNetworkBandwidth"] for each in found["nodeStrategies"]] == ["0", "10G"]


@pytest.mark.parametrize(("text", "message", "place"), [
    ('{\n  "clusterStrategy": {,}}', ("is not JSON: Expecting property name enclosed in double quotes: line 2 column "
     "23 (char 24)"), (2, 23)),
    ("[]", "must be an object, not a list", (0, 0)),
    ("", "is not JSON: Expecting value: line 1 column 1 (char 0)", (1, 1)),
    ('{"clusterStrategy": {"enable": 1}}', "`clusterStrategy.enable` must be true or false, not a number", (0, 0)),
    ('{"clusterStrategy": {"cpuEvictLowerPercent": NaN}}',
     "is not JSON: `NaN` is not a number: line 1 column 46 (char 45)", (1, 46)),
    ('{"nodeStrategies": [{"nodeSelector": {"matchLabels": {"a": 1}}}]}',
     "`nodeStrategies[0].nodeSelector.matchLabels.a` must be a string, not a number", (0, 0)),
    ("[" * 100_000, None, (0, 0)),
])
def test_a_text_that_cannot_be_used_is_named(text: str, message: str | None, place: tuple[int, int]):
    with pytest.raises(ConfigFault) as caught:
        merged_config(THRESHOLD_KEY, {"resource-threshold-config": text})
    assert message is None or (str(caught.value), (caught.value.line, caught.value.column)) == (message, place)


def test_null_is_an_empty_configuration():
    assert merged_config(THRESHOLD_KEY, {"resource-threshold-config": "null"}) == {
        "clusterStrategy": defaults.threshold()}


def test_a_broken_key_keeps_its_previous_configuration_and_the_others_are_applied():
    first = SloConfig().updated(data(cpu_burst_config={"clusterStrategy": {"policy": "auto"}}))
    second = first.updated(data(cpu_burst_config="{", system_config={"clusterStrategy": {"watermarkScaleFactor": 99}}))
    assert second.configs["cpu-burst-config"] == first.configs["cpu-burst-config"]
    assert second.configs["system-config"]["clusterStrategy"]["watermarkScaleFactor"] == 99
    assert list(second.faults) == ["cpu-burst-config"]
    assert not second.updated({}).faults


def test_the_spec_of_a_node_has_the_defaults_and_an_empty_class_section():
    assert SloConfig().node_spec(node()) == {
        "resourceUsedThresholdWithBE": defaults.threshold(), "resourceQOSStrategy": {},
        "cpuBurstStrategy": defaults.cpu_burst(), "systemStrategy": defaults.system()}


def test_the_first_matching_entry_counts_and_invalid_selectors_are_left_out():
    config = SloConfig().updated(data(cpu_burst_config={"nodeStrategies": [
        {"nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "Like"}]}, "cpuBurstPercent": 1},
        {"cpuBurstPercent": 2}, {"nodeSelector": POOL_A, "cpuBurstPercent": 3},
        {"nodeSelector": {}, "cpuBurstPercent": 4}]}))
    assert [config.node_spec(each)["cpuBurstStrategy"]["cpuBurstPercent"]
            for each in (node(pool="a"), node(pool="b"))] == [3, 4]


def test_the_bandwidth_of_a_node_replaces_the_configured_one_and_a_broken_one_drops_the_section():
    config = SloConfig()
    own = config.node_spec(node({"node.koordinator.sh/network-bandwidth": "25G"}))
    broken = config.node_spec(node({"node.koordinator.sh/network-bandwidth": "fast"}))
    assert (own["systemStrategy"], broken.get("systemStrategy")) == ({"totalNetworkBandwidth": "25G"}, None)


def test_host_applications_are_those_of_the_first_entry_that_matches():
    config = SloConfig().updated(data(host_application_config={
        "applications": [{"name": "nginx"}],
        "nodeConfigs": [{"nodeSelector": POOL_A, "applications": [{"name": "envoy", "qos": "LS"}]}]}))
    assert [config.node_spec(each)["hostApplications"] for each in (node(pool="a"), node())] == [
        [{"name": "envoy", "qos": "LS"}], [{"name": "nginx"}]]
