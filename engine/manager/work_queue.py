"""A queue of keys to reconcile: each at most once, and after failures with growing delays."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Final

_FIRST_S: Final = 0.5
_LONGEST_S: Final = 60.0


class WorkQueue:
    """Keys that wait to be worked on. Belongs to one event loop.

    A key that is added while it is worked on is worked on once more afterwards, and never by two workers at once.
    """

    def __init__(
        self, *, jitter: Callable[[], float] = random.random,  # noqa: S311 - it spreads attempts
    ) -> None:
        """`jitter` returns numbers in [0, 1)."""
        self._jitter = jitter
        self._waiting: deque[str] = deque()
        self._queued: set[str] = set()
        self._running: set[str] = set()
        self._delays: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Return how many keys wait, those with a delay aside."""
        return len(self._waiting)

    def add(self, key: str) -> None:
        """Queue a key, unless it waits."""
        if key not in self._queued:
            self._queued.add(key)
            if key not in self._running:
                self._waiting.append(key)
                self._wake.set()

    async def take(self) -> str:
        """Wait for a key; call `done` or `failed` for it afterwards."""
        while not self._waiting:
            self._wake.clear()
            await self._wake.wait()
        key = self._waiting.popleft()
        self._queued.discard(key)
        self._running.add(key)
        return key

    def done(self, key: str) -> None:
        """Note that a key was worked on."""
        self._delays.pop(key, None)
        self._end(key)

    def failed(self, key: str) -> None:
        """Queue a key again after a delay, which doubles from failure to failure."""
        delay = self._delays.get(key, _FIRST_S)
        self._delays[key] = min(delay * 2, _LONGEST_S)
        self._end(key)
        if key not in self._timers:
            self._timers[key] = asyncio.get_running_loop().call_later(
                delay * (1.0 + self._jitter()), self._again, key)

    def _again(self, key: str) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _end(self, key: str) -> None:
        self._running.discard(key)
        if key in self._queued:
            self._waiting.append(key)
            self._wake.set()
