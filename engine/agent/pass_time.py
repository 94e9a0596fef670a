"""The time of a pass of rounds: when it was due, on the wall clock."""

from __future__ import annotations

from .parts import AgentClock

_APART_NS = 2_000_000_000


class PassTime:
    """Returns one time for all collectors and strategies of a pass, in step with those of the passes before.

    A pass begins some milliseconds late. If its samples had that time, a window of ten intervals would hold ten of them
    or eleven, and a replay would decide otherwise than the node did. If the wall clock is set, by more than two
    seconds, the time follows it.
    """

    def __init__(self, clock: AgentClock) -> None:
        self._clock = clock
        self._monotonic = clock.monotonic()
        self._wall = clock.wall()

    def of(self, due: float) -> int:
        """Return the time of a pass that was due then, in seconds of the monotonic clock; in ns since the epoch."""
        now, wall = self._clock.monotonic(), self._clock.wall()
        time = self._wall + round((min(due, now) - self._monotonic) * 1e9)
        if abs(time - wall) > _APART_NS:
            self._monotonic, self._wall = now, wall
            return wall
        return time
