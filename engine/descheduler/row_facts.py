"""Facts of the pods on each node, cached with the node's row: only rows whose pods changed are examined again.

The caches survive changes of other nodes, and overlays have their own for the rows that they override.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot

T = TypeVar("T")


def facts_by_row(
    snapshot: Snapshot, key: str, of: Callable[[tuple[PodInfo, ...]], T], rows: Rows | None = None,
) -> Sequence[T]:
    """Return `of` the active pods of each node, or of those at `rows` in their order; read-only.

    `key` names the function, which must depend on the pods only.
    """
    facts: list[T] = []
    if rows is not None:
        looked = [snapshot.row(row) for row in rows.tolist()]
    elif snapshot.overridden:
        looked = [snapshot.row(row) for row in range(snapshot.size)]
    else:
        looked = snapshot.cluster.rows
    for row in looked:
        cached = row.pod_facts
        if key not in cached:
            cached[key] = of(tuple(row.pods.values()))
        facts.append(cached[key])
    return facts
