"""`Snapshot`, the view of one decision on the cluster, and `NodeFrame`, its columns for expressions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.encoding import Absent, value_at
from koordpolicy.engine.cel.vector.frame import Codes, Frame, Numbers, Rows, gather

from .columns import DeviceColumns, Devices, Integers
from .objects.metrics import NANOSECONDS, Unmeasured, unmeasured
from .objects.node_rows import NodeRow
from .objects.pods import NONZERO_PLACES, PodInfo
from .overlay import NodeChange, override, pod_changes, rows_that_differ
from .state import NEVER, Cache, ClusterState

__all__ = ["NodeFrame", "Snapshot"]

_UNMEASURED: Final = Unmeasured("no metric of the node, or an expired one")
_NO_METRIC: Final = Unmeasured("no metric of the node")
_MOST_CHANGED: Final = 64
"""From this number of changed rows on, an overlay does not go on from what an overlay below has in its cache."""
_Number = TypeVar("_Number", bound=np.generic)


class Snapshot:
    """The view of one decision on the cluster; valid until the cluster changes. Cheap: it copies nothing.

    Rows are nodes sorted by name. Its arrays are read-only. An overlay (see `overlay`) is a
    snapshot too, in which a few rows differ.
    """

    __slots__ = (
        "_at", "_cluster", "_devices", "_inherited", "_overridden", "_row_caches", "now", "overlay_cache", "version",
    )

    def __init__(self, cluster: ClusterState, now: int, overridden: Mapping[int, NodeRow] | None = None) -> None:
        self._cluster = cluster
        self._overridden = overridden or {}
        self._devices: Devices | None = None
        self._at: tuple[Rows | None, int, Cache] = (None, -1, {})
        self._row_caches: dict[int, Cache] = {}
        self._inherited: dict[Any, tuple[Any, frozenset[int]]] = {}
        self.now = now
        self.version = cluster.version
        self.overlay_cache: Cache = {}
        """The cache of this overlay alone."""

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self._cluster.rows)

    @property
    def names(self) -> Sequence[str]:
        """The nodes' names, sorted."""
        return self._cluster.names

    @property
    def index(self) -> Mapping[str, int]:
        """Row numbers by node name."""
        return self._cluster.index

    def row(self, row: int) -> NodeRow:
        """Return the row of one node; read-only."""
        return self._overridden.get(row) or self._cluster.rows[row]

    def node(self, row: int) -> Mapping[str, Any]:
        """Return a node object."""
        return self.row(row).node

    def node_info(self, row: int) -> dict[str, Any]:
        """Return the derived facts of a node (name, pods, images, zone, region, measured, gpuFree, ...)."""
        return self.row(row).info(bool(self._cluster.fresh[row]))

    def object(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """Return an object of the cluster by kind and key, or None."""
        return self._cluster.object(kind, key)

    def objects(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """Return all objects of a kind by key."""
        return self._cluster.objects(kind)

    def version_of(self, kind: str) -> int:
        """Return a number that grows whenever an object of the kind is added, replaced or deleted."""
        return self._cluster.version_of(kind)

    def pods(self, row: int) -> tuple[PodInfo, ...]:
        """Return the pods on a node, in order of arrival."""
        return tuple(self.row(row).pods.values())

    def allocatable(self, resource: str) -> Integers:
        """Return a resource's allocatable amounts, int64[nodes], 0 where it is absent."""
        column = self._cluster.allocatable_amounts(resource).values
        if not self._overridden:
            return column
        return self._with_overridden(("allocatable", resource), column, lambda row: row.allocatable[resource])

    def requested(self, resource: str) -> Integers:
        """Return the sums of the pods' requests, int64[nodes], 0 where nothing is requested."""
        column = self._cluster.requested_amounts(resource).values
        if not self._overridden:
            return column
        return self._with_overridden(("requested", resource), column, lambda row: row.requested[resource])

    def nonzero_requested(self, resource: str) -> Integers:
        """Return `requested` as scores count it (see `PodInfo.nonzero`): Kubernetes' NonZeroRequested of all nodes."""
        place = NONZERO_PLACES.get(resource)
        if place is None:
            return self.requested(resource)
        column = self._cluster.nonzero_amounts(place).values
        return self._with_overridden(("nonzero", resource), column, lambda row: row.nonzero[place])

    def gathered(self, values: NDArray[_Number], rows: Rows) -> NDArray[_Number]:
        """Return `values[..., rows]` of a cached array, cached itself. Read-only."""
        if len(rows) == values.shape[-1]:
            return values
        if self._overridden:
            return values[..., rows]  # an overlay's columns are copies of its own
        of, version, scratch = self._at
        if of is not rows or version != self._cluster.version:
            scratch = self._cluster.scratch(rows)
            self._at = rows, self._cluster.version, scratch
        return gather(scratch, values, rows)

    @property
    def pod_count(self) -> Integers:
        """The numbers of pods per node, int64[nodes]."""
        return self._with_overridden("pods", self._cluster.pod_counts.values, lambda row: len(row.pods))

    def usage(self, resource: str, statistic: str = "") -> Numbers:
        """Return the measured usage; absent without a metric of the resource, or if the metric expired."""
        path = ("usage", statistic, resource) if statistic else ("usage", resource)
        return self.frame({}).numbers(path) or self._nothing()

    @property
    def devices(self) -> Devices:
        """The devices of all nodes."""
        if self._devices is None:
            columns = self._cluster.device_columns
            if self._overridden:
                if max(len(row.total) for row in self._overridden.values()) > columns.total.shape[1]:
                    columns = DeviceColumns([self.row(index) for index in range(self.size)])
                else:
                    columns = columns.copy()
                    for index, row in self._overridden.items():
                        columns.write(index, row)
            self._devices = Devices(self._cluster.rows, self._overridden, columns)
        return self._devices

    def overlay(self, changes: Mapping[str, NodeChange]) -> Snapshot:
        """Return an overlay with these overrides; this snapshot and the cluster do not change.

        Raises:
            ValueError: there is no such node, a pod to remove is not on it, or an object is malformed.
        """
        overridden = override(self._cluster, self._overridden, changes)
        overlay = Snapshot(self._cluster, self.now, overridden)
        overlay._row_caches = {row: cache for row, cache in self._row_caches.items()
                               if overridden[row] is self._overridden[row]}
        if self._overridden:
            changed = frozenset(self.index[name] for name in changes)
            cached = {key: (value, changed) for key, value in self.overlay_cache.items()}
            overlay._inherited = {key: (value, rows | changed) for key, (value, rows) in self._inherited.items()
                                  if key not in cached and len(rows) < _MOST_CHANGED} | cached
        return overlay

    def inherited(self, key: Hashable) -> tuple[Any, frozenset[int]] | None:
        """Return the value in the cache of the nearest overlay below this one that has it, with the rows that changed
        since; None if none has it, or too many rows changed. For values that can be copied and refreshed for rows.
        """
        return self._inherited.get(key)

    def frame(self, values: Mapping[str, Any]) -> NodeFrame:
        """Return the frame of expressions over the nodes; `values` are the CONSTANT and DECISION variables."""
        if values or self._overridden:
            return NodeFrame(self, values)
        cache, key = self._cluster.version_cache, (NodeFrame, self.now)
        found: NodeFrame | None = cache.get(key)
        if found is None:
            found = cache[key] = NodeFrame(self, {})
        return found

    def _with_overridden(self, key: Hashable, column: Integers, value: Callable[[NodeRow], int]) -> Integers:
        if not self._overridden:
            return column
        copy: Integers | None = self.overlay_cache.get(key)
        if copy is None:
            below = self.inherited(key)
            base, rows = (column, [*self._overridden]) if below is None else (below[0], [*below[1]])
            found: Integers = base.copy()
            found[rows] = [value(self._overridden[row]) for row in rows]
            self.overlay_cache[key] = found
            return found
        return copy

    def _nothing(self) -> Numbers:
        return Numbers(np.zeros(self.size, dtype=np.int64), np.zeros(self.size, dtype=np.bool_))

    # For frames

    @property
    def cluster(self) -> ClusterState:
        """The state of the cluster that this is a view of."""
        return self._cluster

    @property
    def overridden(self) -> Mapping[int, NodeRow]:
        """The overridden rows of an overlay, by number; empty for any other snapshot."""
        return self._overridden

    @property
    def base(self) -> Snapshot:
        """The base of an overlay: a snapshot of the cluster itself; if this is not an overlay, this one."""
        return Snapshot(self._cluster, self.now) if self._overridden else self

    def is_overridden(self, row: int) -> bool:
        """Return whether this is an overlay that overrides the row."""
        return row in self._overridden

    def overridden_at(self, paths: frozenset[Path]) -> Rows:
        """Return the overridden rows, ascending, that may differ from the base at one of the ROW paths."""
        found: Rows | None = self.overlay_cache.get(paths)
        if found is None:
            below = self.inherited(paths)
            if below is None:
                found = rows_that_differ(self._cluster, self._overridden, paths)
            else:
                changed = {row: self._overridden[row] for row in below[1]}
                found = np.union1d(np.setdiff1d(below[0], np.array(list(changed), np.intp), assume_unique=True),
                                   rows_that_differ(self._cluster, changed, paths))
            self.overlay_cache[paths] = found
        return found

    def cache_of_row(self, row: int) -> Cache:
        """Return the cache of an overridden row; overlays of this overlay that do not override it again share it."""
        return self._row_caches.setdefault(row, {})

    def pod_changes(self) -> Iterator[tuple[int, PodInfo, int]]:
        """Yield the pods that an overlay adds to or removes from its base: the row, the pod, and 1 or -1."""
        for index, row in self._overridden.items():
            cache = self.cache_of_row(index)
            found: list[tuple[PodInfo, int]] | None = cache.get(pod_changes)
            if found is None:
                found = cache[pod_changes] = list(pod_changes(row, self._cluster.rows[index]))
            for pod, change in found:
                yield index, pod, change

    def is_fresh(self, row: int) -> bool:
        """Return whether the node has a metric that counts at `now`."""
        return bool(self._cluster.fresh[row])


class NodeFrame:
    """The input of one decision's expressions over nodes (see `engine.cel.vector.frame.Frame`).

    ROW variables: node, nodeInfo, nodeMetric, allocatable, requested, usage, estimated, metricAge, devices.
    """

    __slots__ = ("_base", "_cluster", "_snapshot", "_values", "decision_cache")

    def __init__(self, snapshot: Snapshot, values: Mapping[str, object]) -> None:
        self._snapshot = snapshot
        self._cluster = snapshot.cluster
        self._values = values
        self.decision_cache: dict[object, object] = {}
        self._base: tuple[Frame, Rows] | None = None
        if snapshot.overridden:
            rows = np.array(sorted(snapshot.overridden), dtype=np.intp)
            self._base = NodeFrame(Snapshot(self._cluster, snapshot.now), values), rows

    @property
    def size(self) -> int:
        """The number of nodes."""
        return self._snapshot.size

    @property
    def base(self) -> tuple[Frame, Rows] | None:
        """For an overlay: the frame of its base, and its overridden rows; else None."""
        return self._base

    def scratch(self, rows: Rows | None) -> dict[object, object]:
        """Return the scratch space of these rows (the very array; None for all); that of an overlay is its own."""
        return {} if self._base is not None else self._cluster.scratch(rows)

    @property
    def cross_version_cache(self) -> dict[object, object]:
        """The cache that outlives versions; an overlay has none."""
        return {} if self._base is not None else self._cluster.cross_version_cache

    def value(self, name: str) -> object:
        """Return a CONSTANT or DECISION variable's value; raise `KeyError` if it has none."""
        return self._values[name]

    def row_value(self, name: str, row: int) -> object:
        """Return a ROW variable's value; raise `EvaluationError` if it has none, `KeyError` for an unknown name."""
        at = self._snapshot.row(row)
        match name:
            case "node":
                return at.node
            case "requested":
                return at.requested
            case "nonZeroRequested":
                return at.nonzero_requested()
            case "allocatable":
                return at.allocatable
            case "nodeInfo":
                return at.info(self._snapshot.is_fresh(row))
            case "usage":
                return at.metric.usage if at.metric is not None and self._snapshot.is_fresh(row) else _UNMEASURED
            case "estimated":
                return at.estimated() if self._snapshot.is_fresh(row) else _UNMEASURED
            case "nodeMetric":
                return at.metric.object if at.metric is not None else _NO_METRIC
            case "devices":
                return at.devices()
            case "metricAge":
                if at.metric is None or at.metric.updated is None:
                    raise unmeasured(_NO_METRIC.message)
                return (self._snapshot.now - at.metric.updated) // NANOSECONDS
            case _:
                raise KeyError(name)

    def numbers(self, path: Path) -> Numbers | None:
        """Return the numeric column at a path below a ROW variable, or None if it holds no numbers."""
        if self._base is None:
            amounts = self._cluster.amounts(path)
            if amounts is not None:
                return amounts.numbers
        match path:
            case ("requested", name) if self._base is not None:
                return Numbers(self._snapshot.requested(name))
            case ("nonZeroRequested", name) if self._base is not None:
                return Numbers(self._snapshot.nonzero_requested(name))
            case ("allocatable", name) if self._base is not None:
                return Numbers(self._snapshot.allocatable(name))
            case ("nodeInfo", "pods") if self._base is not None:
                return Numbers(self._snapshot.pod_count)
            case ("metricAge",):
                # The clock moves with every decision: all rows change, so they are computed together.
                updated = self._cluster.updated
                ages = (self._snapshot.now - updated) // NANOSECONDS
                return Numbers(ages, updated != NEVER)
            case _:
                pass
        paths = frozenset((path,))
        column = self._cluster.paths.numbers(
            path, self.size, self._base_reader(path), self.stamp(paths), lambda since: self.changed(paths, since),
        )
        if column is None:
            return None
        if self._base is not None:
            column = column.copy()
            read = self.reader(path)
            for row in self._base[1].tolist():
                column.write(row, read(row))
        return column.numbers

    def codes(self, path: Path) -> Codes:
        """Return the dictionary-encoded column at a path below a ROW variable."""
        paths = frozenset((path,))
        column = self._cluster.paths.codes(
            path, self.size, self._base_reader(path), self.stamp(paths), lambda since: self.changed(paths, since),
        )
        if self._base is not None:
            column = column.copy()
            read = self.reader(path)
            for row in self._base[1].tolist():
                column.write(row, read(row))
        return column.codes

    def stamp(self, paths: frozenset[Path]) -> int:
        """Return a number that grows whenever a row may have changed at one of the ROW paths."""
        return self._cluster.stamp(paths)

    def changed(self, paths: frozenset[Path], since: int) -> Rows | None:
        """Return the rows that changed at one of the paths since that stamp; None if that is no longer known."""
        return self._cluster.changed(paths, since)

    def _base_reader(self, path: Path) -> Callable[[int], object]:
        """Return the reader of a path of the cluster itself, ignoring an overlay."""
        base = self if self._base is None else self._base[0]
        assert isinstance(base, NodeFrame)
        return base.reader(path)

    def reader(self, path: Path) -> Callable[[int], object]:
        """Return the reader of a path of a row, as `encoding.value_at` reads it."""
        name, keys = path[0], path[1:]

        def read(row: int) -> object:
            try:
                return value_at(self.row_value(name, row), keys)
            except EvaluationError as error:
                return Absent(0, (error.message, error.reason))

        return read
