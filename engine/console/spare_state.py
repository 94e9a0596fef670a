"""`SpareState`: the last fork of the console's state, cached for the thread that computes on it."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Final

from .state import ConsoleState

IDLE: Final = 120.0
"""The default of the time in seconds after which a state that nobody has taken is closed."""


class SpareState:
    """Caches a state by its key, so that results are not computed again. For any thread."""

    def __init__(self, idle: float = IDLE) -> None:
        """`idle` is the time in seconds after which a state that nobody takes is closed."""
        self._idle = idle
        self._ended = False
        self._lock = threading.Lock()
        self._cached: tuple[Hashable, ConsoleState] | None = None
        self._drop = threading.Timer(idle, self._forget)

    def take(self) -> tuple[Hashable, ConsoleState] | None:
        """Remove and return the key and the state; None if there is none."""
        with self._lock:
            self._drop.cancel()
            cached, self._cached = self._cached, None
            return cached

    def put(self, key: Hashable, state: ConsoleState) -> None:
        """Cache a state for the next call of `take`; after `close` it is closed at once."""
        with self._lock:
            self._cached = key, state
            if self._ended:
                self._idle = 0
            self._drop = threading.Timer(self._idle, self._forget)
            self._drop.daemon = True
            self._drop.start()

    def close(self) -> None:
        """Close the cached state, and any that comes later."""
        self._ended = True
        self._forget()

    def _forget(self) -> None:
        cached = self.take()
        if cached is not None:
            cached[1].close()
