"""Integer columns that a plugin derives of whole node rows, kept between decisions and rewritten row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..cel.checked import Path
from ..cluster.rows import NodeRow
from ..cluster.snapshot import Snapshot


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
        """Return int64[nodes, width], not to be written and valid until the cluster changes."""
        values = self._of_cluster(snapshot)
        if snapshot.patched:
            values = values.copy()
            for index, row in snapshot.patched.items():
                values[index] = self._compute(row, snapshot.now, False)
        return values

    def _of_cluster(self, snapshot: Snapshot) -> NDArray[np.int64]:
        cluster = snapshot.cluster
        frame = Snapshot(cluster, snapshot.now).frame({})
        stamp = frame.stamp(self._paths)
        found = frame.kept.get(self)
        changed: Sequence[int] = range(snapshot.size)
        values: NDArray[np.int64]
        if isinstance(found, tuple):
            before, values = found
            if before == stamp:
                return values
            rows = frame.changed(self._paths, before)
            if rows is not None:
                changed = rows.tolist()
        else:
            values = np.zeros((snapshot.size, self._width), np.int64)
        for index in changed:
            values[index] = self._compute(cluster.rows[index], snapshot.now, True)
        frame.kept[self] = (stamp, values)
        return values
