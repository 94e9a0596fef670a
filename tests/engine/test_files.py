"""Files that are written and read back: no link is followed, and what somebody else laid there is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordpolicy.engine.files import make_own_directory, open_own, read_own, write_new, write_whole

NOT_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A file that must not change, as another user's would be."""
    path = tmp_path / "foreign"
    path.write_bytes(b"theirs")
    return path


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("a", b"two")]


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path, foreign: Path) -> None:
    path = tmp_path / "a"
    path.symlink_to(foreign)
    write_whole(path, b"ours")
    assert (path.is_symlink(), path.read_bytes(), foreign.read_bytes()) == (False, b"ours", b"theirs")


@pytest.mark.parametrize("target", ["foreign", "nowhere"])
def test_a_new_file_is_never_written_through_a_link(tmp_path: Path, foreign: Path, target: str) -> None:
    path = tmp_path / "a"
    path.symlink_to(tmp_path / target)
    with pytest.raises(FileExistsError):
        write_new(path, b"ours")
    assert (foreign.read_bytes(), (tmp_path / "nowhere").exists()) == (b"theirs", False)


def a_link(path: Path) -> None:
    path.symlink_to(path.parent / "foreign")


def a_link_to_nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def a_directory(path: Path) -> None:
    path.mkdir()


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize(("make", "why"), [
    (a_link, "it is a symbolic link"), (a_link_to_nowhere, "it is a symbolic link"), (a_directory, "(?i)directory"),
    (a_pipe, "it is not a file"),
])
def test_what_is_no_file_of_ours_is_not_read(tmp_path: Path, make, why: str) -> None:
    make(tmp_path / "a")
    for attempt in (lambda path: read_own(path, most=10), open_own):
        with pytest.raises(OSError, match=why):
            attempt(tmp_path / "a")
    assert not (tmp_path / "nowhere").exists()


def test_a_file_of_more_bytes_than_are_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_own(path, most=5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_own(path, most=4)


@NOT_ROOT
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, foreign: Path) -> None:
    os.chown(foreign, 1234, 1234)
    for attempt in (lambda: read_own(foreign, most=10), lambda: open_own(foreign)):
        with pytest.raises(PermissionError, match=r"it belongs to another user \(uid 1234\)"):
            attempt()
    directory = tmp_path / "state"
    directory.mkdir()
    os.chown(directory, 1234, 1234)
    with pytest.raises(PermissionError, match=r"it belongs to another user \(uid 1234\)"):
        make_own_directory(directory)


@NOT_ROOT
def test_a_link_of_another_user_is_no_directory_of_ours(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "state"
    link.symlink_to(tmp_path / "real")
    make_own_directory(link)
    os.chown(link, 1234, 1234, follow_symlinks=False)
    with pytest.raises(PermissionError, match="another user"):
        make_own_directory(link)
