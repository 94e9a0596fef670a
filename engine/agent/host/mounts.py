"""The mounts of the machine, as /proc/PID/mountinfo lists them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A mounted file system. `device` is `MAJ:MIN`, `root` the directory of the file system that is mounted."""

    path: str
    kind: str
    source: str
    device: str
    root: str = "/"
    options: frozenset[str] = frozenset()
    """Options of the file system, which for control groups v1 name the subsystems."""


def parse_mountinfo(text: str) -> tuple[MountPoint, ...]:
    """Read /proc/PID/mountinfo; lines that are not whole are left out."""
    found = []
    for line in text.splitlines():
        fields, separator, rest = line.partition(" - ")
        before, after = fields.split(" "), rest.split(" ")
        if not separator or len(before) < 6 or len(after) < 2:
            continue
        options = frozenset(after[2].split(",")) if len(after) > 2 else frozenset()
        found.append(MountPoint(
            _unescape(before[4]), after[0], _unescape(after[1]), before[2], _unescape(before[3]), options,
        ))
    return tuple(found)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8) & 0xFF), text)


def read_mounts(proc: Path, pids: Iterable[str] = ("self",)) -> tuple[MountPoint, ...]:
    """Return the mounts that the first of the processes sees whose list can be read; empty if there is none."""
    for pid in pids:
        try:
            text = (proc / pid / "mountinfo").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if found := parse_mountinfo(text):
            return found
    return ()
