"""Restores the original values of files, in an order that the kernel accepts."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from . import levels
from .journal import JournalEntry, ResourceJournal
from .table import FILES, SCHEMATA, FileAccess, ResourceFile, VersionedFile, setting
from .tree import FileTree, writable_roots
from .writing import part_of, pieces_of, write_file

_BURST: Final = "cpu.cfs_burst_us"


class RestoreStatus(enum.Enum):
    """The outcome for one file."""

    RESTORED = "restored"
    UNCHANGED = "unchanged"
    """The file has its original value already."""
    FOREIGN = "changed-by-others"
    """The file has a value that was not written by the agent, and is left as it is."""
    GONE = "gone"
    FAILED = "failed"
    """The kernel refused the original value; the journal retains it."""


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """A file of the journal: its path, the outcome, the original content, and a message for people if one is due."""

    path: str
    status: RestoreStatus
    original: str = ""
    message: str = ""


@dataclass(slots=True)
class _Target:
    """A file and the texts (`pieces`) that restore it."""

    path: str
    entry: JournalEntry
    file: ResourceFile
    versioned: VersionedFile
    pieces: list[str]
    current: str
    error: str = ""

    @property
    def mergeable(self) -> bool:
        return self.file.access is FileAccess.WRITE and levels.is_mergeable(self.versioned.name)

    def write(self, text: str) -> bool:
        """Write a text; return whether the file has it."""
        try:
            write_file(self.path, text, self.file.access)
        except OSError as error:
            self.error = error.strerror or str(error)
            return False
        self.current, self.error = text, ""
        return True


def restore(tree: FileTree, journal: ResourceJournal, paths: Iterable[str] | None = None) -> tuple[RestoredFile, ...]:
    """Restore files of the journal (all, or those of `paths`) to their original values; remove them from the journal.

    CPU sets and quotas grow from parents to children and shrink from children to parents; bursts shrink before quotas
    and grow after them. A resctrl group that the agent made is removed with the last of its files. A file that somebody
    else changed is left as it is, and dropped from the journal.
    """
    chosen = None if paths is None else set(paths)
    entries = {path: each for path, each in journal.entries.items() if chosen is None or path in chosen}
    results: dict[str, RestoredFile] = {}
    targets = []
    for path, entry in sorted(entries.items(), key=lambda each: (each[0].count("/"), each[0])):
        found = _target(tree, path, entry)
        if isinstance(found, RestoredFile):
            results[path] = found
        else:
            targets.append(found)
    for target, text in _in_order(targets):
        if text != target.current or target.file.access is FileAccess.LINES:
            target.write(text)
    for target in targets:
        results[target.path] = _result(target)
    done = [path for path, each in results.items() if each.status is not RestoreStatus.FAILED]
    remaining = journal.entries.keys() - set(done)
    for group in list(journal.groups):
        unused = any(_is_below(path, (group,)) for path in done) and not any(
            _is_below(path, (group,)) for path in remaining)
        if chosen is None or unused:
            results[group] = _remove_group(group)
            done.append(group)
    journal.drop(done)
    return tuple(results.values())


def _in_order(targets: list[_Target]) -> Iterator[tuple[_Target, str]]:
    """Yield the writes; `targets` are sorted, parents first."""
    bursts = [each for each in targets if each.file.name == _BURST]
    for each in bursts:
        if not _grows(each):
            yield each, each.pieces[0]
    for each in targets:
        if each.mergeable:
            with contextlib.suppress(ValueError):
                merged = levels.merge(each.versioned.name, each.current, each.pieces[0])
                if merged is not None:
                    yield each, merged
        elif each.file.name != _BURST:
            yield from ((each, piece) for piece in each.pieces)
    for each in reversed(targets):
        if each.mergeable:
            yield each, each.pieces[0]
    for each in bursts:
        if _grows(each):
            yield each, each.pieces[0]


def _grows(target: _Target) -> bool:
    with contextlib.suppress(ValueError):
        return int(target.pieces[0]) > int(target.current)
    return False


def _target(tree: FileTree, path: str, entry: JournalEntry) -> _Target | RestoredFile:
    file = FILES.get(entry.file) or (SCHEMATA if entry.file == "schemata" else None)
    if file is None and entry.file.startswith(("proc/", "sys/")):
        file = setting(entry.file)
    versioned = file.of_version(tree.groups.version) if file is not None else None
    if file is None or versioned is None or file.access in (FileAccess.READ, FileAccess.APPEND) \
            or not _is_below(path, writable_roots(tree)):
        return RestoredFile(path, RestoreStatus.FOREIGN, entry.original,
                            f"{path}: the journal names a file that the agent does not change; it is left as it is")
    try:
        current = tree.reader.text(path)
    except FileNotFoundError:
        return RestoredFile(path, RestoreStatus.GONE, entry.original)
    except OSError as error:
        return _refused(path, entry, error.strerror or str(error))
    if file.access is FileAccess.LINES:
        pieces = [_original_piece(file, entry.original, part) for part, texts in entry.written.items()
                  if any(versioned.same(text, current) for text in texts)]
        foreign = len(pieces) < len(entry.written)
    else:
        foreign = not any(versioned.same(text, current) for text in entry.written.get("", ()))
        pieces = [] if foreign else [entry.original]
    pieces = [piece for piece in pieces if not versioned.same(piece, current)]
    if pieces:
        return _Target(path, entry, file, versioned, pieces, current)
    if foreign and not versioned.same(entry.original, current):
        return RestoredFile(path, RestoreStatus.FOREIGN, entry.original,
                            f"{path} was changed to `{current.strip()[:64]}` by somebody else and is left as it is; "
                            f"it was `{entry.original.strip()[:64]}`")
    return RestoredFile(path, RestoreStatus.UNCHANGED, entry.original)


def _original_piece(file: ResourceFile, original: str, part: str) -> str:
    """Return the line of a part in the original content, or the line that resets it if there was none."""
    disk, _, key = part.partition(" ")
    if key:
        values = (field for line in original.splitlines() if line.split()[:1] == [disk] for field in line.split()[1:])
        return f"{disk} {next((field for field in values if field.startswith(f'{key}=')), f'{key}=max')}"
    for piece in pieces_of(file, original):
        if part_of(file, piece) == part:
            return piece
    for word in original.split():
        if file.subsystem == "" and word.removeprefix("NO_") == part:
            return word
    return f"{part} {_RESETS.get(file.name, '0')}"


_RESETS: Final = {"blkio.cost.weight": "100", "blkio.cost.qos": "enable=0", "blkio.cost.model": "ctrl=auto"}


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(os.path.normpath(path) == path and path.startswith(f"{root}/") for root in roots)


def _result(target: _Target) -> RestoredFile:
    if target.error:
        if not os.path.exists(target.path):  # noqa: PTH110 - paths are texts here
            return RestoredFile(target.path, RestoreStatus.GONE, target.entry.original)
        return _refused(target.path, target.entry, target.error)
    return RestoredFile(target.path, RestoreStatus.RESTORED, target.entry.original)


def _refused(path: str, entry: JournalEntry, reason: str) -> RestoredFile:
    return RestoredFile(path, RestoreStatus.FAILED, entry.original,
                        f"the original value `{entry.original.strip()[:64]}` of {path} cannot be restored: {reason}")


def _remove_group(path: str) -> RestoredFile:
    """Remove a resctrl group that the agent made; the kernel moves its tasks to the default group."""
    try:
        os.rmdir(path)  # noqa: PTH106 - paths are texts here
    except FileNotFoundError:
        return RestoredFile(path, RestoreStatus.GONE)
    except OSError as error:
        return RestoredFile(path, RestoreStatus.FAILED, message=f"the resctrl group {path} stays: {error.strerror}")
    return RestoredFile(path, RestoreStatus.RESTORED)
