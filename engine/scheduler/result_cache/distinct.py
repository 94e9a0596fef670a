"""Answers that hang on a few fields of a node: given once per distinct input, kept while the fields stand.

Thousands of nodes have a handful of different taints and zones. A plugin names the paths that it reads; the snapshot
knows which nodes agree on them, and when one of them last changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cluster.snapshot import Snapshot

_MOST: Final = 512


class DistinctAnswers:
    """Kept answers of one plugin to one kind of question. Answers go with the frame they were given for."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype = dtype

    def answer(
        self, snapshot: Snapshot, paths: frozenset[Path], question: Hashable, ask: Callable[[int], Any],
    ) -> NDArray[Any]:
        """Return `ask(row)` for all rows, as an array of this dtype that is not to be written.

        `ask` may read nothing of the node but what stands at and below `paths`, and nothing else that `question` does
        not determine.
        """
        frame = snapshot.frame({})
        if snapshot.overridden and _of_objects(paths) and not _has_other_nodes(snapshot):
            # Only pods are others in it, so that what the cluster's own rows say holds for it too.
            frame = Snapshot(snapshot.cluster, snapshot.now).frame({})
        stamp = frame.stamp(paths)
        kept = frame.cross_version_cache.get(self)
        if not isinstance(kept, dict):
            kept = frame.cross_version_cache[self] = {}
        found = kept.get(question)
        if found is not None and found[0] == stamp:
            values: NDArray[Any] = found[1]
            return values
        codes: NDArray[np.int64] = np.zeros(snapshot.size, np.int64)
        for path in sorted(paths):
            column = frame.codes(path)
            # Renumbered each time, so that the product of many counts cannot overflow.
            codes = np.unique(codes * column.count + column.values, return_inverse=True)[1]
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        values = np.array([ask(row) for row in first.tolist()], self._dtype)[inverse]
        values.flags.writeable = False
        if len(kept) >= _MOST:
            kept.clear()
        kept[question] = (stamp, values)
        return values


def _of_objects(paths: frozenset[Path]) -> bool:
    return all(path[0] == "node" for path in paths)


def _has_other_nodes(snapshot: Snapshot) -> bool:
    rows = snapshot.cluster.rows
    return any(row.node is not rows[index].node for index, row in snapshot.overridden.items())
