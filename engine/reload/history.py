"""The last active generations, to which a user may roll back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from koordpolicy.engine.source import PolicyError, Problem

from .mount import Version

MOST_GENERATIONS: Final = 10
MOST_CHARACTERS: Final = 32 << 20
"""The maximum number of characters of all texts that only earlier generations have."""
SHORTEST_HASH: Final = 6
"""The minimum number of characters of an abbreviated hash."""


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """A generation that is or was active; `since` is when it was activated, in seconds since the epoch."""

    generation: int
    digest: str
    """The digest of its registry."""
    since: float
    versions: Mapping[str, Version]
    """The versions by path of the source."""
    restored: int | None = None
    """The generation that this one restored, or None."""
    failed: str = ""
    """The reason of its rollback; empty if it was not rolled back."""

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
    """The last generations, oldest first. Not thread-safe, except for reading `generations`, and `find`."""

    def __init__(self, most: int = MOST_GENERATIONS, characters: int = MOST_CHARACTERS) -> None:
        self._most = most
        self._characters = characters
        self.generations: tuple[GenerationRecord, ...] = ()
        """The records, oldest first; rebound as a whole, so that other threads may read it."""

    def add(self, record: GenerationRecord) -> None:
        """Append the active generation; drop the oldest if there are too many, or too much text."""
        before = self.generations
        if before and before[-1].generation == record.generation:
            # Only paths of files changed: it is the same generation.
            record = replace(record, since=before[-1].since, restored=before[-1].restored)
            before = before[:-1]
        records = (*before, replace(record, versions=MappingProxyType(dict(record.versions))))[-self._most:]
        while len(records) > 1 and _characters(records) > self._characters:
            records = records[1:]
        self.generations = records

    def mark(self, generation: int, failed: str) -> None:
        """Record why a generation was rolled back."""
        self.generations = tuple(replace(record, failed=failed) if record.generation == generation else record
                                 for record in self.generations)

    def find(self, generation: str = "") -> GenerationRecord:
        """Return a generation by its number or the beginning of a hash; for an empty string, the previous one.

        The previous one is the newest before the active one with another digest that did not fail; if the active one
        restored an earlier generation, the newest before that. Raises `PolicyError` if there is none.
        """
        generations = self.generations  # read once, since another thread may add one
        if not generations:
            raise _refusal("no generation was activated yet")
        *earlier, current = generations
        if not generation:
            origin = current.generation if current.restored is None else current.restored
            for record in reversed(earlier):
                if record.generation < origin and record.digest != current.digest and not record.failed:
                    return record
            raise _refusal(f"there is nothing before generation {current.generation} to roll back to")
        by_number = [record for record in generations if str(record.generation) == generation]
        by_hash = [record for record in generations if len(generation) >= SHORTEST_HASH and (
            record.digest.startswith(generation)
            or any(version.digest.startswith(generation) for version in record.versions.values()))]
        found = by_number or by_hash
        if not found:
            records = ", ".join(f"{record.generation} ({record.digest})" for record in generations)
            raise _refusal(f"no generation `{generation[:80]}` is in the history", f"it has {records}")
        if len({record.digest for record in found}) > 1:
            which = ", ".join(str(record.generation) for record in found)
            raise _refusal(f"`{generation[:80]}` may be any of the generations {which}", "name one by its number")
        if found[-1].digest == current.digest:
            raise _refusal(f"generation {found[-1].generation} is active")
        return found[-1]


def _characters(records: tuple[GenerationRecord, ...]) -> int:
    current = {id(source) for version in records[-1].versions.values() for source in version.files.values()}
    earlier = {id(source): len(source.text) for record in records[:-1] for version in record.versions.values()
               for source in version.files.values()}
    return sum(size for key, size in earlier.items() if key not in current)


def _refusal(message: str, help: str = "") -> PolicyError:  # noqa: A002 - as `Problem` calls it
    return PolicyError([Problem(message, help=help, code="no-such-generation")])
