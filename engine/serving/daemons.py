"""Daemon threads for work that may never return; they do not keep the process from ending."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def taken(jobs: queue.SimpleQueue[T | None]) -> Iterator[T]:
    """Take all jobs from a queue without waiting, and yield them; None, which ends a thread, is passed over."""
    # Threads take from the queue concurrently, so a job may be gone after it was seen.
    with suppress(queue.Empty):
        while True:
            if (job := jobs.get_nowait()) is not None:
                yield job


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    future: Future[Any]
    run: Callable[[], Any]
    since: float
    """When it was submitted, in seconds of the clock."""


class Daemons(Executor):
    """Up to `most` daemon threads, started when they are needed; work that waits begins in the order of `submit`."""

    def __init__(self, most: int, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds and only goes forward."""
        self._clock = clock
        self._most = most
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._unfinished: dict[_Job, None] = {}
        """Oldest first."""
        self._closed = False

    @property
    def busy(self) -> bool:
        """True if some work has not returned, or is queued."""
        return bool(self._unfinished)

    def seconds_unfinished(self) -> tuple[float, ...]:
        """Return for how many seconds each work has been queued or running, oldest first; for any thread."""
        now = self._clock()
        with self._lock:
            return tuple(now - job.since for job in self._unfinished)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call of `fn`; raises `RuntimeError` after `shutdown`."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"no work is taken any more by `{self._name}`")
            job = _Job(future, partial(fn, *args, **kwargs), self._clock())
            self._unfinished[job] = None
            self._jobs.put(job)
            if len(self._threads) < min(self._most, len(self._unfinished)):
                thread = threading.Thread(target=self._work, name=f"{self._name}_{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work; with `wait`, wait until the threads have ended, which may never happen."""
        with self._lock:
            self._closed = True
            if cancel_futures:
                for job in taken(self._jobs):
                    job.future.cancel()
                    del self._unfinished[job]
            for _ in self._threads:
                self._jobs.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)
            with self._lock:
                del self._unfinished[job]
            job = None  # frees arguments and results before the next work comes

    @staticmethod
    def _do(job: _Job) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        try:
            result = job.run()
        except BaseException as error:  # the caller gets the error
            job.future.set_exception(error)
        else:
            job.future.set_result(result)
