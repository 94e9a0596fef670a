"""The end of a server at a signal, within a grace period."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, Never, Protocol

from .exits import Exit

_SAME_SIGNAL_SECONDS: Final = 0.5


class Stoppable(Protocol):
    """A flag such as `threading.Event` and `asyncio.Event`."""

    def is_set(self) -> bool:
        """Return whether the server is to stop."""
        ...

    def set(self) -> None:
        """Stop the server."""
        ...


class Ending:
    """Stops the server at a signal, and ends the process if that takes longer than `grace` seconds.

    A further signal ends the process at once, unless it comes together with the first: `timeout` and some init
    processes signal a process and its group. `clock` returns seconds; `give_up` ends the process.
    """

    def __init__(
        self, stop: Stoppable, grace: float, *, clock: Callable[[], float] = time.monotonic,
        give_up: Callable[[str], None] | None = None,
    ) -> None:
        self._stop = stop
        self._clock = clock
        self._give_up = give_up or _give_up
        self._since = math.inf
        self.timer = threading.Timer(grace, self._give_up, (f"the grace period of {grace:g} s is over",))
        """Ends the process after the grace period."""
        self.timer.daemon = True

    def __call__(self) -> None:
        """Handle a signal."""
        if not self._stop.is_set():
            self._since = self._clock()
            self._stop.set()
            self.timer.start()
        elif self._clock() - self._since >= _SAME_SIGNAL_SECONDS:
            self._give_up("a second signal came")


class _StopFlag:
    """The flag of a server that is stopped by a function."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._set = threading.Event()

    def is_set(self) -> bool:
        return self._set.is_set()

    def set(self) -> None:
        self._set.set()
        self._stop()


def end_at_signals(stop: Callable[[], None], grace: float) -> None:
    """Call `stop` at SIGTERM and SIGINT, and end the process if the server takes longer than `grace` seconds then."""
    ending = Ending(_StopFlag(stop), grace)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: ending())


def _give_up(why: str) -> None:
    logging.getLogger(__name__).error("ended before everything was closed: %s", why)
    leave(Exit.UNEXPECTED)


def leave(code: Exit) -> Never:
    """End the process without waiting for its threads; files on the disk are consistent at any time."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)
