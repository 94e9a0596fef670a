"""Files that commands write and read back: atomically, and never through a link of another user."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import Final

_CAREFULLY: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE: Final = 1024 * 1024


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file atomically, even if the machine crashes.

    A symbolic link at `path` is replaced, not followed. Raises `OSError`.
    """
    beside = beside_of(path)
    try:
        write_new(beside, content)
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def beside_of(path: Path) -> Path:
    """Return a path in the same directory with an unpredictable name."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def write_new(path: Path, content: bytes) -> None:
    """Write a new file and flush it to the disk.

    Raises `FileExistsError` if the path exists, even as a dangling link, and `OSError`.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFULLY, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def create_private(path: Path) -> int:
    """Return a descriptor for writing to a new file that only this user may read.

    Raises `FileExistsError` if the path exists, even as a dangling link, and `OSError`.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFULLY, 0o600)


def open_regular(path: Path) -> int:
    """Return a descriptor for reading a file of any user.

    Raises `OSError` (with a `strerror` for people) for links, and for anything but regular files.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _CAREFULLY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return descriptor


def read_own(path: Path, *, most: int) -> bytes:
    """Return the content of a file that this program wrote before, at most `most` bytes.

    Raises `FileNotFoundError` if there is none, and `OSError` (with a `strerror` for people) for links, for anything
    but regular files, for files of users other than this one and root, and for larger files.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _CAREFULLY) if not path.is_symlink() else None
    if descriptor is None:
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    with os.fdopen(descriptor, "rb") as file:
        check_own(file.fileno(), path)
        content = bytearray()
        while len(content) <= most and (piece := file.read(_PIECE)):
            content += piece
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return bytes(content)


def open_own(path: Path, *, mode: int = 0o666) -> int:
    """Return a descriptor for reading and appending to a file that this program wrote before, or a new one.

    `mode` are the rights of a new file, before the umask. Raises `OSError` as `read_own` does.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | _CAREFULLY, mode)
    try:
        check_own(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_own(descriptor: int, path: Path) -> None:
    """Raise `OSError` for anything but a regular file of this user or root."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    _check_owner(found, path)


def make_own_directory(path: Path) -> None:
    """Make a directory that only this user may enter; an existing one must belong to this user or root.

    Raises `OSError`.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(path.lstat(), path)  # of the link itself: its owner may redirect it
    _check_owner(path.stat(), path)


def _check_owner(found: os.stat_result, path: Path) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, f"it belongs to another user (uid {found.st_uid})", str(path))


def reason_of(error: OSError) -> str:
    """Return the system's reason of an error, as a part of a sentence."""
    return (error.strerror or str(error)).lower()
