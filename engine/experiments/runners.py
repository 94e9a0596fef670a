"""Runners of experiments: this process, processes of this machine, or an existing Dask cluster.

A runner takes a function and its arguments and yields (argument, outcome or error) as they finish, in any order. Only
this module imports `distributed`. The arguments of a runner must be picklable, and the function importable by its name
in the worker.
"""

from __future__ import annotations

import importlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any, Protocol, TypeVar

Task = TypeVar("Task")
Found = TypeVar("Found")

_AHEAD = 2
"""The number of tasks that are sent to each worker at once, so that no worker is idle between tasks."""


class NotRun(Exception):
    """An experiment could not be run; the message is the reason."""


class Lost(Exception):
    """The workers are lost; their unfinished tasks have to be run again."""


class Runner(Protocol):
    """Runs a function for many arguments."""

    def run(
        self, function: Callable[[Task], Found], tasks: Iterable[Task],
    ) -> Iterator[tuple[Task, Found | NotRun]]:
        """Yield each task with the function's result, or with the NotRun that it raised.

        Raises:
            Lost: the workers are lost.
        """
        ...


class Here:
    """Runs everything in this process, one after the other."""

    def run(
        self, function: Callable[[Task], Found], tasks: Iterable[Task],
    ) -> Iterator[tuple[Task, Found | NotRun]]:
        """See `Runner`."""
        for task in tasks:
            try:
                yield task, function(task)
            except NotRun as error:
                yield task, error


class Processes:
    """Runs on this machine, in several processes."""

    def __init__(self, count: int) -> None:
        self._count = count

    def run(
        self, function: Callable[[Task], Found], tasks: Iterable[Task],
    ) -> Iterator[tuple[Task, Found | NotRun]]:
        """See `Runner`."""
        # Spawned, not forked: a fork could copy held locks of the progress bar's threads.
        pool = ProcessPoolExecutor(self._count, mp_context=get_context("spawn"), initializer=_end_with_parent)
        waiting: dict[Future[Found], Task] = {}
        pending = iter(tasks)
        try:
            while True:
                while len(waiting) < _AHEAD * self._count and (task := next(pending, None)) is not None:
                    waiting[pool.submit(function, task)] = task
                if not waiting:
                    return
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    task = waiting.pop(future)
                    try:
                        yield task, future.result()
                    except NotRun as error:
                        yield task, error
        except BrokenProcessPool:
            raise Lost("a process ended before its experiment did (was it killed for want of memory?)") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class Distributed:
    """Runs on the workers of an existing Dask cluster."""

    def __init__(self, address: str) -> None:
        self._address = address

    def run(
        self, function: Callable[[Task], Found], tasks: Iterable[Task],
    ) -> Iterator[tuple[Task, Found | NotRun]]:
        """See `Runner`; raises `ModuleNotFoundError` if `distributed` is not installed."""
        # Imported here: it takes a third of a second, is an optional extra, and is not typed.
        dask: Any = importlib.import_module("distributed")
        try:
            client = dask.Client(self._address, timeout="10s", set_as_default=False)
        except (OSError, ValueError) as error:
            raise Lost(f"no Dask scheduler answers at `{self._address}`: {error}") from None
        with client:
            workers = sum(client.nthreads().values())
            if not workers:
                raise Lost(f"the Dask scheduler at `{self._address}` has no workers")
            pending = iter(tasks)
            running = dask.as_completed(loop=client.loop)
            given: dict[Any, Task] = {}

            def give(most: int) -> None:
                for task in itertools.islice(pending, most):
                    # Tasks are never equal, and hashing one takes longer than sending it.
                    future = client.submit(function, task, pure=False)
                    given[future] = task
                    running.add(future)

            give(_AHEAD * workers)
            for future in running:
                give(1)
                task, raised = given.pop(future), future.exception()
                if raised is None:
                    yield task, future.result()
                elif isinstance(raised, NotRun):
                    yield task, raised
                else:
                    raise Lost(f"a worker of `{self._address}` failed: {raised}") from raised


def _end_with_parent() -> None:
    """End this process when its parent is killed: it would wait for work forever."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for, args=(parent.join,), daemon=True).start()


def _wait_for(end: Callable[[], object]) -> None:
    end()
    os._exit(1)
