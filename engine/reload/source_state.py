"""The state of one source: the version observed on disk, the desired version and the active one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from koordpolicy.engine.source import Problem, Source

from .mount import EMPTY, Mount, Stamp, Version

Files: TypeAlias = Mapping[str, Source]
"""Files by full name."""


@dataclass(slots=True, eq=False)
class SourceState:
    """One source. The watcher writes the observed and the desired version, the swapper the active one; one thread
    only.
    """

    mount: Mount
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
    blocked: dict[str, Problem] = field(default_factory=dict)
    """Blocked versions (by digest) and contents of files (by `content_key`), until the source changes."""
    overdue: dict[str, Problem] = field(default_factory=dict)
    """Contents of files that are blocked until they change themselves, as a decision did not return from them."""
    read_problems: tuple[Problem, ...] = ()
    """The problems of reading the source."""
    read_warnings: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    """The reasons why the desired version is not active."""

    @property
    def pending(self) -> bool:
        """True if the desired version is not the active one."""
        return self.desired is not None and (self.active is None or self.desired.digest != self.active.digest)

    @property
    def blocked_digest(self) -> str:
        """The digest of the desired version if it is blocked, or empty."""
        digest = self.desired.digest if self.desired is not None else ""
        return digest if digest in self.blocked else ""

    def desire(self, version: Version, now: float) -> bool:
        """Make a version the desired one; return whether that is a change.

        Blocked contents that are not part of the version are unblocked.
        """
        if self.desired is not None and version.digest == self.desired.digest:
            return False
        present = {version.digest, *(self.content_key(name, version) for name in version.hashes)}
        self.blocked = {key: problem for key, problem in self.blocked.items() if key in present}
        self.overdue = {key: problem for key, problem in self.overdue.items() if key in present}
        self.desired, self.desired_since = version, now
        return True

    def block(self, problem: Problem) -> None:
        """Block the desired version, and the contents in which it differs from the active one."""
        if self.desired is None:
            self.desired = self.observed
        assert self.desired is not None
        self.block_version(self.desired, self.active, problem)

    def block_version(self, version: Version, before: Version | None, problem: Problem) -> None:
        """Block a version, and the contents in which it differs from the one before."""
        self.problems = (problem,)
        self.blocked = {version.digest: problem} | {
            self.content_key(relative, version): problem for relative in changed_files(before or EMPTY, version)}

    def content_key(self, relative: str, version: Version) -> str:
        """Return the identity of a file's content in a version."""
        return f"{self.mount.name_of(relative)} {version.hashes.get(relative, '')}"


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


def mixed_version(mount: Mount, active: Version, desired: Version, taken: Collection[str]) -> Version:
    """Return the active version with the taken files (by full name) as they are in the desired one."""
    files, hashes = dict(active.files), dict(active.hashes)
    for relative in (*active.hashes, *desired.hashes):
        if mount.name_of(relative) not in taken:
            continue
        if relative in desired.files:
            files[relative], hashes[relative] = desired.files[relative], desired.hashes[relative]
        else:
            files.pop(relative, None)
            hashes.pop(relative, None)
    return Version.of(files, hashes)
