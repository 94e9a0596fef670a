"""Adjustments are written in order, byte for byte, and only where a file differs."""

from __future__ import annotations

import errno
import logging
import os
import shutil

import pytest

from koordpolicy.engine.agent.resource_executor import executor as module
from koordpolicy.engine.agent.resource_executor import restore
from koordpolicy.engine.agent.resource_executor.breaker import FIRST_PAUSE
from koordpolicy.engine.agent.resource_executor.results import FileWriteStatus
from koordpolicy.engine.framework.qos import Adjustment

from .conftest import MAIN, POD, SECOND, TIER, Machine


@pytest.mark.parametrize(("name", "text", "v1_text", "v2_text"), [
    ("cpu.cfs_quota_us", "50000", "50000", "50000"),
    ("cpu.cfs_period_us", "50000", "50000", "max 50000"),
    ("cpu.cfs_burst_us", "20000", "20000", "20000"),
    ("cpu.shares", "2", "2", "1"),
    ("cpu.shares", "262144", "262144", "10000"),
    ("memory.limit_in_bytes", "1048576", "1048576", "1048576"),
    ("cpuset.cpus", "0-1", "0-1", "0-1"),
    ("tasks", "13", "11\n12\n13\n", "11\n12\n13\n"),
])
def test_a_value_is_written_in_the_files_own_text(
    machine: Machine, name: str, text: str, v1_text: str, v2_text: str,
) -> None:
    before = machine.everything()
    assert machine.statuses((f"{MAIN}/{name}", text)) == ["written"]
    after = machine.everything()
    expected = {1: v1_text, 2: v2_text}[machine.version]
    assert {path: after[path] for path in after if after[path] != before[path]} == {
        str(machine.path(f"{MAIN}/{name}").relative_to(machine.root)): expected.encode(),
    }


@pytest.mark.parametrize(("name", "text"), [
    ("cpu.cfs_quota_us", "-1"), ("cpu.cfs_period_us", "100000"), ("cpu.shares", "1024"), ("cpu.cfs_burst_us", "00"),
    ("memory.limit_in_bytes", "-1"), ("memory.limit_in_bytes", "9223372036854775807"), ("tasks", "12"),
])
def test_a_value_that_the_file_has_is_not_written(machine: Machine, name: str, text: str) -> None:
    before = machine.path(f"{MAIN}/{name}").stat().st_mtime_ns
    assert machine.statuses((f"{MAIN}/{name}", text)) == ["unchanged"]
    assert machine.path(f"{MAIN}/{name}").stat().st_mtime_ns == before


def test_removing_a_limit_of_version_2_writes_max_once(v2: Machine) -> None:
    files = (f"{TIER}/cpu.cfs_quota_us", f"{TIER}/memory.limit_in_bytes")
    assert v2.statuses(*((file, "8192") for file in files)) == ["written"] * 2
    assert v2.statuses(*((file, "-1") for file in files)) == ["written"] * 2
    assert [v2.text(file) for file in files] == ["max", "max"]
    v2.path(files[0]).write_text("max 100000\n")  # as the kernel shows it
    assert v2.statuses(*((file, "-1") for file in files), recovers=True) == ["unchanged"] * 2


def test_amounts_of_memory_are_compared_in_pages(machine: Machine) -> None:
    file = f"{TIER}/memory.limit_in_bytes"
    machine.write((file, "8192"))
    assert machine.statuses((file, "9000"), recovers=True) == ["unchanged"]
    assert machine.statuses((file, "12288"), recovers=True) == ["written"]


def test_an_empty_cpu_set_is_written_as_a_line_break(v2: Machine) -> None:
    v2.write((f"{TIER}/cpuset.cpus", "0-1"))
    assert v2.statuses((f"{TIER}/cpuset.cpus", "")) == ["written"]
    assert v2.path(f"{TIER}/cpuset.cpus").read_bytes() == b"\n"


@pytest.mark.parametrize(("wanted", "text", "journaled"), [("0-3", "\n", 0), ("0-2", "0-2", 1)])
def test_a_recovered_cpu_set_of_version_2_is_empty_again_if_it_inherits_what_is_wanted(
    v2: Machine, wanted: str, text: str, journaled: int,
) -> None:
    file = f"{TIER}/cpuset.cpus"
    assert v2.statuses((file, "0")) == ["written"]
    assert v2.statuses((file, wanted), recovers=True) == ["written"]
    assert (v2.text(file), len(v2.executor.journaled)) == (text, journaled)


@pytest.mark.parametrize(("name", "text", "v1_text", "v2_text"), [
    ("cpu.max", "50000 100000", "50000", "50000"), ("cpu.max", "20000", "20000", "20000"),
    ("cpu.weight", "10000", "262144", "10000"), ("memory.max", "8192", "8192", "8192"),
    ("cpu.max.burst", "5", "5", "5"),
])
def test_a_file_may_have_its_name_of_version_2_with_the_units_of_version_2(
    machine: Machine, name: str, text: str, v1_text: str, v2_text: str,
) -> None:
    assert machine.statuses((f"{TIER}/{name}", text)) == ["written"]
    assert machine.text(f"{TIER}/{name}") == {1: v1_text, 2: v2_text}[machine.version]
    assert machine.statuses((f"{TIER}/{name}", text), recovers=True) == ["unchanged"]


def test_writes_are_made_in_their_order(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str]] = []
    write_file = module.write_file

    def write(path: str, text: str, access: object) -> None:
        made.append((path.rpartition("kubepods/")[2], text))
        write_file(path, text, access)

    monkeypatch.setattr(module, "write_file", write)
    if machine.version == 2:
        for each in (TIER, POD, MAIN):
            machine.path(f"{each}/cpuset.cpus").write_text("0-3\n")
    every = [f"{each}/cpuset.cpus" for each in (TIER, POD, MAIN)]
    results = machine.write(*((file, "0-5") for file in every), *((file, "4-5") for file in reversed(every)))
    assert made == [*((file, "0-5") for file in every), *((file, "4-5") for file in reversed(every))]
    assert [each.before for each in results] == ["0-3"] * 3 + ["0-5"] * 3


def test_a_file_that_is_changed_and_changed_back_in_one_round_is_written_twice(machine: Machine) -> None:
    file = f"{TIER}/cpu.cfs_burst_us"
    assert machine.statuses((file, "1"), (file, "0"), (file, "0")) == ["written", "written", "unchanged"]
    assert machine.text(file) == "0"
    assert [each.status.value for each in machine.executor.restore(0)] == ["unchanged"]


@pytest.mark.parametrize(("file", "text", "error"), [
    (f"{TIER}/cpu.shares", "1", "must be from 2 to 262144, not 1"),
    (f"{TIER}/cpu.shares", "many", "`many` is not a whole number"),
    (f"{TIER}/cpu.cfs_burst_us", "100000001", "must be from 0 to 100000000, not 100000001"),
    (f"{TIER}/cpuset.cpus", "3-1", "`3-1` is neither a CPU nor a range of CPUs from 0 to 65535"),
    (f"{TIER}/memory.limit_in_bytes", "-2", "must be at least -1, not -2"),
    (f"{TIER}/cpu.stat", "1", "the file is only read"),
    (f"{TIER}/cpu.max", "5 50000", "`5 50000`: only the period 100000 can be written with the quota"),
    ("proc/stat", "1", "the file is only read"),
    ("proc/sys/vm/min_free_kbytes", "a\nb", "`a\nb` is not a whole number"),
    ("resctrl/BE/schemata", "L3", "`L3` is not a line of schemata (`L3:0=ff;1=ff`)"),
])
def test_a_value_outside_of_the_files_range_is_not_written(
    machine: Machine, file: str, text: str, error: str,
) -> None:
    before = machine.everything()
    result, = machine.write((file, text))
    assert (result.status, result.error, machine.everything()) == (FileWriteStatus.INVALID, error, before)


def test_files_that_the_machine_lacks_are_no_failures(v1: Machine, caplog: pytest.LogCaptureFixture) -> None:
    files = (f"{TIER}/memory.pagecache_limit.enable", f"{TIER}/memory.min", f"{POD}/gone/cpu.shares", "moon/cpu.shares")
    assert v1.statuses(*((file, "1" if "enable" in file else "5") for file in files)) == [
        "unsupported", "unsupported", "gone", "unsupported",
    ]
    assert caplog.records == []


def test_a_directory_that_vanishes_between_reading_and_writing_is_no_failure(
    machine: Machine, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def vanish(path: str, text: str, access: object) -> None:
        shutil.rmtree(machine.path(f"{POD}/cpu.shares").parent, ignore_errors=True)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(module, "write_file", vanish)
    file = f"{MAIN}/cpu.shares"
    assert machine.statuses((file, "5"), (file, "6")) == ["gone", "gone"]
    assert machine.executor.breakers.opened == 0


def test_a_value_is_not_looked_at_again_within_a_minute(machine: Machine) -> None:
    file = f"{TIER}/cpu.cfs_burst_us"
    assert machine.statuses((file, "5")) == ["written"]
    machine.path(file).write_text("6\n")
    machine.now = 60 * SECOND
    assert machine.statuses((file, "5")) == ["cached"]
    assert machine.statuses((file, "5"), recovers=True) == ["written"]
    machine.path(file).write_text("6\n")
    machine.now += 60 * SECOND + 1
    assert machine.statuses((file, "5")) == ["written"]


def test_quota_and_period_of_version_2_share_a_file_and_not_their_values(v2: Machine) -> None:
    quota, period = f"{TIER}/cpu.cfs_quota_us", f"{TIER}/cpu.cfs_period_us"
    assert v2.statuses((quota, "50000"), (period, "50000")) == ["written", "written"]
    assert v2.text(quota) == "50000 50000"
    assert v2.executor.tree.view()[period] == "50000"
    assert [each.status.value for each in v2.restarted().start(0)] == ["restored"]
    assert v2.text(quota) == "max 100000"


def test_a_value_that_a_strategy_read_differently_is_looked_at(machine: Machine) -> None:
    file = f"{TIER}/cpu.cfs_burst_us"
    machine.write((file, "5"))
    assert machine.executor.tree.view()[file] == "5"
    assert machine.statuses((file, "5")) == ["cached"]
    machine.path(file).write_text("6\n")
    assert machine.executor.tree.view()[file] == "6"
    assert machine.statuses((file, "5")) == ["written"]


def fails(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    attempts: list[str] = []

    def write(path: str, text: str, access: object) -> None:
        attempts.append(text)
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(module, "write_file", write)
    return attempts


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBUSY, errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_refused_value_is_logged_once_and_stops_no_other_write(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int,
) -> None:
    fails(monkeypatch, number)
    caplog.set_level(logging.WARNING)
    writes = [(f"{each}/cpu.cfs_quota_us", "5000") for each in (TIER, POD, MAIN)]
    results = machine.write(*writes)
    assert [(each.status.value, each.error) for each in results] == [("failed", os.strerror(number))] * 3
    assert [each.getMessage() for each in caplog.records] == [
        f"{results[0].path}: the value `5000` was not written: {os.strerror(number)}",
    ]
    machine.now += 600 * SECOND
    machine.write(*writes[:1])
    assert len(caplog.records) == 2


@pytest.mark.parametrize("between", ["nothing", "a write", "a write of the same value"])
def test_a_recovery_that_is_refused_is_tried_again_unless_the_file_was_written_since(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, between: str,
) -> None:
    file = f"{TIER}/cpu.cfs_quota_us"
    before = machine.text(file).split()[0]
    machine.write((file, "5000"))
    with monkeypatch.context() as patch:
        fails(patch, errno.EBUSY)
        assert machine.statuses((file, "-1"), recovers=True) == ["failed"]
    machine.now += 60 * SECOND
    if between != "nothing":
        machine.write((file, "6000" if between == "a write" else "5000"))
    tried = machine.executor.recover_again(machine.now)
    assert ([each.status for each in tried], machine.text(file).split()[0] == before) == (
        ([restore.RestoreStatus.RESTORED], True) if between == "nothing" else ([], False))
    assert machine.executor.recover_again(machine.now + 60 * SECOND) == ()


def test_a_recovery_that_goes_on_failing_is_tried_every_ten_seconds_and_logged_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    file = f"{TIER}/cpu.cfs_quota_us"
    machine.write((file, "5000"))
    fails(monkeypatch, errno.EBUSY)
    machine.write((file, "-1"), recovers=True)
    monkeypatch.setattr(restore, "write_file", refuse)
    caplog.clear()
    machine.now = 60 * SECOND
    found = [machine.executor.recover_again(machine.now + second * SECOND) for second in range(30)]
    assert [second for second, each in enumerate(found) if each] == [0, 10, 20]
    assert (len(caplog.records), machine.text(file).split()[0]) == (1, "5000")


def test_a_file_that_refuses_three_times_is_tried_again_after_a_pause(
    machine: Machine, monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts, write = fails(monkeypatch, errno.EINVAL), (f"{TIER}/cpu.cfs_quota_us", "5000")
    assert [machine.statuses(write)[0] for _ in range(4)] == ["failed"] * 3 + ["suspended"]
    machine.now = FIRST_PAUSE
    assert [machine.statuses(write)[0] for _ in range(2)] == ["failed", "suspended"]
    assert (len(attempts), machine.executor.breakers.opened) == (4, 2)
    machine.now += FIRST_PAUSE
    assert machine.statuses(write) == ["suspended"]  # the pause has doubled
    monkeypatch.undo()
    machine.now += FIRST_PAUSE
    assert machine.statuses(write) == ["written"]
    assert machine.statuses((f"{TIER}/cpu.cfs_quota_us", "6000")) == ["written"]  # it is suspended no more


def test_ids_that_are_refused_do_not_suspend_the_others(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, errno.ESRCH)
    assert machine.statuses(*(("resctrl/BE/tasks", str(number)) for number in range(20, 25))) == ["gone"] * 5
    fails(monkeypatch, errno.EINVAL)
    assert machine.statuses(*(("resctrl/BE/tasks", str(number)) for number in range(20, 25))) == ["failed"] * 5


def test_a_dry_run_says_what_it_would_write_and_writes_nothing(machine: Machine) -> None:
    before, said = machine.everything(), []
    executor = machine.executor = machine.restarted(dry_run=True)
    executor.audit = lambda adjustment, each: said.append((adjustment.reason, each.file, each.before, each.text))
    executor.start(0)
    writes = ((f"{TIER}/cpu.cfs_burst_us", "7"), (f"{TIER}/cpu.shares", "1024"), ("resctrl/LSR/schemata", "L3:0=1"))
    assert machine.statuses(*writes) == ["dry-run", "unchanged", "gone"]
    assert said == [("a test", f"{TIER}/cpu.cfs_burst_us", "0", "7")]
    assert (machine.everything(), executor.restore(0), executor.journaled) == (before, (), frozenset())


def test_hooks_hear_of_each_change_and_each_attempt(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str]] = []
    counted: list[tuple[str, str]] = []
    machine.executor.audit = lambda _, result: said.append((result.file, result.status.value))
    machine.executor.metric = lambda file, status, seconds: counted.append((file, status))
    machine.write((f"{TIER}/cpu.cfs_burst_us", "7"), (f"{TIER}/cpu.shares", "1024"), (f"{POD}/x/cpu.shares", "2"))
    fails(monkeypatch, errno.EINVAL)
    machine.write((f"{TIER}/cpu.cfs_burst_us", "8"))
    assert said == [(f"{TIER}/cpu.cfs_burst_us", "written")]
    assert counted == [("cpu.cfs_burst_us", "written"), ("cpu.cfs_burst_us", "failed")]


def test_only_the_lines_of_schemata_that_differ_are_written(v1: Machine) -> None:
    assert v1.statuses(("resctrl/BE/schemata", "L3:0=FFF;1=0fff\nMB:0=100")) == ["unchanged"]
    assert v1.statuses(("resctrl/BE/schemata", "L3:0=fff;1=fff\nMB:0=30;1=30\n")) == ["written"]
    assert v1.text("resctrl/BE/schemata") == "MB:0=30;1=30\n"


def test_a_resctrl_group_is_made_where_resctrl_is_mounted(v1: Machine) -> None:
    assert v1.statuses(("resctrl/LSR/schemata", "L3:0=f")) == ["unsupported"]  # no kernel fills this directory
    assert (v1.root / "resctrl" / "LSR").is_dir()
    assert [each.status.value for each in v1.executor.restore(0)] == ["restored"]
    assert not (v1.root / "resctrl" / "LSR").exists()
    (v1.root / "resctrl" / "schemata").unlink()
    assert v1.statuses(("resctrl/LSR/schemata", "L3:0=f")) == ["gone"]


@pytest.mark.parametrize(("file", "text", "status"), [
    ("blkio.throttle.read_bps_device", "8:0 1000", "unchanged"),
    ("blkio.throttle.read_bps_device", "8:16 0", "unchanged"),
    ("blkio.throttle.read_bps_device", "8:0 0", "written"),
    ("blkio.throttle.read_bps_device", "8:16 5", "written"),
    ("blkio.throttle.read_bps_device", "8:x 5", "invalid"),
    ("blkio.throttle.read_bps_device", "8:0 5 6", "invalid"),
])
def test_limits_of_disks_are_compared_line_by_line(v1: Machine, file: str, text: str, status: str) -> None:
    assert v1.statuses((f"{TIER}/{file}", text)) == [status]


def test_limits_of_disks_are_fields_of_io_max_on_version_2(v2: Machine) -> None:
    read, write, weight = (f"{TIER}/blkio.{name}" for name in (
        "throttle.read_bps_device", "throttle.write_iops_device", "cost.weight",
    ))
    view = v2.executor.tree.view()
    assert [view[file] for file in (read, write, weight)] == ["8:0 1000", "", "8:0 50"]
    assert v2.statuses((read, "8:0 1000"), (read, "8:16 0"), (write, "8:0 0"), (weight, "8:0 50")) == ["unchanged"] * 4
    path = v2.path(read)
    before = path.read_text()
    assert v2.statuses((read, "8:0 0")) == ["written"]
    assert path.read_text() == "8:0 rbps=max\n"
    path.write_text(before.replace("rbps=1000", "rbps=max"))  # as the kernel shows it
    assert v2.statuses((write, "8:0 7")) == ["written"]
    path.write_text("8:0 rbps=max wbps=max riops=max wiops=7\n")
    written: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore, "write_file", lambda path, text, access: written.append(text))
        assert [each.status.value for each in v2.restarted().start(0)] == ["restored"]
    assert written == ["8:0 rbps=1000", "8:0 wiops=max"]


def test_scheduler_features_are_compared_by_name(v1: Machine) -> None:
    file = "sys/kernel/debug/sched_features"
    assert v1.statuses((file, "GENTLE"), (file, "NO_WAKEUP"), (file, "WAKEUP")) == ["unchanged", "unchanged", "written"]


def test_what_is_not_used_any_more_is_forgotten(machine: Machine) -> None:
    machine.write((f"{MAIN}/cpu.cfs_burst_us", "5"))
    shutil.rmtree(machine.path(f"{POD}/cpu.shares").parent)
    machine.now = 61 * SECOND
    machine.write()
    assert machine.executor.journaled == frozenset()
    machine.now = 200 * SECOND
    machine.write()
    assert machine.executor._cache == {}


def test_only_recoveries_are_applied_before_the_start(machine: Machine) -> None:
    machine.executor = machine.restarted()
    with pytest.raises(RuntimeError, match="not started"):
        machine.write((f"{TIER}/cpu.cfs_burst_us", "5"))
    assert machine.statuses((f"{TIER}/cpu.cfs_burst_us", "5"), recovers=True) == ["written"]
    assert machine.executor.apply((Adjustment("evict", "a/b", "no files", recovers=True),), 0)[0].writes == ()
