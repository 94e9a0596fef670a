"""The status of reloading: the active version of each source, its time, and the problems of a newer one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.source import Problem

from .history import GenerationRecord

EMPTIED: Final = "emptied"
"""The code of the problem of a source without policies, if that is not allowed."""
BLOCKED: Final = "held"
"""The code of the problem of a version that is blocked after a rollback."""
OVERDUE: Final = "overdue"
"""The code of the problem of a document from which a decision did not return."""
UNAVAILABLE: Final = "vetting-unavailable"
"""The code of the problem of a set whose vetting failed for other reasons than its content; it is vetted again."""


@dataclass(slots=True)
class VersionCounts:
    """Counts activated and refused versions of policies. `clock` returns seconds since the epoch."""

    clock: Callable[[], float]
    successes: int = 0
    failures: int = 0
    last_success: float | None = None
    last_failure: float | None = None

    def succeeded(self) -> None:
        """Count an activation of the desired versions."""
        self.successes, self.last_success = self.successes + 1, self.clock()

    def failed(self) -> None:
        """Count a version that was refused or rolled back, or a source that cannot be read."""
        self.failures, self.last_failure = self.failures + 1, self.clock()


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The status of one source. Times are seconds since the epoch; digests are sha256 over names and contents."""

    path: str
    digest: str | None
    """The active version; None before the first one."""
    since: float | None
    observed: str | None
    """The version last seen on disk; None while it cannot be read."""
    problems: tuple[Problem, ...] = ()
    """The reasons why the observed version is not active; empty if it is."""
    warnings: tuple[str, ...] = ()
    unmounted: bool = False
    """True if the directory, the file or `..data` is gone; the active version stays."""
    last_good: bool = False
    """True if the active version came from the state directory at start."""
    mixed: bool = False
    """True if (with files as the unit) the active version combines files of several published ones."""
    bundle: str | None = None
    """The digest of the bundle with the active version; None for other sources, and while it is not known."""

    def to_json(self) -> dict[str, object]:
        """Return plain data for `/status` and `--output json`."""
        return {
            "path": self.path, "digest": self.digest, "since": self.since, "newest": self.observed,
            "problems": [problem.to_json() | {"rendered": problem.render()} for problem in self.problems],
            "warnings": list(self.warnings), "unmounted": self.unmounted, "lastGood": self.last_good,
            "mixed": self.mixed, **({"bundle": self.bundle} if self.bundle is not None else {}),
        }


@dataclass(frozen=True, slots=True)
class ReloadStatus:
    """The status after the last pass."""

    generation: int
    digest: str
    """The digest of the active registry."""
    sources: tuple[SourceStatus, ...] = ()
    last_success: float | None = None
    """The time when the desired versions were last activated or found active, in seconds since the epoch."""
    last_failure: float | None = None
    """The time when a newer version was last refused, unreadable, or rolled back."""
    warnings: tuple[str, ...] = ()
    """Warnings about the server: no file events, state that cannot be written, a generation that was rolled back."""
    events: bool = False
    """True if file events shorten the wait; if not, the sources are observed once per interval."""
    successes: int = 0
    """The number of successes."""
    failures: int = 0
    """The number of failures."""
    alarm: str = ""
    """The reason why the active generation should be replaced: it fails, and there is none to roll back to.

    Also a warning.
    """

    restored: int | None = None
    """The generation that a user restored; it stays active until a source changes."""
    history: tuple[GenerationRecord, ...] = ()
    """The last generations, oldest first; the last one is active."""

    @property
    def emptied(self) -> tuple[str, ...]:
        """The sources without policies, if that is not allowed."""
        return tuple(each.path for each in self.sources if any(problem.code == EMPTIED for problem in each.problems))

    @property
    def healthy(self) -> bool:
        """True if the active versions are those of the sources, and no alarm is raised."""
        return not self.alarm and not any(s.problems or s.unmounted or s.last_good for s in self.sources)

    def to_json(self) -> dict[str, object]:
        """Return plain data for `/status` and `--output json`."""
        return {
            "generation": self.generation, "digest": self.digest, "healthy": self.healthy,
            "sources": [source.to_json() for source in self.sources],
            "lastSuccess": self.last_success, "lastFailure": self.last_failure,
            "successes": self.successes, "failures": self.failures,
            "warnings": list(self.warnings), "events": self.events, "restored": self.restored,
            "history": [record.to_json() for record in reversed(self.history)],
        }
