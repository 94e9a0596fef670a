"""The state of one source: the version observed on disk, the desired version and the active one."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeAlias

from koordpolicy.engine.source import Problem, Source

from .mount import EMPTY, SourceReading, Stamp, Version

Files: TypeAlias = Mapping[str, Source]
"""Files by full name."""


class ReloadUnit(enum.Enum):
    """The unit of reloading: it keeps its active version as a whole if any part of the new one is invalid."""

    SOURCE = "source"
    FILE = "file"


class SourceReader(Protocol):
    """Reads one source: from the disk (`Mount`), or what an API server has of it (`ApiSource`)."""

    @property
    def path(self) -> str:
        """The name of the source, as in `--policies`."""
        ...

    @property
    def unit(self) -> ReloadUnit | None:
        """The unit of this source, whatever that of others is; None for the unit of the settings."""
        ...

    @property
    def consistent(self) -> bool:
        """True if each reading is of one moment: a source that keeps changing is read all the same."""
        ...

    @property
    def trouble(self) -> str:
        """The reason why changes may be missed at present; empty if none is."""
        ...

    def name_of(self, relative: str) -> str:
        """Return the full name of a file, for messages."""
        ...

    def source_of(self, relative: str, text: str) -> Source:
        """Return the text of a file with its full name."""
        ...

    def stamp(self) -> Stamp:
        """Return the stamp, without reading any file."""
        ...

    def read(self, previous: Version | None = None) -> SourceReading:
        """Read all files; one whose content is in `previous` keeps its `Source` object."""
        ...


@dataclass(frozen=True, slots=True)
class Rejection:
    """Changes of files that were refused together."""

    contents: Mapping[str, str]
    """The hash of each file by its full name; empty text for one that was deleted."""
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SourceState:
    """One source, at one moment. A change makes another state, which replaces this one among the `Sources`."""

    reader: SourceReader
    unit: ReloadUnit = ReloadUnit.SOURCE
    stamp: Stamp | None = None
    changed_at: float | None = None
    """The time of the last change of the stamp; None once the source has been read since."""
    flapping_since: float | None = None
    rehash_at: float = 0.0
    projected: bool = False
    """True if it was a mounted ConfigMap at any time."""
    unmounted: bool = False
    empty_since: float | None = None
    """The time since which it is empty, while it is not yet known to be intentionally empty."""
    observed: Version | None = None
    """The version that was last read; None while the source cannot be read."""
    desired: Version | None = None
    """The version that should be active: the observed one, but an empty one only once it is intentionally empty."""
    desired_since: float = 0.0
    active: Version | None = None
    active_since: float = 0.0
    """The time of the activation, in seconds since the epoch."""
    last_good: bool = False
    """True if the active version was loaded from the state directory."""
    mixed: bool = False
    """True if the active version combines files of several observed ones."""
    blocked: Mapping[str, Problem] = field(default_factory=dict)
    """Blocked versions (by digest) and contents of files (by `content_key`), until the source changes."""
    overdue: Mapping[str, Problem] = field(default_factory=dict)
    """Contents of files that are blocked until they change themselves, as a decision did not return from them."""
    read_problems: tuple[Problem, ...] = ()
    """The problems of reading the source."""
    read_warnings: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    """The reasons why the desired version is not active."""
    refused: Mapping[str, Rejection] = field(default_factory=dict)
    """The refusals of the last selection, by the full name of each changed file that is not active."""

    @property
    def path(self) -> str:
        """The path of the source, which identifies it."""
        return self.reader.path

    @property
    def pending(self) -> bool:
        """True if the desired version is not the active one."""
        return self.desired is not None and (self.active is None or self.desired.digest != self.active.digest)

    @property
    def blocked_digest(self) -> str:
        """The digest of the desired version if it is blocked, or empty."""
        digest = self.desired.digest if self.desired is not None else ""
        return digest if digest in self.blocked else ""

    def desiring(self, version: Version, now: float) -> Self:
        """Return the state in which a version is the desired one; this one if it is so already.

        Blocked contents that are not part of the version are unblocked.
        """
        if self.desired is not None and version.digest == self.desired.digest:
            return self
        present = {version.digest, *(self.content_key(name, version) for name in version.hashes)}
        return replace(
            self, desired=version, desired_since=now,
            blocked={key: problem for key, problem in self.blocked.items() if key in present},
            overdue={key: problem for key, problem in self.overdue.items() if key in present})

    def blocking(self, problem: Problem) -> Self:
        """Return the state in which the desired version is blocked, and the contents in which it differs from the
        active one.
        """
        desired = self.observed if self.desired is None else self.desired
        assert desired is not None
        return replace(self, desired=desired).blocking_version(desired, self.active, problem)

    def blocking_version(self, version: Version, before: Version | None, problem: Problem) -> Self:
        """Return the state in which a version is blocked, and the contents in which it differs from the one before."""
        contents = {self.content_key(relative, version): problem
                    for relative in changed_files(before or EMPTY, version)}
        return replace(self, problems=(problem,), blocked={version.digest: problem} | contents)

    def content_key(self, relative: str, version: Version) -> str:
        """Return the identity of a file's content in a version."""
        return f"{self.reader.name_of(relative)} {version.hashes.get(relative, '')}"


class Sources:
    """The current state of each source, in their order; for one thread.

    The watcher replaces the observed and the desired version, the swapper the active one.
    """

    def __init__(self, readers: Iterable[SourceReader], unit: ReloadUnit = ReloadUnit.SOURCE) -> None:
        """`unit` is that of the sources whose readers have none of their own."""
        self._states = {each.path: SourceState(each, each.unit or unit) for each in readers}

    def __iter__(self) -> Iterator[SourceState]:
        """Yield the states as they are now: those that replace them meanwhile are not among them."""
        return iter(tuple(self._states.values()))

    def get(self, path: str) -> SourceState | None:
        """Return the state of a source; None if there is no such source."""
        return self._states.get(path)

    def __getitem__(self, path: str) -> SourceState:
        """Return the state of a source; raises `KeyError` if there is no such source."""
        return self._states[path]

    def put(self, state: SourceState) -> SourceState:
        """Replace the state of its source, and return it."""
        self._states[state.path] = state
        return state


def active_files(sources: Iterable[SourceState]) -> dict[str, Source]:
    """Return the files of all active versions."""
    return {file.name: file for source in sources if source.active is not None
            for file in source.active.files.values()}


def files_of(versions: Iterable[Version]) -> Iterator[Source]:
    """Yield the files of all versions."""
    for version in versions:
        yield from version.files.values()


def changed_files(before: Version, after: Version) -> dict[str, Source | None]:
    """Return the usable files that differ, by relative name; None for those that were deleted."""
    changed: dict[str, Source | None] = {
        name: file for name, file in after.files.items() if before.hashes.get(name) != after.hashes[name]}
    changed.update((name, None) for name in before.files if name not in after.hashes)
    return changed


def mixed_version(reader: SourceReader, active: Version, desired: Version, taken: Collection[str]) -> Version:
    """Return the active version with the taken files (by full name) as they are in the desired one."""
    files, hashes = dict(active.files), dict(active.hashes)
    for relative in (*active.hashes, *desired.hashes):
        if reader.name_of(relative) not in taken:
            continue
        if relative in desired.files:
            files[relative], hashes[relative] = desired.files[relative], desired.hashes[relative]
        else:
            files.pop(relative, None)
            hashes.pop(relative, None)
    return Version.of(files, hashes)
