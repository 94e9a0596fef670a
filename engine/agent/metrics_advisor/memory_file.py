"""The file of a control group out of which its memory is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from . import parsing
from .collector import Sources

STAT: Final = "memory.stat"
NUMA_STAT: Final = "memory.numa_stat"
_MOST_NUMA_NODES: Final = 2
"""With more NUMA nodes the kernel takes as long for memory.numa_stat, which has a column for each, as for the other."""


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A file by name, with the function that returns a control group's memory without and with page cache, in bytes.

    The function raises `ValueError` for a text that is malformed or cut off.
    """

    name: str
    amounts: Callable[[bytes], tuple[int, int]]

    @staticmethod
    def of(sources: Sources) -> MemoryFile:
        """Return the file that the kernel takes the least time for.

        memory.stat has all amounts, and the kernel writes dozens of lines each time. On control groups v1 the lines
        `hierarchical_` of memory.numa_stat are sums of the same counters, in pages, at less than half of the cost; a
        kernel without NUMA does not have the file.
        """
        if sources.groups.version == 2:
            return MemoryFile(STAT, partial(parsing.memory_amounts, prefix=b""))
        try:
            data = sources.files.read(sources.path("memory", "", NUMA_STAT))
            parsing.memory_pages(data)
        except (OSError, ValueError):
            numa_nodes = None
        else:
            numa_nodes = data.partition(b"\n")[0].count(b" N")
        if numa_nodes is None or numa_nodes > _MOST_NUMA_NODES:
            return MemoryFile(STAT, partial(parsing.memory_amounts, prefix=b"total_"))
        return MemoryFile(NUMA_STAT, partial(_bytes_of_pages, size=os.sysconf("SC_PAGE_SIZE")))


def _bytes_of_pages(data: bytes, size: int) -> tuple[int, int]:
    used, full = parsing.memory_pages(data)
    return used * size, full * size
