"""Settings of the interpreter and the garbage collector with which a compiling thread delays decisions little.

Python runs one thread at a time. A waiting thread gets its turn after the switch interval, so that interval is short
while policies are compiled; and the compiling thread pauses between documents, for as long as they took.

A collection of young objects lets no thread have its turn. It begins once 700 more objects were made than freed, so it
comes late, and visits tens of thousands, where old objects are freed meanwhile: nodes of documents that were compiled.
So each pause collects what is young, while that is little.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import Final

_SWITCH_INTERVAL_S: Final = 0.0001
_SELDOM: Final = 900_000_000
"""An unusual threshold, by which `unfreeze` detects that other code has changed it meanwhile."""
_OFTEN: Final = 2
"""After how many collections of young objects those that survived are visited: after 10 that takes 6 ms."""
_LEAST_WORK_S: Final = 0.0005
"""Less work has no pause of its own; what it makes is collected in about as long."""
_LONGEST_BREAK_S: Final = 0.005


class LowLatencyGc:
    """A context for compiling threads: while any thread is in it, decisions wait for them as little as possible.

    It changes settings of the whole process, so the composition root makes one and passes it to all compiling code.
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
            # A waiting decision gets its turn after this interval; the default is 5 ms.
            sys.setswitchinterval(min(interval, _SWITCH_INTERVAL_S))
            # Compiled objects are long-lived. A full collection each time that they have grown by a quarter would delay
            # decisions by half a second, several times, if thousands of documents are compiled: one collection
            # suffices.
            gc.set_threshold(young, min(middle, _OFTEN), _SELDOM)

    def __exit__(self, *_: object) -> None:
        self._mine.since = None
        with self._lock:
            self._within -= 1
            if not self._within:
                interval, thresholds = self._before
                sys.setswitchinterval(interval)
                young, middle, old = gc.get_threshold()
                gc.set_threshold(young, thresholds[1] if middle == _OFTEN else middle,
                                 thresholds[2] if old == _SELDOM else old)

    def keep_turns_short(self) -> None:
        """Keep the switch interval short outside of the context too, whether or not a thread is in it now."""
        with self._lock:
            interval, thresholds = self._before
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL_S))
            self._before = min(interval, _SWITCH_INTERVAL_S), thresholds

    def pause(self) -> None:
        """Collect young objects, and sleep for as long as this thread has computed since the last pause.

        Does nothing outside of the context, and after little work.
        """
        since: float | None = getattr(self._mine, "since", None)
        if since is None or (worked := time.thread_time() - since) < _LEAST_WORK_S:
            return
        gc.collect(1)
        time.sleep(min(_LONGEST_BREAK_S, worked))
        self._mine.since = time.thread_time()

    def freeze(self) -> None:
        """Collect, then exclude all current objects from collections.

        The objects of hundreds of compiled documents are long-lived. A collection takes 50 ms to visit them, and delays
        the decision that triggers it.
        """
        gc.unfreeze()  # objects that an earlier server in the same process has frozen
        gc.collect()
        gc.freeze()

    def unfreeze(self) -> None:
        """Include all objects in collections again."""
        gc.unfreeze()
