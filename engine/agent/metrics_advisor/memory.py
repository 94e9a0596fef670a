"""Collectors of memory with page cache, and of cold memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import parsing
from .collector import MetricCollector, Sources
from .measured_groups import MeasuredGroup, Probes
from .memory_file import MemoryFile

WITH_PAGE_CACHE: Final = "memory-with-page-cache"
WITH_HOT_PAGES: Final = "memory-with-hot-pages"
COLD: Final = "cold-memory"
KIDLED: Final = "kernel/mm/kidled/scan_period_in_seconds"


class _Files:
    """The memory files of a control group."""

    __slots__ = ("idle", "memory", "name")

    def __init__(self, sources: Sources, subject: MeasuredGroup, memory: str) -> None:
        self.name = subject.name
        self.memory = sources.path("memory", subject.directory, memory)
        self.idle = sources.path("memory", subject.directory, "memory.idle_page_stats")


class _GroupMemory(MetricCollector):
    """Measures the memory of the node and of all subjects."""

    def __init__(self, sources: Sources, interval: int, *, enabled: bool) -> None:
        super().__init__(sources, interval, enabled=enabled)
        self._file = file = MemoryFile.of(sources)
        self._probes = {
            what: Probes(lambda subject: _Files(sources, subject, file.name))
            for what in ("pod", "container", "application")
        }

    def _node(self) -> int:
        """Return the node's memory with page cache."""
        sources = self.sources
        total, free = parsing.amounts_of(
            parsing.meminfo(sources.files.read(f"{sources.proc}/meminfo")), b"MemTotal", b"MemFree",
        )
        return max(total - free, 0)

    def _files(self) -> dict[str, Sequence[_Files]]:
        subjects = self.sources.subjects
        return {
            "pod": self._probes["pod"].of(subjects.pods),
            "container": self._probes["container"].of(subjects.containers),
            "application": self._probes["application"].of(subjects.applications),
        }

    def _append(self, what: str, resource: str, now: int, values: dict[str, float]) -> None:
        self.sources.cache.table(what, resource, self.interval).append_all(now, values)


class PageCache(_GroupMemory):
    """Memory with page cache of the node, pods, containers and host applications (koordlet's pagecache)."""

    name = "pagecache"

    def __init__(self, sources: Sources, interval: int, *, enabled: bool) -> None:
        super().__init__(sources, interval, enabled=enabled)
        if enabled:
            sources.shared.with_page_cache = {}

    def collect(self, now: int) -> None:
        """Measure."""
        self._append("node", WITH_PAGE_CACHE, now, {self.sources.node: float(self._node())})
        read, amounts = self.sources.files.read, self._file.amounts
        known = self.sources.shared.with_page_cache or {}
        for what, files in self._files().items():
            found: dict[str, float] = {}
            for each in files:
                try:
                    amount = known.pop(each.memory, None)
                    found[each.name] = amounts(read(each.memory))[1] if amount is None else amount
                except (OSError, ValueError):
                    self.failures += 1
            self._append(what, WITH_PAGE_CACHE, now, found)
        known.clear()  # those of pods that are gone meanwhile
        self.started = True


class ColdMemory(_GroupMemory):
    """Cold pages, and memory with the page cache that is not cold (koordlet's coldmemoryresource).

    It needs a kernel with kidled, whose scans are on: the kernel of Anolis has it.
    """

    name = "coldmemoryresource"

    @staticmethod
    def supported(sources: Sources) -> bool:
        """Return whether the kernel looks for cold pages."""
        try:
            return parsing.number(sources.files.read(f"{sources.sys}/{KIDLED}")) > 0
        except (OSError, ValueError):
            return False

    def collect(self, now: int) -> None:
        """Measure."""
        sources, read = self.sources, self.sources.files.read
        cold = parsing.cold_pages(read(sources.path("memory", "", "memory.idle_page_stats")))
        self._append("node", COLD, now, {sources.node: float(cold)})
        self._append("node", WITH_HOT_PAGES, now, {sources.node: float(max(self._node() - cold, 0))})
        for what, files in self._files().items():
            of_cold: dict[str, float] = {}
            of_hot: dict[str, float] = {}
            for each in files:
                try:
                    cold = parsing.cold_pages(read(each.idle))
                    used = self._file.amounts(read(each.memory))[1]
                except (OSError, ValueError):
                    self.failures += 1
                    continue
                of_cold[each.name] = cold
                of_hot[each.name] = max(used - cold, 0)
            self._append(what, COLD, now, of_cold)
            self._append(what, WITH_HOT_PAGES, now, of_hot)
        self.started = True
