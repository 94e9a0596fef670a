"""The block devices of a machine: disks, volume groups and mounts, read from sysfs and procfs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from koordpolicy.engine.framework.qos import Storage

from .mounts import read_mounts

_DEEPEST: Final = 8
"""Device mappers on device mappers: more layers than this are a loop."""


def read_storage(sys: Path, proc: Path) -> Storage:
    """Return the machine's storage; `claims` stays empty, as only the API server knows them.

    Limits hold for whole disks: partitions, logical volumes and mounts lead to the disk that they are on. A device has
    its name (`vda`) and its path (`/dev/vda`). A volume on several disks has the first one.
    """
    numbers = _disks(sys)
    parents = _partitions(sys, numbers)
    disk_of: dict[str, str] = {}
    for name in (*numbers, *parents):
        disk = _physical(sys, parents.get(name, name), parents, 0)
        disk_of[name] = numbers.get(disk, "")
    devices = {}
    for name, number in disk_of.items():
        if number:
            devices[name] = devices[f"/dev/{name}"] = number
    groups: dict[str, str] = {}
    for name in numbers:
        mapped = _word(sys / "block" / name / "dm" / "name")
        if mapped and disk_of[name]:
            devices[f"/dev/mapper/{mapped}"] = disk_of[name]
            if _word(sys / "block" / name / "dm" / "uuid").startswith("LVM-"):
                groups.setdefault(_volume_group(mapped), disk_of[name])
    return Storage(devices, groups, _mounts(sys, proc, devices))


def _disks(sys: Path) -> dict[str, str]:
    found = {}
    try:
        names = sorted(os.listdir(sys / "block"))  # noqa: PTH208 - names only
    except OSError:
        return {}
    for name in names:
        number = _word(sys / "block" / name / "dev")
        if _is_number(number):
            found[name] = number
    return found


def _partitions(sys: Path, disks: dict[str, str]) -> dict[str, str]:
    """Return the disk of each partition, by name."""
    found = {}
    for disk in disks:
        try:
            names = os.listdir(sys / "block" / disk)  # noqa: PTH208 - names only
        except OSError:
            continue
        for name in names:
            if (sys / "block" / disk / name / "partition").exists():
                found[name] = disk
    return found


def _physical(sys: Path, name: str, parents: dict[str, str], depth: int) -> str:
    try:
        slaves = sorted(os.listdir(sys / "block" / name / "slaves"))  # noqa: PTH208 - names only
    except OSError:
        slaves = []
    if not slaves or depth >= _DEEPEST:
        return name
    return _physical(sys, parents.get(slaves[0], slaves[0]), parents, depth + 1)


def _volume_group(mapped: str) -> str:
    """Return the volume group in a mapped name `GROUP-VOLUME`, in which dashes of either are doubled."""
    group, _, _ = mapped.replace("--", "\0").partition("-")
    return group.replace("\0", "-")


def _mounts(sys: Path, proc: Path, devices: dict[str, str]) -> dict[str, str]:
    # The mounts of process 1 are the machine's, which an agent in a container sees with the host's processes.
    found = {}
    for mount in read_mounts(proc, ("1", "self")):
        disk = devices.get(os.path.realpath(mount.source) if mount.source.startswith("/dev/") else "")
        disk = disk or devices.get(mount.source) or _disk_of_number(sys, mount.device, devices)
        if disk:
            found[mount.path] = disk
    return found


def _disk_of_number(sys: Path, number: str, devices: dict[str, str]) -> str:
    if not _is_number(number) or number.startswith("0:"):
        return ""
    try:
        name = (sys / "dev" / "block" / number).resolve().name
    except (OSError, RuntimeError):
        return ""
    return devices.get(name, "")


def _word(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(4096).decode(errors="replace").strip()
    except OSError:
        return ""


def _is_number(text: str) -> bool:
    major, separator, minor = text.partition(":")
    return bool(separator) and major.isdecimal() and minor.isdecimal()
