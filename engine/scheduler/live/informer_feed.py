"""A feed of whole objects, from an informer per kind."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from koordpolicy.engine.client.informer import Change, Informer
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.resources import BY_KIND, RESOURCES, ApiResource
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.source import PolicyError

_LOG: Final = logging.getLogger(__name__)
_AT_ONCE: Final = 20


class InformerFeed:
    """Implements `Feed`."""

    def __init__(
        self, io: IoThread, transport: Transport, wake: Callable[[], None],
        resources: Sequence[ApiResource] = RESOURCES,
    ) -> None:
        self._wake = wake
        self._inbox: deque[Change] = deque()
        self._informers = [Informer(transport, resource, self._deliver) for resource in resources]
        self._resources = resources
        for informer in self._informers:
            io.submit(informer.run())

    @property
    def synced(self) -> bool:
        """True once all lists were applied; kinds that the server does not have, or does not list, do not count."""
        return not self._inbox and all(
            informer.view.synced or (informer.view.fault and not resource.required)
            for informer, resource in zip(self._informers, self._resources, strict=True))

    def apply(self, cluster: Cluster, budget: float) -> bool:
        """Apply changes for about `budget` seconds; return whether there are more."""
        inbox = self._inbox
        if not inbox:
            return False
        end = time.monotonic() + budget
        while inbox:
            for _ in range(min(_AT_ONCE, len(inbox))):
                _apply(cluster, inbox.popleft())
            if time.monotonic() >= end:
                break
        return bool(inbox)

    def _deliver(self, changes: Sequence[Change]) -> None:
        self._inbox.extend(changes)
        self._wake()


def _apply(cluster: Cluster, change: Change) -> None:
    key = f"{change.namespace}/{change.name}" if change.namespace else change.name
    if change.deleted:
        cluster.delete(change.kind, key)
        return
    item: dict[str, Any] = msgspec.json.decode(change.raw or b"{}")
    item["apiVersion"], item["kind"] = BY_KIND[change.kind].api_version, change.kind
    item["metadata"].pop("managedFields", None)
    try:
        cluster.upsert(item)
    except PolicyError as error:
        _LOG.warning("%s", error)
