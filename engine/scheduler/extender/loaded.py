"""The loaded extender: policies, cluster, and what keeps both up to date."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from koordpolicy.engine.cluster.sources.api import Binding
from koordpolicy.engine.cluster.sources.listing import Listed, Listing
from koordpolicy.engine.reload.low_latency_gc import LowLatencyGc
from koordpolicy.engine.reload.reloader import Reloader
from koordpolicy.engine.reload.vet import Vetter

from ..observe.counters import Counters
from .protocol import Extender


@dataclass(frozen=True, slots=True)
class Refresh:
    """How the cluster's state is kept up to date: `relist` is called every `seconds`, in a thread that may wait."""

    relist: Callable[[], Listed]
    listing: Listing
    seconds: float
    low_latency: LowLatencyGc | None = None
    """Is entered while a listing is taken and compared."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is there once policies and cluster are: what answers, and what keeps both up to date."""

    extender: Extender
    reloader: Reloader
    source: str = ""
    """Where the cluster's state comes from, for people."""
    refresh: Refresh | None = None
    counters: Counters = field(default_factory=Counters)
    """What the plugins count."""
    vetter: Vetter | None = None
    """What compiles policies first; None where the reloader's own thread does."""
    bind: Callable[[Binding], None] | None = None
    """What binds a pod in the cluster, in a thread that may wait; None where kube-scheduler does. Raises
    `PolicyError` where that fails."""

    def stop_reloading(self) -> None:
        """End the process that compiles, so that nobody waits for it, and then the thread that reloads."""
        if self.vetter is not None:
            self.vetter.close()
        self.reloader.close()
