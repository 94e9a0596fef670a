"""Facts of the pods on each node, kept between cycles: only nodes whose pods changed are looked at again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot

_PODS: Final = frozenset({("nodeInfo", "pods")})
T = TypeVar("T")


def facts_by_row(snapshot: Snapshot, key: str, of: Callable[[tuple[PodInfo, ...]], T]) -> Sequence[T]:
    """Return `of` the active pods of each node, by row; read-only.

    `key` names the function, which must depend on the pods only. An overlay is computed anew.
    """
    if snapshot.overridden:
        return [of(snapshot.pods(row)) for row in range(snapshot.size)]
    cluster = snapshot.cluster
    cache, stamp = cluster.cross_version_cache, cluster.stamp(_PODS)
    known: Any = cache.get((facts_by_row, key))
    if known is None:
        facts, changed = [], None
    else:
        since, facts = known
        changed = cluster.changed(_PODS, since)
    if changed is None:
        facts = [of(snapshot.pods(row)) for row in range(snapshot.size)]
    else:
        for row in changed.tolist():
            facts[row] = of(snapshot.pods(row))
    cache[facts_by_row, key] = (stamp, facts)
    found: list[T] = facts
    return found
