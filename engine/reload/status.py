"""What reloading tells: which version of which source runs, since when, and what is wrong with a newer one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.source import Problem

from .history import GenerationRecord

EMPTIED: Final = "emptied"
"""The code of a source that holds no policy, where it must."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How one source stands. Times are seconds since the epoch; digests are sha256 over names and contents."""

    path: str
    digest: str | None
    """The version in force; None before the first one."""
    since: float | None
    observed: str | None
    """The version last seen on disk; None while it cannot be read."""
    problems: tuple[Problem, ...] = ()
    """Why the newest version is not in force; empty if it is."""
    warnings: tuple[str, ...] = ()
    unmounted: bool = False
    """Whether the directory, the file or `..data` is gone; what was in force stays."""
    last_good: bool = False
    """Whether the version in force came from the state directory at start."""
    mixed: bool = False
    """Whether (with files as the unit) the version in force is put together of several published ones."""

    def to_json(self) -> dict[str, object]:
        """Return plain data for `/status` and `--output json`."""
        return {
            "path": self.path, "digest": self.digest, "since": self.since, "newest": self.observed,
            "problems": [problem.to_json() | {"rendered": problem.render()} for problem in self.problems],
            "warnings": list(self.warnings), "unmounted": self.unmounted, "lastGood": self.last_good,
            "mixed": self.mixed,
        }


@dataclass(frozen=True, slots=True)
class Status:
    """How reloading stands after the last look."""

    generation: int
    digest: str
    """Of the registry in force."""
    sources: tuple[SourceStatus, ...] = ()
    last_success: float | None = None
    """When a set of policies was last put in force or found to be in force already, in seconds since the epoch."""
    last_failure: float | None = None
    """When a newer version was last refused, unreadable, or rolled back."""
    warnings: tuple[str, ...] = ()
    """About the whole: no file events, state that cannot be written, a generation that was rolled back."""
    events: bool = False
    """Whether file events shorten the wait; if not, the sources are looked at once per interval."""
    successes: int = 0
    """How often `last_success` came."""
    failures: int = 0
    """How often `last_failure` came."""
    alarm: str = ""
    """Why the generation in force should not be: it fails, and none could be gone back to. Among the warnings, too."""

    restored: int | None = None
    """The generation that somebody brought back; it holds until a source changes."""
    history: tuple[GenerationRecord, ...] = ()
    """The last generations, oldest first; the last one is in force."""

    @property
    def emptied(self) -> tuple[str, ...]:
        """The sources that hold no policy, where they must."""
        return tuple(each.path for each in self.sources if any(problem.code == EMPTIED for problem in each.problems))

    @property
    def healthy(self) -> bool:
        """Whether what runs is what the sources hold, without any alarm."""
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
