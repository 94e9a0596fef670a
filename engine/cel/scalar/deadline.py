"""A wall-clock deadline for all that the language does in one thread: evaluating, folding, checking.

Costs bound every evaluation (`Limits.cost`), every document and every decision (`budget`), whatever the machine does.
They allow a decision seconds in the worst case. A deadline bounds the time itself, and can be cancelled from another
thread:

    deadline = Deadline(0.5)
    with deadline:
        decide()                  # in this thread
    # meanwhile, in another thread: deadline.cancel()

What is stopped, and how soon:

- The interpreter polls every `POLL_UNITS` units of cost, that is at least every few milliseconds.
- Emitted functions do not poll. What they may do in one call is bounded (about 10 ms); then they hand over to the exact
  evaluator.
- Between the rows of a frame the deadline is polled whenever an expression has spent something. Rows that are left, and
  every later evaluation that spends anything, end in an `ExhaustedError` of reason `DEADLINE`. It is never cached.
- `checker.check` and the folding of constants poll once per expression; both are linear in its size, which `Limits`
  bounds. A document whose expressions are not checked in time has a `PolicyError` of code `cel-deadline` at each.
- Whatever else wants to stop calls `Deadline.poll()`, or looks at `passed` of `Deadline.current()`.

`stopped` names the text that was being evaluated or checked when the deadline was first found to have passed.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

    from koordpolicy.engine.source import Source

DEADLINE: Final = "DeadlineExceeded"
POLL_UNITS: Final = 2_000
"""Units of cost between two polls of an evaluation."""


class _Current(threading.local):
    deadline: Deadline | None = None


_CURRENT: Final = _Current()


class OverdueError(Exception):
    """Work that polls by itself (`poll`) has to end."""


class Deadline:
    """A time by which work in a thread must end; a context manager that makes it the thread's current one.

    It begins to run when it is made. Within another deadline the earlier of the two holds. `clock` gives seconds.
    `cancel` may be called from any thread, all else belongs to the thread that enters it.
    """

    __slots__ = ("_at", "_cancelled", "_clock", "_outer", "stopped")

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + seconds
        self._cancelled = False
        self._outer: Deadline | None = None
        self.stopped: Source | None = None
        """The text that was evaluated or checked when the deadline had passed; None where nothing was stopped."""

    @staticmethod
    def current() -> Deadline | None:
        """Return the deadline that this thread works under."""
        return _CURRENT.deadline

    @staticmethod
    def poll() -> None:
        """Raise `OverdueError` where the deadline of this thread has passed."""
        if (deadline := _CURRENT.deadline) is not None and deadline.passed:
            raise OverdueError

    def cancel(self) -> None:
        """Let the deadline pass now."""
        self._cancelled = True

    @property
    def passed(self) -> bool:
        """Whether work must end."""
        return self._cancelled or self._clock() >= self._at or (self._outer is not None and self._outer.passed)

    @property
    def remaining(self) -> float:
        """Seconds until work must end; negative where it should have ended."""
        own = -math.inf if self._cancelled else self._at - self._clock()
        return own if self._outer is None else min(own, self._outer.remaining)

    def stop(self, source: Source) -> None:
        """Note what was stopped; the first text counts."""
        if self.stopped is None:
            self.stopped = source.parent or source
        if self._outer is not None and self._outer.passed:
            self._outer.stop(source)

    def __enter__(self) -> Self:
        self._outer = _CURRENT.deadline
        _CURRENT.deadline = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None,
    ) -> None:
        _CURRENT.deadline = self._outer
        self._outer = None
