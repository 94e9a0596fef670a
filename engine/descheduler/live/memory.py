"""The memory of useless evictions of a live descheduler: read when the process begins to lead, written after cycles."""

from __future__ import annotations

import logging
from typing import Final

from koordpolicy.engine.source import PolicyError

from ..proof.memory import UselessEvictionMemory
from ..proof.store import MemoryStore, StoreChangedError, decoded, encoded
from .config_map import ConfigMapKey

_LOG: Final = logging.getLogger(__name__)
_TRIES: Final = 5


class ConfigMapMemoryStore:
    """A key of a ConfigMap (implements `MemoryStore`); for the descheduler's thread.

    What somebody else wrote since the last read is not overwritten.
    """

    def __init__(self, config_map: ConfigMapKey) -> None:
        self._config_map = config_map
        self._version = ""

    def load(self) -> UselessEvictionMemory:
        """Return the memory in the ConfigMap; an empty one if there is none."""
        found = self._config_map.read()
        self._version = found.version
        if found.text is None:
            return UselessEvictionMemory()
        return decoded(found.text.encode("utf-8", "surrogateescape"), f"the ConfigMap `{self._config_map.name}`")

    def save(self, memory: UselessEvictionMemory) -> None:
        """Write the memory, if the ConfigMap is as it was read or written last; other keys of it stay."""
        self._version = self._config_map.write(encoded(memory).decode(), self._version).version


class CycleMemory:
    """The memory between the cycles of a leader; for the descheduler's thread.

    A store that cannot be read is read again in the next cycle, and is not written until then; the cycles before
    remember nothing. A damaged store is replaced. A write that failed is repeated after the next cycle. The entries
    that another process wrote meanwhile are merged.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._memory: UselessEvictionMemory | None = None
        self._saved: UselessEvictionMemory | None = None

    def begin(self) -> UselessEvictionMemory | None:
        """Return the memory for a cycle; None if it cannot be read."""
        if self._memory is None:
            try:
                self._memory = self._loaded()
            except (OSError, ValueError) as error:
                _LOG.warning("useless evictions are not remembered in this cycle, as they cannot be read: %s", error)
        return self._memory

    def end(self, memory: UselessEvictionMemory | None, *, dry_run: bool) -> None:
        """Store the memory after a cycle (after a dry run, in this process only); None leaves the previous one."""
        if memory is None:
            return
        self._memory = memory
        if dry_run or memory == self._saved:
            return
        try:
            for _ in range(_TRIES):
                try:
                    self._store.save(self._memory)
                except StoreChangedError:
                    self._memory = self._memory.merged_with(self._loaded())
                else:
                    self._saved = self._memory
                    return
        except (OSError, ValueError) as error:
            _LOG.warning("useless evictions cannot be written: %s", error)
        else:
            _LOG.warning("useless evictions cannot be written: other processes changed them before each of %d attempts",
                         _TRIES)

    def forget(self) -> None:
        """Read the store again before the next cycle: another process may write it meanwhile."""
        self._memory = self._saved = None

    def _loaded(self) -> UselessEvictionMemory:
        try:
            self._saved = self._store.load()
        except PolicyError as error:
            _LOG.error("useless evictions are forgotten: %s", error.problems[0].message)
            return UselessEvictionMemory()
        return self._saved
