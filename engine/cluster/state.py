"""The state of the cluster that snapshots read: its objects, a row per node, columns of the rows, and change logs.

There is a row per node, sorted by name. Columns are built from the rows at their first read and then refreshed row by
row, so that the cost of a decision depends on the changes and not on the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.encoding import PathColumns
from koordpolicy.engine.cel.vector.frame import Rows

from .change_log import NO_ROWS, Log, ascending, last_of
from .columns import AmountColumn, Booleans, DeviceColumns, Integers
from .objects.metrics import NANOSECONDS, NodeMetric
from .objects.node_rows import FREE_DEVICES, NodeRow, devices_of, model_of
from .objects.pods import NONZERO_PLACES, PodInfo

__all__ = ["NEVER", "Cache", "ClusterState"]

NEVER: Final = -(2**62)
"""The time of a metric that was never taken."""
_FOREVER: Final = 2**63 - 1
_SCRATCHES = "scratches"
_MOST_SCRATCHES = 16

Cache: TypeAlias = dict[object, Any]


class ClusterState:
    """The cluster as snapshots read it. `Cluster` makes the changes and keeps rows, columns and logs in step.

    `metric_expiry_seconds`, `cache_results_from`, `following_from` and `kinds` are described by `Cluster`.
    """

    def __init__(
        self, *, metric_expiry_seconds: int, cache_results_from: int, following_from: int, kinds: frozenset[str] | None,
    ) -> None:
        self.kinds = kinds
        """The kinds that the source contains; None where it may contain all."""
        self.metric_expiry = metric_expiry_seconds * NANOSECONDS
        self.cache_results_from = cache_results_from
        self.following_from = following_from
        self.version = 0
        self.rows: list[NodeRow] = []
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.fresh: Booleans = np.zeros(0, dtype=np.bool_)
        self.cross_version_cache: dict[object, object] = {}
        """The cross-version cache, cleared when rows are added or removed; entries carry the stamp of their refresh."""
        self.finished_pods: dict[str, PodInfo] = {}
        """The pods that succeeded or failed, by key; no row has them."""
        self._objects: dict[str, dict[str, Mapping[str, Any]]] = {}
        self._versions: dict[str, int] = {}
        self._fresh_from = self._fresh_until = 0
        self._now = 0
        self._version_cache: tuple[int, Cache] = (-1, {})
        self._shape_changed()

    # Objects

    def object(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """Return an object by kind and key (`namespace/name`, or `name` of a cluster-scoped one), or None."""
        return self._objects.get(kind, {}).get(key)

    def objects(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """Return all objects of a kind by key."""
        return self._objects.get(kind, {})

    def all_objects(self) -> dict[str, list[Mapping[str, Any]]]:
        """Return the objects by kind, as lists that later changes do not affect."""
        return {kind: list(objects.values()) for kind, objects in self._objects.items()}

    def lacks(self, kind: str) -> bool:
        """Return whether a kind is unknown, because the source does not contain it; an empty kind is known."""
        return self.kinds is not None and kind not in self.kinds and not self._objects.get(kind)

    def version_of(self, kind: str) -> int:
        """Return a number that grows whenever an object of the kind is added, replaced or deleted."""
        return self._versions.get(kind, 0)

    def pods_without_row(self) -> Iterator[PodInfo]:
        """Yield the pods that are on no row: finished ones, and those whose node is unknown or not chosen yet."""
        raise NotImplementedError

    # Caches

    @property
    def version_cache(self) -> Cache:
        """The per-version cache: a new one after every change."""
        version, cache = self._version_cache
        if version != self.version:
            cache = {}
            self._version_cache = self.version, cache
        return cache

    def scratch(self, rows: Rows | None) -> Cache:
        """Return the scratch space of these rows (the very array; None for all) in this version of the cluster."""
        cache = self.version_cache
        scratches: dict[int, tuple[Rows | None, Cache]] = cache.setdefault(_SCRATCHES, {})
        found = scratches.get(id(rows))
        if found is None:
            if len(scratches) >= _MOST_SCRATCHES:
                scratches.clear()  # each of many sets of rows is read once in one version
            found = scratches[id(rows)] = (rows, {})
        return found[1]

    # Writing rows, columns and logs, for `Cluster`

    def _shape_changed(self) -> None:
        """Reset rows, columns and logs after nodes were added or removed: row numbers have changed."""
        self.version += 1
        version = self.version
        self.names = [row.name for row in self.rows]
        self.index = {name: row for row, name in enumerate(self.names)}
        self.cross_version_cache.clear()
        self.pods_log, self.metric_log, self.clock_log = Log(version), Log(version), Log(version)
        self.devices_log, self.node_log, self.allocatable_log = Log(version), Log(version), Log(version)
        self._path_logs: dict[Path, Log] = {}
        self._object_logs: dict[str, Log] = {}
        self._logs: dict[frozenset[Path], tuple[Log, ...]] = {}
        self._requested: dict[str, AmountColumn] = {}
        self._nonzero: dict[int, AmountColumn] = {}
        self._allocatable: dict[str, AmountColumn] = {}
        self._pod_count = AmountColumn([len(row.pods) for row in self.rows])
        self._devices: DeviceColumns | None = None
        self._amounts: dict[Path, AmountColumn] = {}
        self.updated: Integers = np.array([_updated(row.metric) for row in self.rows], dtype=np.int64)
        self.paths = PathColumns()
        self._fresh_from, self._fresh_until = 1, 0

    def _set_devices(self, index: int) -> None:
        row = self.rows[index]
        device = self.object("Device", row.name)
        if row.set_devices(devices_of(row.allocatable, device), model_of(row.node, device)):
            self.version += 1
            self.devices_log.note(self.version, index)
            self.node_log.note(self.version, index)
            if self._devices is not None:
                if len(row.total) > self._devices.total.shape[1]:
                    self._devices = None
                    self._amounts.clear()
                else:
                    self._devices.write(index, row)

    def _object_changed(self, kind: str, key: str) -> None:
        self._versions[kind] = self._versions.get(kind, 0) + 1
        log = self._object_logs.get(kind)
        if log is not None and key in self.index:
            self.version += 1
            log.note(self.version, self.index[key])

    def _set_metric(self, key: str, metric: NodeMetric | None) -> None:
        index = self.index.get(key)
        if index is not None:
            self.rows[index].metric = metric
            self.updated[index] = _updated(metric)
            self.version += 1
            self.metric_log.note(self.version, index)
            self._fresh_from, self._fresh_until = 1, 0

    def _pods_changed(self, index: int, pod: PodInfo) -> None:
        self.version += 1
        version = self.version
        self.pods_log.note(version, index)
        row = self.rows[index]
        self._pod_count.write(index, len(row.pods))
        columns = self._requested
        if columns:
            for name in pod.requests:
                column = columns.get(name)
                if column is not None:
                    column.write(index, row.requested[name])
        for place, column in self._nonzero.items():
            column.write(index, row.nonzero[place])
        if pod.gpu is not None and row.free:
            self.devices_log.note(version, index)
            if self._devices is not None:
                self._devices.write_free(index, row)

    def _keep_time(self, now: int) -> None:
        """Update which metrics are fresh at `now`, if that may have changed."""
        if now != self._now:
            self._now = now
            self.version += 1
            self.clock_log.forget(self.version)
        if self._fresh_from <= now < self._fresh_until:
            return
        known = self.updated != NEVER
        if self.metric_expiry > 0:
            # Koordinator's rule: an age *equal* to the expiry is expired.
            ends = self.updated + self.metric_expiry
            fresh = known & (ends > now)
            self._fresh_until = int(ends[fresh].min(initial=_FOREVER))
            self._fresh_from = int(ends[known & ~fresh].max(initial=-_FOREVER))
        else:
            fresh = known
            self._fresh_from, self._fresh_until = -_FOREVER, _FOREVER
        if len(self.fresh) == len(fresh):
            changed = np.flatnonzero(self.fresh != fresh)
            if len(changed):
                self.version += 1
                for index in changed.tolist():
                    self.metric_log.note(self.version, index)
        self.fresh = fresh

    # Columns

    def amounts(self, path: Path) -> AmountColumn | None:
        """Return the cached column of amounts at a ROW path, or None if it is not one of the cluster's own columns."""
        column = self._amounts.get(path)
        if column is None:
            column = self._amounts_at(path)
            if column is not None:
                self._amounts[path] = column
        return column

    def _amounts_at(self, path: Path) -> AmountColumn | None:
        match path:
            case ("requested", str(name)):
                return self.requested_amounts(name)
            case ("nonZeroRequested", str(name)):
                place = NONZERO_PLACES.get(name)
                return self.requested_amounts(name) if place is None else self.nonzero_amounts(place)
            case ("allocatable", str(name)):
                return self.allocatable_amounts(name)
            case ("nodeInfo", "pods"):
                return self._pod_count
            case ("nodeInfo", name) if name in FREE_DEVICES:
                return self.device_columns.fact(name, self.rows)
            case _:
                return None

    def requested_amounts(self, name: str) -> AmountColumn:
        """Return the cached column of a resource's requests."""
        column = self._requested.get(name)
        if column is None:
            column = self._requested[name] = AmountColumn([row.requested[name] for row in self.rows])
        return column

    def nonzero_amounts(self, place: int) -> AmountColumn:
        """Return the cached column of the requests of a resource of `NONZERO`, by its place there."""
        column = self._nonzero.get(place)
        if column is None:
            column = self._nonzero[place] = AmountColumn([row.nonzero[place] for row in self.rows])
        return column

    def allocatable_amounts(self, name: str) -> AmountColumn:
        """Return the cached column of an allocatable resource."""
        column = self._allocatable.get(name)
        if column is None:
            column = self._allocatable[name] = AmountColumn([row.allocatable[name] for row in self.rows])
        return column

    @property
    def pod_counts(self) -> AmountColumn:
        """The cached column of the numbers of pods."""
        return self._pod_count

    @property
    def device_columns(self) -> DeviceColumns:
        """The cached columns of devices."""
        if self._devices is None:
            self._devices = DeviceColumns(self.rows)
        return self._devices

    # Changes since a stamp

    def logs(self, paths: frozenset[Path]) -> tuple[Log, ...]:
        """Return the change logs of these ROW paths."""
        found = self._logs.get(paths)
        if found is None:
            found = tuple({id(log): log for path in sorted(paths) for log in self._logs_of(path)}.values())
            self._logs[paths] = found
        return found

    def stamp(self, paths: frozenset[Path]) -> int:
        """Return a number that grows whenever a row may have changed at one of the ROW paths."""
        cache = self.version_cache
        found: int | None = cache.get(paths)
        if found is None:
            found = cache[paths] = last_of(self.logs(paths))
        return found

    def changed(self, paths: frozenset[Path], since: int) -> Rows | None:
        """Return the rows, ascending, that changed at one of the paths since that stamp; None if that is not known.

        Read-only: it is cached for the next caller.
        """
        logs = [log for log in self.logs(paths) if log.last > since]
        if not logs:
            return NO_ROWS
        cache, key = self.version_cache, (*logs, since)
        found: Rows | None = cache.get(key, NO_ROWS)
        if found is NO_ROWS:
            found = cache[key] = self._changed_in(logs, since)
        return found

    def _changed_in(self, logs: Sequence[Log], since: int) -> Rows | None:
        together: set[int] = set()
        of_each: list[set[int]] = []
        for log in logs:
            rows = log.since(since)
            if rows is None:
                return None
            of_each.append(rows)
            together |= rows
        if len(logs) > 1:
            # Most logs have the same placements, pods and their devices: readers of one of them share the array.
            for log, rows in zip(logs, of_each, strict=True):
                if len(rows) == len(together):
                    cache, key = self.version_cache, (log, since)
                    known: Rows | None = cache.get(key)
                    if known is None:
                        known = cache[key] = ascending(rows)
                    return known
        return ascending(together)

    def _logs_of(self, path: Path) -> tuple[Log, ...]:
        match path:
            case ("node", *_):
                if path not in self._path_logs:
                    self._path_logs[path] = Log(self.version)
                return (self._path_logs[path],)
            case ("objects", kind):  # the objects of a kind that are named like nodes; for plugins, not for expressions
                return (self._object_logs.setdefault(kind, Log(self.version)),)
            case ("allocatable", *_):
                return (self.allocatable_log,)
            case ("requested" | "nonZeroRequested", *_) | ("nodeInfo", "pods", *_):
                return (self.pods_log,)
            case ("nodeInfo", "measured", *_) | ("usage", *_):
                return (self.metric_log,)
            case ("nodeInfo", "gpuFree" | "gpuFreeDevices", *_) | ("devices", *_):
                return (self.devices_log,)
            case ("nodeInfo", _, *_):
                return (self.node_log,)
            case ("metricAge", *_):
                return self.metric_log, self.clock_log
            case ("nodeMetric", *_):
                return (self.metric_log,)
            case ("estimated", *_):
                return self.metric_log, self.pods_log
            case _:
                return (
                    self.node_log, self.allocatable_log, self.pods_log, self.metric_log, self.devices_log,
                    self.clock_log,
                )


def _updated(metric: NodeMetric | None) -> int:
    return NEVER if metric is None or metric.updated is None else metric.updated
