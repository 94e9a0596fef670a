"""The journal survives what happens to files, and gives back only what the agent changed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.agent.resource_executor import executor, restore
from koordpolicy.engine.agent.resource_executor import journal as module
from koordpolicy.engine.agent.resource_executor.journal import JournalEntry, JournalError, ResourceJournal, read_boot
from koordpolicy.engine.agent.resource_executor.table import FileAccess

from .conftest import MAIN, POD, TIER, Machine


def entry() -> JournalEntry:
    return JournalEntry("cpu.shares", "1024")


def journal(tmp_path: Path, boot: str = "a") -> ResourceJournal:
    return ResourceJournal(tmp_path / "state" / "journal", boot)


def loaded(tmp_path: Path, boot: str = "a") -> ResourceJournal:
    found = journal(tmp_path, boot)
    assert found.load() == ()
    return found


def test_another_process_finds_what_was_stored(tmp_path: Path) -> None:
    first = journal(tmp_path)
    first.add({"/x": entry(), "/y": JournalEntry("schemata", "L3:0=f\nMB:0=100")}, {"/x": {"": ("5", "6")}})
    first.add({}, {"/x": {"": ("6", "7")}, "/y": {"MB": ("MB:0=10",)}})
    first.add_group("/g")
    found = loaded(tmp_path)
    assert found.entries == {
        "/x": JournalEntry("cpu.shares", "1024", {"": ("6", "7")}),
        "/y": JournalEntry("schemata", "L3:0=f\nMB:0=100", {"MB": ("MB:0=10",)}),
    }
    assert list(found.groups) == ["/g"]
    found.drop(["/x", "/g", "/z"])
    assert (list(loaded(tmp_path).entries), list(loaded(tmp_path).groups)) == (["/y"], [])
    found.drop(["/y"])
    assert loaded(tmp_path).entries == {}
    found.close()
    first.close()


def test_the_journal_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    found = journal(tmp_path)
    found.add({"/x": entry()}, {})
    assert oct((tmp_path / "state").stat().st_mode & 0o777) == "0o700"
    found.close()


def test_after_a_reboot_nothing_is_left(tmp_path: Path) -> None:
    first = journal(tmp_path, "a")
    first.add({"/x": entry()}, {})
    second = loaded(tmp_path, "b")
    assert second.entries == {}
    second.add({"/y": entry()}, {})
    assert list(loaded(tmp_path, "b").entries) == ["/y"]
    first.close()
    second.close()


def test_a_journal_of_another_version_is_left_out_with_a_complaint(tmp_path: Path) -> None:
    first = journal(tmp_path)
    first.add({"/x": entry()}, {})
    first.close()
    path = tmp_path / "state" / "journal"
    lines = path.read_bytes().split(b"\n", 1)
    path.write_bytes(module._encode({"journal": 2, "boot": "a"}) + lines[1])
    found = journal(tmp_path)
    assert (found.load(), found.entries) == ((f"the journal {path} has the version 2: nothing is given back",), {})


def content(tmp_path: Path) -> bytes:
    first = journal(tmp_path)
    for number in range(4):
        first.add({f"/{number}": entry()}, {f"/{number}": {"": (str(number),)}})
    first.close()
    return (tmp_path / "state" / "journal").read_bytes()


def test_a_journal_that_was_cut_off_anywhere_has_the_entries_before(tmp_path: Path) -> None:
    whole = content(tmp_path)
    for length in range(len(whole)):
        (tmp_path / "state" / "journal").write_bytes(whole[:length])
        found = journal(tmp_path)
        complaints = found.load()
        assert len(complaints) <= 1
        assert list(found.entries) == [f"/{number}" for number in range(len(found.entries))]
    assert len(found.entries) == 4


@given(garbage=st.binary(max_size=64), at=st.integers(0, 1000))
def test_garbage_costs_the_lines_that_it_is_in(
    tmp_path_factory: pytest.TempPathFactory, garbage: bytes, at: int,
) -> None:
    tmp_path = tmp_path_factory.mktemp("journal")
    whole = content(tmp_path)
    path = tmp_path / "state" / "journal"
    path.write_bytes(whole[:at] + garbage + whole[at:])
    found = journal(tmp_path)
    found.load()
    assert set(found.entries) <= {"/0", "/1", "/2", "/3"}
    assert len(found.entries) >= 3 - garbage.count(b"\n")
    found.add({"/new": entry()}, {})
    found.close()
    again = journal(tmp_path)
    assert (again.load(), again.entries) == ((), found.entries)


def test_records_that_are_not_the_journals_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    path = tmp_path / "state" / "journal"
    odd = [{"path": 1, "file": "x", "original": "y"}, {"path": "/x"}, {"group": None}, {}, {"path": "/x", "written": 1}]
    path.write_bytes(b"".join(map(module._encode, odd)) + b"x\n00000000 []\n" + module._encode({
        "path": "/x", "written": {"": "1"},
    }))
    found = journal(tmp_path)
    assert found.load() == (f"the journal {path} has 7 damaged lines, which are left out",)
    assert (found.entries, found.groups) == ({}, {})


def test_a_journal_that_cannot_be_read_is_complained_about(tmp_path: Path) -> None:
    (tmp_path / "state" / "journal").mkdir(parents=True)
    complaint, = journal(tmp_path).load()
    assert complaint.startswith(f"the journal {tmp_path}/state/journal cannot be read, and nothing is given back: ")


def test_a_journal_that_was_removed_is_written_anew(tmp_path: Path) -> None:
    found = journal(tmp_path)
    found.add({"/x": entry()}, {})
    shutil.rmtree(tmp_path / "state")
    found.add({"/y": entry()}, {})
    assert list(loaded(tmp_path).entries) == ["/x", "/y"]
    found.close()


def test_a_journal_has_a_bounded_number_of_entries_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ENTRIES", 3)
    monkeypatch.setattr(module, "_COMPACTED_FROM", 4096)
    found, path = journal(tmp_path), tmp_path / "state" / "journal"
    (tmp_path / "real").write_text("")
    found.add({str(tmp_path / "real"): entry(), "/gone/1": entry(), "/gone/2": entry()}, {})
    found.add({str(tmp_path / "state"): entry()}, {})  # those that are gone make room
    with pytest.raises(JournalError, match="characters"):
        found.add({"/": JournalEntry("schemata", "x" * 100_000)}, {})
    found.add({str(tmp_path): entry()}, {})
    with pytest.raises(JournalError, match="3 files already"):
        found.add({"/": entry()}, {})
    for number in range(1000):
        found.add({}, {str(tmp_path): {"": (str(number),)}})
    assert path.stat().st_size < 16_384
    assert loaded(tmp_path).entries == found.entries
    found.close()


def test_only_originals_are_flushed_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fdatasync", flushed.append)
    found = journal(tmp_path)
    found.add({"/x": entry(), "/y": entry()}, {"/x": {"": ("5",)}})
    found.add({}, {"/x": {"": ("6",)}})
    found.drop(["/x"])
    assert len(flushed) == 1
    found.close()


def test_nothing_is_stored_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = journal(tmp_path)
    found.add({"/x": entry()}, {})
    before = (tmp_path / "state" / "journal").read_bytes()
    write, room = os.write, [10]

    def full(descriptor: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0], written = 0, write(descriptor, data[:room[0]])
        return written

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(JournalError, match="No space left"):
        found.add({"/y": entry()}, {})
    monkeypatch.undo()
    assert (list(found.entries), (tmp_path / "state" / "journal").read_bytes()) == (["/x"], before)
    found.add({"/y": entry()}, {})
    assert list(loaded(tmp_path).entries) == ["/x", "/y"]
    found.close()


def test_the_boot_is_that_of_the_kernel(tmp_path: Path) -> None:
    assert (read_boot(tmp_path), len(read_boot(Path("/proc")))) == ("", 36)


# With the executor


WRITES = tuple(
    (f"{directory}/{name}", text) for directory in (TIER, POD, MAIN)
    for name, text in (("cpu.cfs_quota_us", "50000"), ("cpu.shares", "2"), ("memory.limit_in_bytes", "8192"))
)


def test_a_killed_agents_changes_are_given_back_by_the_next_one(machine: Machine) -> None:
    before = machine.everything()
    assert machine.statuses(*WRITES) == ["written"] * 9
    machine.write((f"{TIER}/cpu.shares", "4"))
    found = machine.restarted().start(0)
    assert {each.status.value for each in found} == {"restored"}
    assert {name: text.strip() for name, text in machine.everything().items()} == {
        name: text.strip() for name, text in before.items()
    }
    assert machine.restarted().start(0) == ()


def test_a_killed_agents_changes_can_be_adopted(machine: Machine) -> None:
    machine.write(*WRITES)
    second = machine.restarted()
    assert second.start(0, give_back=False) == ()
    assert second.journaled == frozenset(str(machine.path(file)) for file, _ in WRITES)
    found = second.restore(0, [str(machine.path(WRITES[0][0]))])
    assert [(each.path, each.status.value) for each in found] == [(str(machine.path(WRITES[0][0])), "restored")]
    assert len(second.journaled) == 8


def test_what_somebody_else_changed_since_is_left_alone_and_said(
    machine: Machine, caplog: pytest.LogCaptureFixture,
) -> None:
    file, other = f"{TIER}/cpu.cfs_quota_us", f"{TIER}/memory.limit_in_bytes"
    machine.write((file, "50000"), (other, "8192"))
    machine.path(file).write_text("70000\n")
    path = machine.path(file)
    found = {each.path: each.status.value for each in machine.restarted().start(0)}
    assert found == {str(path): "changed-by-others", str(machine.path(other)): "restored"}
    assert path.read_text() == "70000\n"
    original = "max 100000" if machine.version == 2 else "-1"
    assert [each.getMessage() for each in caplog.records] == [
        f"{path} was changed to `70000` by somebody else and is left as it is; it was `{original}`",
    ]


def test_a_value_that_was_not_written_any_more_is_recognized(machine: Machine) -> None:
    file = f"{TIER}/cpu.cfs_quota_us"
    machine.write((file, "50000"))
    path, state = machine.path(file), machine.root / "state" / "journal"
    machine.write((file, "60000"))
    path.write_text("50000\n")  # as if killed after the journal was written, and before the file
    assert [each.status.value for each in machine.restarted().start(0)] == ["restored"]
    assert state.exists()


def test_entries_of_vanished_directories_are_dropped(machine: Machine) -> None:
    machine.write((f"{MAIN}/cpu.cfs_burst_us", "5"))
    shutil.rmtree(machine.path(f"{MAIN}/cpu.shares").parent)
    assert [each.status.value for each in machine.restarted().start(0)] == ["gone"]
    assert machine.restarted().start(0) == ()


def test_a_recovered_file_leaves_the_journal(machine: Machine) -> None:
    file = f"{TIER}/cpu.cfs_quota_us"
    machine.write((file, "50000"))
    machine.write((file, "60000"), recovers=True)  # not its original value
    assert len(machine.executor.journaled) == 1
    if machine.version == 2:
        machine.path(file).write_text("60000 100000\n")
    machine.write((file, "-1"), recovers=True)
    if machine.version == 1:
        assert machine.executor.journaled == frozenset()
    assert {each.status.value for each in machine.restarted().start(0)} <= {"restored", "unchanged"}


def test_lines_are_given_back_one_by_one(v1: Machine) -> None:
    file, path = f"{TIER}/blkio.throttle.read_bps_device", v1.path(f"{TIER}/blkio.throttle.read_bps_device")
    v1.write((file, "8:0 5\n8:16 6"), ("resctrl/BE/schemata", "L3:0=1;1=1"))
    path.write_text("8:0 5\n8:16 7\n")  # somebody else changed the second disk
    (v1.root / "resctrl" / "BE" / "schemata").write_text("L3:0=1;1=1\nMB:0=10;1=10\n")
    found = {each.path: each.status.value for each in v1.restarted().start(0)}
    assert found == {str(path): "restored", str(v1.root / "resctrl" / "BE" / "schemata"): "restored"}
    assert path.read_text() == "8:0 1000\n"
    assert (v1.root / "resctrl" / "BE" / "schemata").read_text() == "L3:0=fff;1=fff\n"


def test_a_group_that_the_agent_made_goes_with_its_last_file(v1: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    rmdir = os.rmdir

    def remove(path: str) -> None:  # as the kernel removes a group, with its files
        for each in Path(path).iterdir():
            each.unlink()
        rmdir(path)

    monkeypatch.setattr(os, "rmdir", remove)
    groups = {name: v1.root / "resctrl" / name for name in ("LSR", "LS")}
    for name, group in groups.items():
        v1.write((f"resctrl/{name}/schemata", "L3:0=1"))  # makes the directory, which no kernel fills here
        (group / "schemata").write_text("L3:0=fff;1=fff\n")
        assert v1.statuses((f"resctrl/{name}/schemata", "L3:0=1")) == ["written"]
    second = v1.restarted()
    second.start(0, give_back=False)
    found = second.restore(0, [str(groups["LSR"] / "schemata")])
    assert [(each.path, each.status.value) for each in found] == [
        (str(groups["LSR"] / "schemata"), "restored"), (str(groups["LSR"]), "restored"),
    ]
    assert [group.exists() for group in groups.values()] == [False, True]
    assert [each.status.value for each in v1.restarted().start(0)] == ["restored", "restored"]
    assert not groups["LS"].exists()


def test_a_journal_names_no_files_of_others(v1: Machine, tmp_path: Path) -> None:
    target = tmp_path / "passwd"
    target.write_text("5")
    roots = [str(target), f"{v1.root}/cgroup/cpu/../../passwd", str(v1.path(f"{TIER}/cpu.shares"))]
    journal = v1.executor.journal
    assert journal is not None
    journal.add({path: JournalEntry(file, "7", {"": ("5",)}) for path, file in zip(
        roots, ("cpu.shares", "cpu.shares", "cpu.stat"), strict=True,
    )}, {})
    assert [each.status.value for each in v1.restarted().start(0)] == ["changed-by-others"] * 3
    assert target.read_text() == "5"


@pytest.mark.parametrize("odd", ["\0", "\ud800"], ids=["null", "half of a pair"])
def test_records_of_files_that_cannot_be_cost_only_themselves(v1: Machine, odd: str) -> None:
    name = f"{TIER}/cpu.shares"
    before = v1.text(name)
    v1.write((name, "4"))
    path = v1.root / "state" / "journal"
    shares, texts = str(v1.path(name)), {"file": "cpu.shares", "original": "7"}
    records = [{"path": f"{shares}{odd}", **texts}, {"group": f"{v1.root}/resctrl/x{odd}"}, {"dropped": f"x{odd}"}]
    with path.open("ab") as file:
        file.write(b"".join(map(module._encode, records)))
    assert [each.status.value for each in v1.restarted().start(0)] == ["restored"]
    assert v1.text(name).strip() == before.strip()


def test_files_that_cannot_be_journaled_are_not_changed(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    known = f"{TIER}/cpu.cfs_burst_us"
    machine.write((known, "5"))
    before = machine.text(f"{TIER}/cpu.shares")
    assert machine.executor.journal is not None
    machine.executor.journal.close()
    state = machine.root / "state"
    shutil.rmtree(state)
    state.write_text("not a directory")
    writes = ((f"{TIER}/cpu.shares", "2"), (f"{POD}/cpu.shares", "2"), (known, "6"))
    assert machine.statuses(*writes) == ["not-journaled", "not-journaled", "written"]
    assert (machine.text(f"{TIER}/cpu.shares"), len(caplog.records)) == (before, 1)
    assert "the original values cannot be stored" in caplog.text
    state.unlink()
    assert machine.statuses(*writes[:2]) == ["written", "written"]


def test_a_value_that_is_refused_stays_in_the_journal(
    machine: Machine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: str, text: str, access: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    machine.write((f"{TIER}/cpu.shares", "2"))
    monkeypatch.setattr(restore, "write_file", refuse)
    assert [each.status.value for each in machine.executor.restore(0)] == ["failed"]
    assert "cannot be restored" in caplog.text
    monkeypatch.undo()
    assert [each.status.value for each in machine.executor.restore(0)] == ["restored"]


def test_values_are_given_back_in_an_order_that_the_kernel_accepts(
    v1: Machine, monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[str, str]] = []
    write_file = restore.write_file

    def write(path: str, text: str, access: object) -> None:
        made.append((path.partition("/kubepods/")[2], text))
        write_file(path, text, access)

    for each in (TIER, POD):
        v1.path(f"{each}/cpuset.cpus").write_text("0-3\n")
        v1.path(f"{each}/cpu.cfs_quota_us").write_text("9000\n")
    v1.path(f"{TIER}/cpu.cfs_burst_us").write_text("50\n")
    v1.write(*((f"{each}/cpuset.cpus", "3-4") for each in (TIER, POD)),
             *((f"{each}/cpu.cfs_quota_us", text) for each, text in ((POD, "8000"), (TIER, "10000"))),
             (f"{TIER}/cpu.cfs_burst_us", "40"), (f"{POD}/cpu.cfs_burst_us", "8"))
    monkeypatch.setattr(restore, "write_file", write)
    v1.executor.restore(0)
    assert made == [
        (f"{POD}/cpu.cfs_burst_us", "0"),
        (f"{TIER}/cpuset.cpus", "0-4"), (f"{POD}/cpu.cfs_quota_us", "9000"), (f"{POD}/cpuset.cpus", "0-4"),
        (f"{POD}/cpuset.cpus", "0-3"), (f"{TIER}/cpuset.cpus", "0-3"), (f"{TIER}/cpu.cfs_quota_us", "9000"),
        (f"{TIER}/cpu.cfs_burst_us", "50"),
    ]


class Killed(BaseException):
    """An agent that ends at once."""


_ROUNDS = st.lists(st.lists(st.tuples(
    st.sampled_from([f"{directory}/{name}" for directory in (TIER, POD) for name in (
        "cpu.cfs_quota_us", "cpu.shares", "cpu.cfs_burst_us",
    )]), st.sampled_from(["2", "3000", "40000"]),
), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(max_examples=40)
@given(rounds=_ROUNDS, killed_at=st.integers(0, 12), before=st.booleans(), version=st.sampled_from([1, 2]))
def test_wherever_an_agent_is_killed_the_next_one_gives_everything_back(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[str, str]]], killed_at: int, before: bool,
    version: int,
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"), version)
    original = {name: text.strip() for name, text in machine.everything().items()}
    write_file, count = executor.write_file, [0]

    def write(path: str, text: str, access: FileAccess) -> None:
        count[0] += 1
        if before and count[0] > killed_at:
            raise Killed
        write_file(path, text, access)
        if count[0] > killed_at:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(executor, "write_file", write)
        for writes in rounds:
            machine.write(*writes)
    machine.restarted().start(0)
    assert {name: text.strip() for name, text in machine.everything().items()} == original
    assert machine.restarted().start(0) == ()
