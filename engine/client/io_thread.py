"""One daemon thread with an event loop, for all requests and watches of an API client.

Other threads hand coroutines over and get futures; what belongs to an event loop (transports, informers, recorders)
lives on this one. A lease has a thread of its own, see `leader_election`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, ParamSpec, Protocol, Self, TypeVar

_LOG: Final = logging.getLogger(__name__)
_CLOSE_S: Final = 5.0

P = ParamSpec("P")
T = TypeVar("T")


class Submitter(Protocol):
    """Runs coroutines in the event loop of the API client, as an `IoThread` does."""

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine; raises `RuntimeError` if the loop does not run."""
        ...


class Spawner(Protocol):
    """Runs coroutines in the event loop of the API client whose results nobody awaits, as an `IoThread` does."""

    def spawn(self, coroutine: Coroutine[Any, Any, object], what: str) -> Future[object]:
        """Run a coroutine, and log its exception with `what`; raises `RuntimeError` if the loop does not run."""
        ...


class IoThread:
    """An event loop on a daemon thread. `start` it once and `close` it, or use it as a context manager.

    Methods may be called from any thread, except that `close` must not be called on the loop's own.
    """

    def __init__(self, name: str = "api-client") -> None:
        """`name` is the name of the thread."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._closers: list[Callable[[], Awaitable[None]]] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """True from `start` until `close`: only then work is accepted."""
        return self._open

    def start(self) -> None:
        """Start the thread; returns when its loop runs."""
        self._thread.start()
        self._ready.wait()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine as a task of the loop; its result or exception is that of the future.

        To cancel the future cancels the task. Raises `RuntimeError` before `start` and after `close`.
        """
        with self._lock:
            if not self._open or self._loop is None:
                coroutine.close()
                raise RuntimeError(f"`{self._thread.name}` is not running")
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def spawn(self, coroutine: Coroutine[Any, Any, object], what: str) -> Future[object]:
        """Submit a coroutine whose result nobody awaits; an exception is logged with `what` it was for.

        Raises `RuntimeError` before `start` and after `close`.
        """
        future: Future[object] = self.submit(coroutine)

        def log(ended: Future[object]) -> None:
            if not ended.cancelled() and (error := ended.exception()) is not None:
                _LOG.error("%s failed", what, exc_info=error)

        future.add_done_callback(log)
        return future

    def call_soon(self, callback: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function in the loop, which it must not block; its exception is logged.

        Raises `RuntimeError` before `start` and after `close`.
        """
        with self._lock:
            if not self._open or self._loop is None:
                raise RuntimeError(f"`{self._thread.name}` is not running")
            self._loop.call_soon_threadsafe(_logged, lambda: callback(*args, **kwargs))

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Await `closer()` in the loop when this is closed, after all tasks; the last one registered comes first.

        For the `close` of transports. An exception is logged.
        """
        self._closers.append(closer)

    def close(self, timeout: float | None = _CLOSE_S) -> bool:
        """Cancel all tasks, wait for them and end the thread; return False if that takes more than `timeout` seconds.

        The thread is a daemon: a task that does not end keeps no process alive. May be called again.
        """
        with self._lock:
            if self._open and self._loop is not None and self._stop is not None:
                self._open = False
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception:
            _LOG.exception("the event loop `%s` failed", self._thread.name)
        finally:
            self._open = False
            self._ready.set()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._open = True
        self._ready.set()
        await self._stop.wait()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        # The exceptions are those of the futures.
        await asyncio.gather(*tasks, return_exceptions=True)
        for closer in reversed(self._closers):
            try:
                await closer()
            except Exception:
                _LOG.exception("a connection could not be closed")


def _logged(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        _LOG.exception("a call on the event loop failed")
