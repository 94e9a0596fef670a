"""The clock of the API server, from the Date header of its answers.

Times in objects (a NodeMetric's updateTime, a deletionTimestamp) were written by clocks of the cluster; a machine whose
own clock is wrong must not take fresh metrics for expired ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Final

_RESOLUTION_S: Final = 1.0
"""A Date has whole seconds, rounded down."""


class ServerClock:
    """The difference of the API server's clock to this machine's. Writers share one thread; readers may be anywhere.

    Each answer bounds the difference to a second and its round trip, and all answers together bound it further. While
    no answer rules out that the clocks agree, they do: without skew the machine's own clock is used as it is.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """`now` is this machine's clock in seconds since the epoch."""
        self._now = now
        self._bounds: tuple[float, float] = (float("-inf"), float("inf"))
        self.skew = 0.0
        """Seconds to add to this machine's clock; 0 before the first answer."""

    def note(self, date: str, sent: float, received: float) -> None:
        """Record the Date of an answer and this machine's times of request and answer; any other text is ignored."""
        if not date:
            return
        try:
            served = parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError, OverflowError):
            return
        low, high = served - received, served + _RESOLUTION_S - sent
        known_low, known_high = self._bounds
        if low <= known_high and high >= known_low:
            low, high = max(low, known_low), min(high, known_high)
        # Else a clock was set, or drifted: what was known of it before counts no more.
        if (low, high) != self._bounds:
            self._bounds = low, high
            self.skew = min(max(0.0, low), high) if low <= high else 0.0

    def seconds(self) -> float:
        """Return the server's time in seconds since the epoch."""
        return self._now() + self.skew

    def nanoseconds(self) -> int:
        """Return the server's time in nanoseconds since the epoch."""
        return int(self.seconds() * 1_000_000_000)
