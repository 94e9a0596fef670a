"""The metric cache: the measurements of a node of the last minutes, in memory of a fixed size."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from .readings import MetricReadings, not_measured
from .series import Series, WindowStatistics
from .table import SeriesTable

_LOG: Final = logging.getLogger(__name__)
_SECOND: Final = 1_000_000_000
_MINUTE: Final = 60 * _SECOND

RETENTION: Final[Mapping[str, int]] = {
    "node": 30 * _MINUTE, "system": 30 * _MINUTE, "bestEffort": 30 * _MINUTE, "pod": 5 * _MINUTE,
    "container": 5 * _MINUTE, "application": 5 * _MINUTE,
}
"""The longest window by kind of subject, in nanoseconds: NodeMetric reports percentiles of a node over 5, 10 and 30
minutes, and averages of its pods over 5. Other kinds (`numaNode`, `resctrl`, ...) have that of a pod."""
LONGEST: Final = 60 * _MINUTE
"""The longest retention: a thousand series of an hour take 18 MB."""
_FEW: Final = frozenset({"node", "system", "bestEffort"})
_EXACT_ROWS: Final = 600
"""Longer series of kinds with many subjects are rounded to 32 bits: a thousand of an hour would take 36 MB."""


class MetricCache:
    """The series of one node by kind of subject, name and resource; one thread appends, any thread reads.

    `what` is `node`, `system`, `bestEffort`, `pod`, `container`, `application`, `numaNode`, `systemNumaNode` (the
    system's part of a NUMA node) or `resctrl`. A pod's name is its key, a container's `namespace/pod/container`; the
    node, its system and its best-effort tier have the node's name. Amounts are in canonical units: cpu in milli-cores,
    `throttled` from 0 to 1, pressures in percent, memory in bytes, bandwidths in bytes per second.

    Each sample is stored as it was measured, so percentiles are exact. Memory is bounded by the retention of each kind,
    the interval of collection, and the number of subjects.
    """

    def __init__(self, node: str, interval: int = _SECOND, retention: Mapping[str, int] = RETENTION) -> None:
        """`interval` is that of the collection, `retention` the longest window by kind, both in nanoseconds."""
        self.node = node
        self.interval = interval
        self._retention = {**RETENTION, **retention}
        self._tables: dict[str, dict[str, SeriesTable]] = {}
        self._intervals: dict[tuple[str, str], int] = {}
        self._too_long: set[str] = set()
        self._lock = threading.Lock()

    def require(self, what: str, window: int) -> None:
        """Retain samples of a kind for a window of nanoseconds, at most an hour; never shortens a retention.

        The first read of a window that is longer than all before sees only the samples retained so far.
        """
        if window <= self.retention(what):
            return
        if window > LONGEST and what not in self._too_long:
            self._too_long.add(what)
            _LOG.warning("windows of a %s are longer than an hour: they have the samples of the last hour", what)
        with self._lock:
            self._retention[what] = max(min(window, LONGEST), self.retention(what))
            for resource, table in self.tables(what):
                table.resize(self._rows(what, resource))

    def retention(self, what: str) -> int:
        """Return the time for which samples of a kind are retained, in nanoseconds."""
        return self._retention.get(what, self._retention["pod"])

    def table(self, what: str, resource: str, interval: int = 0) -> SeriesTable:
        """Return the series of a resource of all subjects of a kind, for a collector that appends to them.

        `interval` is the collector's, in nanoseconds (0: the cache's), and counts only in the first call.
        """
        tables = self._tables.setdefault(what, {})
        found = tables.get(resource)
        if found is None:
            with self._lock:
                self._intervals[what, resource] = interval or self.interval
                found = tables[resource] = SeriesTable(
                    self._rows(what, resource), exact_rows=None if what in _FEW else _EXACT_ROWS)
        return found

    def find(self, what: str, resource: str) -> SeriesTable | None:
        """Return the series of a resource of a kind; None if it was never measured."""
        return self._tables.get(what, {}).get(resource)

    def tables(self, what: str) -> tuple[tuple[str, SeriesTable], ...]:
        """Return the tables of a kind with their resources."""
        return tuple(self._tables.get(what, {}).items())

    def append(self, what: str, name: str, resource: str, time: int, value: float) -> None:
        """Append a measurement; raise `ValueError` if it is not finite."""
        self.table(what, resource).append(time, name, value)

    def forget(self, what: str, name: str) -> None:
        """Drop all series of a subject, which was deleted, or replaced by another one of the same name."""
        for _, table in self.tables(what):
            table.forget(name)

    def names(self, what: str) -> frozenset[str]:
        """Return the subjects of a kind that have series."""
        return frozenset(name for _, table in self.tables(what) for name in table.names())

    def aggregate(self, what: str, name: str, resource: str, start: int, end: int) -> WindowStatistics | None:
        """Return all statistics of a series from `start` to `end`, both included; None without a sample."""
        table = self.find(what, resource)
        return WindowStatistics.of(*table.samples(name, start, end)) if table is not None else None

    def latest(self, what: str, resource: str, now: int) -> dict[str, float]:
        """Return the last value of each subject of a kind that was measured within two intervals of its collector."""
        table = self.find(what, resource)
        return {} if table is None else table.latest(now - 2 * self._intervals[what, resource], now)

    def resources(self, what: str) -> tuple[str, ...]:
        """Return the resources of a kind that have a table."""
        return tuple(self._tables.get(what, {}))

    def series(self, what: str, name: str) -> dict[str, Series]:
        """Return the series of a subject by resource."""
        return {
            resource: _Column(table, name)
            for resource, table in self.tables(what) if name in table
        }

    def at(self, now: int) -> MetricReadings:
        """Return the statistics half of a node's readings at a time, in nanoseconds since the epoch."""
        return _CacheReadings(self, now)

    @property
    def size(self) -> int:
        """The bytes of all series."""
        return sum(table.size for table in tuple(self._all()))

    def _all(self) -> Iterable[SeriesTable]:
        return (table for tables in tuple(self._tables.values()) for table in tuple(tables.values()))

    def _rows(self, what: str, resource: str) -> int:
        # Both ends of a window are included, and collections come some milliseconds early or late.
        return self.retention(what) // self._intervals[what, resource] + 2


class _Column:
    """One series of a table (a `Series`)."""

    __slots__ = ("_name", "_table")

    def __init__(self, table: SeriesTable, name: str) -> None:
        self._table = table
        self._name = name

    def between(self, start: int, end: int) -> Sequence[float]:
        return self._table.between(self._name, start, end)

    def newest(self, end: int) -> int | None:
        return self._table.newest(self._name, end)


class _CacheReadings(MetricReadings):
    def __init__(self, cache: MetricCache, now: int) -> None:
        super().__init__(cache.node, now, cache.interval)
        self._cache = cache
        self._last_query = "", "", -1
        self._table: SeriesTable | None = None

    def measured(self, what: str, name: str, statistic: str, window: int) -> dict[str, float]:
        self._cache.require(what, window)
        start, end = self._now - window, self._now
        return {
            resource: found for resource, table in self._cache.tables(what)
            if (found := table.statistic(name, statistic, start, end)) is not None
        }

    def _usage(self, what: str, name: str, resource: str, statistic: str, window: int) -> float:
        # One round queries the same resource and window for many subjects in turn.
        if self._table is None or self._last_query != (what, resource, window):
            self._cache.require(what, window)
            self._last_query = what, resource, window
            self._table = self._cache.find(what, resource)
        table, now = self._table, self._now
        found = None if table is None else table.statistic(name, statistic, now - (window or 2 * self._interval), now)
        if found is None:
            if statistic == "count":
                return 0
            raise not_measured(what, name, resource)
        return found

    def _series(self, what: str, name: str) -> Mapping[str, Series]:
        return self._cache.series(what, name)
