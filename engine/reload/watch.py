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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.source import Problem

from .mount import Presence, SourceReading, Stamp
from .source_state import SourceState
from .status import Outcomes

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
    """Updates `observed` and `desired` of each source when its mount changes.

    `debounce`, `interval` and `rehash` are seconds: the time without changes before a source is read, the interval
    between stamps, and the interval after which all contents are hashed even if the stamp is the same.
    """

    def __init__(
        self, sources: Sequence[SourceState], outcomes: Outcomes, *, debounce: float, interval: float, rehash: float,
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
            reading = source.mount.read()
            for _ in range(_FIRST_READS):
                if reading.torn:
                    reading = source.mount.read()
            self._take(source, reading, now)
            # A change within the same tick of the file system's clock would not change the next stamp.
            source.rehash_at = now + self._interval
            source.desired, source.desired_since = source.observed, now
            if reading.torn:
                source.stamp, source.changed_at = None, now
                source.read_problems = (Problem(f"`{source.mount.path}` changes while it is read", code="unsettled"),)
            problems += source.read_problems
            if reading.version is not None:
                problems += reading.version.problems
        self._desired_changed = False
        return problems

    def observe(self, now: float) -> None:
        """Take the stamp of each source, and read those that have settled since they changed."""
        for source in self._sources:
            self._observe(source, now)

    def read(self, source: SourceState, now: float) -> SourceReading:
        """Read a source that has just been written, without debounce."""
        reading = source.mount.read(source.observed or source.active)
        if reading.torn:
            reading = source.mount.read(source.observed or source.active)
        self._take(source, reading, now)
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
        if source.flapping_since is not None and now - source.flapping_since >= _FLAPPING * self._debounce:
            found.append(f"`{source.mount.path}` keeps changing and is read only once it is quiet "
                         f"for {self._debounce:g} s")
        if source.observed is not None and not source.observed.hashes:
            again = "; looking again" if source.empty_since is not None else ""
            found.append(f"`{source.mount.path}` holds no policy files{again}")
        return found

    def _observe(self, source: SourceState, now: float) -> None:
        began = time.monotonic()
        stamp = source.mount.stamp()
        self.scan_seconds = max(self.scan_seconds / 2, time.monotonic() - began)
        if stamp.presence is Presence.DIRECTORY and source.projected:
            # A mounted ConfigMap without `..data` has been unmounted.
            stamp = Stamp(Presence.MISSING, reason="its `..data` is gone, so the volume is no longer mounted")
        if stamp != source.stamp:
            if source.changed_at is None:
                source.flapping_since = now
            source.stamp, source.changed_at = stamp, now
            if not stamp.readable:
                self._take(source, SourceReading(stamp), now)
                return
            source.unmounted = False
        settled = source.changed_at is not None and now >= source.changed_at + self._debounce
        # An empty source is intentionally empty only if it still is an interval later.
        confirmed = source.empty_since is not None and now >= source.empty_since + self._interval
        if stamp.readable and (settled or (source.changed_at is None and (confirmed or now >= source.rehash_at))):
            self._take(source, source.mount.read(source.observed or source.active), now)

    def _take(self, source: SourceState, reading: SourceReading, now: float) -> None:
        if reading.torn:
            source.stamp, source.changed_at = reading.stamp, now
            return
        source.stamp, source.changed_at, source.flapping_since = reading.stamp, None, None
        source.rehash_at = now + self._rehash
        version = reading.version
        if version is None:
            self._take_unreadable(source, reading.stamp)
            return
        source.unmounted, source.read_problems, source.read_warnings = False, (), reading.warnings
        source.projected = source.projected or reading.stamp.presence is Presence.PROJECTED
        source.observed = version
        if not version.hashes and not self._intentionally_empty(source, now):
            return
        source.empty_since = None
        self._desired_changed |= source.desire(version, now)

    def _take_unreadable(self, source: SourceState, stamp: Stamp) -> None:
        source.unmounted = stamp.presence is Presence.MISSING
        source.observed, source.empty_since, source.read_warnings = None, None, ()
        source.read_problems = (Problem(
            f"`{source.mount.path}` cannot be read: {stamp.reason}",
            help="mount or restore it" if source.unmounted
            else "name several smaller directories" if stamp.marks == (errno.E2BIG,)
            else "give the process the right to read it",
            code="unmounted" if source.unmounted else "unreadable-source"),)
        self._outcomes.failed()

    def _intentionally_empty(self, source: SourceState, now: float) -> bool:
        """Return whether an empty source is intentionally empty: its active version is empty, or it was found empty
        twice, an interval apart.
        """
        if source.active is None or not source.active.hashes:
            return True
        if source.desired is not None and not source.desired.hashes:
            return True
        if source.empty_since is None:
            source.empty_since = now
        return now >= source.empty_since + self._interval


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
                troubles.append(f"no file events for `{directory}` ({(error.strerror or str(error)).lower()}): "
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
        from watchdog.observers import Observer  # noqa: PLC0415

        changed = self._changed

        class Handler(events.FileSystemEventHandler):
            def on_any_event(self, event: events.FileSystemEvent) -> None:  # noqa: ARG002
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
