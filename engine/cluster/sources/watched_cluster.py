"""A live cluster that a process watches: its feed, the thread of its requests, and the fields that policies read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.resources import BY_KIND
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.source import PolicyError, Problem

from ..cluster import Cluster
from ..kinds import FieldSets, Read, fields_read
from .changes import KindView
from .feed import Feed

EXTENDER: Final = "koord-policy/extender"
_SLICE_S: Final = 0.05
_LOOK_S: Final = 0.1
_COVER_S: Final = 10.0
_REQUIRED: Final = frozenset(resource.kind for resource in BY_KIND.values() if resource.required)


class WatchedCluster:
    """Watches a live cluster. `start` and `apply` belong to the thread that owns `cluster`, all else to any."""

    def __init__(
        self, connection: Connection, cluster: Cluster, reads: Iterable[Read], *, user_agent: str = EXTENDER,
    ) -> None:
        """`reads` are those of all plugins that decide; `user_agent` names the process to the API server."""
        self.cluster = cluster
        self.io = IoThread("watch")
        """The thread of all requests to the API server."""
        self._transport = Transport(connection, user_agent=user_agent, rate=0)
        self._wake: Callable[[], None] = threading.Event().set
        self._initial: FieldSets = fields_read(reads)
        self._feed = Feed(self.io, self._transport, self._initial, wake=self._arrived)

    @property
    def views(self) -> Mapping[str, KindView]:
        """The state of each kind: when the API server was last heard of it, and the error if it is not watched."""
        return self._feed.views

    @property
    def mismatches(self) -> Mapping[tuple[str, str], int]:
        """Objects that comparisons found different, counted by kind and by what was found, such as `missing`."""
        return self._feed.view.mismatches

    @property
    def applied(self) -> int:
        """Changes of objects that were applied since the start: also those that change no row."""
        return self._feed.applied

    @property
    def lag_s(self) -> float:
        """Seconds that the oldest change has waited for `apply`; 0 without one."""
        return self._feed.lag_s

    def now(self) -> int:
        """Return the API server's time, in nanoseconds since the epoch."""
        return self._feed.now()

    def start(self) -> None:
        """Watch the cluster, and apply the first lists of all kinds.

        A kind that the server does not have, or does not let us list, is left out until it does.

        Raises:
            PolicyError: nodes or pods cannot be listed. It names both, when both were tried.
        """
        arrived = threading.Event()
        self._wake = arrived.set
        self.io.start()
        self.io.on_close(self._transport.close)
        try:
            self._feed.start()
            while not self._is_listed():
                if not self.apply(_SLICE_S):
                    arrived.wait(_LOOK_S)
                    arrived.clear()
        except BaseException:
            self.close()
            raise

    def _is_listed(self) -> bool:
        if self._feed.synced:
            return True
        faults = {kind: view.fault for kind, view in self.views.items() if view.fault}
        refused = _REQUIRED & faults.keys()
        if refused and all(self._feed.has({kind: self._initial[kind]}) for kind in _REQUIRED - refused):
            raise PolicyError([
                Problem(f"the cluster's {BY_KIND[kind].plural} cannot be listed: {faults[kind]}", code="no-cluster")
                for kind in sorted(refused)])
        missing = {kind: fields for kind, fields in self._initial.items() if kind not in faults}
        return len(self.views) >= len(missing) and self._feed.has(missing)

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` in the I/O thread after changes have arrived; it must not block."""
        self._wake = wake
        wake()

    def apply(self, budget: float) -> bool:
        """Apply changes for about `budget` seconds; return whether there are more."""
        return self._feed.apply(self.cluster, budget)

    def compare(self) -> None:
        """Compare the cluster with what the API server delivered, once that is applied; differences are logged and
        healed.
        """
        self._feed.compare()

    def cover(self, reads: Iterable[Read], timeout: float = _COVER_S, *, active: Iterable[Read] = ()) -> None:
        """Watch what these and the `active` ones read, and return when it is applied.

        Raises `PolicyError` as `Feed.cover` does.
        """
        active = tuple(active)
        self._feed.cover(fields_read([*reads, *active]), timeout, active=fields_read(active))

    def heard_ago(self, kind: str) -> float:
        """Return the seconds since the API server was last heard of a kind; infinite if it is not watched now."""
        view = self.views.get(kind, KindView())
        return time.time() - view.listed if view.listed and not view.fault else float("inf")

    def close(self) -> None:
        """End all requests."""
        self.io.close()

    def _arrived(self) -> None:
        self._wake()
