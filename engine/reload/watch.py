"""File events as a hint that something changed: they shorten the wait, and nothing hangs on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watchdog.observers.api import ObservedWatch


class FileEvents:
    """Calls `changed` soon after something changed in a watched directory; may call it for nothing, and may miss some.

    Directories are watched, never files: editors and the kubelet replace files, and a watch stays with the old one.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._observer: Any = None
        self._watches: dict[str, tuple[tuple[int, int], ObservedWatch]] = {}
        self.trouble = ""
        """Why some sources are looked at once per interval only; empty if there is no reason."""

    @property
    def working(self) -> bool:
        """Whether events come for at least one source, and none was refused."""
        return bool(self._watches) and not self.trouble and self._alive()

    def watch(self, paths: Sequence[str]) -> None:
        """Watch these paths; to be called again before every wait, since a directory may have been replaced."""
        if not self._alive():
            # A thread that reads events has ended, whatever it met: begin anew.
            self.close()
            self._observer, self._watches = None, {}
        wanted: dict[str, bool] = {}
        for path in paths:
            # Resolved, since a link itself has no events; a file is watched through its directory.
            real = Path(path).resolve()
            directory = str(real if real.is_dir() else real.parent)
            wanted[directory] = wanted.get(directory, False) or real.is_dir()
        for directory in [each for each in self._watches if each not in wanted]:
            self._forget(directory)
        troubles = []
        for directory, recursive in wanted.items():
            try:
                status = Path(directory).stat()
            except OSError:
                self._forget(directory)  # it is missing, which is told elsewhere
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
        # Not the events of opening and reading: looking at the files would wake us to look again.
        wanted: list[type[events.FileSystemEvent]] = [
            events.FileCreatedEvent, events.FileDeletedEvent, events.FileModifiedEvent, events.FileMovedEvent,
            events.FileClosedEvent, events.DirCreatedEvent, events.DirDeletedEvent, events.DirMovedEvent,
        ]
        watch: ObservedWatch = self._observer.schedule(Handler(), directory, recursive=recursive, event_filter=wanted)
        return watch
