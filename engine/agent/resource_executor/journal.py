"""The journal of changed files: their original values, on disk before the first change.

An agent that is killed leaves its limits behind. The next one finds in the journal what each file had, and what was
written last: a file that has another value by now was changed by somebody else, and is left as it is.

The journal is a text file of lines that are checked one by one, so a line that was cut off or damaged costs itself
only. It is worthless after a reboot, as the kernel forgets all of these values, and is then dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from koordpolicy.engine.files import make_own_directory, open_own, read_own, write_whole

_VERSION: Final = 1
MOST_ENTRIES: Final = 16_384
"""Files that are journaled at once: with 250 pods on a node each of them may have 65."""
_LARGEST: Final = 64 * 1024 * 1024
_LARGEST_CONTENT: Final = 64 * 1024
_COMPACTED_FROM: Final = 1024 * 1024

Candidates: TypeAlias = dict[str, tuple[str, ...]]
"""The values that a file may have by our writes, by the part of the file (a disk, a cache; "" for the whole file)."""


@dataclass(slots=True)
class JournalEntry:
    """A changed file: its row in the table of files, its content before, and the values that we may have written."""

    file: str
    original: str
    written: Candidates = field(default_factory=dict)


class JournalError(Exception):
    """Nothing was stored; the message says why and what to do."""


class ResourceJournal:
    """The journal in one file, `path`; `boot` identifies the boot of the machine. For one thread.

    `entries` are the files that are changed now, by path, `groups` the resctrl groups that were made.
    """

    __slots__ = ("_boot", "_descriptor", "_path", "_size", "entries", "groups")

    def __init__(self, path: Path, boot: str = "") -> None:
        self._path = path
        self._boot = boot
        self._descriptor = -1
        self._size = 0
        self.entries: dict[str, JournalEntry] = {}
        self.groups: dict[str, None] = {}

    def load(self) -> tuple[str, ...]:
        """Read the entries of previous processes; return complaints. A missing file, or one of an earlier boot, is
        empty.
        """
        try:
            content = read_own(self._path, most=_LARGEST)
        except FileNotFoundError:
            return ()
        except OSError as error:
            return (f"the journal {self._path} cannot be read, and nothing is given back: {error.strerror}",)
        complaints, damaged = [], 0
        for line in content.split(b"\n"):
            if not line:
                continue
            record = _decode(line)
            if record is None:
                damaged += 1
            elif "journal" in record:
                if record["journal"] != _VERSION:
                    self.entries.clear()
                    self.groups.clear()
                    version = record["journal"]
                    return (f"the journal {self._path} has the version {version!r}: nothing is given back",)
                if self._boot and record.get("boot") not in ("", self._boot):
                    self.entries.clear()
                    self.groups.clear()
                    return ()  # the kernel has forgotten the values
            elif not self._take(record):
                damaged += 1
        if damaged:
            complaints.append(f"the journal {self._path} has {damaged} damaged lines, which are left out")
        return tuple(complaints)

    def add(self, originals: Mapping[str, JournalEntry], written: Mapping[str, Candidates]) -> None:
        """Store the originals of files that will be changed for the first time, and the values that will be written.

        When it returns, the originals are on disk. The values replace the candidates of their part of the file.

        Raises:
            JournalError: nothing was stored.
        """
        if len(self.entries) + len(originals) > MOST_ENTRIES:
            self.prune()
        if len(self.entries) + len(originals) > MOST_ENTRIES:
            raise JournalError(f"it has {MOST_ENTRIES:,} files already, which is the most")
        if any(len(each.original) > _LARGEST_CONTENT for each in originals.values()):
            raise JournalError(f"a file has more than {_LARGEST_CONTENT:,} characters")
        records: list[dict[str, Any]] = [
            {"path": path, "file": each.file, "original": each.original} for path, each in originals.items()
        ]
        records += ({"path": path, "written": parts} for path, parts in written.items())
        self._append(records, durable=bool(originals))
        self.entries.update(originals)
        for path, parts in written.items():
            self.entries[path].written.update(parts)
        if self._size > _COMPACTED_FROM and self._size > 8 * self._estimate():
            with contextlib.suppress(JournalError):  # the longer file is as good
                self._rewrite()

    def add_group(self, path: str) -> None:
        """Store that a resctrl group will be made; raise `JournalError` if that is impossible."""
        self._append([{"group": path}], durable=True)
        self.groups[path] = None

    def drop(self, paths: Iterable[str]) -> None:
        """Remove files and groups that have their original state, or do not exist any more."""
        known = [path for path in paths if path in self.entries or path in self.groups]
        for path in known:
            self.entries.pop(path, None)
            self.groups.pop(path, None)
        if known:
            with contextlib.suppress(JournalError):  # an entry too many is recognized by its value
                if self.entries or self.groups:
                    self._append([{"dropped": path} for path in known], durable=False)
                else:
                    self._rewrite()

    def prune(self) -> None:
        """Remove the entries of files that do not exist any more."""
        self.drop([path for path in (*self.entries, *self.groups) if not os.path.lexists(path)])

    def close(self) -> None:
        """Close the file; it can be used again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, record: Mapping[str, Any]) -> bool:
        if not _is_possible(record):
            return False
        match record:
            case {"path": str(path), "file": str(file), "original": str(original)}:
                if len(self.entries) < MOST_ENTRIES:
                    self.entries.setdefault(path, JournalEntry(file, original))
            case {"path": str(path), "written": dict(parts)}:
                entry = self.entries.get(path)
                if entry is not None:
                    entry.written.update({
                        str(part): tuple(map(str, texts)) for part, texts in parts.items() if isinstance(texts, list)
                    })
            case {"group": str(path)}:
                self.groups[path] = None
            case {"dropped": str(path)}:
                self.entries.pop(path, None)
                self.groups.pop(path, None)
            case _:
                return False
        return True

    def _append(self, records: Iterable[Mapping[str, Any]], *, durable: bool) -> None:
        content = b"".join(map(_encode, records))
        if not content:
            return
        try:
            if self._descriptor < 0:
                self._rewrite()
                self._descriptor = open_own(self._path, mode=0o600)
            if self._size + len(content) > _LARGEST or (durable and not os.fstat(self._descriptor).st_nlink):
                self._rewrite()
            _write_all(self._descriptor, content)
            self._size += len(content)
            if durable:
                os.fdatasync(self._descriptor)
        except OSError as error:
            if self._descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._size)
            raise JournalError(f"{self._path}: {error.strerror}") from error

    def _rewrite(self) -> None:
        """Replace the file by one with the current entries only."""
        content = b"".join(map(_encode, self._records()))
        try:
            make_own_directory(self._path.parent)
            write_whole(self._path, content)
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}") from error
        self._size = len(content)
        if self._descriptor >= 0:
            self.close()
            try:
                self._descriptor = open_own(self._path, mode=0o600)
            except OSError as error:
                raise JournalError(f"{self._path}: {error.strerror}") from error

    def _records(self) -> Iterator[dict[str, Any]]:
        yield {"journal": _VERSION, "boot": self._boot}
        for group in self.groups:
            yield {"group": group}
        for path, entry in self.entries.items():
            yield {"path": path, "file": entry.file, "original": entry.original}
            if entry.written:
                yield {"path": path, "written": entry.written}

    def _estimate(self) -> int:
        return sum(len(path) * 2 + len(entry.original) + 200 for path, entry in self.entries.items()) + 1


def read_boot(proc: Path) -> str:
    """Return the identifier of the machine's boot, empty if it is unknown."""
    try:
        return (proc / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content):]


def _is_possible(record: Mapping[str, Any]) -> bool:
    """Return whether paths and texts are such that a file may have them: calls of the system take no others."""
    paths = (record.get("path"), record.get("group"), record.get("dropped"))
    if any(isinstance(each, str) and "\0" in each for each in paths):
        return False
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a half of a surrogate pair
        return False
    return True


def _encode(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _decode(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
