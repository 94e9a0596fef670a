"""Levelled writes: values grow on the way down and shrink on the way up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.agent.cpuset import parse_cpuset
from koordpolicy.engine.agent.resource_executor.levels import INFINITY, is_same, levelled_writes, merge, parse_amount

ROOT, POD, MAIN = "besteffort", "besteffort/pod1", "besteffort/pod1/main"


@pytest.mark.parametrize(("text", "amount"), [
    ("max", INFINITY), ("-1", INFINITY), ("max 100000", INFINITY), ("10000 100000", 10000), ("0\n", 0),
    ("9223372036854775807", INFINITY), ("9223372036854771712", INFINITY),
])
def test_amounts_know_every_spelling_of_no_limit(text: str, amount: float) -> None:
    assert parse_amount(text) == amount


@pytest.mark.parametrize("text", ["", "invalid content", "1.5"])
def test_other_texts_are_no_amounts(text: str) -> None:
    with pytest.raises(ValueError, match="neither a whole number nor `max`"):
        parse_amount(text)


@pytest.mark.parametrize(("file", "old", "new", "merged"), [
    ("cpu.cfs_quota_us", "10000", "-1", "-1"),
    ("cpu.cfs_quota_us", "-1", "10000", None),
    ("cpu.max", "10000 100000", "-1", "-1"),
    ("memory.min", "1048576", "2097152", "2097152"),
    ("memory.high", "max", "4096", None),
    ("cpuset.cpus", "0-1", "1-2", "0-2"),
    ("cpuset.cpus", "0-3", "1-2", None),
])
def test_a_value_is_merged_if_the_old_one_does_not_include_it(
    file: str, old: str, new: str, merged: str | None,
) -> None:
    assert merge(f"{POD}/{file}", old, new) == merged


def test_a_smaller_value_is_written_to_children_first_and_a_larger_one_to_parents_first() -> None:
    files = {f"{each}/{name}": "4096" for each in (ROOT, POD, MAIN) for name in ("memory.min", "memory.low")}
    levels = [[(f"{each}/memory.min", "8192"), (f"{each}/memory.low", "0")] for each in (ROOT, POD, MAIN)]
    assert levelled_writes(levels, files) == (
        (f"{ROOT}/memory.min", "8192"), (f"{POD}/memory.min", "8192"), (f"{MAIN}/memory.min", "8192"),
        (f"{MAIN}/memory.low", "0"), (f"{POD}/memory.low", "0"), (f"{ROOT}/memory.low", "0"),
    )


def test_cpus_are_widened_from_the_top_and_narrowed_from_the_bottom() -> None:
    files = {f"{ROOT}/cpuset.cpus": "0-1", f"{POD}/cpuset.cpus": "0-1"}
    levels = [[(f"{ROOT}/cpuset.cpus", "2-3")], [(f"{POD}/cpuset.cpus", "2-3")]]
    assert levelled_writes(levels, files) == (
        (f"{ROOT}/cpuset.cpus", "0-3"), (f"{POD}/cpuset.cpus", "0-3"),
        (f"{POD}/cpuset.cpus", "2-3"), (f"{ROOT}/cpuset.cpus", "2-3"),
    )


def test_other_files_are_written_once_on_the_way_down() -> None:
    levels = [[(f"{ROOT}/memory.priority", "1")], [(f"{POD}/memory.priority", "2"), (f"{POD}/memory.absent", "2")]]
    files = {f"{ROOT}/memory.priority": "0", f"{POD}/memory.priority": "2"}
    assert levelled_writes(levels, files) == ((f"{ROOT}/memory.priority", "1"),)


def test_a_malformed_file_costs_only_itself() -> None:
    files = {f"{ROOT}/memory.min": "what", f"{POD}/memory.min": "0"}
    assert levelled_writes([[(f"{ROOT}/memory.min", "1")], [(f"{POD}/memory.min", "4096")]], files) == (
        (f"{POD}/memory.min", "4096"),
    )


@pytest.mark.parametrize(("file", "old", "new", "same"), [
    ("memory.high", "max", "9223372036854775807", True),
    ("memory.high", "8192", "9000", True),
    ("memory.high", "9000", "8192", False),
    ("cpuset.cpus", "0-2", "2,0,1", True),
    ("cpu.shares", "998", "1000", False),
    ("memory.priority", "x", "0", False),
])
def test_a_value_is_the_same_as_the_kernel_prints_it(file: str, old: str, new: str, same: bool) -> None:
    assert is_same(file, old, new) is same


def test_shares_are_compared_as_weights_in_control_groups_v2() -> None:
    assert is_same("cpu.shares", "998", "1000", version=2)
    assert not is_same("cpu.shares", "998", "2000", version=2)


_CPUS = st.frozensets(st.integers(0, 5), min_size=1)


@given(old=st.tuples(_CPUS, _CPUS), new=st.tuples(_CPUS, _CPUS))
def test_no_write_lets_a_child_exceed_its_parent(
    old: tuple[frozenset[int], frozenset[int]], new: tuple[frozenset[int], frozenset[int]],
) -> None:
    def text(cpus: frozenset[int]) -> str:
        return ",".join(map(str, sorted(cpus)))

    root, pod = f"{ROOT}/cpuset.cpus", f"{POD}/cpuset.cpus"
    files = {root: text(old[0] | old[1]), pod: text(old[1])}
    for file, value in levelled_writes([[(root, text(new[0] | new[1]))], [(pod, text(new[1]))]], files):
        files[file] = value
        assert parse_cpuset(files[pod]) <= parse_cpuset(files[root])
    assert {name: parse_cpuset(value) for name, value in files.items()} == {root: new[0] | new[1], pod: new[1]}


@given(old=st.tuples(st.integers(0, 9), st.integers(0, 9)), new=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_no_write_lets_a_childs_protection_exceed_its_parents(old: tuple[int, int], new: tuple[int, int]) -> None:
    root, pod = f"{ROOT}/memory.min", f"{POD}/memory.min"
    files = {root: str(max(old) * 4096), pod: str(min(old) * 4096)}
    for file, value in levelled_writes([[(root, str(max(new) * 4096))], [(pod, str(min(new) * 4096))]], files):
        files[file] = value
        assert int(files[pod]) <= int(files[root])
    assert files == {root: str(max(new) * 4096), pod: str(min(new) * 4096)}
