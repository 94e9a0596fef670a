"""A fixed amount of work, to divide times by: a machine that is slower today is slower at it too."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

_ROWS: Final = 5_000
_ROUNDS: Final = 200
_OBJECTS: Final = 40


class _Item:
    __slots__ = ("amount", "name")

    def __init__(self, name: str, amount: int) -> None:
        self.name = name
        self.amount = amount


def calibrate() -> float:
    """Return the seconds that the work takes now: arithmetic over arrays of 5,000 numbers, dicts, calls, attributes.

    Its parts are those of a decision, about half of the time in numpy and half in the interpreter. The work never
    changes, since figures of different days are compared by it.
    """
    free = np.arange(_ROWS, dtype=np.int64) * 7919 % 64_000
    load = np.arange(_ROWS, dtype=np.float64) * 0.37 % 100.0
    started = time.perf_counter()
    total = 0
    for number in range(_ROUNDS):
        fits = (free >= number * 100) & (load < 65.0)
        scores = np.where(fits, (free * 100) // 64_000, 0)
        total += int(scores.argmax()) + int(np.count_nonzero(fits))
        index: dict[str, _Item] = {}
        for each in range(_OBJECTS):
            item = _Item(f"pod-{each}", each * number)
            index[item.name] = item
        total += sum(item.amount for item in index.values() if item.amount % 3)
    seconds = time.perf_counter() - started
    assert total > 0
    return seconds
