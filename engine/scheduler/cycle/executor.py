"""Executors of the input and output of binding cycles: inline in the owner's thread, or beside it.

Beside it, coroutines run in the event loop of the API client, and calls that block on worker threads.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Protocol

from koordpolicy.engine.client.io_thread import IoThread

_LOG: Final = logging.getLogger(__name__)

WORKERS: Final = 16
_ENOUGH: Final = 8
"""The number of coroutines under way at which the event loop is not woken up for the next one."""
MOST_HANGING: Final = 64
"""The maximum number of workers hanging in abandoned jobs; each is replaced by another worker."""


class _State(enum.Enum):
    QUEUED = enum.auto()
    RUNNING = enum.auto()
    ABANDONED = enum.auto()
    DONE = enum.auto()


class Job:
    """One call that does input and output, with its result, or the exception that it raised."""

    __slots__ = ("asynchronous", "call", "error", "result", "state")

    def __init__(self, call: Callable[[], Any], *, asynchronous: bool = False) -> None:
        self.call = call
        self.asynchronous = asynchronous
        self.result: Any = None
        self.error: BaseException | None = None
        self.state = _State.QUEUED

    @property
    def done(self) -> bool:
        """True if the job is complete."""
        return self.state is _State.DONE


class Executor(Protocol):
    """Makes calls. All methods are called by the owner of the cluster; the calls may be made in other threads."""

    inline: bool
    """True if calls are made in the owner's thread, so that they may touch its cluster."""

    def submit(self, call: Callable[[], Any]) -> Any:
        """Make the call and return its result, or return the `Job` that `completed` yields later."""
        ...

    def submit_async(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Call a coroutine function and await its result, in an event loop; otherwise as `submit`."""
        ...

    def completed(self) -> Iterator[Job]:
        """Yield the jobs that were completed since the last call, in the order of their completion; never waits."""
        ...

    def abandon(self, job: Job) -> bool:
        """Cancel a job that is not done; return whether it is already running, so that `completed` may yield it
        later.
        """
        ...

    def close(self) -> None:
        """Accept no more jobs; does not wait for running ones."""
        ...


class InlineExecutor:
    """Makes each call at once, in the owner's thread: deterministic, for simulations, replays and tests."""

    inline = True

    def submit(self, call: Callable[[], Any]) -> Any:
        """Make the call, and return or raise what it returns or raises."""
        return call()

    def submit_async(self, call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ARG002 - the protocol's
        """Raise `RuntimeError`: the owner's thread has no event loop."""
        raise RuntimeError("a client that binds in an event loop needs an executor that has one")

    def completed(self) -> Iterator[Job]:
        """Yield nothing: `submit` makes all calls."""
        return iter(())

    def abandon(self, job: Job) -> bool:  # noqa: ARG002 - no job is ever in progress
        """Return false: no job is in progress."""
        return False

    def close(self) -> None:
        """Do nothing."""


class WorkerExecutor:
    """Runs coroutines in an event loop, and all other jobs on daemon threads, which are started when they are needed.

    A hanging job neither blocks the owner nor keeps the process from ending. The threads of
    `concurrent.futures.ThreadPoolExecutor` are joined when the interpreter ends, and are not replaced.
    """

    inline = False

    def __init__(
        self, workers: int = WORKERS, *, most_hanging: int = MOST_HANGING, wake: Callable[[], None] = lambda: None,
        io: IoThread | None = None,
    ) -> None:
        """`wake` is called after each completed job, in its thread; `completed` then yields the job.

        Coroutines need the running thread `io`, which is closed by its owner. A worker whose job is abandoned is
        replaced, at most `most_hanging` times at once.
        """
        self._workers = workers
        self._most_hanging = most_hanging
        self._wake = wake
        self._io = io
        self._coroutines: deque[Job] = deque()
        """The jobs that the event loop has not begun."""
        self._handed_over = False
        """True from the hand-over of coroutines to the event loop until it begins them: one call hands over many."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._queued: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._completed: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._threads = self._idle = self._hanging = 0
        self._closed = False

    @property
    def hanging(self) -> int:
        """The number of workers in abandoned jobs."""
        return self._hanging

    def submit(self, call: Callable[[], Any]) -> Job:
        """Queue the call for a worker.

        Raises:
            RuntimeError: the executor is closed.
        """
        job = Job(call)
        with self._lock:
            if self._closed:
                raise RuntimeError("the executor is closed")
            self._queued.put(job)
            self._idle -= 1
            self._start_workers()
        return job

    def submit_async(self, call: Callable[[], Awaitable[Any]]) -> Job:
        """Queue the coroutine function for the event loop.

        Raises:
            RuntimeError: there is no event loop, or the executor is closed.
        """
        if self._io is None or self._closed:
            raise RuntimeError("the executor has no event loop" if self._io is None else "the executor is closed")
        job = Job(call, asynchronous=True)
        self._coroutines.append(job)
        if len(self._tasks) < _ENOUGH:
            self.hand_over()
        return job

    def hand_over(self) -> None:
        """Let the event loop begin the coroutines that wait for another one to end.

        To wake up the loop costs two system calls, and a turn of its thread: with many coroutines under way, the next
        one that ends does that. So the owner calls this before it waits.
        """
        if self._coroutines and not self._handed_over and self._io is not None:
            self._handed_over = True
            self._io.call_soon(self._begin_coroutines)

    def _begin_coroutines(self) -> None:
        self._handed_over = False  # before the jobs are taken: the next one is handed over by a call of its own
        while True:
            try:
                job = self._coroutines.popleft()
            except IndexError:  # `close` drops them in another thread
                return
            task = asyncio.get_running_loop().create_task(self._await(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _await(self, job: Job) -> None:
        with self._lock:
            if job.state is _State.ABANDONED:
                return
            job.state = _State.RUNNING
        try:
            job.result = await job.call()
        except BaseException as error:  # also the end of the event loop: the owner must not wait without end
            job.error = error
        job.state = _State.DONE
        self._completed.put(job)
        self._call_wake()
        self._begin_coroutines()

    def completed(self) -> Iterator[Job]:
        """Yield the jobs that were completed since the last call, in the order of their completion."""
        while True:
            try:
                yield self._completed.get_nowait()
            except queue.Empty:
                return

    def abandon(self, job: Job) -> bool:
        """Cancel a job: a queued one never runs, and the worker of a running one is replaced.

        A running coroutine continues: its request may have reached the server.
        """
        with self._lock:
            running = job.state is _State.RUNNING
            if job.asynchronous and running:
                return True
            if running:
                self._hanging += 1
                self._start_workers()
            if job.state is not _State.DONE:
                job.state = _State.ABANDONED
            return running or job.state is _State.DONE

    def close(self) -> None:
        """Accept no more jobs, let idle workers end, and begin none of the coroutines that wait."""
        self._coroutines.clear()
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._queued.put(None)

    def _start_workers(self) -> None:
        # A negative `_idle` is the number of jobs without a waiting worker.
        while self._idle < 0 and self._threads < self._workers + min(self._hanging, self._most_hanging):
            self._threads += 1
            self._idle += 1
            threading.Thread(target=self._work, name=f"bind-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (job := self._queued.get()) is not None:
            if self._begin(job):
                try:
                    job.result = job.call()
                except BaseException as error:  # the job's error ends neither the worker nor the scheduler
                    job.error = error
                surplus = self._end(job)
                self._completed.put(job)
                self._call_wake()
                if surplus:
                    return
            job = None  # frees the call and its result before the next job comes

    def _call_wake(self) -> None:
        try:
            self._wake()
        except Exception:  # the owner finds the job with its next call of `completed`
            _LOG.exception("waking up the scheduler failed")

    def _begin(self, job: Job) -> bool:
        with self._lock:
            if job.state is _State.ABANDONED:
                self._idle += 1
                return False
            job.state = _State.RUNNING
            return True

    def _end(self, job: Job) -> bool:
        """Record that a job is complete; return whether its worker was replaced and must end."""
        with self._lock:
            replaced = job.state is _State.ABANDONED
            job.state = _State.DONE
            if replaced:
                self._hanging -= 1
            surplus = self._threads > self._workers + min(self._hanging, self._most_hanging)
            if surplus:
                self._threads -= 1
            else:
                self._idle += 1
            return surplus
