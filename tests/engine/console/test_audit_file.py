"""The audit log: whole lines or none, also on a full disk."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from koordpolicy.engine.console import audit_file
from koordpolicy.engine.console.audit_file import AuditFile


def test_entries_are_lines_that_are_appended_and_private(tmp_path: Path):
    path = tmp_path / "audit.log"
    path.write_text("before\n")
    path.unlink()
    log = AuditFile(path)
    for user in ("ana", "b\nen\u202e"):
        log.append({"user": user})
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == [
        {"user": "ana"}, {"user": "b\nen\u202e"}]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_was_rotated_is_made_again(tmp_path: Path):
    log = AuditFile(tmp_path / "audit.log")
    log.append({"n": 1})
    (tmp_path / "audit.log").rename(tmp_path / "audit.log.1")
    log.append({"n": 2})
    assert [(tmp_path / name).read_text() for name in ("audit.log.1", "audit.log")] == ['{"n":1}\n', '{"n":2}\n']


def test_a_full_disk_leaves_no_half_of_a_line(tmp_path: Path, monkeypatch):
    log = AuditFile(tmp_path / "audit.log")
    log.append({"n": 1})
    write = os.write

    def full(descriptor: int, content: bytes) -> int:
        if len(content) <= 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[:-4])

    with monkeypatch.context() as patch:
        patch.setattr(audit_file.os, "write", full)
        with pytest.raises(OSError, match="No space left on device"):
            log.append({"n": 2})
    log.append({"n": 3})
    assert (tmp_path / "audit.log").read_text() == '{"n":1}\n{"n":3}\n'


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the kernel has no /dev/full")
def test_the_kernel_says_that_a_device_is_full():
    with pytest.raises(OSError, match="No space left on device"):
        AuditFile(Path("/dev/full")).append({"n": 1})


def test_a_pipe_gets_entries_too(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        AuditFile(path).append({"n": 1})
        assert os.read(reader, 100) == b'{"n":1}\n'
    finally:
        os.close(reader)


def test_a_file_that_cannot_be_made_is_an_error_at_once(tmp_path: Path):
    with pytest.raises(OSError, match="No such file or directory"):
        AuditFile(tmp_path / "missing" / "audit.log")


def test_the_latest_entries_are_whole_and_a_pipe_has_none(tmp_path: Path):
    log = AuditFile(tmp_path / "audit.log")
    for number in range(3):
        log.append({"id": number})
    with log.path.open("ab") as file:
        file.write(b"no entry\n[1]\n")
    assert log.latest() == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert log.latest(len(b'{"id":1}\n{"id":2}\nno entry\n[1]\n') + 3) == [{"id": 1}, {"id": 2}]
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert AuditFile(tmp_path / "pipe").latest() == []
    finally:
        os.close(reader)
