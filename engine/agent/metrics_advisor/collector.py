"""The base of collectors, with the inputs and the counters' rates that they share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..host.control_groups import ControlGroups
from ..host.files import FileReader
from ..metric_cache.cache import MetricCache
from .measured_groups import MeasuredGroup, MeasuredGroups

SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CpuReadings:
    """The CPU times of control groups of one kind in one round at `now`, for the collector of throttling."""

    now: int
    subjects: tuple[MeasuredGroup, ...]
    contents: list[bytes]
    """The file with the CPU time, of each subject."""
    changed: list[int]
    """The last time at which a reading differed from the one before, by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class NumaUsage:
    """The usages of NUMA nodes in one round at `now`: cpu in milli-cores, memory in bytes."""

    now: int
    cpus: Mapping[int, tuple[int, ...]]
    """The processors of each NUMA node."""
    cpu: Mapping[int, float]
    memory: Mapping[int, float]


@dataclass(slots=True)
class SharedUsage:
    """The last usages that other collectors need: the time, cpu in milli-cores, and memory in bytes."""

    node: tuple[int, float, float] | None = None
    pods: tuple[int, float, float] | None = None
    applications: tuple[int, float, float] | None = None
    numa: NumaUsage | None = None
    cpu: dict[str, CpuReadings] = field(default_factory=dict)
    """The readings of CPU times by kind of subject."""
    with_page_cache: dict[str, int] | None = None
    """Memory with page cache by path of the file that it was read of, for the collector of page cache; None if that is
    off. Reading that file is most of the cost of a collection.
    """


@dataclass(slots=True)
class Sources:
    """All that collectors read from and write to.

    `proc`, `sys` and `resctrl` are the directories of these file systems. `monotonic` returns nanoseconds, from which
    rates are computed: the wall clock may be set.
    """

    cache: MetricCache
    groups: ControlGroups
    files: FileReader
    proc: str = "/proc"
    sys: str = "/sys"
    resctrl: str = "/sys/fs/resctrl"
    subjects: MeasuredGroups = field(default_factory=MeasuredGroups)
    shared: SharedUsage = field(default_factory=SharedUsage)
    monotonic: Callable[[], int] = time.monotonic_ns

    def path(self, subsystem: str, directory: str, name: str) -> str:
        """Return the path of a control group's file; on v2 the subsystem has no meaning.

        A hierarchy that is not mounted gives a path at which there is nothing.
        """
        root = self.groups.root(subsystem) or "/nonexistent"
        return f"{root}/{directory}/{name}" if directory else f"{root}/{name}"

    @property
    def node(self) -> str:
        """The node's name."""
        return self.cache.node


class Rate:
    """The rate of a counter, which needs two readings; a counter that went back begins anew."""

    __slots__ = ("_time", "_value")

    def __init__(self) -> None:
        self._time = 0
        self._value = -1

    def per_nanosecond(self, value: int, now: int) -> float | None:
        """Return the increase since the last reading per nanosecond; None without an earlier one.

        `now` is of a monotonic clock, in nanoseconds.
        """
        before, elapsed = self._value, now - self._time
        if 0 <= before <= value and elapsed <= 0:
            return None
        self._value, self._time = value, now
        return (value - before) / elapsed if 0 <= before <= value else None


class MetricCollector(ABC):
    """Measures at its interval and appends to the metric cache."""

    name: str

    def __init__(self, sources: Sources, interval: int, *, enabled: bool = True) -> None:
        """`interval` in nanoseconds, above 0."""
        if interval <= 0:
            raise ValueError(f"the interval of the collector `{self.name}` must be above 0")
        self.sources = sources
        self.interval = interval
        self.enabled = enabled
        self.started = False
        """True once every value that can be measured has its first sample."""
        self.failures = 0
        """The number of readings that failed: files that were missing or malformed."""

    @abstractmethod
    def collect(self, now: int) -> None:
        """Measure, and append samples at `now`, in nanoseconds since the epoch.

        A file that is missing or malformed costs its own sample only. An error of the whole collection is an `OSError`
        or `ValueError`: there was no sample at all.
        """
