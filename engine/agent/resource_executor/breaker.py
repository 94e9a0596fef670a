"""Pauses between attempts to write a file that refuses its value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FAILURES: Final = 3
"""Failures in a row after which writes to a file are suspended."""
_SECOND: Final = 1_000_000_000
FIRST_PAUSE: Final = 30 * _SECOND
LONGEST_PAUSE: Final = 600 * _SECOND


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last: int = 0
    until: int = 0
    pause: int = 0


@dataclass(slots=True)
class WriteBreakers:
    """A circuit breaker for each file: after failures in a row it opens, and admits one attempt after each pause.

    Times are in nanoseconds of any one clock. The pause doubles with every attempt that fails, up to 10 minutes; a
    write that succeeds closes the breaker. `opened` counts the openings.
    """

    opened: int = 0
    _files: dict[str, _Failures] = field(default_factory=dict)

    def open(self, path: str, now: int) -> bool:
        """Return whether writes to the file are suspended."""
        known = self._files.get(path)
        return known is not None and now < known.until

    def fail(self, path: str, now: int) -> None:
        """Count a failure."""
        known = self._files.setdefault(path, _Failures())
        known.count += 1
        known.last = now
        if known.count >= FAILURES:
            known.pause = min(2 * known.pause, LONGEST_PAUSE) if known.pause else FIRST_PAUSE
            known.until = now + known.pause
            self.opened += 1

    def succeed(self, path: str) -> None:
        """Close the file's breaker; also for a file that went away."""
        if self._files:
            self._files.pop(path, None)

    def sweep(self, now: int) -> None:
        """Forget files that were not tried again for twice the longest pause."""
        for path in [path for path, each in self._files.items() if each.last + 2 * LONGEST_PAUSE < now]:
            del self._files[path]
