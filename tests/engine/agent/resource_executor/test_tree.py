"""Files have one logical name and text on both versions of control groups."""

from __future__ import annotations

import shutil

import pytest

from koordpolicy.engine.agent.qos_manager.suppression import directories
from koordpolicy.engine.agent.resource_executor.tree import UnsupportedFileError

from .conftest import MAIN, POD, TIER, Machine


def test_files_have_the_names_and_units_of_version_1(machine: Machine) -> None:
    names = ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.stat", "cpuacct.usage",
             "cpuset.cpus", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "tasks")
    view = machine.executor.tree.view()
    shares = {1: "1024", 2: "998"}[machine.version]  # a weight is coarser than shares
    assert [view[f"{MAIN}/{name}"] for name in names] == [
        shares, "-1", "100000", "0", "nr_periods 4\nnr_throttled 1\nthrottled_time 5000", "7000", "0-3",
        "9223372036854771712", "4096", "total_cache 1", "11\n12",
    ]


def test_a_limit_of_version_2_is_a_number(v2: Machine) -> None:
    for name, text in {"cpu.max": "50000 200000", "memory.max": "8192", "memory.high": "max"}.items():
        (v2.path(f"{TIER}/cpu.shares").parent / name).write_text(f"{text}\n")
    view = v2.executor.tree.view()
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes", "memory.high")
    assert [view[f"{TIER}/{name}"] for name in names] == ["50000", "200000", "8192", "9223372036854775807"]


def test_files_outside_of_control_groups_are_read_as_they_are(machine: Machine) -> None:
    view = machine.executor.tree.view()
    assert [view[name] for name in ("resctrl/BE/tasks", "proc/sys/vm/min_free_kbytes", "proc/stat")] == [
        "7", "67584", "cpu 1",
    ]


@pytest.mark.parametrize("name", [
    "besteffort/moon", "moon/cpu.shares", "applications/x/cpu.shares", "proc/../etc/passwd", "resctrl//x", "sys/",
    "cpu.shares", "", "/", "besteffort/pod../cpu.shares", "root/../cpu.shares", "proc/a\0b",
    "besteffort/net_cls.classid",
])
def test_a_file_that_the_machine_does_not_have_is_not_in_the_mapping(v1: Machine, name: str) -> None:
    view = v1.executor.tree.view()
    assert (name in view, view.get(name)) == (False, None)
    with pytest.raises(UnsupportedFileError):
        v1.executor.tree.place(name)


def test_a_file_that_is_malformed_is_not_in_the_mapping(v2: Machine) -> None:
    for name, text in {"cpu.max": "", "cpu.weight": "heavy", "cpu.stat": "usage_usec x"}.items():
        (v2.path(f"{TIER}/cpu.shares").parent / name).write_bytes(text.encode() + b"\xff\n")
    view = v2.executor.tree.view()
    names = ("cpu.cfs_quota_us", "cpu.shares", "cpuacct.usage", "cpu.cfs_period_us", "cpuset.cpus")
    assert [name for name in names if f"{TIER}/{name}" in view] == ["cpu.cfs_period_us", "cpuset.cpus"]


def test_iteration_finds_the_cpu_sets_of_the_best_effort_tier(machine: Machine) -> None:
    assert dict(machine.executor.tree.view()) == {f"{each}/cpuset.cpus": "0-3" for each in (TIER, POD, MAIN)}
    assert directories(machine.executor.tree.view()) == [TIER, POD, MAIN]
    assert len(machine.executor.tree.view()) == 3


def test_directories_that_come_and_go_are_found_in_the_next_round(machine: Machine) -> None:
    assert len(machine.executor.tree.view()) == 3
    subsystems = ("",) if machine.version == 2 else ("cpuset", "cpu")
    pod = "kubepods/besteffort/podu1"
    for each in subsystems:  # a container that was started again: as many directories as before
        base = machine.root / "cgroup" / each / pod
        (base / "c1").rename(base / "c2")
    assert set(machine.executor.tree.view()) == {f"{each}/cpuset.cpus" for each in (TIER, POD, f"{POD}/c2")}
    for each in subsystems:
        shutil.rmtree(machine.root / "cgroup" / each / pod)
    assert set(machine.executor.tree.view()) == {f"{TIER}/cpuset.cpus"}
    for each in subsystems:
        shutil.rmtree(machine.root / "cgroup" / each / "kubepods")
    assert dict(machine.executor.tree.view()) == {}


def test_directories_of_others_are_not_the_tiers(machine: Machine) -> None:
    subsystem = "" if machine.version == 2 else "cpuset"
    base = machine.root / "cgroup" / subsystem / "kubepods" / "besteffort"
    (base / "other").mkdir()
    (base / "podu1" / "crio-conmon-1").mkdir()
    (base / "podu1" / "empty").mkdir()
    machine.executor.tree.sweep()
    assert len(machine.executor.tree.view()) == 3


def test_a_text_stays_the_same_within_a_round(machine: Machine) -> None:
    tree = machine.executor.tree
    view, name = tree.view(), f"{POD}/cpu.cfs_burst_us"
    before = view[name]
    names = list(view)
    shutil.rmtree(machine.root / "cgroup")
    assert (view[name], [view[each] for each in names], f"{POD}/cpu.stat" in view) == (before, ["0-3"] * 3, False)
    assert name not in tree.view()
    assert view.looked_up == {name: "0", **dict.fromkeys(names, "0-3")}


def test_the_tier_of_a_machine_without_cpu_sets_is_walked_by_cpu(v1: Machine) -> None:
    roots = {name: root for name, root in v1.groups.roots.items() if name != "cpuset"}
    tree = v1.executor.tree
    tree.groups = type(tree.groups)(1, "cgroupfs", roots)
    assert list(tree.walk()) == [TIER, POD, MAIN]


def test_a_file_that_neither_a_pod_nor_the_tiers_root_has_is_looked_for_once_a_minute(machine: Machine) -> None:
    tree, names = machine.executor.tree, [f"{directory}/memory.wmark_ratio" for directory in (POD, MAIN)]
    found = [[name in tree.view() for name in names], sorted(tree.lacking)]
    machine.path(names[1]).write_text("95\n")
    found.append([name in tree.view() for name in names])
    tree.sweep()
    assert [*found, [tree.view().get(name) for name in reversed(names)]] == [
        [False, False], ["memory.wmark_ratio"], [False, False], ["95", None]]


def test_a_directory_that_is_gone_says_nothing_about_the_kernels_files(machine: Machine) -> None:
    tree = machine.executor.tree
    name, beside = f"{MAIN}/cpu.shares", f"{POD}/cpu.shares"
    shutil.rmtree(machine.path(name).parent)
    assert (name in tree.view(), beside in tree.view(), tree.lacking) == (False, True, set())
