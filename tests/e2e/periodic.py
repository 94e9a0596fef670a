"""A call that is made again and again beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self


class Periodic:
    """Makes a call on a thread of its own, with a pause before each; use as a context manager, or `start` it."""

    def __init__(self, call: Callable[[], object], period: float) -> None:
        """`period` is the pause in seconds. The thread ends with the first exception."""
        self._call = call
        self._period = period
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Make no more calls, and wait for the end of the last one; may be called again."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self._period):
            self._call()
