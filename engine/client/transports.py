"""The connections of a process that follows a cluster, and writes to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .connection import Connection
from .io_thread import IoThread
from .transport import RequestObserver, Transport


@dataclass(frozen=True, slots=True)
class Transports:
    """One transport for writes, one for events and one for watches, so that none of them waits for another."""

    writes: Transport
    events: Transport
    watches: Transport
    """Without a limit of requests: informers pace themselves, and watches do not count."""

    @classmethod
    def of(
        cls, connect: Callable[[], Connection], user_agent: str, *, rate: float, burst: int,
        observer: RequestObserver | None = None,
    ) -> Transports:
        """Return them, each on a connection of its own.

        Writes and events have a limit each: `rate` requests per second, 0 for none, after `burst` at once. `observer`
        measures the requests of all.
        """
        return cls(
            Transport(connect(), user_agent=user_agent, rate=rate, burst=burst, observer=observer),
            Transport(connect(), user_agent=f"{user_agent}/events", rate=rate, burst=burst, observer=observer),
            Transport(connect(), user_agent=f"{user_agent}/watch", rate=0, observer=observer))

    def close_with(self, io: IoThread) -> None:
        """Let the I/O thread close them when it ends."""
        for transport in (self.writes, self.events, self.watches):
            io.on_close(transport.close)
