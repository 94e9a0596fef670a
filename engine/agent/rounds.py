"""Rounds: functions that are called at intervals, by monotonic time, in one thread."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

Run = Callable[[], object]


@dataclass(slots=True)
class _Round:
    interval: float
    priority: int
    run: Run
    due: float
    number: int
    """The number of its valid entry in the heap."""


class Rounds:
    """Functions by name, each called at its interval; those that are due together in order of priority.

    A round begins an interval after the one before was due. One that is late is called once, however many intervals
    have passed: nothing is made up for. All times are in seconds of a monotonic clock, which the caller has:
    jumps of the wall clock do not matter.
    """

    def __init__(self) -> None:
        self._rounds: dict[str, _Round] = {}
        self._heap: list[tuple[float, str, int]] = []
        self._numbers = itertools.count()

    def add(self, name: str, interval: float, run: Run, *, now: float, priority: int = 0) -> None:
        """Call `run` from `now` on; a function of that name is replaced. Raises `ValueError` unless `interval` > 0."""
        if not interval > 0:
            raise ValueError(f"the interval of `{name}` must be above 0, not {interval}")
        self._rounds[name] = _Round(interval, priority, run, now, 0)
        self._push(name)

    def remove(self, name: str) -> None:
        """Call the function of that name no more, if there is one."""
        self._rounds.pop(name, None)

    def bring_forward(self, name: str, now: float) -> None:
        """Let the round of that name, if there is one, be due now; the next one is an interval later."""
        found = self._rounds.get(name)
        if found is not None and found.due > now:
            found.due = now
            self._push(name)

    @property
    def names(self) -> frozenset[str]:
        """The names."""
        return frozenset(self._rounds)

    def run_due(self, now: float) -> float:
        """Call all functions that are due, once each; return when the next one is due, infinity without any.

        An exception of a function passes to the caller, and the others that are due wait for their next interval.
        """
        due: list[tuple[int, float, str, _Round]] = []
        while self._heap and (found := self._valid()) is not None and found[0] <= now:
            at, name, _ = heapq.heappop(self._heap)
            each = self._rounds[name]
            # In step with the first round, unless it is late by an interval or more.
            each.due = at + each.interval if at + each.interval > now else now + each.interval
            self._push(name)
            due.append((each.priority, at, name, each))
        for _, _, name, each in sorted(due, key=lambda entry: entry[:3]):
            if self._rounds.get(name) is each:  # an earlier one may have removed it
                each.run()
        return math.inf if (found := self._valid()) is None else found[0]

    def _push(self, name: str) -> None:
        each = self._rounds[name]
        each.number = next(self._numbers)
        heapq.heappush(self._heap, (each.due, name, each.number))

    def _valid(self) -> tuple[float, str, int] | None:
        """Return the first entry that was neither replaced nor removed."""
        while self._heap:
            first = self._heap[0]
            each = self._rounds.get(first[1])
            if each is not None and each.number == first[2]:
                return first
            heapq.heappop(self._heap)
        return None
