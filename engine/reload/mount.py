"""Reads one source of policies on disk: a ConfigMap's mount, a directory or a file.

`stamp` is cheap and shows whether anything may have changed; `read` reads all files and returns a `Version` only if no
file changed while they were read. Both are stateless and raise nothing: problems are part of the result.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, Self

from koordpolicy.engine.documents import LARGEST_FILE, decode, is_left_out, is_policy_file
from koordpolicy.engine.files import reason_of
from koordpolicy.engine.source import PolicyError, Problem, Source

LINK: Final = "..data"
"""The name by which the kubelet swaps the versions of a mounted ConfigMap."""

_BLOCK: Final = 1 << 20
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTCONN})

OpenAt = Callable[[str, int, int | None], int]


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """The limits of one source; a source that exceeds them is refused, never truncated."""

    files: int = 5_000
    file_bytes: int = LARGEST_FILE
    total_bytes: int = 64 << 20
    depth: int = 16


class Presence(enum.Enum):
    """The kind of file under the path of a source."""

    DIRECTORY = "directory"
    PROJECTED = "projected"  # with `..data`: a ConfigMap, a Secret or a projected volume
    FILE = "file"
    CLUSTER = "cluster"  # objects of an API server
    BUNDLE = "bundle"  # in a registry
    MISSING = "missing"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Stamp:
    """The state of a source without its contents; equal stamps mean that most probably nothing has changed."""

    presence: Presence
    marks: tuple[object, ...] = ()
    """The target of `..data`, or path, inode, size, mtime and ctime of every policy file."""
    reason: str = ""
    """The reason of `MISSING` and `UNREADABLE`."""
    help: str = ""
    """Advice; empty if that follows from the reason."""

    @property
    def readable(self) -> bool:
        """True if there is something to read."""
        return self.presence not in (Presence.MISSING, Presence.UNREADABLE)


@dataclass(frozen=True, eq=False)
class Version:
    """All policy files of a source at one moment.

    `digest` is a sha256 over the sorted pairs of relative name and content. An unusable file (no permission, not UTF-8,
    too large) is in `broken` with its problem, and not in `files`.
    """

    digest: str
    files: Mapping[str, Source]
    hashes: Mapping[str, str]
    """The sha256 of each file's bytes; an empty string for a file that could not be read."""
    broken: Mapping[str, Problem] = field(default_factory=lambda: MappingProxyType({}))
    bundle: str = ""
    """The digest of the bundle that the version was pulled from; empty for other sources."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of unusable files."""
        return tuple(self.broken.values())

    @classmethod
    def of(
        cls, files: Mapping[str, Source], hashes: Mapping[str, str], broken: Mapping[str, Problem] | None = None,
    ) -> Version:
        """Return a version with its digest computed."""
        digest = hashlib.sha256()
        for name in sorted(hashes):
            # Lengths first, so that different sets of files never have the same input.
            encoded = os.fsencode(name)
            digest.update(b"%d:%s%s;" % (len(encoded), encoded, hashes[name].encode()))
        return cls(digest.hexdigest(), MappingProxyType(dict(sorted(files.items()))),
                   MappingProxyType(dict(sorted(hashes.items()))), MappingProxyType(dict(broken or {})))


EMPTY: Final = Version.of({}, {})


@dataclass(frozen=True, slots=True)
class SourceReading:
    """The result of reading a source: `version` is None if it is missing, unreadable, or changed meanwhile (`torn`)."""

    stamp: Stamp
    version: Version | None = None
    torn: bool = False
    warnings: tuple[str, ...] = ()


def mount_points() -> frozenset[str]:
    """Return the mount points that the kernel reports to this process; empty if it reports none."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return frozenset()
    # The fifth field; blanks and the like are written as `\040`.
    fields = (line.split(" ")[4] for line in lines if line.count(" ") > 4)
    return frozenset(point.encode("latin-1", "replace").decode("unicode_escape") if "\\" in point else point
                     for point in fields)


def _open_at(path: str, flags: int, directory: int | None) -> int:
    return os.open(path, flags | os.O_CLOEXEC, dir_fd=directory)


class Mount:
    """A source of policies: a directory (searched with its sub-directories), a mounted ConfigMap, or one file.

    Files end in `.yaml`, `.yml` or `.json`; entries that begin with a dot are skipped. `open_at` and `mount_points`
    are the operating system's.
    """

    unit: None = None
    consistent: bool = False
    trouble: str = ""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        limits: SourceLimits | None = None,
        open_at: OpenAt = _open_at,
        mount_points: Callable[[], frozenset[str]] = mount_points,
    ) -> None:
        self.path = os.fspath(path)
        self._prefix = str(Path(self.path, "x"))[:-1]
        self._limits = limits or SourceLimits()
        self._open_at = open_at
        self._mount_points = mount_points

    def name_of(self, relative: str) -> str:
        """Return the full name of a file, for messages."""
        return self._prefix + relative if relative else self.path

    def source_of(self, relative: str, text: str) -> Source:
        """Return the text of a file with its full name."""
        return Source(self.name_of(relative), text)

    def stamp(self) -> Stamp:
        """Return the stamp, without reading any file."""
        try:
            with _Closing(self._open_at) as opened:
                presence, found = self._enter(opened, thorough=False)
                marks = found if isinstance(found, tuple) else tuple(
                    entry.mark for entry in self._walk(found))
                return Stamp(presence, marks)
        except OSError as error:
            return _absent(error)

    def read(self, previous: Version | None = None) -> SourceReading:
        """Read all files. A file whose content is in `previous` keeps its `Source` object.

        A mounted ConfigMap is read through the one version that `..data` points at when the reading begins.
        """
        try:
            with _Closing(self._open_at) as opened:
                presence, found = self._enter(opened, thorough=True)
                assert isinstance(found, _Place)
                contents: dict[str, bytes | Problem] = {}
                marks: list[object] = []
                warnings: list[str] = []
                torn = False
                total = 0
                for entry in self._walk(found, warnings):
                    marks.append(entry.mark)
                    if entry.name is None:
                        continue
                    content, whole = self._content(entry, total)
                    torn = torn or not whole
                    total += len(content) if isinstance(content, bytes) else 0
                    contents[entry.name] = content
        except OSError as error:
            return SourceReading(_absent(error))
        stamp = Stamp(presence, (found.link,) if presence is Presence.PROJECTED else tuple(marks))
        # A second stamp detects files that were renamed, added or swapped during reading.
        if torn or self.stamp() != stamp:
            return SourceReading(stamp, torn=True)
        if presence is not Presence.PROJECTED:
            warnings += self._never_updated(contents)
        return SourceReading(stamp, version_of(self, contents, previous, limit=self._limits.file_bytes),
                             warnings=tuple(warnings))

    def _enter(self, opened: _Closing, *, thorough: bool) -> tuple[Presence, _Place | tuple[object, ...]]:
        try:
            root = opened.open(self.path, os.O_RDONLY | os.O_DIRECTORY, None)
        except NotADirectoryError:
            file = Path(self.path)
            parent = opened.open(str(file.parent), os.O_RDONLY | os.O_DIRECTORY, None)
            if not stat.S_ISREG(os.stat(file.name, dir_fd=parent).st_mode):
                raise OSError(errno.EINVAL, "is neither a directory nor a regular file") from None
            return Presence.FILE, _Place(parent, only=file.name)
        try:
            link = os.readlink(LINK, dir_fd=root)
        except FileNotFoundError:
            return Presence.DIRECTORY, _Place(root)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # `..data` is a directory itself, which is not swapped, so each of its files has a mark.
            return Presence.DIRECTORY, _Place(opened.open(LINK, os.O_RDONLY | os.O_DIRECTORY, root))
        try:
            target = opened.open(link, os.O_RDONLY | os.O_DIRECTORY, root)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, f"`{LINK}` points at `{link}`, which does not exist") from None
        return Presence.PROJECTED, _Place(target, link=link) if thorough else (link,)

    def _walk(self, place: _Place, warnings: list[str] | None = None) -> Iterator[_Entry]:
        if place.only is not None:
            yield self._entry("", place.only, place.directory)[0]
            return
        pending = [("", frozenset[tuple[int, int]]())]
        count = 0
        while pending:
            prefix, above = pending.pop()
            # Opened only while it is walked, to use few descriptors.
            with _Closing(self._open_at) as opened:
                try:
                    directory = opened.open(prefix or ".", os.O_RDONLY | os.O_DIRECTORY, place.directory)
                    names = sorted(os.listdir(directory))  # noqa: PTH208 - a descriptor has no path
                except OSError as error:
                    if not prefix:
                        raise
                    yield _Entry(prefix, prefix, place.directory, (prefix, error.errno), reason_of(error))
                    continue
                above |= {_identity(os.fstat(directory))}
                for name in names:
                    if is_left_out(name):
                        continue
                    relative = prefix + name
                    entry, status = self._entry(relative, name, directory)
                    if status is not None and stat.S_ISDIR(status.st_mode):
                        loop = _identity(status) in above
                        if not loop and len(above) <= self._limits.depth:
                            pending.append((f"{relative}/", above))
                        elif warnings is not None:
                            why = "links back to where it is" if loop else "lies too deep"
                            warnings.append(f"`{self.name_of(relative)}` {why} and is skipped")
                    elif is_policy_file(name):
                        count += 1
                        if count > self._limits.files:
                            raise OSError(errno.E2BIG, f"it holds more than {self._limits.files} policy files")
                        yield entry

    @staticmethod
    def _entry(relative: str, name: str, directory: int) -> tuple[_Entry, os.stat_result | None]:
        try:
            status = os.stat(name, dir_fd=directory)
        except FileNotFoundError:
            # A dangling link is reported; a file that was just deleted is not.
            try:
                os.readlink(name, dir_fd=directory)
            except OSError:
                return _Entry(None, name, directory, (relative, None)), None
            return _Entry(relative, name, directory, (relative, errno.ENOENT), "it links to nothing"), None
        except OSError as error:
            return _Entry(relative, name, directory, (relative, error.errno), reason_of(error)), None
        if not stat.S_ISREG(status.st_mode):
            entry = _Entry(relative, name, directory, (relative, status.st_mode), "it is not a regular file")
            return entry, status
        return _Entry(relative, name, directory, (relative, *_mark(status))), status

    def _content(self, entry: _Entry, total: int) -> tuple[bytes | Problem, bool]:
        """Return the bytes of a file, or its problem; and whether it did not change meanwhile."""
        assert entry.name is not None
        name = self.name_of(entry.name)
        if entry.fault:
            return Problem(f"`{name}` cannot be read: {entry.fault}", code="unreadable-file"), True
        try:
            # Non-blocking: the file may have been replaced by a pipe.
            descriptor = self._open_at(entry.base, os.O_RDONLY | os.O_NONBLOCK, entry.directory)
        except FileNotFoundError:
            return b"", False
        except OSError as error:
            return Problem(f"`{name}` cannot be read: {reason_of(error)}", help="give the process the right to read it",
                           code="unreadable-file"), True
        try:
            before = os.fstat(descriptor)
            if (entry.name, *_mark(before)) != entry.mark:
                return b"", False
            for size, most, what in (
                (before.st_size, self._limits.file_bytes, f"`{name}` holds"),
                (total + before.st_size, self._limits.total_bytes, f"the files up to `{name}` hold together"),
            ):
                if size > most:
                    return Problem(f"{what} {size:,} bytes, more than the {most:,} that are read",
                                   help="split it, or keep other data elsewhere", code="too-large"), True
            parts = []
            while part := os.read(descriptor, _BLOCK):
                parts.append(part)
            content = b"".join(parts)
            return content, len(content) == before.st_size and _mark(os.fstat(descriptor)) == _mark(before)
        except OSError as error:
            return Problem(f"`{name}` cannot be read: {reason_of(error)}", code="unreadable-file"), True
        finally:
            os.close(descriptor)

    def _never_updated(self, names: Iterable[str]) -> list[str]:
        """Return warnings about files that are mounts themselves (`subPath`), which the kubelet never updates."""
        points = self._mount_points()
        # A mount point is never a link, so resolving the directory suffices.
        root = os.path.realpath(self.path)
        return [f"`{self.name_of(name)}` is mounted by itself (subPath), so the kubelet never updates it: "
                "mount the whole volume instead" for name in names if (f"{root}/{name}" if name else root) in points]


def hash_of(content: bytes) -> str:
    """Return the hash of a file, of which that of a version is made."""
    return hashlib.sha256(content).hexdigest()


class Names(Protocol):
    """Names the files of a source."""

    def name_of(self, relative: str) -> str:
        """Return the full name of a file, for messages."""
        ...

    def source_of(self, relative: str, text: str) -> Source:
        """Return the text of a file with its full name."""
        ...


def version_of(
    names: Names, contents: Mapping[str, bytes | Problem], previous: Version | None, *, limit: int,
) -> Version:
    """Return the version with these contents, or problems, by relative name; `limit` bounds the bytes of each file.

    A file whose content is in `previous` keeps its `Source` object.
    """
    files: dict[str, Source] = {}
    hashes: dict[str, str] = {}
    broken: dict[str, Problem] = {}
    for relative, content in contents.items():
        if isinstance(content, Problem):
            hashes[relative] = ""
            broken[relative] = content
            continue
        hashes[relative] = digest = hash_of(content)
        if previous is not None and previous.hashes.get(relative) == digest and relative in previous.files:
            files[relative] = previous.files[relative]
            continue
        try:
            text = decode(names.name_of(relative), content, limit=limit).text
        except PolicyError as error:
            broken[relative] = error.problems[0]
        else:
            files[relative] = names.source_of(relative, text)
    return Version.of(files, hashes, broken)


@dataclass(frozen=True, slots=True)
class _Place:
    directory: int
    only: str | None = None
    link: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str | None
    """The name relative to the mount; None for a file that vanished meanwhile."""
    base: str
    directory: int
    mark: tuple[object, ...]
    fault: str = ""


class _Closing:
    """Closes every descriptor that was opened through it."""

    def __init__(self, open_at: OpenAt) -> None:
        self._open_at = open_at
        self._descriptors: list[int] = []

    def open(self, path: str, flags: int, directory: int | None) -> int:
        descriptor = self._open_at(path, flags, directory)
        self._descriptors.append(descriptor)
        return descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


def _mark(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _absent(error: OSError) -> Stamp:
    if error.errno in _GONE:
        shown = error.strerror if error.strerror and "`" in error.strerror else "it does not exist"
        return Stamp(Presence.MISSING, reason=shown)
    return Stamp(Presence.UNREADABLE, (error.errno,), reason=reason_of(error))
