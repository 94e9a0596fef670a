"""Pauses after failures, which end early once the API server answers one of the paused kinds again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from .pacing import Backoff

_SPREAD_S: Final = 0.8


class ServerRecovery:
    """The pauses of all informers of one transport after failures.

    After an outage each of them would go on with its own back-off, the last one up to a minute after the server came
    back, and a process that needs all kinds would wait for that one. Here the first path that is answered again after
    a failure ends the pauses of all. Such ends are paced by a back-off of their own, so that a server that fails and
    answers by turns gets no more than about twice the requests. Belongs to one event loop.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, jitter: Callable[[], float] = random.random,  # noqa: S311 - it spreads requests
    ) -> None:
        """`jitter` returns numbers in [0, 1): pauses end spread over 0.8 seconds."""
        self._clock = clock
        self._jitter = jitter
        self._backoff = Backoff(clock=clock, jitter=jitter)
        self._failed: set[str] = set()
        """The paths that were not answered well since their last failure."""
        self._pauses: set[asyncio.Future[float]] = set()
        """Their results are the time at which they end."""
        self._end_at = float("-inf")
        """The time at which pauses last ended, or will end, together."""
        self._free_at = float("-inf")
        """The earliest time at which pauses end together again."""

    async def pause(self, path: str, seconds: float, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Sleep after a failure of a request for `path`, or until the server has recovered."""
        self._failed.add(path)
        deadline = self._clock() + seconds
        recovered: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        sleeping = asyncio.ensure_future(sleep(seconds))
        self._pauses.add(recovered)
        try:
            await asyncio.wait((sleeping, recovered), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._pauses.discard(recovered)
            sleeping.cancel()
        if recovered.done():
            now = self._clock()
            end = max(now, recovered.result()) + _SPREAD_S * self._jitter()
            await sleep(max(0.0, min(deadline, end) - now))

    def answered(self, path: str) -> None:
        """Note that the server has answered a request for `path` well."""
        if path not in self._failed:
            return
        self._failed.discard(path)
        if not self._pauses:
            return
        now = self._clock()
        if now > self._end_at:
            self._end_at = max(now, self._free_at)
            self._free_at = self._end_at + self._backoff.next()
        for recovered in self._pauses:
            if not recovered.done():
                recovered.set_result(self._end_at)
        self._pauses.clear()
