"""Facts of a machine: its processors and caches, read from sysfs and procfs.

What cannot be read is left empty: strategies that need it do nothing then, instead of assuming a machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from koordpolicy.engine.framework.qos import Host, Processor

from ..cpuset import parse_cpuset
from .detection import HostRoots
from .storage import read_storage

_LARGEST: Final = 16 * 1024 * 1024
_L3_MASKS: Final = ("L3/cbm_mask", "L3CODE/cbm_mask")


def read_host(roots: HostRoots, cgroup_version: int) -> Host:
    """Return the facts of the machine. Reads some files per CPU: for once a minute."""
    sys, proc = Path(roots.sys), Path(roots.proc)
    sections = _cpuinfo(_text(proc / "cpuinfo"))
    first = sections[0] if sections else {}
    processors = _processors_of_sys(sys) or _processors_of_cpuinfo(sections)
    return Host(
        processors=processors,
        vendor=first.get("vendor_id") or first.get("CPU implementer", ""),
        flags=frozenset((first.get("flags") or first.get("Features", "")).split()),
        cbm_mask=_cbm_mask(Path(roots.resctrl)),
        l3_caches=_l3_caches(sys, processors),
        cgroup_version=cgroup_version,
        page_size=os.sysconf("SC_PAGE_SIZE"),
        storage=read_storage(sys, proc),
    )


def _text(path: Path) -> str:
    """Return a file's content, empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST).decode(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _cpus(path: Path) -> frozenset[int]:
    try:
        return parse_cpuset(_text(path))
    except ValueError:
        return frozenset()


def _processors_of_sys(sys: Path) -> tuple[Processor, ...]:
    """Read the CPUs that are online. Cores and sockets are numbered in their order, as lscpu does."""
    directory = sys / "devices" / "system" / "cpu"
    nodes = _numa_nodes(sys)
    cores: dict[str, int] = {}
    sockets: dict[int, int] = {}
    found = []
    for cpu in sorted(_cpus(directory / "online")):
        topology = directory / f"cpu{cpu}" / "topology"
        siblings = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
        package = _number(topology / "physical_package_id")
        if not siblings or package is None:
            return ()
        core = cores.setdefault(siblings, len(cores))
        socket = sockets.setdefault(package, len(sockets))
        found.append(Processor(cpu, core, socket, nodes.get(cpu, 0)))
    return tuple(found)


def _numa_nodes(sys: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    for path in sorted((sys / "devices" / "system" / "node").glob("node[0-9]*")):
        number = path.name.removeprefix("node")
        if number.isdecimal():
            found |= dict.fromkeys(_cpus(path / "cpulist"), int(number))
    return found


def _cpuinfo(text: str) -> list[dict[str, str]]:
    sections = []
    for block in text.split("\n\n"):
        lines = [line.split(":", 1) for line in block.splitlines() if ":" in line]
        section = {key.strip(): value.strip() for key, value in lines}
        if "processor" in section:
            sections.append(section)
    return sections


def _processors_of_cpuinfo(sections: list[dict[str, str]]) -> tuple[Processor, ...]:
    cores: dict[tuple[int, int], int] = {}
    found = []
    for each in sections:
        try:
            cpu, socket = int(each["processor"]), int(each.get("physical id", "0"))
            core = int(each.get("core id", each["processor"]))
        except ValueError:
            return ()
        found.append(Processor(cpu, cores.setdefault((socket, core), len(cores)), socket, 0))
    return tuple(found)


def _l3_caches(sys: Path, processors: tuple[Processor, ...]) -> tuple[int, ...]:
    found = set()
    for each in processors:
        for index in (sys / "devices" / "system" / "cpu" / f"cpu{each.cpu}" / "cache").glob("index[0-9]*"):
            if _text(index / "level") == "3" and (number := _number(index / "id")) is not None:
                found.add(number)
    return tuple(sorted(found))


def _cbm_mask(resctrl: Path) -> str:
    for name in _L3_MASKS:
        if mask := _text(resctrl / "info" / name):
            return mask
    return ""
