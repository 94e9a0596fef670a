"""Follows policies in an API server: informers on a thread of their own deliver to the sources; status is written back.

One process of those that follow the same objects writes their status: the holder of a Lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.informer import Change, Informer, InformerView
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.leader_election import LeaderElector, LeaseSettings
from koordpolicy.engine.client.resources import ApiResource, ObjectReference
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult
from koordpolicy.engine.documents import GROUP, VERSION
from koordpolicy.engine.documents.objects import PLURALS

from .api_source import ApiSource, ConfigMapSource
from .object_status import Patch

SYNC_S: Final = 15.0
"""Seconds that a start waits for the first lists."""
_POLL_S: Final = 0.01
_AGENT: Final = "koord-policy/policies"
_CONFIGMAPS: Final = ApiResource("ConfigMap", "", "v1", "configmaps")
_KINDS: Final = {kind.value: ApiResource(kind.value, GROUP, VERSION.partition("/")[2], plural)
                 for kind, plural in PLURALS.items()}


class PolicyFollower:
    """Follows the objects of some sources. `start` it once, `close` it at the end."""

    def __init__(self, sources: Sequence[ApiSource], connection: Connection) -> None:
        """Nothing else may use the connection, as credentials belong to one event loop."""
        self.sources = tuple(sources)
        self._io = IoThread("policies")
        self._transport = Transport(connection, user_agent=_AGENT)
        self._writer = ClusterWriter(self._transport)
        # Unlimited, as renewals must not wait for the status of thousands of objects.
        self._lease_transport = Transport(connection, user_agent=f"{_AGENT}/leader-election", rate=0)
        self._elector: LeaderElector | None = None
        self._changed: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin to follow; returns without waiting for the first lists."""
        self._io.start()
        self._io.on_close(self._transport.close)
        self._io.on_close(self._lease_transport.close)
        for source in self.sources:
            informers = [self._informer(source, resource, namespace, selector)
                         for resource, namespace, selector in _parts(source)]
            source.follow(_views(informers))
            for informer in informers:
                self._io.spawn(informer.run(), "to follow policies")

    def wait(self, seconds: float = SYNC_S) -> bool:
        """Wait until all objects are listed, but not for what does not pass by waiting; return whether they are."""
        end = time.monotonic() + seconds
        while not all(source.synced for source in self.sources):
            if time.monotonic() >= end or any(source.refused for source in self.sources):
                return False
            time.sleep(_POLL_S)
        return True

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call a function after each change of policies, in the thread of the informers, which it must not block."""
        self._changed = changed

    def elect(self, settings: LeaseSettings) -> None:
        """Take part in the election of the process that writes status."""
        self._io.spawn(self._take_part(settings), "the election of the writer of status")

    def leads(self) -> bool:
        """Return True while this process is the one that writes status."""
        return self._elector is not None and self._elector.leads()

    def write_status(self, kind: str, name: str, uid: str, patch: Patch) -> Future[WriteResult]:
        """Merge a patch into the status of an object, if it still has its UID."""
        target = ObjectReference(_KINDS[kind], "", name, uid)
        return self._io.submit(self._writer.merge_patch(target, {"status": patch}, subresource="status"))

    def close(self) -> None:
        """End all requests, and release the Lease."""
        self._io.close()

    def _informer(self, source: ApiSource, resource: ApiResource, namespace: str, selector: str | None) -> Informer:
        def deliver(changes: Sequence[Change]) -> None:
            if source.deliver(changes):
                self._changed()

        # They are few, and a stream has the newest ones, where the first list may come from an old cache.
        return Informer(self._transport, resource, deliver, namespace=namespace, field_selector=selector,
                        streaming=True)

    async def _take_part(self, settings: LeaseSettings) -> None:
        while True:
            self._elector = LeaderElector(self._lease_transport, settings)
            await self._elector.run()
            # Leadership was given up: writes of status are not harmed by that, so it is tried again.
            await asyncio.sleep(settings.retry_s)


def _parts(source: ApiSource) -> list[tuple[ApiResource, str, str | None]]:
    """Return the parts of a source: resources with their namespace and field selector."""
    if isinstance(source, ConfigMapSource):
        return [(_CONFIGMAPS, source.namespace, f"metadata.name={source.name}")]
    return [(resource, "", None) for resource in _KINDS.values()]


def _views(informers: Sequence[Informer]) -> Callable[[], Sequence[InformerView]]:
    return lambda: [informer.view for informer in informers]
