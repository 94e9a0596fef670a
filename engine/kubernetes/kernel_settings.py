"""Settings of the kernel that policies may change: a fixed table of names, files and ranges.

The names are those of `sysctl` for files below `/proc/sys`; Koordinator's other settings have names of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class KernelSetting:
    """A setting: its file (a logical name), and the lowest and the largest value."""

    name: str
    file: str
    lowest: int
    largest: int

    def accepts(self, value: int) -> bool:
        """Return whether a value is in range."""
        return self.lowest <= value <= self.largest


def _of(name: str, lowest: int, largest: int, file: str = "") -> tuple[str, KernelSetting]:
    return name, KernelSetting(name, file or f"proc/sys/{name.replace('.', '/')}", lowest, largest)


MIN_FREE_KBYTES: Final = "vm.min_free_kbytes"
WATERMARK_SCALE_FACTOR: Final = "vm.watermark_scale_factor"
SCHED_GROUP_IDENTITY_ENABLED: Final = "kernel.sched_group_identity_enabled"
SCHED_IDLE_SAVER_WMARK: Final = "kernel.sched_idle_saver_wmark"
MEMCG_REAP_BACKGROUND: Final = "memcg_reaper.reap_background"
PAGECACHE_LIMIT_ENABLED: Final = "pagecache_limit.enabled"

KERNEL_SETTINGS: Final[Mapping[str, KernelSetting]] = dict((
    _of(MIN_FREE_KBYTES, 10_240, 10_485_760),
    _of(WATERMARK_SCALE_FACTOR, 10, 400),
    _of("vm.swappiness", 0, 200),
    _of("vm.vfs_cache_pressure", 1, 1000),
    _of("vm.dirty_ratio", 1, 100),
    _of("vm.dirty_background_ratio", 1, 100),
    _of("vm.zone_reclaim_mode", 0, 7),
    _of(SCHED_GROUP_IDENTITY_ENABLED, 0, 1),
    _of(SCHED_IDLE_SAVER_WMARK, -_LARGEST - 1, _LARGEST),
    _of(MEMCG_REAP_BACKGROUND, 0, 1, "sys/kernel/mm/memcg_reaper/reap_background"),
    _of(PAGECACHE_LIMIT_ENABLED, 0, 1, "sys/kernel/mm/pagecache_limit/enabled"),
))
"""All settings by name."""
