"""Waits for changes of objects of the cluster: no thread waits for them."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Generic, TypeVar

from koordpolicy.engine.cluster.events import Event

_Waiting = TypeVar("_Waiting")


class ObjectWaits(Generic[_Waiting]):
    """Those who wait, by the objects whose changes may end the wait; for the thread that owns the cluster."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._waits: dict[_Waiting, tuple[Collection[tuple[str, str]], int]] = {}
        """The objects (kind and key) and the deadline, in nanoseconds since the epoch."""
        self._by_object: dict[tuple[str, str], dict[_Waiting, None]] = {}
        self._due: dict[_Waiting, None] = {}
        """Those whose objects have changed, oldest change first."""
        self._deadlines: list[tuple[int, int, _Waiting]] = []
        """A heap of deadlines, each with a sequence number; those of removed ones are dropped when they are reached."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waits)

    def __iter__(self) -> Iterator[_Waiting]:
        """Yield all who wait, oldest first."""
        return iter(tuple(self._waits))

    def add(self, waiting: _Waiting, objects: Collection[tuple[str, str]], timeout: int) -> None:
        """Wait for changes of objects (kind and key), `timeout` nanoseconds at most."""
        deadline = self._clock() + timeout
        self._waits[waiting] = objects, deadline
        for each in objects:
            self._by_object.setdefault(each, {})[waiting] = None
        heapq.heappush(self._deadlines, (deadline, next(self._numbers), waiting))

    def remove(self, waiting: _Waiting) -> None:
        """Wait no longer."""
        objects, _ = self._waits.pop(waiting)
        self._due.pop(waiting, None)
        for each in objects:
            there = self._by_object[each]
            there.pop(waiting, None)
            if not there:
                del self._by_object[each]

    def note(self, event: Event) -> None:
        """Take note of a change."""
        self._due.update(self._by_object.get((event.kind, event.key), ()))

    def touch(self, waiting: _Waiting) -> None:
        """Let `take` return one whose objects have not changed."""
        self._due[waiting] = None

    def take(self) -> tuple[_Waiting, bool] | None:
        """Return one whose objects have changed since it was last returned, or that has waited too long (then true);
        None if there is none. It waits until it is removed.
        """
        if not self._waits:
            return None
        deadline = self.next_time()
        if deadline is not None and deadline <= self._clock():
            waiting = heapq.heappop(self._deadlines)[2]
            self._due.pop(waiting, None)
            return waiting, True
        if not self._due:
            return None
        waiting = next(iter(self._due))
        del self._due[waiting]
        return waiting, False

    def next_time(self) -> int | None:
        """Return the earliest deadline; None if there is none."""
        while self._deadlines:
            deadline, _, waiting = self._deadlines[0]
            known = self._waits.get(waiting)
            if known is not None and known[1] == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return None
