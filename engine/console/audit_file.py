"""`AuditFile`: who changed what, as lines of JSON that are only appended."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

_MODE: Final = 0o600
_LATEST_BYTES: Final = 1 << 20
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.EROFS, errno.ENOTSUP})


class AuditFile:
    """A file to which entries are appended, each as a whole or not at all; for any thread.

    It is opened for each entry, so that it may be rotated. Pipes and terminals (`/dev/stdout`) are possible; a pipe
    that nobody reads, or that is full, is an error.
    """

    def __init__(self, path: Path) -> None:
        """Raises `OSError` if the file cannot be written."""
        self.path = path
        self._lock = threading.Lock()
        os.close(self._open())

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write an entry, and wait until it is on disk; raises `OSError` if that fails, and nothing is written."""
        line = msgspec.json.encode(entry) + b"\n"
        with self._lock:
            descriptor = self._open()
            try:
                regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
                before = os.fstat(descriptor).st_size
                try:
                    _write_all(descriptor, line)
                    _sync(descriptor)
                except OSError:
                    if regular:  # the beginning of a line would spoil the next one
                        with contextlib.suppress(OSError):
                            os.ftruncate(descriptor, before)
                    raise
            finally:
                os.close(descriptor)

    def latest(self, most: int = _LATEST_BYTES) -> list[dict[str, Any]]:
        """Return the entries in the last bytes of a file, oldest first; none of a pipe or a terminal.

        Raises:
            OSError: the file cannot be read.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return []
            start = max(found.st_size - most, 0)
            lines = os.pread(descriptor, most, start).split(b"\n")
        finally:
            os.close(descriptor)
        entries: list[dict[str, Any]] = []
        for line in lines[1:] if start else lines:
            with contextlib.suppress(msgspec.DecodeError):  # a line that others have written
                entries.append(msgspec.json.decode(line, type=dict[str, Any]))
        return entries

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK,
                       _MODE)


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        written = os.write(descriptor, content)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        content = content[written:]


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:  # pipes and terminals have no disk
            raise
