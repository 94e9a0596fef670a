"""Observers of scheduling cycles: they receive every decision with its duration."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ..verdict.verdict import Verdict

_LOG: Final = logging.getLogger(__name__)


class CycleObserver(Protocol):
    """Receives what a scheduling loop does, in its thread; must not wait, nor change the cluster."""

    def begin(self, now: int) -> None:
        """A scheduling cycle begins at `now` (nanoseconds since the epoch); changes until `end` are its own."""
        ...

    def end(self, verdict: Verdict | None, duration: int) -> None:
        """The cycle ended with a verdict after `duration` nanoseconds; None if no pod was ready.

        Explanations of a pod without a node are computed; those of a placed pod are no longer valid.
        """
        ...

    def concluded(self, verdict: Verdict) -> None:
        """A binding cycle ended whose verdict was `waiting` or `binding`."""
        ...


class CycleObservers:
    """Calls several observers, measures durations, and survives their faults.

    The time stands still during a cycle: all that a cycle does happens at one time, which can be replayed.
    """

    def __init__(self, observers: Iterable[CycleObserver], clock: Callable[[], int]) -> None:
        """`clock` returns nanoseconds since the epoch."""
        self._observers = tuple(observers)
        self._now = clock
        self._cycle: int | None = None
        self._begun = 0

    def clock(self) -> int:
        """Return the time of the running cycle, or the present time between cycles."""
        return self._now() if self._cycle is None else self._cycle

    def begin(self) -> None:
        """Begin a cycle."""
        self._cycle = self._now()
        for each in self._observers:
            self._guarded(each.begin, self._cycle)
        self._begun = time.perf_counter_ns()

    def end(self, verdict: Verdict | None) -> None:
        """End the cycle."""
        duration = time.perf_counter_ns() - self._begun
        self._cycle = None
        for each in self._observers:
            self._guarded(each.end, verdict, duration)

    def concluded(self, verdict: Verdict) -> None:
        """Report the end of a binding cycle."""
        for each in self._observers:
            self._guarded(each.concluded, verdict)

    def _guarded(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            call(*arguments)
        except Exception as error:
            _LOG.error("a decision could not be observed: %s", error or type(error).__name__)
            _LOG.debug("where that failed", exc_info=True)
