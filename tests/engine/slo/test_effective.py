"""The effective spec of a NodeSLO: overlay, defaults and the values of what is off."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.slo import defaults
from koordpolicy.engine.slo.effective import effective_spec, merge_spec, none_if_disabled, overlay, overlay_section
from koordpolicy.engine.slo.settings import CPU_BURST, RESOURCE_QOS, SYSTEM, THRESHOLD, MalformedSetting

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3), max_leaves=8)


def test_zero_and_false_replace_what_was_set():
    found = overlay_section(THRESHOLD, {"enable": True, "cpuSuppressMinPercent": 5},
                            {"enable": False, "cpuSuppressMinPercent": 0})
    assert found == {"enable": False, "cpuSuppressMinPercent": 0}


def test_an_empty_text_that_is_no_pointer_sets_nothing():
    assert overlay_section(CPU_BURST, {"policy": "auto"}, {"policy": ""}) == {"policy": "auto"}


def test_an_empty_text_that_is_a_pointer_replaces_what_was_set():
    old = {"policies": {"cpuPolicy": "groupIdentity"}}
    assert overlay_section(RESOURCE_QOS, old, {"policies": {"cpuPolicy": ""}}) == {"policies": {"cpuPolicy": ""}}


def test_lists_are_replaced_and_empty_ones_set_nothing():
    old = {"cgroupRoot": {"blkioQOS": {"blocks": [{"name": "sda"}]}}}
    new = {"cgroupRoot": {"blkioQOS": {"blocks": [{"name": "sdb"}, {"name": "sdc"}]}}}
    assert overlay_section(RESOURCE_QOS, old, new) == new
    assert overlay_section(RESOURCE_QOS, old, {"cgroupRoot": {"blkioQOS": {"blocks": []}}}) == old


def test_maps_are_merged_by_key():
    found = overlay_section(SYSTEM, {"schedFeatures": {"A": True, "B": True}, "totalNetworkBandwidth": "5G"},
                            {"schedFeatures": {"B": False}, "totalNetworkBandwidth": 10})
    assert found == {"schedFeatures": {"A": True, "B": False}, "totalNetworkBandwidth": "10"}


def test_a_system_strategy_that_does_not_mention_the_bandwidth_resets_it():
    old = {"totalNetworkBandwidth": "10G", "watermarkScaleFactor": 50}
    assert overlay_section(SYSTEM, old, {"watermarkScaleFactor": 60}) == {
        "totalNetworkBandwidth": "0", "watermarkScaleFactor": 60}
    assert overlay_section(SYSTEM, old, None) == old


def test_names_may_differ_in_case_and_unknown_ones_are_left_out():
    assert overlay_section(THRESHOLD, {}, {"Enable": True, "cpuSuppress": 1}) == {"enable": True}


@pytest.mark.parametrize(("received", "message"), [
    ({"resourceUsedThresholdWithBE": {"enable": "yes"}},
     "`resourceUsedThresholdWithBE.enable` must be true or false, not a string"),
    ({"resourceQOSStrategy": {"beClass": {"cpuQOS": {"groupIdentity": 1.5}}}},
     "`resourceQOSStrategy.beClass.cpuQOS.groupIdentity` must be a whole number, not a number"),
    ({"cpuBurstStrategy": []}, "`cpuBurstStrategy` must be an object, not a list"),
    ({"resourceQOSStrategy": {"beClass": {"blkioQOS": {"blocks": [{}, 1]}}}},
     "`resourceQOSStrategy.beClass.blkioQOS.blocks[1]` must be an object, not a number"),
])
def test_a_malformed_setting_is_named_with_its_path(received: dict[str, Any], message: str):
    with pytest.raises(MalformedSetting) as caught:
        effective_spec(received)
    assert str(caught.value) == message


def test_missing_sections_are_the_defaults_with_the_values_of_what_is_off():
    expected = defaults.node_slo_spec()
    expected["resourceQOSStrategy"] = none_if_disabled(expected["resourceQOSStrategy"])
    assert effective_spec({}) == expected


def test_an_enabled_part_keeps_its_values_and_a_disabled_one_loses_them():
    received = {"resourceQOSStrategy": {"beClass": {
        "cpuQOS": {"enable": True, "groupIdentity": 1}, "memoryQOS": {"enable": False, "minLimitPercent": 40}}}}
    found = effective_spec(received)
    assert found is not None
    be = found["resourceQOSStrategy"]["beClass"]
    assert be["cpuQOS"] == {"enable": True, "groupIdentity": 1, "schedIdle": 0, "coreExpeller": False}
    assert be["memoryQOS"] == defaults.memory_qos("")


def test_the_system_class_keeps_values_that_are_not_enabled():
    received = {"resourceQOSStrategy": {"systemClass": {"cpuQOS": {"enable": False, "groupIdentity": 2}}}}
    found = effective_spec(received)
    assert found is not None
    assert found["resourceQOSStrategy"]["systemClass"]["cpuQOS"]["groupIdentity"] == 2


def test_nothing_of_the_previous_spec_stays():
    first = effective_spec({"hostApplications": [{"name": "nginx"}], "extensions": {"a": 1},
                            "resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": 10}})
    assert effective_spec({}, first) == effective_spec({})


def test_without_an_object_the_previous_spec_stays():
    first = effective_spec({"extensions": {"a": 1}})
    assert (effective_spec(None, first), effective_spec(None), merge_spec(None, {})) == (first, None, None)


def test_extensions_and_host_applications_are_taken():
    found = effective_spec({"extensions": {"own": {"x": 1}}, "hostApplications": [{"name": "nginx", "qos": "LS"}]})
    assert found is not None
    assert (found["extensions"], found["hostApplications"]) == ({"own": {"x": 1}}, [{"name": "nginx", "qos": "LS"}])


@given(JSON, JSON)
def test_an_overlay_changes_neither_of_its_inputs(old: Any, new: Any):
    before = copy.deepcopy((old, new))
    overlay(old, new)
    assert (old, new) == before


@given(JSON, JSON)
def test_an_overlay_twice_is_the_same_as_once(old: Any, new: Any):
    once = overlay(old, new)
    assert overlay(once, new) == once
