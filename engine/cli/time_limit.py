"""Limits on the wall-clock time of a command: of linting, and of reading and compiling policies."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.documents import Document
from koordpolicy.engine.source import Source, Span

from .exits import Exit, Stop

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPILE_S: Final = 120.0
"""The time that a command may take to read, check and compile policies, as `lint` by default."""
_AGAIN_S: Final = 0.5


class _ExceededError(BaseException):
    """Not an `Exception`: code that catches faults of plugins must not catch it."""


class _Holds:
    """The state of the one timer of the process: a limit holds now, or none."""

    held = False


_HOLDS: Final = _Holds()


class TimeLimit:
    """Ends the block of `holds` once `seconds` have passed since the limit was made; 0 means no limit.

    Works in the main thread, by a timer of the process; in other threads, and on systems without such a timer, it does
    nothing.
    """

    def __init__(self, seconds: float, option: str = "") -> None:
        """`option` is the name of the option that sets the limit, if there is one."""
        self._seconds = seconds
        self._option = option
        self._end = time.monotonic() + seconds
        self.file = ""
        """The file that is being read; if it is empty, the current file is found in the stack."""

    @contextmanager
    def holds(self, what: str) -> Iterator[None]:
        """Raise `Stop` with the name of the current file if the block takes too long."""
        usable = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        if not self._seconds or not usable:
            yield
            return
        found: list[str] = []

        def exceeded(_: int, frame: FrameType | None) -> None:
            if not found:
                found.append(self.file or _file_of(frame))
            raise _ExceededError

        before = signal.signal(signal.SIGALRM, exceeded)
        _HOLDS.held = True
        try:
            # More than once: a callback of a library may swallow the exception.
            signal.setitimer(signal.ITIMER_REAL, max(0.001, self._end - time.monotonic()), _AGAIN_S)
            try:
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except _ExceededError:
            where = f", and `{found[0]}` was being worked on" if found[0] else ""
            more = f", or give it more time with `{self._option}`" if self._option else ""
            raise Stop(f"{what} took longer than {self._seconds:g} s{where}: make it smaller or simpler{more}",
                       Exit.EXCEEDED) from None
        finally:
            _HOLDS.held = False
            signal.signal(signal.SIGALRM, before)


@contextmanager
def compile_limit(what: str = "reading policies") -> Iterator[None]:
    """Raise `Stop` with the name of the current file if the block takes longer than `COMPILE_S`.

    Within another limit it does nothing: that one holds.
    """
    if _HOLDS.held:
        yield
        return
    with TimeLimit(COMPILE_S).holds(what):
        yield


def _file_of(frame: FrameType | None) -> str:
    """Return the name of the current file of a stack: that of the innermost frame with a part of a file."""
    while frame is not None:
        for value in frame.f_locals.values():
            name = _name_of(value)
            if name:
                return name
        frame = frame.f_back
    return ""


def _name_of(value: Any) -> str:
    match value:
        case Source(name=name):
            return name
        case Span():
            return value.source.name
        case Document():
            return value.span.source.name
        case _:
            document = getattr(value, "__dict__", {}).get("document")  # of a `LintSubject`
            return document.span.source.name if isinstance(document, Document) else ""
