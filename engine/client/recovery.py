"""Pauses after failures, which end early once the API server answers one of the paused kinds again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from .pacing import Backoff

_SPREAD_S: Final = 0.8
_WELL_S: Final = 10.0
"""Seconds in which no path failed that had been answered, and none was answered again, after which the next failure of
a path that was followed begins another outage."""
_LATE_S: Final = 30.0
"""The delay of an outage's back-off from which on only those of the paths count, which are as long by then."""


class ServerRecovery:
    """The pauses of all informers of one transport after failures.

    After an outage each of them would go on with its own back-off, the last one up to a minute after the server came
    back, and a process that needs all kinds would wait for that one. Here the first path that is answered again after
    a failure ends the pauses of all. Such ends are paced by a back-off of their own, so that a server that fails and
    answers by turns gets no more than about twice the requests.

    Their own back-offs stay long for two minutes, in which another outage may begin. For it they share a back-off that
    begins anew: each failure takes its next delay, so that one path is soon requested again, and few are often.

    Belongs to one event loop.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, jitter: Callable[[], float] = random.random,  # noqa: S311 - it spreads requests
    ) -> None:
        """`jitter` returns numbers in [0, 1): pauses end spread over 0.8 seconds."""
        self._clock = clock
        self._jitter = jitter
        self._backoff = Backoff(clock=clock, jitter=jitter)
        self._outage = Backoff(clock=clock, jitter=jitter)
        """Of this outage, for all paths together."""
        self._failed_at = float("-inf")
        """The time at which a path that had been answered failed last."""
        self._answered_at = float("-inf")
        """The time at which a path that had failed was answered last."""
        self._failed: set[str] = set()
        """The paths that were not answered well since their last failure."""
        self._pauses: set[asyncio.Future[float]] = set()
        """Their results are the time at which they end."""
        self._end_at = float("-inf")
        """The time at which pauses last ended, or will end, together."""
        self._free_at = float("-inf")
        """The earliest time at which pauses end together again."""

    async def pause(
        self, path: str, seconds: float, sleep: Callable[[float], Awaitable[None]], *, followed: bool,
    ) -> None:
        """Sleep after a failure of a request for `path`, at most so long, or until the server has recovered.

        `followed` says whether the last list of the path ended well: one that breaks while it arrives is answered, and
        its next failure is the same outage's, however long it took.
        """
        now = self._clock()
        if path not in self._failed:
            if followed and now - max(self._failed_at, self._answered_at) >= _WELL_S:
                self._outage = Backoff(clock=self._clock, jitter=self._jitter)
            self._failed_at = now
            self._failed.add(path)
        delay = self._outage.next()
        if delay < _LATE_S:
            seconds = min(seconds, delay)
        deadline = now + seconds
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
        self._answered_at = now = self._clock()
        if not self._pauses:
            return
        if now > self._end_at:
            self._end_at = max(now, self._free_at)
            self._free_at = self._end_at + self._backoff.next()
        for recovered in self._pauses:
            if not recovered.done():
                recovered.set_result(self._end_at)
        self._pauses.clear()
