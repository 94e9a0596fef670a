"""Intake of request bodies, each bounded in bytes and time, all of them together in bytes.

A slow sender delays no other: a body takes no slot of those that wait for a decision until it is complete,
and when the bodies under way take too much memory, the slowest of them is rejected.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from .blocks import WHOLE, Blocks

SMALL_BODY: Final = 64 * 1024
"""The maximum size of a body that is no call of kube-scheduler with nodes, in bytes."""
BODY_SECONDS: Final = 10.0
"""The time in which a body must arrive; kube-scheduler's default timeout is 5 s."""
MOST_ARRIVING: Final = 256
"""The maximum number of bodies under way."""

_GRACE_S: Final = 1.0


class DeclinedError(Exception):
    """A request that is declined with a status and a reason."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


@dataclass(slots=True, eq=False)
class _Arriving:
    """A body that is under way."""

    since: float
    limit: asyncio.Timeout
    body: Blocks = field(default_factory=Blocks)
    dropped: bool = False

    def rate(self, now: float) -> float:
        """Return bytes per second; infinite for a body that has just begun."""
        took = now - self.since
        return math.inf if took < _GRACE_S else len(self.body) / took


class Intake:
    """Reads bodies, for one event loop.

    `largest` is the maximum size of a body in bytes, `most` that of all bodies that are not decided yet. `timer`
    returns seconds of a monotonic clock.
    """

    def __init__(
        self, largest: int, *, most: int, seconds: float = BODY_SECONDS, most_arriving: int = MOST_ARRIVING,
        timer: Callable[[], float] | None = None,
    ) -> None:
        self.bytes = 0
        """The number of bytes held."""
        self._largest = largest
        self._most = most
        self._seconds = seconds
        self._most_arriving = most_arriving
        self._timer = timer
        self._arriving: list[_Arriving] = []

    @asynccontextmanager
    async def small_body(self, request: web.BaseRequest, largest: int) -> AsyncIterator[bytearray]:
        """Yield a body of at most `largest` bytes, which must not be more than `WHOLE`; see `body`."""
        assert largest <= WHOLE
        async with self.body(request, largest=largest) as body:
            yield body.joined() if isinstance(body, Blocks) else body

    @asynccontextmanager
    async def body(
        self, request: web.BaseRequest, *, largest: int = 0, option: str = "",
    ) -> AsyncIterator[bytearray | Blocks]:
        """Yield the body once all of it is there, a large one in blocks; its bytes count until the context ends.

        `largest` is another bound of this body alone. `option` is what the reason names where it is exceeded.

        Raises: DeclinedError: the body is compressed (415), too large (413), too slow (408), or dropped for lack of
        memory (503).
        """
        most, option = largest or self._largest, f" (`{option}`)" if option else ""
        encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise DeclinedError(415, f"the body is encoded as `{encoding[:40]}`: send it as it is, since a few bytes "
                                     "may decompress to any number", **{"Accept-Encoding": "identity"})
        if (request.content_length or 0) > most:
            raise DeclinedError(413, f"the body has {request.content_length} bytes, at most {most} are taken{option}")
        body = await self._read(request, most, option)
        try:
            yield body if len(body) > WHOLE else body.joined()
        finally:
            self.bytes -= len(body)

    async def _read(self, request: web.BaseRequest, most: int, option: str) -> Blocks:
        arriving, whole = _Arriving(self._now(), asyncio.timeout(self._seconds)), False
        self._arriving.append(arriving)
        try:
            async with arriving.limit:
                if len(self._arriving) > self._most_arriving:
                    self._drop_slowest()
                while not arriving.dropped and (chunk := await request.content.readany()):
                    if len(arriving.body) + len(chunk) > most:
                        raise DeclinedError(413, f"the body has more than {most} bytes, which is all that is taken"
                                                 f"{option}")
                    arriving.body.add(chunk)
                    self.bytes += len(chunk)
                    while self.bytes > self._most and not arriving.dropped:
                        self._drop_slowest()
                whole = not arriving.dropped
        except TimeoutError:
            if not arriving.dropped:
                raise DeclinedError(408, f"the body did not arrive within {self._seconds:g} s") from None
        except ConnectionError:  # raised further it would be a traceback in the log, for each client that leaves
            raise DeclinedError(400, "the connection ended within the body") from None
        finally:
            if not arriving.dropped:
                self._arriving.remove(arriving)
                self.bytes -= 0 if whole else len(arriving.body)
        if arriving.dropped:
            raise DeclinedError(503, "too many bodies arrive at the same time, and this one is the slowest")
        return arriving.body

    def _drop_slowest(self) -> None:
        """Decline the body that arrives most slowly."""
        now = self._now()
        slowest = min(self._arriving, key=lambda each: each.rate(now))
        self._arriving.remove(slowest)
        self.bytes -= len(slowest.body)
        slowest.dropped, slowest.body = True, Blocks()
        if not slowest.limit.expired():
            slowest.limit.reschedule(asyncio.get_running_loop().time())

    def _now(self) -> float:
        return asyncio.get_running_loop().time() if self._timer is None else self._timer()
