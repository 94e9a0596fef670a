"""`FairThread`: one thread that works for many clients, next for the one whose work took the least time lately."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")
DRAIN: Final = 0.5
"""Seconds of used time that are forgotten per second: the share of a thread that one client may use in the long run."""
_MOST_CLIENTS: Final = 1024


@dataclass(slots=True)
class _Level:
    seconds: float
    at: float


class UsedTime:
    """The processor time that was used for each client lately, in seconds; it drains away. For any thread."""

    def __init__(self, *, drain: float = DRAIN, clock: Callable[[], float] = time.monotonic) -> None:
        """`drain` is in seconds per second of the clock."""
        self.drain = drain
        self.clock = clock
        self._lock = threading.Lock()
        self._levels: OrderedDict[str, _Level] = OrderedDict()

    def charge(self, client: str, seconds: float) -> None:
        """Add time that was used for a client; 0 notes that the client is there."""
        with self._lock:
            now = self.clock()
            self._levels[client] = _Level(self._level(client, now) + seconds, now)
            self._levels.move_to_end(client)
            while len(self._levels) > _MOST_CLIENTS:
                self._levels.popitem(last=False)

    def of(self, client: str) -> float:
        """Return the time that was used for a client, without what has drained away."""
        with self._lock:
            return self._level(client, self.clock())

    def has_others(self, client: str, within: float) -> bool:
        """Return whether another client was charged in the last seconds; the client `""`, the console, is none."""
        with self._lock:
            since = self.clock() - within
            return any(name not in ("", client) and level.at >= since for name, level in self._levels.items())

    def _level(self, client: str, now: float) -> float:
        known = self._levels.get(client)
        return 0.0 if known is None else max(0.0, known.seconds - (now - known.at) * self.drain)


@dataclass(frozen=True, slots=True)
class _Job:
    future: Future[Any]
    run: Callable[[], Any]


class FairThread:
    """A daemon thread, started when it is needed, whose time is shared fairly by clients.

    The next job is one of the client with the least used time, which is charged with what the job takes; of its jobs
    the oldest one of the kind with the least used time. Clients, and kinds, with the same time have their turns one
    after the other.
    """

    def __init__(self, name: str, used: UsedTime, *, timer: Callable[[], float] = time.thread_time) -> None:
        """`timer` returns the seconds that the calling thread has worked."""
        self._name = name
        self._used = used
        self._timer = timer
        self._of_kinds = UsedTime(drain=used.drain, clock=used.clock)
        self._queues: OrderedDict[tuple[str, str], deque[_Job]] = OrderedDict()
        """By client and kind, not empty each; the one whose turn was last is at the end."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, client: str, run: Callable[[], T], kind: str = "") -> Future[T]:
        """Queue a call of a kind for a client; raises `RuntimeError` after `close`."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError(f"no work is taken any more by `{self._name}`")
            self._queues.setdefault((client, kind), deque()).append(_Job(future, run))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()
        return future

    def waiting(self, client: str | None = None) -> int:
        """Return the number of jobs that have not begun, of a client or of all."""
        with self._changed:
            return sum(len(jobs) for (of, _), jobs in self._queues.items() if client in (None, of))

    def used_for(self, client: str, kind: str) -> float:
        """Return the time that this thread used lately for one kind of a client's jobs."""
        return self._of_kinds.of(f"{client}\0{kind}")

    def close(self) -> None:
        """End the thread, and cancel what has not begun; waits for nothing."""
        with self._changed:
            self._closed = True
            queues, self._queues = self._queues, OrderedDict()
            self._changed.notify()
        for jobs in queues.values():
            for each in jobs:
                each.future.cancel()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            of, job = taken
            if job.future.set_running_or_notify_cancel():
                began = self._timer()
                try:
                    found = job.run()
                except BaseException as error:  # the caller gets the error
                    self._charge(of, self._timer() - began)
                    job.future.set_exception(error)
                else:
                    self._charge(of, self._timer() - began)
                    job.future.set_result(found)
                    del found
            del taken, job  # frees arguments and results before the next work comes

    def _charge(self, of: tuple[str, str], seconds: float) -> None:
        self._used.charge(of[0], seconds)
        self._of_kinds.charge("\0".join(of), seconds)

    def _take(self) -> tuple[tuple[str, str], _Job] | None:
        """Wait for the next job, and return it with its client and kind; None after `close`."""
        with self._changed:
            while not self._queues and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            of = min(self._queues, key=lambda each: (self._used.of(each[0]), self._of_kinds.of("\0".join(each))))
            jobs = self._queues.pop(of)
            job = jobs.popleft()
            if jobs:
                self._queues[of] = jobs
            for other in [each for each in self._queues if each[0] == of[0]]:
                self._queues.move_to_end(other)  # other clients with the same time come first
            if jobs:
                self._queues.move_to_end(of)
            return of, job
