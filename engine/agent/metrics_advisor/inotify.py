"""The kernel's inotify: changes of directories, without a thread."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass
from typing import Final

_EVENT: Final = struct.Struct("iIII")
_BUFFER: Final = 64 * 1024

_CREATE, _DELETE, _MOVED_FROM, _MOVED_TO = 0x100, 0x200, 0x40, 0x80
_DELETE_SELF, _MOVE_SELF, _ONLYDIR = 0x400, 0x800, 0x0100_0000
_IGNORED, _Q_OVERFLOW = 0x8000, 0x4000
_MASK: Final = _CREATE | _DELETE | _MOVED_FROM | _MOVED_TO | _DELETE_SELF | _MOVE_SELF | _ONLYDIR


@dataclass(frozen=True, slots=True)
class DirectoryChange:
    """Something changed in a watched directory.

    `watch` is -1 if the kernel's queue was full, and changes were lost. `ended`: the watch is no more.
    """

    watch: int
    ended: bool = False


class Inotify:
    """Watches directories for entries that come and go; for one thread."""

    def __init__(self) -> None:
        """Raises `OSError` if the kernel has no inotify, or this user has too many instances."""
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._add = self._libc.inotify_add_watch
            self._descriptor = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except AttributeError:
            raise OSError(errno.ENOSYS, "this system has no inotify") from None
        if self._descriptor < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"inotify cannot be used: {os.strerror(code)}")

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there are changes."""
        return self._descriptor

    def watch(self, path: str) -> int:
        """Watch a directory; return the watch, which is the same for the same directory.

        Raises `OSError`: `FileNotFoundError`, or `ENOSPC` beyond the limit fs.inotify.max_user_watches.
        """
        found = int(self._add(self._descriptor, os.fsencode(path), _MASK))
        if found < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
        return found

    def unwatch(self, watch: int) -> None:
        """End a watch, if it has not ended."""
        self._libc.inotify_rm_watch(self._descriptor, watch)

    def read(self) -> list[DirectoryChange]:
        """Return the changes since the last call; never waits."""
        found: list[DirectoryChange] = []
        while True:
            try:
                data = os.read(self._descriptor, _BUFFER)
            except BlockingIOError:
                return found
            offset = 0
            while offset < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size + length
                found.append(DirectoryChange(-1 if mask & _Q_OVERFLOW else watch, bool(mask & _IGNORED)))

    def close(self) -> None:
        """End all watches."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
