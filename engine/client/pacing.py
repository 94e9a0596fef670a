"""The pace of requests: back-off between failures, and a token bucket over all requests of a client."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

_FIRST_S: Final = 0.8
_LONGEST_S: Final = 30.0
_RESET_S: Final = 120.0
_NO_WAIT_S: Final = 1e-6  # rounding


class Backoff:
    """The delays between failures of a list or watch, as client-go's reflector has them.

    Delays double from 0.8 s to 30 s, each with a jitter up to its own length, and start anew after two minutes
    without a failure.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, jitter: Callable[[], float] = random.random,  # noqa: S311 - it spreads requests
    ) -> None:
        """`jitter` returns numbers in [0, 1)."""
        self._clock = clock
        self._jitter = jitter
        self._next = _FIRST_S
        self._last = clock()

    def next(self) -> float:
        """Return the delay after one more failure, in seconds: 0.8 to 60."""
        now = self._clock()
        if now - self._last > _RESET_S:
            self._next = _FIRST_S
        self._last = now
        delay, self._next = self._next, min(self._next * 2, _LONGEST_S)
        return delay * (1.0 + self._jitter())


class TokenBucket:
    """A limit of requests per second, with a burst; requests wait in the order of their arrival.

    Belongs to one event loop.
    """

    def __init__(
        self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`rate` is in requests per second; 0 or less for no limit. `burst` is at least 1."""
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._sleep = sleep
        self._full_at = clock()
        """The time at which the bucket is full again: each token moves it by 1/rate."""

    def lift(self) -> None:
        """Let nobody wait from now on; who waits already goes on waiting."""
        self._rate = 0.0

    async def take(self) -> float:
        """Wait for a token; return the wait in seconds."""
        if self._rate <= 0:
            return 0.0
        now = self._clock()
        self._full_at = max(self._full_at, now) + 1.0 / self._rate
        delay = self._full_at - now - self._burst / self._rate
        if delay <= _NO_WAIT_S:
            return 0.0
        await self._sleep(delay)
        return delay
