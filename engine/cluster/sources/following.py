"""The part of a feed that the thread uses which owns the cluster; tests put a list of changes in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..cluster import Cluster
from .changes import KindView


@dataclass(frozen=True, slots=True)
class OwnerView:
    """The state of the thread that owns a live cluster, for other threads."""

    synced: bool = False
    """True once the first list of each kind was applied."""
    stopping: bool = False
    nodes: int = 0
    pods: int = 0
    looked_at: float = 0.0
    """When the thread was last known to work, of the monotonic clock in seconds."""


class FeedBarrier(Protocol):
    """A point in the changes of a cluster."""

    @property
    def passed(self) -> bool:
        """True once all changes before it are applied, or its time is over."""
        ...


class ClusterFeed(Protocol):
    """Follows a live cluster beside the owner's thread (`Feed`)."""

    @property
    def synced(self) -> bool:
        """True once `apply` has applied the first list of each kind."""
        ...

    @property
    def views(self) -> Mapping[str, KindView]:
        """The state of the watch of each kind."""
        ...

    def apply(self, cluster: Cluster, budget: float) -> bool:
        """Apply changes for about `budget` seconds; return whether there are more."""
        ...

    def barrier(self) -> FeedBarrier:
        """Return a barrier over the pods as they are now on the API server."""
        ...

    def compare(self) -> None:
        """Compare what was delivered with the cluster, and heal differences."""
        ...
