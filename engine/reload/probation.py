"""Counting failing expressions among the first decisions of a generation."""

from __future__ import annotations

import threading

from koordpolicy.engine.framework.registry import Live


class Probation:
    """Decides whether the active generation has failed: too many of its first decisions had failing expressions.

    `max_error_rate` is the maximum part (0 to 1); with None no generation fails. `count` may be called from any thread.
    """

    def __init__(self, live: Live, *, max_error_rate: float | None, first_decisions: int) -> None:
        self._live = live
        self._max_error_rate = max_error_rate
        self._first_decisions = first_decisions
        self._lock = threading.Lock()
        self._counted = (0, 0, 0)  # generation, decisions, errors

    @property
    def limited(self) -> bool:
        """True if generations can fail at all."""
        return self._max_error_rate is not None

    def count(self, generation: int, decisions: int, errors: int) -> None:
        """Count decisions under a generation, and those with a failing expression; inactive generations are ignored."""
        with self._lock:
            if generation != self._live.registry.generation:
                return
            counted, before, failed = self._counted
            if counted != generation:
                before = failed = 0
            if before < self._first_decisions:
                self._counted = generation, before + decisions, failed + errors

    @property
    def failed(self) -> bool:
        """True if the active generation has had too many errors."""
        generation, decisions, errors = self._counted
        if self._max_error_rate is None or generation != self._live.registry.generation:
            return False
        # Before all decisions are counted, only if no later decision can lower the rate enough.
        return errors > self._max_error_rate * max(decisions, self._first_decisions)

    @property
    def passed(self) -> bool:
        """True if enough decisions were made under the active generation, or generations cannot fail."""
        generation, decisions, _ = self._counted
        counted = decisions if generation == self._live.registry.generation else 0
        return self._max_error_rate is None or counted >= self._first_decisions

    def end(self) -> str:
        """Reset the counts; return them as a message."""
        with self._lock:
            generation, decisions, errors = self._counted
            self._counted = (0, 0, 0)
        return f"{errors} of the first {decisions} decisions under generation {generation} had failing expressions"
