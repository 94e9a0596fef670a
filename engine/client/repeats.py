"""Faults of requests that are the same for many objects, such as a right that is missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_PERIOD_S: Final = 600.0
_MOST_KNOWN: Final = 1000


class RepeatedFaults:
    """Says of each fault whether it is to be logged: once in ten minutes, whatever object it is about."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, float] = {}

    def is_due(self, message: str, name: str) -> bool:
        """Return whether this message about the object `name` was not logged within the last ten minutes."""
        now, fault = self._clock(), message.replace(f'"{name}"', "")
        if fault in self._logged and now - self._logged[fault] < _PERIOD_S:
            return False
        if len(self._logged) >= _MOST_KNOWN:
            self._logged.clear()
        self._logged[fault] = now
        return True
