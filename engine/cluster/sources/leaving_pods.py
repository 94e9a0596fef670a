"""Pods whose deletion was requested: the cluster shows them as being deleted before the watch does.

Else the next decision, which may come before the news, would count on them, or choose them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordpolicy.engine.kubernetes.metadata import uid_of
from koordpolicy.engine.kubernetes.times import rfc3339

from ..cluster import Cluster
from ..events import Event

Json = Mapping[str, Any]


class LeavingPods:
    """The pods that leave, of which the watch has not shown it yet. Belongs to the thread that owns the cluster."""

    def __init__(self, clock: Callable[[], int]) -> None:
        """`clock` returns the time in nanoseconds since the epoch."""
        self._clock = clock
        self._since: dict[str, str] = {}
        """The time of the request, by UID."""
        self._new: dict[str, Json] = {}
        """The pods that the cluster does not show as leaving yet, by UID."""

    def __len__(self) -> int:
        """Return the number of these pods."""
        return len(self._since)

    def add(self, pod: Json) -> dict[str, Any]:
        """Note that a pod leaves from now on, and return it so, for the cluster."""
        now = self._since[uid_of(pod)] = rfc3339(self._clock())
        return marked(pod, now)

    def add_later(self, pod: Json) -> None:
        """Note that a pod leaves from now on, while the cluster must not change; `apply` follows."""
        self.add(pod)
        self._new[uid_of(pod)] = pod

    def drop(self, uid: str) -> None:
        """Note that a pod does not leave after all; the cluster is left as it is."""
        self._since.pop(uid, None)
        self._new.pop(uid, None)

    def apply(self, cluster: Cluster) -> None:
        """Let the cluster show the pods of `add_later` as being deleted; forget those that are gone or replaced."""
        for uid, pod in tuple(self._new.items()):
            metadata = pod["metadata"]
            known = cluster.object("Pod", f"{metadata.get('namespace') or 'default'}/{metadata['name']}")
            if known is None or uid_of(known) != uid:
                self.drop(uid)
            elif uid in self._since:
                cluster.upsert(marked(known, self._since[uid]))
        self._new.clear()

    def revise(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return an object as the cluster should have it: one that leaves stays so, though the server reports a change
        of it from before.
        """
        if not self._since or item.get("kind") != "Pod":
            return item
        uid = uid_of(item)
        since = self._since.get(uid)
        if since is None:
            return item
        if (item.get("metadata") or {}).get("deletionTimestamp"):
            self.drop(uid)
            return item
        return marked(item, since)

    def note(self, event: Event) -> None:
        """Forget a pod that is gone, or replaced by one of its name; for `Cluster.listen`."""
        if self._since and event.kind == "Pod" and event.old is not None:
            uid = uid_of(event.old)
            if event.new is None or uid_of(event.new) != uid:
                self.drop(uid)


def marked(item: Json, since: str) -> dict[str, Any]:
    """Return an object that is being deleted since then, or since before."""
    metadata = item.get("metadata") or {}
    return {**item, "metadata": {**metadata, "deletionTimestamp": metadata.get("deletionTimestamp") or since}}
