"""A configuration file that is followed: its newest valid content is active, and the last good one stays otherwise.

Its directory may be replaced as a whole, as the kubelet does with a mounted ConfigMap: the file is read by its path.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from koordpolicy.engine.cluster.kinds import NOT_LISTED
from koordpolicy.engine.documents.nodes import read_file
from koordpolicy.engine.source import PolicyError, Problem, Source, in_order, render

_LOG: Final = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""Seconds between two looks. A new content is taken when two looks in a row have seen it: writing takes time."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The state of a followed file, for other threads; times in seconds since the epoch."""

    path: str
    loaded_at: float
    """When the active content was taken."""
    problems: tuple[Problem, ...] = ()
    """Why the newest content is refused; empty if it is active."""
    refused_at: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return the status as plain data."""
        return {"path": self.path, "loadedAt": self.loaded_at, "refusedAt": self.refused_at,
                "problems": [problem.render() for problem in self.problems]}


class FollowedFile(Generic[T]):
    """Follows one file. `look` is called in one thread; `value` and `status` are for any."""

    def __init__(
        self, path: Path, load: Callable[[Source], T], *, accept: Callable[[T], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`load` reads a content, and `accept` is called with the result before it becomes active; both raise
        `PolicyError` for one that must not be. `clock` returns the time in seconds since the epoch.

        Raises:
            PolicyError: the file cannot be read, or its content is not valid.
        """
        self.accept = accept
        self._path = path
        self._load = load
        self._clock = clock
        source = read_file(path)
        self.value = load(source)
        """The result of the active content."""
        self.status = FileStatus(str(path), clock())
        self._active = self._seen = source.text
        self._settled: str | None = source.text
        """The content that was tried last; None to try it again."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> bool:
        """Look at the file; return whether another content became active. Never raises for what the file holds."""
        try:
            source = read_file(self._path)
        except PolicyError as error:
            self._refuse(error.problems)
            self._settled = None
            return False
        text, before = source.text, self._seen
        self._seen = text
        if text != before or text == self._settled:
            return False
        self._settled = text
        if text == self._active:
            self.status = FileStatus(self.status.path, self.status.loaded_at)
            return False
        try:
            value = self._load(source)
            self.accept(value)
        except PolicyError as error:
            self._refuse(error.problems)
            if any(problem.code == NOT_LISTED for problem in error.problems):
                self._settled = None  # that passes without a change of the file
            return False
        self.value, self._active = value, text
        self.status = FileStatus(self.status.path, self._clock())
        _LOG.info("the new content of `%s` is active", self._path)
        return True

    def start(self, changed: Callable[[], None] = lambda: None) -> None:
        """Look again and again in a thread; call `changed` there when another content became active."""
        self._thread = threading.Thread(target=self._follow, args=(changed,), name="configuration", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits for a look that is under way."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, changed: Callable[[], None]) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                if self.look():
                    changed()
            except Exception:
                _LOG.exception("`%s` could not be looked at", self._path)

    def _refuse(self, problems: tuple[Problem, ...] | list[Problem]) -> None:
        found = tuple(in_order(problems))
        text = render(found)
        if text != render(self.status.problems):
            _LOG.error("the new content of `%s` is refused, and the last one stays active:\n%s", self._path, text)
        self.status = FileStatus(self.status.path, self.status.loaded_at, found, self._clock())
