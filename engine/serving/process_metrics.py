"""Metrics of the process itself, with the names that all programs of Prometheus' clients have for them."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .instruments import Metric, MetricSpec, MetricType

_C, _G = MetricType.COUNTER, MetricType.GAUGE
CPU_SECONDS: Final = MetricSpec("process_cpu_seconds_total", _C, "Processor time of the process, user and system")
RESIDENT_MEMORY: Final = MetricSpec("process_resident_memory_bytes", _G, "Resident memory of the process")
VIRTUAL_MEMORY: Final = MetricSpec("process_virtual_memory_bytes", _G, "Address space of the process")
START_TIME: Final = MetricSpec("process_start_time_seconds", _G, "Time at which the process started")
OPEN_FILES: Final = MetricSpec("process_open_fds", _G, "Open file descriptors of the process")
MOST_FILES: Final = MetricSpec("process_max_fds", _G, "Limit of open file descriptors")

TABLE: Final = (CPU_SECONDS, RESIDENT_MEMORY, VIRTUAL_MEMORY, START_TIME, OPEN_FILES, MOST_FILES)
_PROC: Final = Path("/proc")
_FIRST_FIELD: Final = 3
"""The number of the first field behind the name of the program in `stat`, which may hold spaces."""


class ProcessMetrics:
    """Reads the process's own figures of `/proc` on each scrape; without it there are none."""

    def __init__(self, proc: Path = _PROC) -> None:
        """`proc` is the file system of processes, for tests."""
        self._proc = proc

    def collect(self) -> Iterator[Metric]:
        """Yield the rows of `TABLE`."""
        own = self._proc / "self"
        try:
            fields = (own / "stat").read_text().rpartition(")")[2].split()
            (booted,) = [line.split()[1] for line in (self._proc / "stat").read_text().splitlines()
                         if line.startswith("btime ")]
            files = len(os.listdir(own / "fd"))  # noqa: PTH208 - half the time for thousands of connections
        except (OSError, ValueError):
            return
        user, system, started, virtual, pages = (int(fields[number - _FIRST_FIELD]) for number in (14, 15, 22, 23, 24))
        ticks = os.sysconf("SC_CLK_TCK")
        yield CPU_SECONDS.value((user + system) / ticks)
        yield RESIDENT_MEMORY.value(pages * os.sysconf("SC_PAGE_SIZE"))
        yield VIRTUAL_MEMORY.value(virtual)
        yield START_TIME.value(int(booted) + started / ticks)
        yield OPEN_FILES.value(files)
        yield MOST_FILES.value(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
