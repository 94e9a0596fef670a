"""The loaded extender: policies, cluster, and what keeps both up to date."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from koordpolicy.engine.cluster.sources.watched_cluster import WatchedCluster
from koordpolicy.engine.reload.reloader import Reloader
from koordpolicy.engine.reload.vet import Vetter

from ..observe.counters import Counters
from .pod_binder import Binding
from .protocol import Extender


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loaded policies and cluster: the extender, and the sources that keep both up to date."""

    extender: Extender
    reloader: Reloader
    source: str = ""
    """The source of the cluster's state, for display."""
    watched: WatchedCluster | None = None
    """None for a cluster that does not change, and for the nodes of the requests."""
    counters: Counters = field(default_factory=Counters)
    """The counters of plugins."""
    vetter: Vetter | None = None
    """The process that compiles policies; None where the reloader's own thread compiles."""
    bind: Callable[[Binding], None] | None = None
    """Binds a pod in the cluster, in a thread that may block; None where kube-scheduler binds. Raises
    `PolicyError` where that fails.
    """
    close_binder: Callable[[], None] = lambda: None
    """Ends the requests of `bind`."""

    def stop_reloading(self) -> None:
        """End the compiling process, so that nothing waits for it, and then the reloading thread."""
        if self.vetter is not None:
            self.vetter.close()
        self.reloader.close()
