"""Values are checked, converted and compared as the kernel does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.agent.resource_executor import values
from koordpolicy.engine.agent.resource_executor.table import FILES, FileAccess, logical_name, setting


@given(st.integers(2, 262_144))
def test_a_weight_keeps_the_proportion_of_shares(shares: int) -> None:
    weight = values.shares_to_weight(shares)
    assert 1 <= weight <= 10_000
    assert values.shares_to_weight(values.weight_to_shares(weight)) in (weight - 1, weight)
    assert abs(values.weight_to_shares(weight) - shares) <= 27


@pytest.mark.parametrize(("text", "number"), [
    ("0", 0), ("-1\n", -1), (" 7 ", 7), ("9223372036854775807", 2**63 - 1),
])
def test_whole_numbers_are_decimal(text: str, number: int) -> None:
    assert values.whole_number(text) == number


@pytest.mark.parametrize("text", ["", "1.5", "0x1", "+1", "1_000", "٣", "--1", "max", "1" * 5000])
def test_other_texts_are_no_whole_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        values.whole_number(text)


@given(st.text())
def test_a_check_of_any_text_passes_or_raises_value_error(text: str) -> None:
    for file in FILES.values():
        try:
            file.check(text)
        except ValueError:
            continue


@given(st.text(), st.text())
def test_texts_are_compared_whatever_they_are(wanted: str, now: str) -> None:
    for file in FILES.values():
        for versioned in (file.v1, file.v2):
            if versioned is not None:
                assert versioned.same(wanted, now) in (True, False)


@pytest.mark.parametrize(("wanted", "now", "same"), [
    ("-1", "9223372036854771712", True), ("max", "-1", True), ("8192", "8191", False), ("8193", "8192", True),
    ("max", "8192", False), ("x", "x", True),
])
def test_limits_of_memory_are_compared_in_pages(wanted: str, now: str, same: bool) -> None:
    assert values.same_limit(wanted, now) is same


@pytest.mark.parametrize(("wanted", "now", "same"), [
    ("8:0 enable=1 ctrl=user rpct=95 rlat=3000", "8:0 enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=95.00", True),
    ("8:0 enable=1 rpct=95", "8:0 enable=1 rpct=95.50", False),
    ("8:0 100", "default 100\n8:0 100", True), ("8:0 100", "8:01 100", False), ("8:0 0", "", True),
    ("8:0 5", "", False),
])
def test_settings_of_disks_are_compared_by_key(wanted: str, now: str, same: bool) -> None:
    assert values.has_line(wanted, now) is same


@pytest.mark.parametrize(("wanted", "now", "same"), [
    ("L3:0=0f", "    L3:0=f;1=ff\nMB:0=100", True), ("L3:0=f\nMB:0=10", "L3:0=f\nMB:0=100", False),
    ("L3:2=f", "L3:0=f", False), ("MB:0=010", "MB:0=10", True), ("L3:0=x", "L3:0=f", False),
])
def test_schemata_are_compared_by_cache(wanted: str, now: str, same: bool) -> None:
    assert values.has_schemata(wanted, now) is same


def test_settings_of_the_kernel_can_be_written_and_all_other_files_only_read() -> None:
    access = [setting(name).access for name in (
        "proc/sys/vm/min_free_kbytes", "sys/kernel/debug/sched_features", "proc/1/oom_score_adj", "sys/power/state",
    )]
    assert access == [FileAccess.WRITE, FileAccess.LINES, FileAccess.READ, FileAccess.READ]


def test_every_name_of_version_2_leads_to_its_row() -> None:
    written = {file.v2.name: name for name, file in FILES.items()
               if file.v2 is not None and file.v2.name not in FILES and file.v2.name != "io.max"
               and name != "cpu.cfs_period_us"}
    assert {name: logical_name(name) for name in written} == written
