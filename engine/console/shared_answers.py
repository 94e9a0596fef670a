"""Answers that are shared: equal requests at one version are computed once, however many viewers there are."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

MOST: Final = 512
"""The maximum number of answers."""
LARGEST: Final = 64 * 1024 * 1024
"""The maximum size of all of them, in bytes; larger ones are not stored."""


@dataclass(slots=True)
class _Shared:
    future: Future[bytes]
    size: int = 0


class SharedAnswers:
    """A cache of answers by their requests, for one version of their inputs; for any thread."""

    def __init__(self, *, most: int = MOST, largest: int = LARGEST) -> None:
        self._most = most
        self._largest = largest
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, _Shared] = OrderedDict()
        self._size = 0

    def get(self, key: str, submit: Callable[[], Future[bytes]]) -> Future[bytes]:
        """Return the stored answer of a request, or the one that is being computed, or else that of `submit`, which
        raises if it cannot be computed.

        A failed answer is not stored.
        """
        with self._lock:
            known = self._answers.get(key)
            if known is not None:
                self._answers.move_to_end(key)
                return known.future
            shared = self._answers[key] = _Shared(submit())
            while len(self._answers) > self._most:
                _, dropped = self._answers.popitem(last=False)
                self._size -= dropped.size
        shared.future.add_done_callback(lambda done: self._done(key, shared, done))
        return shared.future

    def clear(self) -> None:
        """Drop all answers: their inputs have changed."""
        with self._lock:
            self._answers.clear()
            self._size = 0

    def __len__(self) -> int:
        """The number of answers, with those that are being computed."""
        return len(self._answers)

    def _done(self, key: str, shared: _Shared, done: Future[bytes]) -> None:
        failed = done.cancelled() or done.exception() is not None
        with self._lock:
            if self._answers.get(key) is not shared:
                return
            if failed:
                del self._answers[key]
                return
            shared.size = len(done.result())
            self._size += shared.size
            while self._size > self._largest:
                _, dropped = self._answers.popitem(last=False)
                self._size -= dropped.size
