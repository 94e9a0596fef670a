"""Detection of a machine's control groups: version, mounted hierarchies, and the driver of kubelet.

The driver is known by the name of kubelet's root directory, else by kubelet's command line and configuration file; as
long as kubelet did not start there is neither.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .control_groups import CGROUPFS, SYSTEMD, ControlGroups
from .mounts import MountPoint, read_mounts

SUBSYSTEMS: Final = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "net_cls", "pids")
"""The subsystems of control groups v1 that the agent reads or writes."""
_DRIVERS: Final = (SYSTEMD, CGROUPFS)
_IN_CONFIGURATION: Final = re.compile(r"""(?m)^\s*["']?cgroupDriver["']?\s*:\s*["']?(\w+)""")
_LARGEST: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class HostRoots:
    """The directories in which the agent sees the machine; in a container they are mounts of the host's."""

    cgroup: str = "/sys/fs/cgroup"
    proc: str = "/proc"
    sys: str = "/sys"
    resctrl: str = "/sys/fs/resctrl"


def detect_control_groups(
    roots: HostRoots, kubepods: str = "kubepods", *, kubelet_driver: Callable[[], str] | None = None,
) -> tuple[ControlGroups, bool]:
    """Return the machine's control groups, and whether the driver was found.

    Otherwise it is assumed to be systemd, and callers ask again until kubelet has started (koordlet: every 10 s for a
    minute). `kubelet_driver` asks kubelet itself (`cgroupDriver` of /configz), and returns "" or raises `OSError` if
    there is no answer.
    """
    root = Path(roots.cgroup)
    mounts = read_mounts(Path(roots.proc))
    version = detect_version(root, mounts)
    found = {"": str(root)} if version == 2 else find_subsystems(root, mounts)
    driver = _driver_of_directories(found.values(), kubepods) or kubelet_driver_of_process(Path(roots.proc))
    if not driver and kubelet_driver is not None:
        try:
            driver = kubelet_driver()
        except OSError:
            driver = ""
    known = driver in _DRIVERS
    return ControlGroups(version, driver if known else SYSTEMD, found, kubepods), known


def detect_version(root: Path, mounts: Iterable[MountPoint]) -> int:
    """Return the version of the control groups in a directory: 2 if it is the root of a v2 hierarchy, else 1.

    A hybrid machine, with a v2 hierarchy beside those of v1, is one of version 1.
    """
    if (root / "cgroup.controllers").exists():
        return 2
    kinds = {each.kind for each in mounts if each.path == str(root)}
    return 2 if kinds == {"cgroup2"} else 1


def find_subsystems(root: Path, mounts: Iterable[MountPoint]) -> dict[str, str]:
    """Return the roots of v1's hierarchies by subsystem: mounts below `root`, else its directories of these names.

    Several subsystems may share a hierarchy (`cpu,cpuacct`).
    """
    below = f"{root}{os.sep}"
    found: dict[str, str] = {}
    for mount in mounts:
        if mount.kind == "cgroup" and mount.path.startswith(below):
            for name in SUBSYSTEMS:
                if name in mount.options:
                    found.setdefault(name, mount.path)
    for name in SUBSYSTEMS:
        if name not in found and (root / name).is_dir():
            found[name] = str(root / name)
    return {name: found[name] for name in SUBSYSTEMS if name in found}


def _driver_of_directories(hierarchies: Iterable[str], kubepods: str) -> str:
    for each in dict.fromkeys(hierarchies):
        if Path(each, f"{kubepods}.slice").is_dir():
            return SYSTEMD
        if Path(each, kubepods).is_dir():
            return CGROUPFS
    return ""


def kubelet_driver_of_process(proc: Path) -> str:
    """Return the driver that the running kubelet's command line or configuration file names; empty without one.

    Requires that the agent sees the host's processes.
    """
    try:
        pids = [name for name in os.listdir(proc) if name.isdecimal()]  # noqa: PTH208 - names only
    except OSError:
        return ""
    for pid in pids:
        try:
            if (proc / pid / "comm").read_bytes().strip() != b"kubelet":
                continue
            words = (proc / pid / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # processes end meanwhile
        driver = _option(words, "cgroup-driver")
        path = _option(words, "config")
        if not driver and path:
            driver = _driver_in_file(proc / pid / "root" / path.lstrip("/"))
        if driver in _DRIVERS:
            return driver
    return ""


def _option(words: list[str], name: str) -> str:
    found = ""
    for number, word in enumerate(words):
        option, separator, value = word.lstrip("-").partition("=")
        if word.startswith("-") and option == name:
            found = value if separator else "".join(words[number + 1:number + 2])
    return found


def _driver_in_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST).decode(errors="replace")
    except OSError:
        return ""
    match = _IN_CONFIGURATION.search(text)
    if match is not None:
        return match[1]
    try:
        content = json.loads(text)
    except ValueError:
        return ""
    return str(content.get("cgroupDriver") or "") if isinstance(content, dict) else ""
