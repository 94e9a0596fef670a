"""The single thread that decides and owns the cluster, and its current task.

It is a daemon, so that a task that never returns cannot keep the process from ending, and it publishes its task with
the time of its beginning, which `watchdog` reads from another thread.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar

from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.serving.daemons import taken
from koordpolicy.engine.source import Source

P = ParamSpec("P")
T = TypeVar("T")

_frames: Final = sys._current_frames  # noqa: SLF001 - how debuggers see other threads; there is no public name
_LOG: Final = logging.getLogger(__name__)
_NO_BUDGET: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Task:
    """The current task of the thread: `since` is when it began, in seconds of the decider's clock."""

    what: str
    since: float
    budget: float
    """The seconds after which the task is overdue; infinite for tasks without a limit."""
    deadline: Deadline
    """The deadline of the task's evaluations."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """An expression that was stopped because its task had used up its budget."""

    what: str
    budget: float
    text: Source


@dataclass(frozen=True, slots=True)
class _Job:
    future: Future[Any]
    run: Callable[[], Any]
    what: str
    budget: float


class Decider(Executor):
    """An executor that runs tasks in one daemon thread, in order.

    `clock` returns seconds of a monotonic clock. `submit` is that of an `Executor`, without a budget; `assign` names
    the task and its budget in seconds. Tasks cancelled before their turn are skipped.
    `stopped` is called, in this thread, when an expression was stopped because the budget was used up.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, stopped: Callable[[Stopped], None] = lambda _: None,
    ) -> None:
        self.task: Task | None = None
        """The current task; None between tasks. Rebound as a whole, so that any thread may read it."""
        self.clock = clock
        self._stopped = stopped
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call of `fn`; raises `RuntimeError` after `shutdown`."""
        return self._add(fn.__name__ if hasattr(fn, "__name__") else "work", _NO_BUDGET, partial(fn, *args, **kwargs))

    def assign(self, what: str, budget: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call of `fn` as the task `what`, overdue after `budget` seconds; raises as `submit` does."""
        return self._add(what, budget, partial(fn, *args, **kwargs))

    def _add(self, what: str, budget: float, run: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the decider takes no work any more")
            self._jobs.put(_Job(future, run, what, budget))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="decide", daemon=True)
                self._thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work; with `wait`, wait until the thread has ended, which may never happen."""
        with self._lock:
            self._closed = True
            if cancel_futures:
                for job in taken(self._jobs):
                    job.future.cancel()
            self._jobs.put(None)
            thread = self._thread
        if wait and thread is not None:
            thread.join()

    def stack(self) -> tuple[FrameType, ...]:
        """Return the current frames of the thread, innermost first; empty if it does not run."""
        thread = self._thread
        frame = None if thread is None or thread.ident is None else _frames().get(thread.ident)
        found: list[FrameType] = []
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
        return tuple(found)

    def _work(self) -> None:
        result: Any
        while (job := self._jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            deadline = Deadline(job.budget, self.clock)
            self.task = Task(job.what, self.clock(), job.budget, deadline)
            try:
                with deadline:
                    result = job.run()
            except BaseException as error:  # includes `SystemExit`: the thread continues with the next task
                self.task = None
                job.future.set_exception(error)
            else:
                self.task = None
                job.future.set_result(result)
            if deadline.stopped is not None:
                self._say_stopped(Stopped(job.what, job.budget, deadline.stopped))
            job = result = None  # frees arguments and results before the next task comes

    def _say_stopped(self, stopped: Stopped) -> None:
        try:
            self._stopped(stopped)
        except Exception:  # the thread must not end: it makes all decisions
            _LOG.exception("what was stopped in `%s` could not be reported", stopped.what)
