"""The memory of useless evictions of a live descheduler: read when the process begins to lead, written after cycles."""

from __future__ import annotations

import json
import logging
from collections.abc import Coroutine, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, TypeVar

from koordpolicy.engine.client.io_thread import Submitter
from koordpolicy.engine.client.resources import ApiResource, ObjectReference
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.client.writes import ClusterWriter, WriteStatus
from koordpolicy.engine.source import PolicyError

from ..proof.memory import UselessEvictionMemory
from ..proof.store import MemoryStore, data_of, memory_in

_LOG: Final = logging.getLogger(__name__)

CONFIG_MAPS: Final = ApiResource("ConfigMap", "", "v1", "configmaps")
_REQUEST_S: Final = 10.0
_NOT_FOUND: Final = 404
T = TypeVar("T")


class ConfigMapMemoryStore:
    """A ConfigMap (implements `MemoryStore`), which is created if there is none; for the descheduler's thread."""

    def __init__(
        self, io: Submitter, transport: Transport, writer: ClusterWriter, *, namespace: str, name: str,
    ) -> None:
        """`transport` and `writer` belong to the loop of `io`."""
        self._io = io
        self._transport = transport
        self._writer = writer
        self._reference = ObjectReference(CONFIG_MAPS, namespace, name)

    def load(self) -> UselessEvictionMemory:
        """Return the memory in the ConfigMap; an empty one if there is none."""
        try:
            content = self._result(self._transport.request("GET", self._reference.path()))
        except (ApiError, ConnectionFailed, PolicyError) as error:
            if isinstance(error, ApiError) and error.code == _NOT_FOUND:
                return UselessEvictionMemory()
            raise OSError(str(error)) from None
        found: Any = json.loads(content)
        return memory_in(found if isinstance(found, Mapping) else None)

    def save(self, memory: UselessEvictionMemory) -> None:
        """Write the memory; other keys of the ConfigMap stay."""
        body = {"data": data_of(memory)}
        result = self._result(self._writer.merge_patch(self._reference, body))
        if result.status is WriteStatus.GONE:
            metadata = {"name": self._reference.name, "namespace": self._reference.namespace}
            result = self._result(self._writer.create(
                CONFIG_MAPS, {"metadata": metadata, **body}, namespace=self._reference.namespace))
        if not result.done:
            raise OSError(f"{result.status.value}: {result.message}")

    def _result(self, request: Coroutine[Any, Any, T]) -> T:
        future = self._io.submit(request)
        try:
            return future.result(_REQUEST_S)
        except FutureTimeoutError:
            future.cancel()
            raise OSError(f"the API server has not answered within {_REQUEST_S:g} s") from None


class CycleMemory:
    """The memory between the cycles of a leader; for the descheduler's thread.

    A store that cannot be read is tried again at the next cycle, and not written before: until then nothing is
    remembered. A damaged one is replaced. One that cannot be written is tried again after the next cycle.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._memory: UselessEvictionMemory | None = None
        self._saved: UselessEvictionMemory | None = None

    def begin(self) -> UselessEvictionMemory | None:
        """Return the memory for a cycle; None if it cannot be read."""
        if self._memory is None:
            try:
                self._memory = self._saved = self._store.load()
            except PolicyError as error:
                _LOG.error("useless evictions are forgotten: %s", error.problems[0].message)
                self._memory = UselessEvictionMemory()
            except (OSError, ValueError) as error:
                _LOG.warning("useless evictions are not remembered in this cycle, as they cannot be read: %s", error)
        return self._memory

    def end(self, memory: UselessEvictionMemory | None, *, dry_run: bool) -> None:
        """Keep the memory after a cycle, and write it if it was no dry one; None keeps the one before."""
        if memory is None:
            return
        self._memory = memory
        if dry_run or memory == self._saved:
            return
        try:
            self._store.save(memory)
        except OSError as error:
            _LOG.warning("useless evictions cannot be written: %s", error)
        else:
            self._saved = memory

    def forget(self) -> None:
        """Read the store again before the next cycle: another process may lead, and write it, meanwhile."""
        self._memory = self._saved = None
