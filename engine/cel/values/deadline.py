"""Wall-clock deadlines of evaluation, folding and checking in one thread.

Costs bound every evaluation (`Limits.cost`), every document and every decision (`budget`), independently of the
machine. In the worst case they allow a decision to take seconds. A deadline bounds the time itself, and can be
cancelled from another thread:

    deadline = Deadline(0.5)
    with deadline:
        decide()                  # in this thread
    # meanwhile, in another thread: deadline.cancel()

Where it is polled:

- The interpreter polls every `POLL_UNITS` units of cost, at least every few milliseconds.
- Generated functions do not poll. One call is bounded (about 10 ms); then the interpreter takes over.
- Between the rows of a frame it is polled whenever an expression has spent units. The remaining rows, and every later
  evaluation that spends units, end in an `ExhaustedError` of reason `DEADLINE`, which is never cached.
- `checker.check` and the folding of constants poll once per expression; both are linear in its size, which `Limits`
  bounds. A document whose expressions are not checked in time has a `PolicyError` of code `cel-deadline` at each.
- Other code calls `Deadline.poll()`, or reads `passed` of `Deadline.current()`.

`stopped` is the text that was evaluated or checked when the deadline was first found to have passed.
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
    """The deadline has passed: raised by `poll`."""


class Deadline:
    """A time by which work in a thread must end; a context manager that makes it the thread's current one.

    It starts when it is made. Within another deadline the earlier of the two holds. `clock` returns seconds. `cancel`
    may be called from any thread, all other methods only from the thread that enters it.
    """

    __slots__ = ("_at", "_cancelled", "_clock", "_outer", "stopped")

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + seconds
        self._cancelled = False
        self._outer: Deadline | None = None
        self.stopped: Source | None = None
        """The text that was evaluated or checked when the deadline had passed; None if nothing was stopped."""

    @staticmethod
    def current() -> Deadline | None:
        """Return the current deadline of this thread."""
        return _CURRENT.deadline

    @staticmethod
    def poll() -> None:
        """Raise `OverdueError` if the deadline of this thread has passed."""
        if (deadline := _CURRENT.deadline) is not None and deadline.passed:
            raise OverdueError

    def cancel(self) -> None:
        """End the deadline now."""
        self._cancelled = True

    @property
    def passed(self) -> bool:
        """True if the deadline, or one around it, has passed or was cancelled."""
        return self._cancelled or self._clock() >= self._at or (self._outer is not None and self._outer.passed)

    @property
    def expired(self) -> bool:
        """True if this deadline has passed, whatever those around it did."""
        return self._clock() >= self._at

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; negative after it."""
        own = -math.inf if self._cancelled else self._at - self._clock()
        return own if self._outer is None else min(own, self._outer.remaining)

    def stop(self, source: Source) -> None:
        """Record the stopped text; only the first is recorded."""
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
