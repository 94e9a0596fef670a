"""Columns that pods of one shape share: kept between decisions and computed again for the rows that changed.

Pods of one shape ask one question (what they request, say), and the answer for a node hangs on that node alone. So a
decision costs the nodes that changed since the question was last asked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..cel.checked import Path
from ..cel.frame import Rows
from ..cluster.changes import Log, changed_rows
from ..cluster.snapshot import Cluster, Snapshot

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
        base = snapshot if not snapshot.patched else Snapshot(cluster, snapshot.now)
        logs = cluster.logs(self._paths)
        stamp = max(log.last for log in logs)
        kept = cluster.kept.get(self)
        if not isinstance(kept, dict):
            kept = cluster.kept[self] = {}
        found = kept.pop(question, None)
        values: NDArray[Any]
        if found is not None and found[2] == extra:
            before, values, _ = found
            if before != stamp:
                changed = _changed(cluster, logs, before, stamp)
                values[changed] = compute(base, changed)
        else:
            values = np.empty(base.size, self._dtype)
            values[:] = compute(base, _all_rows(base.size))
            most = max(_FEWEST, _MOST_BYTES // max(1, base.size * self._dtype.itemsize))
            while len(kept) >= most:
                del kept[next(iter(kept))]
        kept[question] = (stamp, values, extra)
        if snapshot.patched:
            rows = np.array(sorted(snapshot.patched), np.intp)
            values = values.copy()
            values[rows] = compute(snapshot, rows)
        return values


class _LastChanged:
    """The key under which a cluster keeps which rows changed between two stamps: plugins ask one after the other."""


def _changed(cluster: Cluster, logs: tuple[Log, ...], since: int, stamp: int) -> Rows:
    question = (tuple(map(id, logs)), since, stamp)
    last = cluster.kept.get(_LastChanged)
    if isinstance(last, tuple) and last[0] == question:
        rows: Rows = last[1]
        return rows
    found = changed_rows(logs, since)
    rows = _all_rows(len(cluster.rows)) if found is None else found
    cluster.kept[_LastChanged] = (question, rows)
    return rows


@lru_cache(maxsize=8)
def _all_rows(size: int) -> Rows:
    rows = np.arange(size, dtype=np.intp)
    rows.flags.writeable = False
    return rows
