"""Validation of slo-controller-config."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.kubernetes import types
from koordpolicy.engine.kubernetes.selectors import matches_labels
from koordpolicy.engine.slo import defaults
from koordpolicy.engine.slo.config_map import CHECKED_KEYS
from koordpolicy.engine.slo.settings import Setting, duration_nanoseconds, duration_text
from koordpolicy.engine.slo.validation import common_labels, value_faults

NAMES = st.sampled_from(["a", "b"])
TEXTS = st.lists(st.sampled_from(["x", "y", "any"]), min_size=1, max_size=2)
EXPRESSIONS = st.one_of(
    st.fixed_dictionaries({"key": NAMES, "operator": st.sampled_from(["In", "NotIn"]), "values": TEXTS}),
    st.fixed_dictionaries({"key": NAMES, "operator": st.sampled_from(["Exists", "DoesNotExist"])}))
SELECTORS = st.fixed_dictionaries({
    "matchLabels": st.dictionaries(NAMES, st.sampled_from(["x", "y"]), max_size=1),
    "matchExpressions": st.lists(EXPRESSIONS, max_size=3)})
LABELS = st.dictionaries(NAMES, st.sampled_from(["x", "y", "any", "z"]))


def faults(key: str, value: dict[str, Any]) -> list[str]:
    return [str(fault) for fault in value_faults(CHECKED_KEYS[key], value)]


@pytest.mark.parametrize(("key", "strategy", "message"), [
    ("resource-threshold-config", {"memoryEvictLowerPercent": 75},
     ("`clusterStrategy.memoryEvictLowerPercent` is 75: `memoryEvictLowerPercent` (75) must be below "
     "`memoryEvictThresholdPercent` (70)")),
    ("resource-threshold-config", {"allocatableEvictPriorityThreshold": 8000},
     "`clusterStrategy.allocatableEvictPriorityThreshold` is 8000: it must be 7999 or less"),
    ("resource-threshold-config", {"cpuEvictTimeWindowSeconds": 0},
     "`clusterStrategy.cpuEvictTimeWindowSeconds` is 0: it must be above 0"),
    ("cpu-burst-config", {"policy": "always"},
     "`clusterStrategy.policy` is `always`: it must be one of none, cpuBurstOnly, cfsQuotaBurstOnly, auto"),
    ("resource-qos-config", {"beClass": {"resctrlQOS": {"catRangeStartPercent": 50, "catRangeEndPercent": 50}}},
     ("`clusterStrategy.beClass.resctrlQOS.catRangeStartPercent` is 50: `catRangeStartPercent` (50) must be below "
     "`catRangeEndPercent` (50)")),
    ("resource-qos-config", {"lsClass": {"memoryQOS": {"wmarkMinAdj": -26}}},
     "`clusterStrategy.lsClass.memoryQOS.wmarkMinAdj` is -26: it must be -25 or more"),
    ("system-config", {"totalNetworkBandwidth": "fast"},
     ("`clusterStrategy.totalNetworkBandwidth` must be a quantity: `fast` is not a quantity: write a number and a "
     "suffix, like `500m` or `1.5Gi`")),
])
def test_a_setting_out_of_its_range_is_named(key: str, strategy: dict[str, Any], message: str):
    assert faults(key, {"clusterStrategy": strategy}) == [message]


def test_a_pair_is_judged_after_merging_where_one_of_it_is_set():
    assert faults("resource-threshold-config", {
        "clusterStrategy": {"memoryEvictThresholdPercent": 60, "memoryEvictLowerPercent": 50},
        "nodeStrategies": [{"nodeSelector": {"matchLabels": {"a": "b"}}, "memoryEvictThresholdPercent": 40}],
    }) == [("`nodeStrategies[0].memoryEvictThresholdPercent` is 40: `memoryEvictLowerPercent` (50) must be below "
           "`memoryEvictThresholdPercent` (40)")]


@pytest.mark.parametrize("key", ["resource-threshold-config", "cpu-burst-config", "system-config"])
def test_the_defaults_are_valid(key: str):
    assert faults(key, {"clusterStrategy": CHECKED_KEYS[key].default()}) == []


def test_the_defaults_of_qos_and_colocation_are_valid():
    assert faults("resource-qos-config", {"clusterStrategy": defaults.resource_qos()}) == []
    assert faults("colocation-config", defaults.colocation()) == []


@given(SELECTORS, SELECTORS, LABELS)
def test_selectors_overlap_exactly_if_there_are_common_labels(first: Any, second: Any, labels: dict[str, str]):
    found = common_labels(first, second)
    if found is not None:
        assert matches_labels(first, found)
        assert matches_labels(second, found)
    elif matches_labels(first, labels):
        assert not matches_labels(second, labels)


def test_the_table_has_the_settings_of_the_declared_types():
    declared = types.load()

    def names(setting: Setting, of: str) -> None:
        assert set(setting.fields) == set(declared[of].fields), of
        for name, field in setting.fields.items():
            each, below = field, declared[of].fields[name].type
            while below.name == "list":
                assert each.item is not None
                each, below = each.item, below.parameters[0]
            if each.fields:
                names(each, below.name)

    for key, of in {
        "resource-threshold-config": "ResourceThresholdStrategy", "cpu-burst-config": "CPUBurstStrategy",
        "resource-qos-config": "ResourceQOSStrategy", "system-config": "SystemStrategy",
    }.items():
        names(CHECKED_KEYS[key].declared, f"koordinator.{of}")


@given(st.integers(-(2**62), 2**62))
def test_a_duration_survives_its_text(nanoseconds: int):
    assert duration_nanoseconds(duration_text(nanoseconds)) == nanoseconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "1.2.3s", "5x", "-", "٣s", "1h-5m"])
def test_what_is_no_duration_is_refused(text: str):
    with pytest.raises(ValueError, match="^" + re.escape(text) + "$"):
        duration_nanoseconds(text)
