"""Short garbage collections in a serving process.

A full collection visits every live object: 0.5 to 1 s for a cluster of 5,000 nodes and 13,000 objects, in
which no call is answered. The objects of a cluster are freed by reference counting; only cycles need collections, and
the few that arise are found while they are young. So objects that survived a listing are frozen (`gc.freeze`),
and a full collection runs only when more objects are frozen than the cluster explains.

The same holds for a reload: 10,000 compiled documents are 800,000 objects, which one collection visits for half a
second, and a set that is replaced is freed by reference counting.

The collector belongs to the process: the composition root of a server decides whether it is set up.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Final

_LOOK_EVERY: Final = 20
"""The number of listings or reloads between counts of what is in memory."""
_NEVER: Final = 1_000_000_000
_GROWTH: Final = 1.5
_SLACK: Final = 1_000_000
"""The number of excess blocks of memory before a full collection; about 100 MB. An object has one or two."""


class ShortCollections:
    """Keeps collections short. Call `freeze` once the cluster is loaded, after the changes of each listing are
    applied, and after each reload. `close` restores the collector's settings.

    Memory is bounded: a full collection runs once more blocks of memory are in use than `growth` times those of the
    last full collection, plus `slack`. `count_blocks` returns their number; counting objects would visit all of them.
    """

    def __init__(
        self, *, growth: float = _GROWTH, slack: int = _SLACK, look_every: int = _LOOK_EVERY,
        count_blocks: Callable[[], int] = sys.getallocatedblocks,
    ) -> None:
        self.full = 0
        """The number of full collections."""
        self._growth = growth
        self._slack = slack
        self._look_every = look_every
        self._count_blocks = count_blocks
        self._freezes = 0
        self._lived = 0
        self._before = gc.get_threshold()
        self._closed = False
        self._lock = threading.Lock()  # `freeze` and `close` run in different threads

    def freeze(self, explained: int = 0) -> None:
        """Collect young objects, and freeze the others.

        `explained` is the number of blocks by which a reload has changed the memory in use, negative if it shrank.
        """
        with self._lock:
            if self._closed:
                return
            young, middle, _ = gc.get_threshold()
            gc.set_threshold(young, middle, _NEVER)  # old objects are handled here
            gc.collect(1)
            gc.freeze()
            self._freezes += 1
            if self._lived:
                self._lived = max(1, self._lived + explained)
            if self._freezes % self._look_every == 1 % self._look_every:
                count = self._count_blocks()
                if not self._lived:
                    self._lived = count
                elif count > self._growth * self._lived + self._slack:
                    self._collect_all()

    def close(self) -> None:
        """Restore the former thresholds and unfreeze all objects; later calls of `freeze` do nothing."""
        with self._lock:
            if not self._closed and self._freezes:
                gc.set_threshold(*self._before)
                gc.unfreeze()
            self._closed = True

    def _collect_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self.full += 1
        self._lived = self._count_blocks()
