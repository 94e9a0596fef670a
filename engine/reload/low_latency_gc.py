"""How a thread that compiles leaves the interpreter and the garbage collector to those that decide.

Python runs one thread at a time. Another thread waits for the running one until the switch interval is over, so that
interval is short while something is compiled; and the thread that compiles takes a break after each document, as long
as the document took.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import Final

_SWITCH_INTERVAL_S: Final = 0.0001
_SELDOM: Final = 900_000_000
"""A number that nobody else sets, so that it shows whether somebody has set another one meanwhile."""
_LONGEST_BREAK_S: Final = 0.005


class LowLatencyGc:
    """A context for threads that compile: while any thread is in it, decisions wait for them as little as can be.

    It changes settings of the whole process, so the composition root makes one and hands it to all that compile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within = 0
        self._before = 0.0, (0, 0, 0)
        self._mine = threading.local()

    def __enter__(self) -> None:
        self._mine.since = time.thread_time()
        with self._lock:
            self._within += 1
            if self._within > 1:
                return
            self._before = interval, (young, middle, _) = sys.getswitchinterval(), gc.get_threshold()
            # A decision that wants to go on waits this long for a build that computes: 5 ms, unless set otherwise.
            sys.setswitchinterval(min(interval, _SWITCH_INTERVAL_S))
            # What is compiled lives on. Looking through all of it again each time that it has grown by a quarter makes
            # decisions wait half a second, several times, where thousands of documents are compiled: once is enough.
            gc.set_threshold(young, middle, _SELDOM)

    def __exit__(self, *_: object) -> None:
        self._mine.since = None
        with self._lock:
            self._within -= 1
            if not self._within:
                interval, thresholds = self._before
                sys.setswitchinterval(interval)
                young, middle, old = gc.get_threshold()
                if old == _SELDOM:
                    gc.set_threshold(young, middle, thresholds[2])

    def pause(self) -> None:
        """Take a break, as long as this thread has computed since the last one; none outside of the context."""
        since: float | None = getattr(self._mine, "since", None)
        if since is not None:
            time.sleep(min(_LONGEST_BREAK_S, max(0.0, time.thread_time() - since)))
            self._mine.since = time.thread_time()

    def freeze(self) -> None:
        """Collect, then keep what is in memory by now out of collections.

        What hundreds of compiled documents consist of lives on. A collection takes 50 ms to look through it, and the
        decision in which it falls due waits for it.
        """
        gc.unfreeze()  # of what a server before this one in the same process has left
        gc.collect()
        gc.freeze()

    def unfreeze(self) -> None:
        """Let collections look through all of the memory again."""
        gc.unfreeze()
