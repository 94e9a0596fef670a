"""The table of files that the agent reads and writes: names, units, checks and conversions.

A file has one logical name, that of control groups v1; its row has the differences of v2.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from . import values
from .values import Check


class FileAccess(enum.Enum):
    """The allowed use of a file."""

    READ = "read"
    WRITE = "write"
    LINES = "lines"
    """A write changes the lines that are written, each by its own call; the others stay."""
    APPEND = "append"
    """A write adds an id, which leaves its former file; there is no value to restore."""


@dataclass(frozen=True, slots=True)
class VersionedFile:
    """A file as one version of control groups has it: its name, and its values.

    `same` compares a text to write with the file's own; `read` is another file to read from. `to` converts a logical
    text to one of this version, given the content of the file; `of` converts it back.
    """

    name: str
    same: Callable[[str, str], bool] = values.same_text
    read: str = ""
    to: Callable[[str, str], str] | None = None
    of: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class ResourceFile:
    """A row of the table.

    `subsystem` names the hierarchy on v1; a version that is None does not have the file. `check` raises `ValueError`
    with the reason for a text that must not be written. `optional`: only some kernels have it.
    """

    name: str
    subsystem: str
    v1: VersionedFile | None
    v2: VersionedFile | None
    check: Check = values.one_line
    access: FileAccess = FileAccess.WRITE
    optional: bool = False

    def of_version(self, version: int) -> VersionedFile | None:
        """Return the file of a version of control groups."""
        return self.v2 if version == 2 else self.v1


def _plain(
    name: str, subsystem: str, check: Check, *, v2: str | None = None, optional: bool = False,
    same: Callable[[str, str], bool] = values.same_number, access: FileAccess = FileAccess.WRITE,
) -> ResourceFile:
    """Return the row of a file with the same text on both versions."""
    of_v2 = None if v2 == "" else VersionedFile(name if v2 is None else v2, same)
    return ResourceFile(name, subsystem, VersionedFile(name, same), of_v2, check, access, optional=optional)


def _read(
    name: str, subsystem: str, v2: str = "", of: Callable[[str], str] | None = None, *, optional: bool = False,
) -> ResourceFile:
    return ResourceFile(name, subsystem, VersionedFile(name), VersionedFile(v2 or name, of=of), _never, FileAccess.READ,
                        optional=optional)


def _never(text: str) -> None:  # noqa: ARG001 - a check's signature
    raise ValueError("the file is only read")


def _memory(name: str) -> ResourceFile:
    both = VersionedFile(name, values.same_limit, of=values.amount_of)
    return ResourceFile(name, "memory", VersionedFile(name, values.same_limit), both, values.number_or_max,
                        optional=True)


def _throttle(name: str, key: str) -> ResourceFile:
    """Return the row of a limit of disks, which share one file on v2."""
    of_v2 = VersionedFile("io.max", values.has_line, to=values.throttle_to(key), of=values.throttle_of(key))
    full = f"blkio.throttle.{name}_device"
    return ResourceFile(full, "blkio", VersionedFile(full, values.has_line), of_v2, values.device_amounts(0),
                        FileAccess.LINES)


def _disks(name: str, v2: str, check: Check) -> ResourceFile:
    of_v2 = VersionedFile(v2, values.has_line, of=values.disks_of)
    return ResourceFile(name, "blkio", VersionedFile(name, values.has_line), of_v2, check, FileAccess.LINES,
                        optional=True)


_ROWS: Final = (
    ResourceFile("cpu.shares", "cpu", VersionedFile("cpu.shares", values.same_number),
                 VersionedFile("cpu.weight", values.same_number, to=values.shares_to, of=values.shares_of),
                 values.in_range(2, 262_144)),
    ResourceFile("cpu.cfs_quota_us", "cpu", VersionedFile("cpu.cfs_quota_us", values.same_quota),
                 VersionedFile("cpu.max", values.same_fields, to=values.quota_to, of=values.quota_of),
                 values.any_number),
    ResourceFile("cpu.cfs_period_us", "cpu", VersionedFile("cpu.cfs_period_us", values.same_number),
                 VersionedFile("cpu.max", values.same_fields, to=values.period_to, of=values.period_of),
                 values.in_range(1_000, 1_000_000)),
    _plain("cpu.cfs_burst_us", "cpu", values.in_range(0, 100_000_000), v2="cpu.max.burst"),
    _plain("cpu.bvt_warp_ns", "cpu", values.in_range(-1, 2), optional=True),
    _plain("cpu.idle", "cpu", values.in_range(0, 1)),
    _read("cpu.stat", "cpu", of=values.throttling_of),
    _plain("tasks", "cpu", values.in_range(0), v2="cgroup.threads", same=values.has_item, access=FileAccess.APPEND),
    _plain("cgroup.procs", "cpu", values.in_range(0), same=values.has_item, access=FileAccess.APPEND),
    ResourceFile("cpuset.cpus", "cpuset", VersionedFile("cpuset.cpus", values.same_cpus),
                 VersionedFile("cpuset.cpus", values.same_cpus, read="cpuset.cpus.effective"),
                 values.cpu_list),
    _read("cpuacct.usage", "cpuacct", "cpu.stat", values.cpu_time_of),
    *(_read(f"{name}.pressure", "cpuacct", optional=True) for name in ("cpu", "memory", "io")),
    ResourceFile("memory.limit_in_bytes", "memory", VersionedFile("memory.limit_in_bytes", values.same_limit),
                 VersionedFile("memory.max", values.same_limit, to=values.memory_to, of=values.memory_of),
                 values.memory_limit),
    _read("memory.usage_in_bytes", "memory", "memory.current"),
    _read("memory.stat", "memory", of=values.memory_stat_of),
    _read("memory.numa_stat", "memory"),
    _read("memory.idle_page_stats", "memory", optional=True),
    _memory("memory.min"),
    _memory("memory.low"),
    _memory("memory.high"),
    _plain("memory.wmark_ratio", "memory", values.in_range(0, 100), optional=True),
    _plain("memory.wmark_scale_factor", "memory", values.in_range(1, 1_000), optional=True),
    _plain("memory.wmark_min_adj", "memory", values.in_range(-25, 50), optional=True),
    _plain("memory.priority", "memory", values.in_range(0, 12), optional=True),
    _plain("memory.use_priority_oom", "memory", values.in_range(0, 1), optional=True),
    _plain("memory.oom.group", "memory", values.in_range(0, 1), optional=True),
    *(ResourceFile(f"memory.pagecache_limit.{name}", "memory", None,
                   VersionedFile(f"memory.pagecache_limit.{name}", values.same_number), check, optional=True)
      for name, check in (("enable", values.in_range(0, 1)), ("size", values.in_range(0)),
                          ("sync", values.in_range(0, 1)))),
    _throttle("read_iops", "riops"),
    _throttle("read_bps", "rbps"),
    _throttle("write_iops", "wiops"),
    _throttle("write_bps", "wbps"),
    _disks("blkio.cost.weight", "io.weight", values.device_amounts(1, 100)),
    _disks("blkio.cost.qos", "io.cost.qos", values.device_settings),
    _disks("blkio.cost.model", "io.cost.model", values.device_model),
    _plain("net_cls.classid", "net_cls", values.in_range(0, 2**32 - 1), optional=True),
)

FILES: Final[Mapping[str, ResourceFile]] = {row.name: row for row in _ROWS}
"""The files of control groups by logical name."""
_NAMES_OF_V2: Final[Mapping[str, str]] = {
    "cpu.weight": "cpu.shares", "cpu.max": "cpu.cfs_quota_us", "cpu.max.burst": "cpu.cfs_burst_us",
    "cgroup.threads": "tasks", "io.weight": "blkio.cost.weight", "io.cost.qos": "blkio.cost.qos",
    "io.cost.model": "blkio.cost.model", "memory.max": "memory.limit_in_bytes",
    "memory.current": "memory.usage_in_bytes",
}

SCHEMATA: Final = ResourceFile(
    "schemata", "resctrl", VersionedFile("schemata", values.has_schemata),
    VersionedFile("schemata", values.has_schemata), values.schemata, FileAccess.LINES,
)
GROUP_TASKS: Final = ResourceFile(
    "tasks", "resctrl", VersionedFile("tasks", values.has_item), VersionedFile("tasks", values.has_item),
    values.in_range(1), FileAccess.APPEND,
)
_SETTINGS: Final[Mapping[str, Check]] = {
    "proc/sys/vm/min_free_kbytes": values.in_range(0),
    "proc/sys/vm/watermark_scale_factor": values.in_range(0),
    "proc/sys/kernel/sched_group_identity_enabled": values.in_range(0, 1),
    "proc/sys/kernel/sched_idle_saver_wmark": values.any_number,
    "sys/kernel/mm/memcg_reaper/reap_background": values.in_range(0, 1),
    "sys/kernel/mm/pagecache_limit/enabled": values.in_range(0, 1),
}
_SCHED_FEATURES: Final = "sys/kernel/debug/sched_features"
_WRITABLE: Final = ("proc/sys/", "sys/kernel/mm/", "sys/kernel/debug/sched_features")


def setting(name: str) -> ResourceFile:
    """Return the row of a file below `proc/` or `sys/`: kernel parameters can be written, all others only read."""
    if name == _SCHED_FEATURES:
        file = VersionedFile(name, values.has_item)
        return ResourceFile(name, "", file, file, values.one_line, FileAccess.LINES)
    file = VersionedFile(name, values.same_number)
    if name.startswith(_WRITABLE):
        return ResourceFile(name, "", file, file, _SETTINGS.get(name, values.one_line))
    return ResourceFile(name, "", file, file, _never, FileAccess.READ)


def logical_name(name: str) -> str:
    """Return the logical name of a control group file that may be written as v2 has it (`cpu.max`)."""
    return _NAMES_OF_V2.get(name, name)
