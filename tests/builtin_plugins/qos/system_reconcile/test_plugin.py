from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.qos.system_reconcile.plugin import SystemConfig
from tests.builtin_plugins.qos.machine import Machine

FREE = "proc/sys/vm/min_free_kbytes"
SCALE = "proc/sys/vm/watermark_scale_factor"
REAP = "sys/kernel/mm/memcg_reaper/reap_background"
FEATURES = "sys/kernel/debug/sched_features"
FILES = {
    FREE: "20000", SCALE: "10", REAP: "0", "proc/sys/kernel/sched_group_identity_enabled": "0",
    "proc/sys/kernel/sched_idle_saver_wmark": "5", "sys/kernel/mm/pagecache_limit/enabled": "0",
    FEATURES: "GENTLE_FAIR_SLEEPERS NO_START_DEBIT",
}
ALL = {
    "minFreeKbytesFactor": 200, "watermarkScaleFactor": 100, "memcgReapBackGround": 1, "schedGroupIdentityEnabled": 1,
    "schedIdleSaverWmark": -3, "pageCacheLimitEnabled": 1,
    "schedFeatures": {"GENTLE_FAIR_SLEEPERS": False, "START_DEBIT": True, "NEW_ONE": True},
}


def settings(**values: Any) -> dict[str, Any]:
    return {"systemStrategy": values}


def test_every_setting_is_written_once() -> None:
    machine = Machine(settings(**ALL), FILES)
    plugin = SystemConfig({})
    writes = [write for _, _, each in machine.after(plugin.adjust) for write in each]
    assert writes == [
        (FREE, "20971"), (SCALE, "100"), (REAP, "1"), ("proc/sys/kernel/sched_group_identity_enabled", "1"),
        ("proc/sys/kernel/sched_idle_saver_wmark", "-3"), ("sys/kernel/mm/pagecache_limit/enabled", "1"),
        (FEATURES, "NO_GENTLE_FAIR_SLEEPERS\n"), (FEATURES, "START_DEBIT\n"), (FEATURES, "NEW_ONE\n"),
    ]
    assert machine.after(plugin.adjust) == []


def test_a_field_that_is_not_set_any_more_gets_its_original_text_back() -> None:
    machine = Machine(settings(**ALL), FILES)
    plugin = SystemConfig({})
    machine.after(plugin.adjust)
    machine.use(settings(watermarkScaleFactor=100, schedFeatures={"START_DEBIT": True}))
    found = machine.after(plugin.adjust)
    assert all(recovers for _, recovers, _ in found)
    assert machine.files == {**FILES, SCALE: "100", FEATURES: "GENTLE_FAIR_SLEEPERS START_DEBIT NEW_ONE"}


@pytest.mark.parametrize("end", ["section removed", "strategy removed"])
def test_all_settings_are_restored_when_section_or_strategy_goes(end: str) -> None:
    machine = Machine(settings(**{**ALL, "schedFeatures": {"START_DEBIT": True}}), FILES)
    plugin = SystemConfig({})
    machine.after(plugin.adjust)
    machine.use({})
    machine.after(plugin.adjust if end == "section removed" else plugin.recover)
    assert machine.files == FILES
    assert machine.after(plugin.recover) == []


def test_a_value_out_of_range_changes_nothing_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(settings(watermarkScaleFactor=401, memcgReapBackGround=1, schedFeatures={"x y": True, "A": 1}),
                      FILES)
    plugin = SystemConfig({})
    assert [subject for subject, _, _ in machine.after(plugin.adjust)] == ["memcg_reaper.reap_background"]
    machine.after(plugin.adjust)
    assert [record.getMessage() for record in caplog.records] == [
        "n: vm.watermark_scale_factor: 401 is not in 10 to 400",
        "n: sched_features.x y: must be the name of a feature and true or false, not `x y` and True",
        "n: sched_features.A: must be the name of a feature and true or false, not `A` and 1",
    ]


def test_a_setting_that_the_kernel_lacks_is_left_out() -> None:
    assert Machine(settings(**ALL), {}).after(SystemConfig({}).adjust) == []


def test_without_a_memory_capacity_nothing_is_done() -> None:
    machine = Machine(settings(**ALL), FILES)
    del machine.recording.nodes["n"]["status"]  # type: ignore[attr-defined] # a plain dict
    assert machine.after(SystemConfig({}).adjust) == []


def test_an_explanation_has_value_range_and_present_text() -> None:
    machine = Machine(settings(watermarkScaleFactor=500, memcgReapBackGround=1), FILES)
    assert [each.text for each in SystemConfig({}).explain_round(machine.readings)] == [
        "vm.watermark_scale_factor: 500, out of range 10 to 400; now 10", "memcg_reaper.reap_background: 1; now 0",
    ]


_VALUES = st.fixed_dictionaries({}, optional={
    **{name: st.integers(-5, 500) for name in ALL if name != "schedFeatures"},
    "schedFeatures": st.dictionaries(st.sampled_from(("A", "B", "GENTLE_FAIR_SLEEPERS")), st.booleans()),
})


@given(st.lists(_VALUES, min_size=1, max_size=4), st.dictionaries(st.sampled_from(sorted(FILES)), st.sampled_from(
    ("0", "100", "A NO_B", ""),
)))
def test_whatever_was_configured_recovery_restores_the_files(
    rounds: list[dict[str, Any]], files: dict[str, str],
) -> None:
    features = files.get(FEATURES, "").split()
    rounds = [{**each, "schedFeatures": {name: on for name, on in each.get("schedFeatures", {}).items()
                                         if {name, f"NO_{name}"} & set(features)}} for each in rounds]
    machine, plugin = Machine({}, files), SystemConfig({})
    for values in rounds:
        machine.use(settings(**values))
        machine.after(plugin.adjust)
    machine.after(plugin.recover)
    assert machine.files == files
