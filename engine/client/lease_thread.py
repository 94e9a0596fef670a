"""A daemon thread with an event loop and a transport of its own, for what must not wait for anything else: a Lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

from .transport import Transport

_LOG: Final = logging.getLogger(__name__)


class LeaseThread:
    """Runs a coroutine until it is cancelled. `start` it once, `stop` it at the end of the process."""

    def __init__(self, name: str, transport: Transport, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`name` is that of the thread, and of what failed if `run` raises; `transport` is closed after `run`."""
        self._name = name
        self._transport = transport
        self._coroutine = run
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ready = threading.Event()
        self._released = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, and return when it runs."""
        self._thread.start()
        self._ready.wait()

    def stop(self, timeout: float | None = None) -> bool:
        """Cancel the coroutine; return False if that takes more than `timeout` seconds. May be called again."""
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def release(self, seconds: float) -> None:
        """Stop at the end of a process, which goes on if that takes longer; only the first call does anything."""
        if not self._released:
            self._released = True
            if not self.stop(seconds):
                _LOG.warning("the %s has not released its Lease in time", self._name)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception:
            _LOG.exception("the thread of the %s failed", self._name)

    async def _main(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._ready.set()
        try:
            async with self._transport:
                await self._coroutine()
        except asyncio.CancelledError:
            return
