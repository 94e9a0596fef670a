"""Files are read through descriptors that stay open, and never from one that is out of date."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from koordpolicy.engine.agent.host.files import FileReader, most_descriptors, raise_descriptor_limit


@pytest.fixture
def reader():
    made = FileReader()
    yield made
    made.close()


def test_a_file_is_read_as_it_is_now(reader: FileReader, tmp_path: Path) -> None:
    path = tmp_path / "cpu.shares"
    path.write_text("1024\n")
    found = [reader.read(str(path)), reader.text(str(path))]
    path.write_text("2\n")
    assert [*found, reader.text(str(path)), len(reader)] == [b"1024\n", "1024", "2", 1]


def test_a_file_that_was_replaced_or_removed_is_not_read_from_its_old_descriptor(
    reader: FileReader, tmp_path: Path,
) -> None:
    directory = tmp_path / "pod"
    directory.mkdir()
    path = directory / "cpu.shares"
    path.write_text("1024")
    assert reader.text(str(path)) == "1024"
    (directory / "new").write_text("2")
    (directory / "new").replace(path)
    assert reader.text(str(path)) == "2"
    path.unlink()
    directory.rmdir()
    with pytest.raises(FileNotFoundError):
        reader.read(str(path))
    assert len(reader) == 0
    directory.mkdir()
    path.write_text("3")
    assert reader.text(str(path)) == "3"


def test_of_many_files_each_is_read_as_it_is_now_and_a_missing_one_is_empty(
    reader: FileReader, tmp_path: Path,
) -> None:
    for name in ("one", "two", "gone"):
        (tmp_path / name).write_text("before\n")
    paths = [str(tmp_path / name) for name in ("one", "absent", "two", "gone")]
    files, times = reader.together(paths), iter(range(100))
    found = [reader.read_together(files, lambda: next(times))]
    (tmp_path / "new").write_text("replaced\n")
    (tmp_path / "new").replace(tmp_path / "two")
    (tmp_path / "gone").unlink()
    found.append(reader.read_together(files))
    assert found == [([b"before\n", b"", b"before\n", b"before\n"], [0, 1, 2, 3]),
                     ([b"before\n", b"", b"replaced\n", b""], [])]


@pytest.mark.parametrize("absent", [(), ("/proc/self/absent",)])
def test_of_many_files_of_the_kernel_each_is_read_as_it_is_now(reader: FileReader, absent: tuple[str, ...]) -> None:
    long = "x" * 20_000
    command = [sys.executable, "-c", "input(1)", long]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read(1) == b"1"  # the kernel has its command line by now
        paths = ["/proc/sys/kernel/ostype", f"/proc/{child.pid}/cmdline", *absent]
        files = reader.together(paths)
        contents = [reader.read_together(files)[0] for _ in range(3)]
        child.communicate(b"\n")
    expected = [b"Linux\n", b"".join(each.encode() + b"\0" for each in command), *(b"" for _ in absent)]
    assert contents == [expected] * 3


def test_each_of_many_files_has_its_own_time(reader: FileReader) -> None:
    files, times = reader.together(["/proc/sys/kernel/ostype", "/proc/sys/kernel/osrelease"]), iter(range(100))
    found = [reader.read_together(files, lambda: next(times))[1] for _ in range(3)]
    assert found == [[0, 1], [2, 3], [4, 5]]


def test_files_that_are_read_together_stay_open_as_long_as_they_are_read(reader: FileReader) -> None:
    files = reader.together(["/proc/sys/kernel/ostype", "/proc/sys/kernel/osrelease"])
    for _ in range(2):
        reader.read_together(files)
        reader.read_together(files)
        reader.sweep()
    while_read = len(reader)
    reader.sweep()
    assert (while_read, len(reader), reader.read_together(files)[0][0]) == (2, 0, b"Linux\n")


def test_files_of_a_process_that_ended_are_empty(reader: FileReader) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    paths = [f"/proc/{child.pid}/limits", "/proc/sys/kernel/ostype"]
    files = reader.together(paths)
    before = [reader.read_together(files)[0] for _ in range(2)]
    child.communicate(b"\n")
    after = [reader.read_together(files)[0] for _ in range(2)]
    assert (before[1][0] != b"", after, len(reader)) == (True, [[b"", before[0][1]]] * 2, 1)


@pytest.mark.parametrize("length", [0, 1, 2047, 2048, 4095, 4096, 4097, 200_000])
def test_a_file_of_any_length_is_read_as_a_whole(reader: FileReader, tmp_path: Path, length: int) -> None:
    path = tmp_path / "memory.stat"
    path.write_bytes(b"x" * length)
    assert [len(reader.read(str(path))) for _ in range(2)] == [length, length]


def test_long_files_of_the_kernel_are_read_as_a_whole(reader: FileReader) -> None:
    path = Path("/proc/kallsyms")
    if not path.exists() or len(path.read_bytes()) < 5000:
        pytest.skip("the kernel does not list its symbols here")
    assert [reader.read(str(path)) for _ in range(2)] == [path.read_bytes()] * 2


def test_a_file_that_is_too_large_is_refused(reader: FileReader, tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    with pytest.raises(OSError, match="more than"):
        reader.read(str(path))
    assert len(reader) == 0


@pytest.mark.parametrize("name", ["absent", "file/below", "absent/below"])
def test_a_path_without_a_file_is_not_found(reader: FileReader, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError):
        reader.read(str(tmp_path / name))


def test_a_directory_cannot_be_read(reader: FileReader, tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        reader.read(str(tmp_path))


def test_bytes_that_are_not_utf_8_are_replaced(reader: FileReader, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(b"\xff1\n\n")
    assert reader.text(str(path)) == "\ufffd1\n"


def test_no_more_descriptors_than_allowed_stay_open(tmp_path: Path) -> None:
    reader = FileReader(64)
    for number in range(100):
        (tmp_path / str(number)).write_text(str(number))
    assert [reader.text(str(tmp_path / str(number))) for number in range(100)] == [str(each) for each in range(100)]
    assert len(reader) == 64
    reader.close()
    assert len(reader) == 0


def test_descriptors_that_are_not_used_between_two_sweeps_are_closed(reader: FileReader, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        reader.read(str(tmp_path / name))
    assert reader.sweep() == 0
    reader.read(str(tmp_path / "two"))
    assert (reader.sweep(), len(reader)) == (1, 1)
    assert reader.text(str(tmp_path / "one")) == "one"


def test_a_reader_that_opens_files_sweeps_by_itself(tmp_path: Path) -> None:
    now = [0.0]
    reader = FileReader(clock=lambda: now[0])
    for number in range(3):
        (tmp_path / str(number)).write_text("")
        reader.read(str(tmp_path / str(number)))
        now[0] += 61
    assert len(reader) == 2  # the first one was not read between two sweeps
    reader.close()


def test_lists_of_processes_are_opened_for_each_reading(reader: FileReader, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text("1\n2\n")
    assert (reader.text(str(tmp_path / "tasks")), len(reader)) == ("1\n2", 0)


def test_threads_read_the_files_that_they_ask_for(tmp_path: Path) -> None:
    reader, wrong = FileReader(64), []
    for number in range(80):
        (tmp_path / str(number)).write_text(str(number))

    def read(start: int) -> None:
        for number in range(start, start + 400):
            if reader.text(str(tmp_path / str(number % 80))) != str(number % 80):
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(start,)) for start in (0, 40)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    reader.close()
    assert wrong == []


def test_the_limit_of_descriptors_is_never_lowered() -> None:
    before = most_descriptors()
    assert raise_descriptor_limit(before - 1) == before
    assert raise_descriptor_limit(before) == before
