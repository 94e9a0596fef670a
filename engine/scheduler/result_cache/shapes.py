"""Columns that pods of one shape share: kept between decisions and computed again for the rows that changed.

Pods of one shape ask one question (what they request, say), and the answer for a node hangs on that node alone. So a
decision costs the nodes that changed since the question was last asked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.snapshot import Snapshot

from .result_cache import all_rows

_MOST_BYTES: Final = 32 * 1024 * 1024
_FEWEST: Final = 16


class ShapeColumns:
    """One plugin's answers to one kind of question; they go with the cluster that they were given for."""

    def __init__(self, paths: frozenset[Path], dtype: type[np.generic]) -> None:
        """`paths` are what answers hang on of a node; a stamp of `extra` (see `answer`) covers all else."""
        self._paths = paths
        self._dtype = np.dtype(dtype)

    def answer(
        self, snapshot: Snapshot, question: Hashable, compute: Callable[[Snapshot, Rows], NDArray[Any]],
        extra: Hashable = None,
    ) -> NDArray[Any]:
        """Return the answers for all rows, not to be written and valid until the cluster changes.

        `compute(snapshot, rows)` returns those of some rows, from what stands at `paths` in each of them alone.
        Everything is computed again where `extra` is not what it was.
        """
        cluster = snapshot.cluster
        base = snapshot if not snapshot.overridden else Snapshot(cluster, snapshot.now)
        stamp = cluster.stamp(self._paths)
        kept = cluster.cross_version_cache.get(self)
        if not isinstance(kept, dict):
            kept = cluster.cross_version_cache[self] = {}
        found = kept.pop(question, None)
        values: NDArray[Any]
        if found is not None and found[2] == extra:
            before, values, _ = found
            if before != stamp:
                rows = cluster.changed(self._paths, before)
                changed = all_rows(base.size) if rows is None else rows
                values[changed] = compute(base, changed)
        else:
            values = np.empty(base.size, self._dtype)
            values[:] = compute(base, all_rows(base.size))
            most = max(_FEWEST, _MOST_BYTES // max(1, base.size * self._dtype.itemsize))
            while len(kept) >= most:
                del kept[next(iter(kept))]
        kept[question] = (stamp, values, extra)
        if snapshot.overridden:
            rows = np.array(sorted(snapshot.overridden), np.intp)
            values = values.copy()
            values[rows] = compute(snapshot, rows)
        return values
