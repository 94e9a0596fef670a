"""The use of each NUMA node by pods and host applications."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from ..host.control_groups import GUARANTEED
from . import parsing
from .collector import Rate, Sources
from .memory_file import NUMA_STAT

_LINES: Final = {1: (b"hierarchical_anon", b"hierarchical_unevictable"),
                 2: (b"inactive_anon", b"active_anon", b"unevictable")}
"""The lines of memory.numa_stat that count as use, by version."""
_TIMES: Final = "cpuacct.usage_percpu"


class NumaWorkloads:
    """Reads the use of the control group of all pods, and of those of host applications outside of it.

    The kernel counts memory by NUMA node, and CPU time by processor on v1 only.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._rates: dict[tuple[str, int], Rate] = {}
        self._unit = os.sysconf("SC_PAGE_SIZE") if sources.groups.version == 1 else 1

    def used(self, cpus: Mapping[int, tuple[int, ...]]) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """Return cpu (milli-cores, since the last call) and memory (bytes) by NUMA node, each empty if it is unknown.

        `cpus` are the processors of the NUMA nodes.
        """
        pods = self._sources.groups.tier(GUARANTEED)
        outside = tuple(dict.fromkeys(
            each.directory for each in self._sources.subjects.applications
            if not f"{each.directory}/".startswith(f"{pods}/")))
        return self._cpu(cpus, pods, outside), self._memory(cpus, pods, outside)

    def _cpu(self, cpus: Mapping[int, tuple[int, ...]], pods: str, outside: tuple[str, ...]) -> Mapping[int, float]:
        if self._sources.groups.version == 2:
            return {}
        rates, self._rates = self._rates, {}
        found = dict.fromkeys(cpus, 0.0)
        known = True
        for directory in (pods, *outside):
            try:
                times = parsing.processor_times(self._read("cpuacct", directory, _TIMES))
            except (OSError, ValueError):
                if directory == pods:
                    known = False
                continue  # an application that does not run has no control group
            now = self._sources.monotonic()
            for node, numbers in cpus.items():
                rate = self._rates[directory, node] = rates.get((directory, node)) or Rate()
                share = rate.per_nanosecond(sum(times[cpu] for cpu in numbers if cpu < len(times)), now)
                if share is None:
                    known = False
                else:
                    found[node] += share * 1000
        return found if known else {}

    def _memory(self, cpus: Mapping[int, tuple[int, ...]], pods: str, outside: tuple[str, ...]) -> Mapping[int, float]:
        found = dict.fromkeys(cpus, 0.0)
        names = _LINES[self._sources.groups.version]
        for directory in (pods, *outside):
            try:
                of_node = parsing.memory_of_nodes(self._read("memory", directory, NUMA_STAT), names)
            except (OSError, ValueError):
                if directory == pods:
                    return {}
                continue
            for node in cpus:
                found[node] += of_node.get(node, 0) * self._unit
        return found

    def _read(self, subsystem: str, directory: str, name: str) -> bytes:
        return self._sources.files.read(self._sources.path(subsystem, directory, name))
