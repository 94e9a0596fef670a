"""The last generations that were in force: what somebody may want back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from koordpolicy.engine.source import PolicyError, Problem

from .mount import Version

MOST_GENERATIONS: Final = 10
MOST_CHARACTERS: Final = 32 << 20
"""Of all texts that only earlier generations have, together."""
SHORTEST_HASH: Final = 6
"""Characters: fewer name too many."""


@dataclass(frozen=True, slots=True)
class Past:
    """A generation that is or was in force; `since` is when it went in force, in seconds since the epoch."""

    generation: int
    digest: str
    """Of its registry."""
    since: float
    versions: Mapping[str, Version]
    """By the path of the source."""
    restored: int | None = None
    """Which generation it brought back."""
    failed: str = ""
    """Why it was taken out of force again, where that was not because of something newer."""

    def to_json(self) -> dict[str, object]:
        """Return plain data, without the texts."""
        result: dict[str, object] = {
            "generation": self.generation, "digest": self.digest, "since": self.since,
            "sources": {path: version.digest for path, version in self.versions.items()},
        }
        if self.restored is not None:
            result["restored"] = self.restored
        if self.failed:
            result["failed"] = self.failed
        return result


class History:
    """The last generations, oldest first; for one thread."""

    def __init__(self, most: int = MOST_GENERATIONS, characters: int = MOST_CHARACTERS) -> None:
        self._most = most
        self._characters = characters
        self.kept: tuple[Past, ...] = ()
        """Rebound as a whole, so that other threads may read it."""

    def add(self, past: Past) -> None:
        """Take note of what is in force now; the oldest are forgotten where there are too many, or too much text."""
        before = self.kept
        if before and before[-1].generation == past.generation:
            # Files moved, and nothing else: it is the same generation at another place.
            past = replace(past, since=before[-1].since, restored=before[-1].restored)
            before = before[:-1]
        kept = (*before, replace(past, versions=MappingProxyType(dict(past.versions))))[-self._most:]
        while len(kept) > 1 and _characters(kept) > self._characters:
            kept = kept[1:]
        self.kept = kept

    def mark(self, generation: int, failed: str) -> None:
        """Take note of why a generation was taken out of force."""
        self.kept = tuple(replace(past, failed=failed) if past.generation == generation else past
                          for past in self.kept)

    def find(self, wanted: str = "") -> Past:
        """Return the generation that is meant: a number, the beginning of a hash, or (empty) the one before.

        The one before is the newest that decided otherwise and did not fail; where the one in force was brought back,
        the one before that. Raises `PolicyError` where there is none.
        """
        *earlier, current = self.kept
        if not wanted:
            origin = current.generation if current.restored is None else current.restored
            for past in reversed(earlier):
                if past.generation < origin and past.digest != current.digest and not past.failed:
                    return past
            raise _refusal(f"there is nothing before generation {current.generation} to go back to")
        by_number = [past for past in self.kept if str(past.generation) == wanted]
        by_hash = [past for past in self.kept if len(wanted) >= SHORTEST_HASH and (
            past.digest.startswith(wanted) or any(v.digest.startswith(wanted) for v in past.versions.values()))]
        found = by_number or by_hash
        if not found:
            kept = ", ".join(f"{past.generation} ({past.digest})" for past in self.kept)
            raise _refusal(f"no generation `{wanted[:80]}` is kept", f"kept are {kept}")
        if len({past.digest for past in found}) > 1:
            which = ", ".join(str(past.generation) for past in found)
            raise _refusal(f"`{wanted[:80]}` may be any of the generations {which}", "name one by its number")
        if found[-1].digest == current.digest:
            raise _refusal(f"generation {found[-1].generation} is what is in force")
        return found[-1]


def _characters(kept: tuple[Past, ...]) -> int:
    current = {id(source) for version in kept[-1].versions.values() for source in version.files.values()}
    earlier = {id(source): len(source.text) for past in kept[:-1] for version in past.versions.values()
               for source in version.files.values()}
    return sum(size for key, size in earlier.items() if key not in current)


def _refusal(message: str, help: str = "") -> PolicyError:  # noqa: A002 - as `Problem` calls it
    return PolicyError([Problem(message, help=help, code="no-such-generation")])
