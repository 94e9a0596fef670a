"""What a plugin derives of whole node rows, kept between decisions and computed again row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cluster.objects.node_rows import NodeRow
from koordpolicy.engine.cluster.snapshot import Snapshot

_MOST_OVERLAID: Final = 256
_Value = TypeVar("_Value")


class KeptColumns:
    """`width` columns over all nodes, computed by row from what stands at `paths` of it, and from nothing else.

    `compute(row, now, kept)` returns the row's integers; `kept` is false where the row is one of an overlay, which
    nothing may be remembered of. The columns go with the cluster that they were computed of.
    """

    def __init__(
        self, paths: frozenset[Path], width: int, compute: Callable[[NodeRow, int, bool], Sequence[int]],
    ) -> None:
        self._paths = paths
        self._width = width
        self._compute = compute

    def of(self, snapshot: Snapshot) -> NDArray[np.int64]:
        """Return int64[width, nodes], not to be written and valid until the cluster changes."""
        values = self._of_cluster(snapshot)
        if snapshot.overridden:
            values = values.copy()
            for index, row in snapshot.overridden.items():
                values[:, index] = self._compute(row, snapshot.now, False)
        return values

    def _of_cluster(self, snapshot: Snapshot) -> NDArray[np.int64]:
        cluster = snapshot.cluster
        cache = cluster.version_cache
        values: NDArray[np.int64] | None = cache.get(self)
        if values is None:
            values = cache[self] = self._up_to_date(snapshot)
        return values

    def _up_to_date(self, snapshot: Snapshot) -> NDArray[np.int64]:
        cluster = snapshot.cluster
        stamp = cluster.stamp(self._paths)
        found = cluster.cross_version_cache.get(self)
        changed: Sequence[int] = range(snapshot.size)
        values: NDArray[np.int64]
        if isinstance(found, tuple):
            before, values = found
            if before == stamp:
                return values
            rows = cluster.changed(self._paths, before)
            if rows is not None:
                changed = rows.tolist()
        else:
            values = np.zeros((self._width, snapshot.size), np.int64)
        for index in changed:
            values[:, index] = self._compute(cluster.rows[index], snapshot.now, True)
        cluster.cross_version_cache[self] = (stamp, values)
        return values


@dataclass(slots=True)
class RowValues(Generic[_Value]):
    """A value and a few numbers per row: not to be written, and valid until the cluster changes."""

    values: list[_Value]
    facts: NDArray[np.float64]
    """What the values come down to, float64[nodes, width]."""
    _present: NDArray[np.intp] | None = None

    @property
    def present(self) -> NDArray[np.intp]:
        """The rows whose value is not None, ascending."""
        if self._present is None:
            rows = [row for row, value in enumerate(self.values) if value is not None]
            self._present = np.array(rows, dtype=np.intp)
        return self._present

    def write(self, row: int, value: _Value, facts: Sequence[float]) -> None:
        """Write one row; for who keeps the values."""
        if (value is None) is not (self.values[row] is None):
            self._present = None
        self.values[row] = value
        self.facts[row] = facts


class KeptRows(Generic[_Value]):
    """A value per node, computed of what stands at `paths` of its row, and of nothing else that changes unseen.

    `facts` says what a value comes down to, in `width` numbers, for those who look at all nodes at once. Whoever
    changes what `compute` reads beside the row has to call `forget`.
    """

    def __init__(
        self, paths: frozenset[Path], compute: Callable[[Snapshot, int], _Value],
        facts: Callable[[_Value], Sequence[float]] = lambda _: (), width: int = 0,
    ) -> None:
        self._paths = paths
        self._compute = compute
        self._facts = facts
        self._width = width
        self._overlaid: dict[int, tuple[NodeRow, int, _Value]] = {}
        self._forgotten: set[str] = set()

    def of(self, snapshot: Snapshot) -> RowValues[_Value]:
        """Return the values of all rows."""
        kept = self._of_cluster(snapshot)
        if not snapshot.overridden:
            return kept
        shown = RowValues(kept.values.copy(), kept.facts.copy(), kept.present)
        for row in snapshot.overridden:
            value = self._of_overlay(snapshot, row)
            shown.write(row, value, self._facts(value))
        return shown

    def at(self, snapshot: Snapshot, row: int) -> _Value:
        """Return the value of one row."""
        if row in snapshot.overridden:
            return self._of_overlay(snapshot, row)
        return self._of_cluster(snapshot).values[row]

    def forget(self, node: str) -> None:
        """Compute the node's value again when somebody next asks."""
        self._forgotten.add(node)
        self._overlaid.clear()

    def _of_overlay(self, snapshot: Snapshot, row: int) -> _Value:
        of, stamp = snapshot.overridden[row], self._stamp(snapshot)
        found = self._overlaid.get(id(of))
        if found is not None and found[0] is of and found[1] == stamp:
            return found[2]
        if len(self._overlaid) >= _MOST_OVERLAID:
            self._overlaid.clear()
        value = self._compute(snapshot, row)
        self._overlaid[id(of)] = (of, stamp, value)
        return value

    def _stamp(self, snapshot: Snapshot) -> int:
        return snapshot.cluster.stamp(self._paths)

    def _of_cluster(self, snapshot: Snapshot) -> RowValues[_Value]:
        base = Snapshot(snapshot.cluster, snapshot.now) if snapshot.overridden else snapshot
        cluster = snapshot.cluster
        stamp = cluster.stamp(self._paths)
        found = cluster.cross_version_cache.get(self)
        if isinstance(found, tuple):
            before, kept = found
            changed: set[int] = set()
            if before != stamp:
                rows = cluster.changed(self._paths, before)
                changed = set(range(base.size)) if rows is None else set(rows.tolist())
            if self._forgotten:
                changed.update(base.index[name] for name in self._forgotten if name in base.index)
            for row in changed:
                value = self._compute(base, row)
                kept.write(row, value, self._facts(value))
        else:
            values = [self._compute(base, row) for row in range(base.size)]
            facts: NDArray[np.float64] = np.zeros((base.size, self._width))
            for row, value in enumerate(values):
                facts[row] = self._facts(value)
            kept = RowValues(values, facts)
        self._forgotten.clear()
        cluster.cross_version_cache[self] = (stamp, kept)
        result: RowValues[_Value] = kept
        return result
