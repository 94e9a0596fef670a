"""A writer thread with a bounded queue, so that the deciding thread never waits for the disk."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

_LOG: Final = logging.getLogger(__name__)
Item = TypeVar("Item")

CAPACITY: Final = 65_536
"""The default number of items that wait at most."""
_INTERVAL_S: Final = 0.1
_CLOSE_S: Final = 10.0
_BATCH: Final = 1024


class BackgroundWriter(Generic[Item]):
    """Passes items to `write` in a thread of its own, in order, in batches; one thread puts items."""

    def __init__(self, name: str, write: Callable[[Sequence[Item]], None], *, capacity: int = CAPACITY) -> None:
        """`write` is also called without items, about ten times a second, for what depends on the time.

        Its exceptions are logged, and the batch is lost.
        """
        self._write = write
        self._capacity = capacity
        self._items: deque[Item] = deque()
        # The thread polls: to wake it for each item would take the interpreter from the deciding thread each time.
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def room(self) -> int:
        """The number of items that can be put now."""
        return self._capacity - len(self._items)

    def put(self, item: Item) -> bool:
        """Append an item, or return False if there is no room for it; never waits."""
        if len(self._items) >= self._capacity:
            return False
        self._items.append(item)
        if 2 * len(self._items) > self._capacity and not self._wake.is_set():
            self._wake.set()
        return True

    def close(self, seconds: float = _CLOSE_S) -> bool:
        """Write all items and end the thread; return whether it ended within so many seconds."""
        self._closing = True
        self._wake.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            closing = self._closing  # read first: items that were put before `close` are written
            self._pass_on()
            if closing:
                return
            self._wake.wait(_INTERVAL_S)
            self._wake.clear()

    def _pass_on(self) -> None:
        while True:
            batch = [self._items.popleft() for _ in range(min(len(self._items), _BATCH))]
            try:
                self._write(batch)
            except Exception as error:
                _LOG.error("%s: %d items are lost: %s", self._thread.name, len(batch), error or type(error).__name__)
                _LOG.debug("where that failed", exc_info=True)
            if not self._items:
                return
