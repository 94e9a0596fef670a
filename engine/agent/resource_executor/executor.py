"""The executor: writes the files of adjustments, in order, and only those that differ."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordpolicy.engine.framework.qos import Adjustment

from .breaker import WriteBreakers
from .journal import Candidates, JournalEntry, JournalError, ResourceJournal
from .restore import RestoredFile, restore
from .results import AdjustmentResult, AuditHook, FileWriteResult, FileWriteStatus, MetricHook
from .table import FileAccess
from .tree import FilePlace, FileTree, UnsupportedFileError
from .writing import part_of, pieces_of, write_file

_SECOND: Final = 1_000_000_000
UPDATE_INTERVAL: Final = 60 * _SECOND
"""After this time a file is looked at even if the same value is written again (koordlet's
`resource-force-update-seconds`)."""
_RETAINED: Final = 2 * UPDATE_INTERVAL
_TRY_AGAIN: Final = 10_000_000_000
"""Nanoseconds between two attempts to recover what could not be recovered."""
_SWEEP: Final = 60 * _SECOND
_REPEATED: Final = 600 * _SECOND
"""An error with the same cause is logged again after this time."""
_MISSING: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ESTALE})
_NOT_SUPPORTED: Final = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENXIO})


@dataclass(slots=True)
class _CachedValue:
    """A value that was written or found: its row in the table (two may share a file), its text as requested and in
    logical units, when, and the file's content if it was read since.
    """

    file: str
    text: str
    logical_text: str
    time: int
    content: str | None


@dataclass(slots=True)
class _PlannedWrite:
    """A write of an adjustment on its way: `pieces` are the texts to write, each with one call."""

    name: str
    text: str
    status: FileWriteStatus
    place: FilePlace | None = None
    pieces: tuple[str, ...] = ()
    content: str = ""
    error: str = ""
    logical_text: str = ""
    """The text in the units of the table, if the file was named as control groups v2 name it."""
    again: bool = False
    """Another write of the same round comes before: the file must be looked at again."""

    def result(self) -> FileWriteResult:
        place, before = self.place, self.content
        if place is not None and before:
            with contextlib.suppress(ValueError):
                before = place.logical(before)
        return FileWriteResult(self.name, self.text, self.status, place.path if place else "", before, self.error)


def _ignore_write(adjustment: Adjustment, result: FileWriteResult) -> None: ...
def _ignore_attempt(file: str, status: str, seconds: float) -> None: ...


@dataclass(slots=True)
class ResourceExecutor:
    """Writes adjustments to the files of a machine; from any thread.

    `journal` None changes files without storing their originals. `dry_run` writes nothing, and says what it would
    write. Times (`now`) are in nanoseconds of any one clock.
    """

    tree: FileTree
    journal: ResourceJournal | None = None
    dry_run: bool = False
    update_interval: int = UPDATE_INTERVAL
    audit: AuditHook = _ignore_write
    metric: MetricHook = _ignore_attempt
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("koordpolicy.agent.executor"))
    clock: Callable[[], float] = time.perf_counter
    """Measures the attempts, in seconds."""
    breakers: WriteBreakers = field(default_factory=WriteBreakers)
    started: bool = False
    _unrecovered: set[str] = field(default_factory=set)
    """The paths of files whose recovery failed, until another write or a later attempt."""
    _tried_again: int = 0
    _cache: dict[str, _CachedValue] = field(default_factory=dict)
    _logged: dict[tuple[str, str], int] = field(default_factory=dict)
    _swept: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.tree.observer = self._observe

    def start(self, now: int, *, give_back: bool = True) -> tuple[RestoredFile, ...]:
        """Settle what a previous process left: give its files their original values back, or else adopt its journal.

        Must be called before anything but recoveries is applied: values are cached from then on.
        """
        with self._lock:
            if self.journal is not None:
                for complaint in self.journal.load():
                    self.log.warning("%s", complaint)
            found = self.restore(now) if give_back else ()
            self.started, self._swept = True, now
            return found

    def apply(self, adjustments: Sequence[Adjustment], now: int) -> tuple[AdjustmentResult, ...]:
        """Write the files of the adjustments, in order; return the result of each write.

        A file that has its value is not written; one whose value was written less than `update_interval` ago is not
        even read, unless a strategy read another value since or the adjustment recovers. A failed write stops none of
        the others.

        Raises:
            RuntimeError: the executor was not started, and there are not only recoveries.
        """
        if not self.started and not all(each.recovers for each in adjustments):
            raise RuntimeError("the executor is not started")
        with self._lock:
            if now - self._swept >= _SWEEP:
                self._sweep(now)
            seen: set[str] = set()
            planned = [
                [self._plan(name, text, now, seen, cached=not each.recovers) for name, text in each.writes]
                for each in adjustments
            ]
            self._store(planned, now)
            results = []
            for adjustment, writes in zip(adjustments, planned, strict=True):
                for write in writes:
                    if write.status is FileWriteStatus.DRY_RUN:
                        self._write(adjustment, write, now)
                result = AdjustmentResult(adjustment, tuple(write.result() for write in writes))
                results.append(result)
                self._note_recovery(result)
                self._drop_recovered(adjustment, writes)
            return tuple(results)

    def restore(self, now: int, paths: Iterable[str] | None = None) -> tuple[RestoredFile, ...]:
        """Give changed files (all of them, or those) their original values back, from the journal.

        A file that somebody else changed since is left as it is. In a dry run nothing is given back.
        """
        with self._lock:
            if self.journal is None or self.dry_run:
                return ()
            found = restore(self.tree, self.journal, paths)
            for each in found:
                self._cache.pop(each.path, None)
                self.breakers.succeed(each.path)
                if each.message:
                    self._complain(("restore", each.path), now, "%s", each.message)
            return found

    def recover_again(self, now: int) -> tuple[RestoredFile, ...]:
        """Give the files whose recovery failed their original values back, from the journal, every ten seconds.

        A strategy requests a recovery once. A file that has been written since belongs to who wrote it.
        """
        with self._lock:
            if not self._unrecovered or now - self._tried_again < _TRY_AGAIN:
                return ()
            self._tried_again = now
            self._unrecovered &= self.journaled
            return self.restore(now, tuple(self._unrecovered))

    def _note_recovery(self, result: AdjustmentResult) -> None:
        if not self._unrecovered and not result.adjustment.recovers:
            return
        paths = {write.path for write in result.writes if write.path}
        failed = {write.path for write in result.writes if write.path and write.failed}
        self._unrecovered -= paths
        if result.adjustment.recovers:
            self._unrecovered |= failed

    @property
    def journaled(self) -> frozenset[str]:
        """The paths of the changed files whose original values are known, of this process and of one that died."""
        return frozenset(self.journal.entries) if self.journal is not None else frozenset()

    def close(self) -> None:
        """Close all files; what was changed stays changed."""
        with self._lock:
            self.tree.reader.close()
            if self.journal is not None:
                self.journal.close()

    # Planning

    def _plan(self, name: str, text: str, now: int, seen: set[str], *, cached: bool) -> _PlannedWrite:
        """Look at the file; `DRY_RUN` is the status of a write that is to be made."""
        write = _PlannedWrite(name, text, FileWriteStatus.UNSUPPORTED)
        try:
            write.place = place = self.tree.place(name)
        except UnsupportedFileError as error:
            write.error = str(error)
            return write
        path = place.path
        known = self._cache.get(path)
        if (cached and known is not None and known.text == text and known.file == place.file.name
                and now - known.time <= self.update_interval and path not in seen):
            write.status = FileWriteStatus.CACHED
            return write
        try:
            write.logical_text = place.logical_request(text)
            place.file.check(write.logical_text)
        except ValueError as error:
            return self._refused(write, str(error), now)
        if self.breakers.open(path, now):
            write.status = FileWriteStatus.SUSPENDED
            write.error = "writes to the file failed, and are suspended"
            return write
        write.again = path in seen
        self._look(write, now)
        if write.status is FileWriteStatus.UNCHANGED and write.again:
            write.status = FileWriteStatus.DRY_RUN  # an earlier write of this round changes it
            write.pieces = pieces_of(place.file, place.native(write.logical_text, write.content))
        if write.status is FileWriteStatus.DRY_RUN:
            seen.add(path)
        return write

    def _look(self, write: _PlannedWrite, now: int) -> None:
        """Read the file, and set the pieces to write."""
        place = write.place
        assert place is not None
        try:
            write.content = self._read_for_writing(place)
        except OSError as error:
            self._failed(write, error, now)
            return
        except JournalError as error:
            self._unstored(write, error, now)
            return
        try:
            native = place.native(write.logical_text, write.content)
        except ValueError as error:
            self._refused(write, str(error), now)
            return
        same = place.versioned.same
        pieces = tuple(each for each in pieces_of(place.file, native) if not same(each, write.content))
        write.pieces = pieces
        if pieces:
            write.status = FileWriteStatus.DRY_RUN
        else:
            write.status = FileWriteStatus.UNCHANGED
            self._remember(place, write, now, write.content)

    def _read_for_writing(self, place: FilePlace) -> str:
        try:
            return self.tree.reader.text(place.path)
        except FileNotFoundError:
            if place.file.subsystem != "resctrl" or self.dry_run or not self._make_group(place):
                raise
        return self.tree.reader.text(place.path)

    def _make_group(self, place: FilePlace) -> bool:
        """Make a resctrl group if it lacks; return whether it was made."""
        directory = place.directory
        if os.path.dirname(directory) != self.tree.resctrl or os.path.isdir(directory):  # noqa: PTH112, PTH120 - texts
            return False
        if not os.path.exists(f"{self.tree.resctrl}/schemata"):  # noqa: PTH110 - it is not mounted
            return False
        if self.journal is not None:
            self.journal.add_group(directory)
        os.mkdir(directory)  # noqa: PTH102 - paths are texts here
        self.log.info("made the resctrl group %s", directory)
        return True

    def _store(self, planned: Sequence[Sequence[_PlannedWrite]], now: int) -> None:
        """Journal the originals of files that will be changed for the first time."""
        if self.journal is None or self.dry_run:
            return
        originals: dict[str, JournalEntry] = {}
        written: dict[str, Candidates] = {}
        for write in (each for writes in planned for each in writes):
            place = write.place
            if write.status is not FileWriteStatus.DRY_RUN or place is None or place.file.access is FileAccess.APPEND:
                continue
            path = place.path
            entry = self.journal.entries.get(path)
            if entry is None:
                originals.setdefault(path, JournalEntry(place.file.name, write.content))
            # Until the write is made, and if it fails, the file has what was written before.
            before = entry.written if entry is not None else {}
            parts = written.setdefault(path, {})
            for piece in write.pieces:
                part = part_of(place.file, piece)
                parts[part] = (*parts.get(part, before.get(part, ())[-2:]), piece)
        try:
            if originals or written:
                self.journal.add(originals, written)
        except JournalError as error:
            for write in (each for writes in planned for each in writes):
                if write.status is FileWriteStatus.DRY_RUN and write.place and write.place.path in originals:
                    self._unstored(write, error, now)
            # The node stays under control with the files that are in the journal.
            with contextlib.suppress(JournalError):
                self.journal.add({}, {path: parts for path, parts in written.items() if path not in originals})

    # Writing

    def _write(self, adjustment: Adjustment, write: _PlannedWrite, now: int) -> None:
        place = write.place
        assert place is not None
        started = self.clock()
        if write.again and not self.dry_run:
            self._look(write, now)
            if write.status is not FileWriteStatus.DRY_RUN:
                return
        if not self.dry_run:
            try:
                for piece in write.pieces:
                    write_file(place.path, piece, place.file.access)
            except OSError as error:
                self._failed(write, error, now)
                self._cache.pop(place.path, None)
                if write.status is FileWriteStatus.FAILED:
                    self.metric(place.file.name, write.status.value, self.clock() - started)
                return
            write.status = FileWriteStatus.WRITTEN
            self._remember(place, write, now, None)
            self.breakers.succeed(place.path)
        self.metric(place.file.name, write.status.value, self.clock() - started)
        self.audit(adjustment, write.result())

    def _remember(self, place: FilePlace, write: _PlannedWrite, now: int, content: str | None) -> None:
        if place.file.access is not FileAccess.APPEND:
            self._cache[place.path] = _CachedValue(place.file.name, write.text, write.logical_text, now, content)

    def _observe(self, place: FilePlace, content: str) -> None:
        """Forget the cached value of a file that a strategy read with another one."""
        known = self._cache.get(place.path)
        if known is None or known.content == content or known.file != place.file.name:
            return
        with contextlib.suppress(ValueError):
            native = place.native(known.logical_text, content)
            if all(place.versioned.same(each, content) for each in pieces_of(place.file, native)):
                known.content = content
                return
        self._cache.pop(place.path, None)

    def _drop_recovered(self, adjustment: Adjustment, writes: Sequence[_PlannedWrite]) -> None:
        """Remove files from the journal that a recovery gave their original value back."""
        if not adjustment.recovers or self.journal is None or self.dry_run:
            return
        dropped = []
        for write in writes:
            entry = self.journal.entries.get(write.place.path) if write.place is not None else None
            if entry is None or write.place is None:
                continue
            if write.status is FileWriteStatus.GONE:
                dropped.append(write.place.path)
            elif write.status in (FileWriteStatus.WRITTEN, FileWriteStatus.UNCHANGED):
                with contextlib.suppress(OSError):
                    if write.place.versioned.same(entry.original, self.tree.reader.text(write.place.path)) or (
                            self._inherits_again(write, entry.original)):
                        dropped.append(write.place.path)
        self.journal.drop(dropped)

    def _inherits_again(self, write: _PlannedWrite, original: str) -> bool:
        """Empty a file that was empty, if what it inherits is what the recovery wants; return whether it is so.

        CPU sets of version 2 are empty until somebody writes them, and strategies see the effective CPUs.
        """
        place = write.place
        assert place is not None
        if original.strip() or place.read_path == place.path:
            return False
        self._cache.pop(place.path, None)
        write_file(place.path, "", place.file.access)
        if place.versioned.same(write.text, self.tree.reader.text(place.read_path)):
            return True
        write_file(place.path, write.text, place.file.access)
        return False

    # Failures

    def _failed(self, write: _PlannedWrite, error: OSError, now: int) -> None:
        place = write.place
        assert place is not None
        if error.errno == errno.ESRCH:
            write.status, write.error = FileWriteStatus.GONE, "the process ended"
        elif error.errno in _MISSING:
            self.breakers.succeed(place.path)
            exists = os.path.isdir(place.directory)  # noqa: PTH112 - paths are texts here
            write.status = FileWriteStatus.UNSUPPORTED if exists else FileWriteStatus.GONE
            write.error = "the kernel does not have the file" if exists else "the directory does not exist"
        elif error.errno in _NOT_SUPPORTED:
            write.status, write.error = FileWriteStatus.UNSUPPORTED, "the kernel does not support the file"
        else:
            write.status, write.error = FileWriteStatus.FAILED, error.strerror or str(error)
            if place.file.access is not FileAccess.APPEND:  # an id that is refused says nothing about the others
                self.breakers.fail(place.path, now)
            self._complain((place.file.name, str(error.errno)), now,
                           "%s: the value `%s` was not written: %s", place.path, write.text.strip(), write.error)

    def _refused(self, write: _PlannedWrite, reason: str, now: int) -> _PlannedWrite:
        write.status, write.error = FileWriteStatus.INVALID, reason
        assert write.place is not None
        self._complain((write.place.file.name, "invalid"), now,
                       "%s: the value `%s` is not written: %s", write.name, write.text.strip()[:64], reason)
        return write

    def _unstored(self, write: _PlannedWrite, error: JournalError, now: int) -> None:
        write.status = FileWriteStatus.NOT_JOURNALED
        write.error = f"its original value cannot be stored: {error}"
        self._complain(("journal", ""), now, "%s is not changed, nor any other file that is not in the "
                       "journal yet: the original values cannot be stored: %s", write.name, error)

    def _complain(self, cause: tuple[str, str], now: int, message: str, *args: object) -> None:
        """Log an error once for each cause, and again if it lasts."""
        last = self._logged.get(cause)
        if last is None or now - last >= _REPEATED:
            self._logged[cause] = now
            self.log.warning(message, *args)

    def _sweep(self, now: int) -> None:
        self._swept = now
        for path in [path for path, each in self._cache.items() if now - each.time > _RETAINED]:
            del self._cache[path]
        self._logged = {cause: last for cause, last in self._logged.items() if now - last < _REPEATED}
        self.breakers.sweep(now)
        self.tree.sweep()
        if self.journal is not None:
            self.journal.prune()
