"""Settings of the kernel that policies may change: a fixed table of names, files and ranges.

The names are those of `sysctl` for files below `/proc/sys`; Koordinator's other settings have names of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.framework.qos import Readings

from .node_slo import node_name

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
SCHED_FEATURES_FILE: Final = "sys/kernel/debug/sched_features"

SETTINGS: Final[Mapping[str, KernelSetting]] = dict((
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


class OriginalTexts:
    """The texts of files before their first change on each node, so that changes can be reverted."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], str] = {}

    def write(self, readings: Readings, file: str, text: str) -> tuple[tuple[str, str], ...]:
        """Return the write of a file, if it exists and has another text; its present text is remembered."""
        present = readings.files.get(file)
        if present is None or present.strip() == text:
            return ()
        self._texts.setdefault((node_name(readings), file), present.strip())
        return ((file, text),)

    def remember(self, readings: Readings, file: str, text: str) -> None:
        """Remember a text that the file's reader would not return as it must be written."""
        self._texts.setdefault((node_name(readings), file), text)

    def files(self, readings: Readings) -> Iterable[str]:
        """Return the changed files of the node."""
        return [file for node, file in self._texts if node == node_name(readings)]

    def restore(self, readings: Readings, file: str) -> tuple[tuple[str, str], ...]:
        """Return the write that reverts a file; empty if it was not changed, or has the text already."""
        text = self._texts.pop((node_name(readings), file), None)
        if text is None or readings.files.get(file, text).strip() == text:
            return ()
        return ((file, text),)


def feature_states(text: str) -> dict[str, bool]:
    """Return the scheduler features of `sched_features` by name, with their state (`NO_NAME` is off)."""
    names = text.split()
    return {each.removeprefix("NO_"): not each.startswith("NO_") for each in names}


def feature_text(name: str, on: bool) -> str:
    """Return the text that switches a scheduler feature on or off."""
    return f"{name}\n" if on else f"NO_{name}\n"
