"""The changes of a live cluster, as the deciding thread takes them over."""

from __future__ import annotations

from typing import Protocol

from koordpolicy.engine.cluster.cluster import Cluster


class Feed(Protocol):
    """Follows a live cluster beside the deciding thread."""

    @property
    def synced(self) -> bool:
        """True once `apply` has delivered the first list of each kind; read in the deciding thread."""
        ...

    def apply(self, cluster: Cluster, budget: float) -> bool:
        """Apply changes for about `budget` seconds, in the deciding thread; return whether there are more."""
        ...
