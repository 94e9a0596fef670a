"""The audit log: what the agent did on the node, as lines of JSON in rotated files, and its pages, newest first.

Files, fields and limits are koordlet's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = "audit.log"
_BLOCK: Final = 64 * 1024
FLUSH_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One entry: its `type` is `node`, `pod`, `container` or `group`; empty fields are left out.

    Events above the log's verbosity are dropped. `created` is in nanoseconds since the epoch.
    """

    created: int
    type: str
    reason: str
    message: str = ""
    level: int = 0
    namespace: str = ""
    name: str = ""
    container: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the event as koordlet writes it."""
        time = datetime.fromtimestamp(self.created / 1e9, UTC).isoformat(timespec="milliseconds")
        found = {
            "createdAt": time.replace("+00:00", "Z"), "type": self.type, "level": self.level,
            "namespace": self.namespace, "name": self.name, "container": self.container, "reason": self.reason,
            "message": self.message,
        }
        return {key: value for key, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The directory of the log, and its limits."""

    directory: Path
    verbosity: int = 3
    file_bytes: int = 2 * 1024 * 1024
    total_bytes: int = 16 * 1024 * 1024
    readers: int = 4
    """The number of readers that page at the same time."""
    reader_s: float = 600.0
    """The time after which a reader that asks for no page is dropped, in seconds."""
    page: int = 256
    largest_page: int = 2048


class AuditLog:
    """Writes events, buffered; `add` and `read` may be called from any thread.

    A disk that is full or gone costs events, which are counted in `dropped`, and is logged once until it works again.
    """

    def __init__(self, settings: AuditSettings, *, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self.settings = settings
        self.dropped = 0
        self._clock = clock
        self._lock = threading.RLock()
        self._buffer: list[str] = []
        self._flushed = clock()
        self._failing = False
        self._number = 0

    def add(self, event: AuditEvent) -> None:
        """Add an event."""
        if event.level > self.settings.verbosity:
            return
        line = json.dumps(event.to_json(), ensure_ascii=False)
        with self._lock:
            self._buffer.append(line)
            if self._clock() - self._flushed >= FLUSH_S:
                self.flush()

    def flush(self) -> None:
        """Write what is buffered, and rotate the files."""
        with self._lock:
            self._flushed = self._clock()
            if not self._buffer:
                return
            lines, self._buffer = self._buffer, []
            try:
                self._rotate()
                path = self.settings.directory / _NAME
                self.settings.directory.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write("".join(f"{line}\n" for line in lines))
            except OSError as error:
                self.dropped += len(lines)
                if not self._failing:
                    _LOG.warning("audit events are lost, as %s cannot be written: %s", self.settings.directory,
                                 error.strerror)
                self._failing = True
            else:
                self._failing = False

    def files(self) -> list[Path]:
        """Return the files, newest first."""
        try:
            old = [path for path in self.settings.directory.iterdir()
                   if path.name.startswith("audit-") and path.suffix == ".log"]
        except OSError:
            return []
        current = self.settings.directory / _NAME
        return [*([current] if current.exists() else []), *sorted(old, key=_order, reverse=True)]

    def lines(self) -> Iterator[str]:
        """Yield the lines of all files, newest first; those that are rotated away meanwhile are left out."""
        with self._lock:
            self.flush()
            opened = []
            for path in self.files():
                with contextlib.suppress(OSError):
                    opened.append(path.open("rb"))
        try:
            for file in opened:
                yield from _backwards(file)
        finally:
            for file in opened:
                file.close()

    def _rotate(self) -> None:
        current = self.settings.directory / _NAME
        with contextlib.suppress(FileNotFoundError):
            if current.stat().st_size >= self.settings.file_bytes:
                self._number += 1
                time = datetime.now(UTC).strftime("%Y-%m-%d-%H-%M-%S")
                current.rename(self.settings.directory / f"audit-{time}-{self._number}.log")
        total = 0
        for path in self.files():
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
                if total > self.settings.total_bytes and path != current:
                    path.unlink()


def _order(path: Path) -> tuple[str, int]:
    stamp, _, number = path.stem.rpartition("-")
    return stamp, int(number) if number.isdigit() else 0


def _backwards(file: Any) -> Iterator[str]:
    """Yield the lines of an open file, the last one first."""
    at = file.seek(0, 2)
    rest = b""
    while at > 0:
        size = min(_BLOCK, at)
        at -= size
        file.seek(at)
        rest = file.read(size) + rest
        first, *lines = rest.split(b"\n")
        rest = first
        for line in reversed(lines):
            if line:
                yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


class PageError(Exception):
    """A page that is not served; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Events as lines of JSON, newest first, and the token of the next page; empty at the end."""

    lines: tuple[str, ...]
    token: str = ""


@dataclass(slots=True)
class _Reader:
    lines: Iterator[str]
    used: float
    busy: threading.Lock = field(default_factory=threading.Lock)


class AuditPages:
    """Pages of an audit log for several readers at a time; for any thread."""

    def __init__(self, log: AuditLog, *, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._readers: dict[str, _Reader] = {}

    def page(self, size: str = "", token: str = "") -> AuditPage:
        """Return a page of `size` events, the first one without a token.

        Raises:
            PageError: 400 for a bad size, 409 for a token that is unknown, expired or in use, 429 if there are too
                many readers.
        """
        count = self._size(size)
        with self._lock:
            self._expire()
            if not token:
                if len(self._readers) >= self._log.settings.readers:
                    raise PageError(429, f"{self._log.settings.readers} readers page at present: try again later")
                token = secrets.token_urlsafe(12)
                self._readers[token] = _Reader(self._log.lines(), self._clock())
            reader = self._readers.get(token)
            if reader is None or not reader.busy.acquire(blocking=False):
                raise PageError(409, "the page token is unknown, has expired or is in use: begin without one")
            reader.used = self._clock()
        try:
            lines = []
            for line in reader.lines:
                lines.append(line)
                if len(lines) >= count:
                    break
            ended = len(lines) < count
        finally:
            reader.busy.release()
        if ended:
            self._close(token)
        return AuditPage(tuple(lines), "" if ended else token)

    def close(self) -> None:
        """End all readers."""
        for token in tuple(self._readers):
            self._close(token)

    def _size(self, text: str) -> int:
        if not text:
            return self._log.settings.page
        largest = self._log.settings.largest_page
        if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= largest:
            raise PageError(400, f"`size` must be a whole number from 1 to {largest}")
        return int(text)

    def _expire(self) -> None:
        now = self._clock()
        for token, reader in tuple(self._readers.items()):
            if now - reader.used > self._log.settings.reader_s and not reader.busy.locked():
                self._readers.pop(token).lines.close()  # type: ignore[attr-defined]

    def _close(self, token: str) -> None:
        with self._lock:
            reader = self._readers.pop(token, None)
        if reader is not None:
            reader.lines.close()  # type: ignore[attr-defined]
