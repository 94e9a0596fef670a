"""Values derived from node rows: cached across versions of the cluster, refreshed for the changed rows only.

All of them share one cache. `Derived` is a column: a number or an object for each node. `DerivedObjects` holds an
object for each node, with numbers that summarize it for readers of all nodes. `DerivedState` holds any value that can
be refreshed row by row, such as a sum over all nodes; `DerivedOfBase` is for readers that apply the changes of an
overlay themselves.

All of them support overlays: the overridden rows are computed from the overlay and cached with it, never across
versions. A row counts as overridden only if the overlay may differ at the paths that are read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, Protocol, Self, TypeVar, cast
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows

from .owned_columns import OWNED, Owned
from .snapshot import Snapshot
from .state import ClusterState

__all__ = [
    "Derived", "DerivedObjects", "DerivedOfBase", "DerivedState", "Overlayable", "Owned", "Refreshable", "RowObjects",
    "all_rows",
]

_MOST_KEYS: Final = 512
_MOST_BYTES: Final = 32 * 1024 * 1024
_FEWEST_KEYS: Final = 16
_MOST_FORGOTTEN: Final = 8_192
_FEW: Final = 8
"""Up to this number of rows, computing each one is faster than grouping equal ones."""

_Value = TypeVar("_Value")
_Dtype = TypeVar("_Dtype", bound=np.generic)


class Refreshable(Protocol):
    """A value that is computed from node rows and can be refreshed row by row."""

    def refresh(self, snapshot: Snapshot, rows: Rows) -> None:
        """Recompute the parts that depend on these rows; the first call has all rows."""
        ...


class Overlayable(Refreshable, Protocol):
    """A value that can be copied for an overlay."""

    def copy(self) -> Self:
        """Return a value that can be refreshed for an overlay without this one changing."""
        ...


_Base = TypeVar("_Base", bound=Refreshable)
_State = TypeVar("_State", bound=Overlayable)


@dataclass(slots=True, eq=False)
class _Entry(Generic[_Base]):
    """A cached value, and the version of the cluster that it reflects."""

    state: _Base
    paths: frozenset[Path]
    stamp: int
    version: int
    generation: int
    extra: Hashable

    @property
    def mark(self) -> Hashable:
        """Equal as long as the value is the same."""
        return self.stamp, self.generation, self.extra


class _Cache(Generic[_Base]):
    """Values by key, in the cross-version cache of their cluster; the least recently used are dropped.

    The refreshed rows are those in the cluster's change log for the value's paths, and those of nodes in `forget`.
    """

    def __init__(self) -> None:
        self._generation = 0
        self._forgotten: dict[str, int] = {}
        self._floor = 0
        self._lock = threading.Lock()
        self._clusters: WeakSet[ClusterState] = WeakSet()
        """The clusters whose cache has values; iterating over it and adding to it requires the lock."""
        owned = OWNED.get()
        if owned is not None:
            owned.append(self)

    def drop(self) -> None:
        """Drop the values of all clusters; those that are read again are computed again. For any thread."""
        with self._lock:
            clusters = list(self._clusters)
        for cluster in clusters:
            cluster.cross_version_cache.pop(self, None)

    def forget(self, node: str) -> None:
        """Refresh the node's row at the next read: something that is computed with, beside the row, has changed."""
        self._generation += 1
        self._forgotten[node] = self._generation
        if len(self._forgotten) > _MOST_FORGOTTEN:
            self._forgotten.clear()
            self._floor = self._generation

    def hit(self, cluster: ClusterState, key: Hashable, extra: Hashable) -> _Base | None:
        """Return the value of the cluster itself if it is cached and up to date, else None."""
        entries = cast("dict[Hashable, _Entry[_Base]] | None", cluster.cross_version_cache.get(self))
        if entries is None:
            return None
        entry = entries.get(key)
        if entry is None or entry.generation != self._generation:
            return None
        if entry.version != cluster.version:
            if entry.stamp != cluster.stamp(entry.paths):
                return None
            entry.version = cluster.version  # the changed rows are not read
        if len(entries) > 1:
            entries[key] = entries.pop(key)  # the one used last
        return entry.state if entry.extra == extra else None

    def current(
        self, snapshot: Snapshot, key: Hashable, paths: frozenset[Path], *, new: Callable[[int], _Base],
        most: Callable[[int], int], extra: Hashable = None,
    ) -> _Entry[_Base]:
        """Return the refreshed value of the cluster itself; `snapshot` must not be an overlay.

        If there is none, or it was made with another `extra`, `new(number of nodes)` makes one; at most `most(number of
        nodes)` are cached.
        """
        cluster = snapshot.cluster
        entries = cast("dict[Hashable, _Entry[_Base]] | None", cluster.cross_version_cache.get(self))
        if entries is None:
            entries = {}
            cluster.cross_version_cache[self] = entries
            with self._lock:
                self._clusters.add(cluster)
        # Removed first: a value whose refresh raises must not stay half refreshed, and the order is that of use.
        entry = entries.pop(key, None)
        if entry is None or entry.extra != extra:
            state = new(snapshot.size)
            state.refresh(snapshot, all_rows(snapshot.size))
            entry = _Entry(state, paths, cluster.stamp(paths), cluster.version, self._generation, extra)
            while len(entries) >= most(snapshot.size):
                del entries[next(iter(entries))]
        elif entry.version != cluster.version or entry.generation != self._generation:
            self._refresh(entry, snapshot)
        entries[key] = entry
        return entry

    def _refresh(self, entry: _Entry[_Base], snapshot: Snapshot) -> None:
        cluster = snapshot.cluster
        stamp, rows = cluster.stamp(entry.paths), None
        if entry.generation == self._generation and entry.stamp == stamp:
            entry.version = cluster.version
            return
        if entry.generation >= self._floor:
            rows = cluster.changed(entry.paths, entry.stamp)
        if rows is not None and entry.generation != self._generation:
            forgotten = [
                cluster.index[name] for name, generation in self._forgotten.items()
                if generation > entry.generation and name in cluster.index
            ]
            rows = np.union1d(rows, np.array(forgotten, np.intp))
        if rows is None:
            rows = all_rows(snapshot.size)
        if len(rows):
            entry.state.refresh(snapshot, rows)
        entry.stamp, entry.version, entry.generation = stamp, cluster.version, self._generation


def _overlaid(cache: _Cache[_State], snapshot: Snapshot, key: Hashable, entry: _Entry[_State]) -> _State:
    """Return the value for the nodes of an overlay; it is cached with the overlay."""
    rows = snapshot.overridden_at(entry.paths)
    if not len(rows):
        return entry.state
    overlay_cache = snapshot.overlay_cache
    found = cast("tuple[Hashable, _State] | None", overlay_cache.get((cache, key)))
    if found is not None and found[0] == entry.mark:
        return found[1]
    known = entry.state
    below = snapshot.inherited((cache, key))
    if below is not None and below[0][0] == entry.mark:
        known, rows = below[0][1], np.array(sorted(below[1]), np.intp)
    state = known.copy()
    state.refresh(snapshot, rows)
    overlay_cache[cache, key] = (entry.mark, state)
    return state


class DerivedOfBase(Generic[_Base]):
    """A value computed from all node rows of the cluster itself; overlays are ignored.

    It depends on the values at `paths` of each row. `new(number of nodes)` makes an empty one; it is refreshed for all
    rows, and later for changed ones. `most` bounds the number of cached keys; the least recently used are dropped.
    """

    def __init__(
        self, paths: frozenset[Path] = frozenset(), new: Callable[[int], _Base] | None = None, most: int = _MOST_KEYS,
    ) -> None:
        """`paths` and `new` are optional if each read passes its own."""
        self._paths = paths
        self._new = new
        self._most: Callable[[int], int] = lambda _: most
        self._cache: _Cache[_Base] = _Cache()

    def of_base(
        self, snapshot: Snapshot, key: Hashable = None, new: Callable[[int], _Base] | None = None,
        paths: frozenset[Path] | None = None,
    ) -> _Base:
        """Return the value for a key, valid until the cluster changes; the key determines `new` and `paths`."""
        hit = self._cache.hit(snapshot.cluster, key, None)
        return self._current(snapshot.base, key, new, paths).state if hit is None else hit

    def forget(self, node: str) -> None:
        """Refresh the node's row at the next read: something that is computed with, beside the row, has changed."""
        self._cache.forget(node)

    def _current(
        self, base: Snapshot, key: Hashable, new: Callable[[int], _Base] | None = None,
        paths: frozenset[Path] | None = None,
    ) -> _Entry[_Base]:
        new = new or self._new
        if new is None:
            raise TypeError("`new` is given neither to the constructor nor to the read")
        return self._cache.current(base, key, self._paths if paths is None else paths, new=new, most=self._most)


class DerivedState(DerivedOfBase[_State]):
    """A value computed from all node rows of a snapshot, including its overlay."""

    def of(
        self, snapshot: Snapshot, key: Hashable = None, new: Callable[[int], _State] | None = None,
        paths: frozenset[Path] | None = None,
    ) -> _State:
        """Return the value for a key, valid until the cluster changes; the key determines `new` and `paths`."""
        if not snapshot.overridden:
            return self.of_base(snapshot, key, new, paths)
        return _overlaid(self._cache, snapshot, key, self._current(snapshot.base, key, new, paths))


class RowObjects(Generic[_Value]):
    """An object and a few numbers for each row: read-only, and valid until the cluster changes."""

    __slots__ = ("_compute", "_numbers_of", "_present", "numbers", "values")

    def __init__(
        self, values: list[_Value], numbers: NDArray[np.float64], compute: Callable[[Snapshot, int], _Value],
        numbers_of: Callable[[_Value], Sequence[float]],
    ) -> None:
        self.values = values
        self.numbers = numbers
        """The results of `numbers_of` for the values, float64[nodes, width]."""
        self._compute = compute
        self._numbers_of = numbers_of
        self._present: Rows | None = None

    @property
    def present(self) -> Rows:
        """The rows whose value is not None, ascending."""
        if self._present is None:
            rows = [row for row, value in enumerate(self.values) if value is not None]
            self._present = np.array(rows, dtype=np.intp)
        return self._present

    def refresh(self, snapshot: Snapshot, rows: Rows) -> None:
        """Compute the objects of these rows, and their numbers."""
        for row in rows.tolist():
            value = self._compute(snapshot, row)
            if (value is None) is not (self.values[row] is None):
                self._present = None
            self.values[row] = value
            self.numbers[row] = self._numbers_of(value)

    def copy(self) -> RowObjects[_Value]:
        """Return objects that can be refreshed without these changing."""
        twin = RowObjects(self.values.copy(), self.numbers.copy(), self._compute, self._numbers_of)
        twin._present = self._present
        return twin


class DerivedObjects(DerivedState[RowObjects[_Value]]):
    """An object for each node, computed by `compute(snapshot, row)` from the values at `paths` of its row.

    `numbers_of(value)` returns `width` numbers that summarize a value. If `compute` reads other state, changes of that
    state must call `forget`.
    """

    def __init__(
        self, paths: frozenset[Path], compute: Callable[[Snapshot, int], _Value],
        numbers_of: Callable[[_Value], Sequence[float]] = lambda _: (), width: int = 0,
    ) -> None:
        def new(size: int) -> RowObjects[_Value]:
            empty = cast("list[_Value]", [None] * size)
            return RowObjects(empty, np.zeros((size, width)), compute, numbers_of)

        super().__init__(paths, new)
        self._compute = compute

    def at(self, snapshot: Snapshot, row: int) -> _Value:
        """Return the object of one row; an overridden row is computed alone, without the overlay's other rows."""
        entry = self._current(snapshot.base, None)
        if row not in snapshot.overridden or not (snapshot.overridden_at(entry.paths) == row).any():
            return entry.state.values[row]
        row_cache = snapshot.cache_of_row(row)
        found = cast("tuple[Hashable, _Value] | None", row_cache.get(self))
        if found is not None and found[0] == entry.mark:
            return found[1]
        value = self._compute(snapshot, row)
        row_cache[self] = (entry.mark, value)
        return value


class _Column(Generic[_Dtype]):
    """Values by row; some may be computed only when they are read."""

    __slots__ = ("_known", "_stale", "complete", "distinct", "values")

    def __init__(self, values: NDArray[_Dtype], *, distinct: bool) -> None:
        self.values = values
        self.distinct = distinct
        self.complete = False
        """True if all rows are known."""
        self._stale: Rows | None = all_rows(values.shape[-1])
        """The rows to compute; None if `_known` marks them."""
        self._known: NDArray[np.bool_] | None = None

    def refresh(self, snapshot: Snapshot, rows: Rows) -> None:  # noqa: ARG002 - computed by the next read
        """Mark these rows to be computed before they are read."""
        if self.complete:
            self._stale, self.complete = rows, False
        elif self._known is not None:
            self._known[rows] = False
        elif self._stale is not None:
            self._stale = np.union1d(self._stale, rows)

    def copy(self) -> _Column[_Dtype]:
        """Return a column that can be written without this one changing."""
        twin = _Column(self.values.copy(), distinct=self.distinct)
        twin.complete, twin._stale = self.complete, self._stale
        twin._known = None if self._known is None else self._known.copy()
        return twin

    def fill(
        self, snapshot: Snapshot, rows: Rows | None, compute: Callable[[Snapshot, Rows], NDArray[_Dtype]],
    ) -> None:
        """Compute those of the rows (None: all) that are not up to date."""
        if self.complete:
            return
        if rows is None:
            stale = np.flatnonzero(~self._known) if self._known is not None else self._stale
            if stale is not None and len(stale):
                self._write(stale, compute(snapshot, stale))
            self.complete, self._known, self._stale = True, None, None
            return
        if self._known is None:
            known = np.ones(self.values.shape[-1], np.bool_)
            known[self._stale] = False
            self._known, self._stale = known, None
        stale = rows[~self._known[rows]]
        if len(stale):
            self._write(stale, compute(snapshot, stale))
            self._known[stale] = True

    def _write(self, rows: Rows, found: NDArray[_Dtype]) -> None:
        values = self.values
        if self.distinct and not values.flags.writeable:
            # Readers treat an identical array as unchanged values.
            if np.array_equal(values[..., rows], found):
                return
            values = self.values = values.copy()
        if values.ndim == 1:
            values[rows] = found
        else:
            values[:, rows] = found
        if self.distinct:
            values.flags.writeable = False


class Derived(Generic[_Dtype]):
    """A column over all nodes, computed only from the values at `paths` of each node's row.

    `compute(snapshot, row)` returns a row's value, or `width` values. If it depends on a pod, it is passed with each
    read: `key` then identifies the pod's inputs, and one column is cached for each key; the least recently used are
    dropped.

    `vectorized`: `compute(snapshot, rows)` returns the values of several rows, in their order.

    `distinct`: rows with equal values at all paths have the same result, so it is computed for one of them. Thousands
    of nodes have a handful of different taints and zones. Whenever a value changes, another array is returned.
    """

    def __init__(
        self, paths: frozenset[Path], dtype: type[_Dtype], compute: Callable[[Snapshot, Any], Any] | None = None, *,
        width: int | None = None, distinct: bool = False, vectorized: bool = False,
    ) -> None:
        self._paths = paths
        self._compute = compute
        self._dtype = np.dtype(dtype)
        self._has_objects = self._dtype.hasobject
        self._width = width
        self._distinct = distinct
        self._vectorized = vectorized
        self._cache: _Cache[_Column[_Dtype]] = _Cache()

    def of(
        self, snapshot: Snapshot, key: Hashable = None, compute: Callable[[Snapshot, Any], Any] | None = None, *,
        rows: Rows | None = None, paths: frozenset[Path] | None = None, extra: Hashable = None,
    ) -> NDArray[_Dtype]:
        """Return all values, [nodes] or [width, nodes], read-only and valid until the cluster changes.

        `compute` and `paths` replace those of the constructor. With `rows`, only those rows are computed, and the
        others are undefined. `extra` stands for other inputs of the values: if it changes, everything is recomputed.
        """
        if paths is None:
            paths = self._paths
        else:
            key = (key, paths)
        if not snapshot.overridden:
            hit = self._cache.hit(snapshot.cluster, key, extra)
            if hit is not None and hit.complete:
                return hit.values
        base = snapshot.base
        entry = self._cache.current(base, key, paths, new=self._new, most=self._most, extra=extra)
        column = entry.state

        def computed(view: Snapshot, some: Rows) -> NDArray[_Dtype]:
            return self._computed(view, some, paths, compute or self._compute)

        if snapshot.overridden:
            known = rows
            if rows is not None:
                known = np.setdiff1d(rows, snapshot.overridden_at(paths), assume_unique=True)
            column.fill(base, known, computed)
            column = _overlaid(self._cache, snapshot, key, entry)
        column.fill(snapshot, rows, computed)
        return column.values

    def _new(self, size: int) -> _Column[_Dtype]:
        shape = size if self._width is None else (self._width, size)
        return _Column(np.zeros(shape, self._dtype), distinct=self._distinct)

    def _most(self, size: int) -> int:
        of_one = self._dtype.itemsize * (self._width or 1) * size + 1
        return max(_FEWEST_KEYS, min(_MOST_KEYS, _MOST_BYTES // of_one))

    def _computed(
        self, snapshot: Snapshot, rows: Rows, paths: frozenset[Path], compute: Callable[[Snapshot, Any], Any] | None,
    ) -> NDArray[_Dtype]:
        if compute is None:
            raise TypeError("`compute` is given neither to the constructor nor to the read")
        if self._distinct and len(rows) > _FEW:
            first, inverse = _grouped(snapshot, rows, paths)
            return self._computed_rows(snapshot, rows[first], compute)[..., inverse]
        return self._computed_rows(snapshot, rows, compute)

    def _computed_rows(
        self, snapshot: Snapshot, rows: Rows, compute: Callable[[Snapshot, Any], Any],
    ) -> NDArray[_Dtype]:
        found = compute(snapshot, rows) if self._vectorized else [compute(snapshot, row) for row in rows.tolist()]
        if self._has_objects:  # numpy would split sequences
            values = np.empty(len(rows), self._dtype)
            for place, value in enumerate(found):
                values[place] = value
            return values
        values = np.array(found, self._dtype)
        return values if self._width is None or self._vectorized else values.T


def _grouped(snapshot: Snapshot, rows: Rows, paths: frozenset[Path]) -> tuple[Rows, Rows]:
    """Return the indices of one row per distinct combination of values at the paths, and for each row its
    combination.
    """
    frame = snapshot.frame({})
    codes: NDArray[np.int64] = np.zeros(len(rows), np.int64)
    for path in sorted(paths):
        column = frame.codes(path)
        # Renumbered each time, so that the product of many counts cannot overflow.
        codes = np.unique(codes * column.count + column.values[rows], return_inverse=True)[1]
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return first, inverse


@lru_cache(maxsize=16)
def all_rows(size: int) -> Rows:
    """Return the numbers of all rows, read-only."""
    rows: Rows = np.arange(size, dtype=np.intp)
    rows.flags.writeable = False
    return rows
