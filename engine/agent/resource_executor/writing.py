"""Writes to the kernel's files, and the parts of a file that a write changes."""

from __future__ import annotations

import os
from typing import Final

from .table import FileAccess, ResourceFile

_FLAGS: Final = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW


def write_file(path: str, text: str, access: FileAccess = FileAccess.WRITE) -> None:
    """Write a text with one call, as the kernel expects; the file must exist. Raises `OSError`."""
    # An empty text would be no write at all, and the kernel takes the line break for an empty value.
    content = text.encode() or b"\n"
    appends = access is FileAccess.APPEND
    if access is not FileAccess.WRITE and not content.endswith(b"\n"):
        content += b"\n"
    descriptor = os.open(path, _FLAGS | (os.O_APPEND if appends else os.O_TRUNC))
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def pieces_of(file: ResourceFile, text: str) -> tuple[str, ...]:
    """Return the texts that are written with one call each: lines, of a file whose lines are written one by one."""
    if file.access is not FileAccess.LINES:
        return (text,)
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def part_of(file: ResourceFile, piece: str) -> str:
    """Return the part of the file that a piece changes; "" for the whole file.

    A disk or one of its limits, a kind of cache, a feature of the scheduler.
    """
    if file.access is not FileAccess.LINES:
        return ""
    if file.subsystem == "resctrl":
        return piece.partition(":")[0].strip()
    first, *rest = piece.split()
    if file.name.startswith("blkio.throttle.") and len(rest) == 1 and "=" in rest[0]:
        return f"{first} {rest[0].partition('=')[0]}"  # four limits of a disk share a line of `io.max`
    return first.removeprefix("NO_")
