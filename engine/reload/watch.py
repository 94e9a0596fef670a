"""Observing the sources: the watcher debounces changes, and reads a source once it has settled.

File events only shorten the wait for the next pass.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.files import reason_of
from koordpolicy.engine.source import Problem

from .mount import Presence, SourceReading, Stamp
from .source_state import Sources, SourceState
from .status import VersionCounts

if TYPE_CHECKING:
    from watchdog.observers.api import ObservedWatch

_FIRST_READS: Final = 5
_FLAPPING: Final = 200
"""The number of debounce times with changes after which a source is reported as flapping."""
_SHORTEST_WAIT_S: Final = 0.001
_ALERT_S: Final = 1.0
"""The time after an event in which passes are more frequent: inotify's reader may delay events after a rename by 0.5
s."""
_ALERT_INTERVAL_S: Final = 0.03
_ALERT_SHARE: Final = 10
"""The minimum wait after a scan in that time, as a multiple of the scan's duration."""


class Watcher:
    """Updates `observed` and `desired` of each source when it changes.

    `debounce`, `interval` and `rehash` are seconds: the time without changes before a source is read, the interval
    between stamps, and the interval after which all contents are hashed even if the stamp is the same.
    """

    def __init__(
        self, sources: Sources, outcomes: VersionCounts, *, debounce: float, interval: float, rehash: float,
    ) -> None:
        self._sources = sources
        self._outcomes = outcomes
        self._debounce = debounce
        self._interval = interval
        self._rehash = rehash
        self._desired_changed = False
        self.scan_seconds = 0.0
        """The approximate duration of a scan for changes."""

    def read_first(self, now: float) -> list[Problem]:
        """Read all sources without debounce, and make their versions the desired ones; return the problems."""
        problems: list[Problem] = []
        for source in self._sources:
            problems += self._read_first(source, now)
        self._desired_changed = False
        return problems

    def observe(self, now: float) -> None:
        """Take the stamp of each source, and read those that have settled since they changed."""
        for source in self._sources:
            self._sources.put(self._observed(source, now))

    def read(self, path: str, now: float) -> SourceReading:
        """Read a source that has just been written, without debounce."""
        source = self._sources[path]
        reading = source.reader.read(source.observed or source.active)
        if reading.torn:
            reading = source.reader.read(source.observed or source.active)
        self._sources.put(self._taken(source, reading, now))
        return reading

    def take_changed(self) -> bool:
        """Return whether any desired version has changed since the last call."""
        changed, self._desired_changed = self._desired_changed, False
        return changed

    def due(self, now: float) -> float:
        """Return the time of the next pass."""
        due = [now + self._interval]
        for source in self._sources:
            if source.changed_at is not None:
                due.append(source.changed_at + self._debounce)
            if source.empty_since is not None and source.empty_since + self._interval > now:
                due.append(source.empty_since + self._interval)
        return min(due)

    def warnings_of(self, source: SourceState, now: float) -> list[str]:
        """Return the warnings about a source."""
        found = [*source.read_warnings]
        if source.reader.trouble:
            found.append(f"changes of `{source.path}` may be missed: {source.reader.trouble}")
        if (source.flapping_since is not None and not source.reader.consistent
                and now - source.flapping_since >= _FLAPPING * self._debounce):
            found.append(f"`{source.path}` keeps changing and is read only once it is quiet "
                         f"for {self._debounce:g} s")
        if source.observed is not None and not source.observed.hashes:
            again = "; looking again" if source.empty_since is not None else ""
            found.append(f"`{source.path}` holds no policy files{again}")
        return found

    def _read_first(self, source: SourceState, now: float) -> list[Problem]:
        reading = source.reader.read()
        for _ in range(_FIRST_READS):
            if reading.torn:
                reading = source.reader.read()
        taken = self._taken(source, reading, now)
        # A change within the same tick of the file system's clock would not change the next stamp.
        taken = replace(taken, rehash_at=now + self._interval, desired=taken.observed, desired_since=now)
        if reading.torn:
            unsettled = Problem(f"`{source.path}` changes while it is read", code="unsettled")
            taken = replace(taken, stamp=None, changed_at=now, read_problems=(unsettled,))
        self._sources.put(taken)
        return [*taken.read_problems, *(reading.version.problems if reading.version is not None else ())]

    def _observed(self, source: SourceState, now: float) -> SourceState:
        """Return the state after a look at the source."""
        began = time.monotonic()
        stamp = source.reader.stamp()
        self.scan_seconds = max(self.scan_seconds / 2, time.monotonic() - began)
        if stamp.presence is Presence.DIRECTORY and source.projected:
            # A mounted ConfigMap without `..data` has been unmounted.
            stamp = Stamp(Presence.MISSING, reason="its `..data` is gone, so the volume is no longer mounted")
        if stamp != source.stamp:
            flapping_since = now if source.changed_at is None else source.flapping_since
            source = replace(source, stamp=stamp, changed_at=now, flapping_since=flapping_since)
            if not stamp.readable:
                return self._taken(source, SourceReading(stamp), now)
            source = replace(source, unmounted=False)
        settled = source.changed_at is not None and (
            now >= source.changed_at + self._debounce or (
                source.reader.consistent and source.flapping_since is not None
                and now >= source.flapping_since + self._interval))
        # An empty source is intentionally empty only if it still is an interval later.
        confirmed = source.empty_since is not None and now >= source.empty_since + self._interval
        if stamp.readable and (settled or (source.changed_at is None and (confirmed or now >= source.rehash_at))):
            return self._taken(source, source.reader.read(source.observed or source.active), now)
        return source

    def _taken(self, source: SourceState, reading: SourceReading, now: float) -> SourceState:
        """Return the state after the source was read."""
        if reading.torn:
            return replace(source, stamp=reading.stamp, changed_at=now)
        source = replace(source, stamp=reading.stamp, changed_at=None, flapping_since=None,
                         rehash_at=now + self._rehash)
        version = reading.version
        if version is None:
            return self._unreadable(source, reading.stamp)
        source = replace(
            source, unmounted=False, read_problems=(), read_warnings=reading.warnings, observed=version,
            projected=source.projected or reading.stamp.presence is Presence.PROJECTED)
        if not version.hashes and not _may_be_empty(source):
            since = now if source.empty_since is None else source.empty_since
            if now < since + self._interval:
                return replace(source, empty_since=since)
        desiring = replace(source, empty_since=None).desiring(version, now)
        self._desired_changed |= desiring.desired is not source.desired
        return desiring

    def _unreadable(self, source: SourceState, stamp: Stamp) -> SourceState:
        unmounted = stamp.presence is Presence.MISSING
        self._outcomes.failed()
        return replace(source, unmounted=unmounted, observed=None, empty_since=None, read_warnings=(), read_problems=(
            Problem(
                f"`{source.path}` cannot be read: {stamp.reason}",
                help=stamp.help or (
                    "mount or restore it" if unmounted
                    else "name several smaller directories" if stamp.marks == (errno.E2BIG,)
                    else "give the process the right to read it"),
                code="unmounted" if unmounted else "unreadable-source"),))


def _may_be_empty(source: SourceState) -> bool:
    """Return whether an empty source is intentionally empty at once: its active or its desired version is empty. Any
    other one must be found empty twice, an interval apart.
    """
    return (source.active is None or not source.active.hashes
            or (source.desired is not None and not source.desired.hashes))


class Waker:
    """Waits for the next pass; `wake` and file events end the wait early. `wake` may be called from any thread."""

    def __init__(self, make_file_events: Callable[[Callable[[], None]], FileEvents], paths: Sequence[str]) -> None:
        self._make_file_events = make_file_events
        self._paths = paths
        self._file_events: FileEvents | None = None
        self._woken = threading.Event()
        self._alert_until = float("-inf")
        self._was_woken = False

    @property
    def events_working(self) -> bool:
        """True if file events come for the sources."""
        return self._file_events is not None and self._file_events.working

    @property
    def trouble(self) -> str:
        """The reason why some sources have no file events; empty if all have."""
        return self._file_events.trouble if self._file_events is not None else ""

    def wake(self) -> None:
        """Let the next pass begin at once."""
        self._woken.set()

    def begin_pass(self) -> None:
        """Record the start of a pass; later wake-ups are for the next one."""
        if self._file_events is None:
            self._file_events = self._make_file_events(self.wake)
        self._was_woken = self._woken.is_set()
        self._woken.clear()
        self._file_events.watch(self._paths)

    def wait(self, due: float, scan_seconds: float) -> None:
        """Wait until a pass is due, by the monotonic clock, or until a wake-up."""
        now = time.monotonic()
        if self._was_woken:
            self._alert_until = now + _ALERT_S
        if now < self._alert_until:
            due = min(due, now + max(_ALERT_INTERVAL_S, _ALERT_SHARE * scan_seconds))
        self._woken.wait(max(_SHORTEST_WAIT_S, due - now))

    def close(self) -> None:
        """Stop watching for file events."""
        if self._file_events is not None:
            self._file_events.close()


class FileEvents:
    """Calls `changed` soon after a change in a watched directory; may call it without a change, and may miss changes.

    Directories are watched, never files: editors and the kubelet replace files, and a watch stays with the old one.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._observer: Any = None
        self._watches: dict[str, tuple[tuple[int, int], ObservedWatch]] = {}
        self.trouble = ""
        """The reason why some sources are observed only once per interval; empty if none is."""

    @property
    def working(self) -> bool:
        """True if events come for at least one source, and none was refused."""
        return bool(self._watches) and not self.trouble and self._alive()

    def watch(self, paths: Sequence[str]) -> None:
        """Watch these paths; call it again before every wait, since a directory may have been replaced."""
        if not self._alive():
            # A thread that reads events has ended: start again.
            self.close()
            self._observer, self._watches = None, {}
        needed: dict[str, bool] = {}
        for path in paths:
            # Resolved, since a link itself has no events; a file is watched through its directory.
            real = Path(os.path.realpath(path))  # `resolve` raises for circular links
            directory = str(real if real.is_dir() else real.parent)
            needed[directory] = needed.get(directory, False) or real.is_dir()
        for directory in [each for each in self._watches if each not in needed]:
            self._forget(directory)
        troubles = []
        for directory, recursive in needed.items():
            try:
                status = Path(directory).stat()
            except OSError:
                self._forget(directory)  # it is missing, which the watcher reports
                continue
            identity = status.st_dev, status.st_ino
            if directory in self._watches and self._watches[directory][0] == identity:
                continue
            self._forget(directory)
            try:
                self._watches[directory] = identity, self._schedule(directory, recursive=recursive)
            except OSError as error:
                # inotify's limits, or a file system that has no events.
                troubles.append(f"no file events for `{directory}` ({reason_of(error)}): "
                                "changes are found by looking")
        self.trouble = "; ".join(troubles)

    def close(self) -> None:
        """Stop watching."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()

    def _alive(self) -> bool:
        observer = self._observer
        return observer is None or (observer.is_alive() and all(each.is_alive() for each in observer.emitters))

    def _forget(self, directory: str) -> None:
        if directory in self._watches:
            _, watch = self._watches.pop(directory)
            try:
                self._observer.unschedule(watch)
            except (KeyError, OSError):  # it ended with its directory
                return

    def _schedule(self, directory: str, *, recursive: bool) -> ObservedWatch:
        from watchdog import events  # noqa: PLC0415 - needed only while the sources are watched
        from watchdog.observers import Observer  # noqa: PLC0415 - as above

        changed = self._changed

        class Handler(events.FileSystemEventHandler):
            def on_any_event(self, event: events.FileSystemEvent) -> None:  # noqa: ARG002 - watchdog's signature
                changed()

        if self._observer is None:
            # A directory that is created while its parent begins to be watched is watched twice, which does no harm.
            warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)
            observer = Observer()
            observer.start()
            self._observer = observer
        # Not the events of opening and reading: observing the files would wake the next pass.
        needed: list[type[events.FileSystemEvent]] = [
            events.FileCreatedEvent, events.FileDeletedEvent, events.FileModifiedEvent, events.FileMovedEvent,
            events.FileClosedEvent, events.DirCreatedEvent, events.DirDeletedEvent, events.DirMovedEvent,
        ]
        watch: ObservedWatch = self._observer.schedule(Handler(), directory, recursive=recursive, event_filter=needed)
        return watch
