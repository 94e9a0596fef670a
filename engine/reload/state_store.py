"""The last good set of policies on disk, so that a restart does not depend on later edits.

One file, `last-good.json`: a line with format, length and sha256, then JSON. It is written under a temporary name,
flushed to the disk and renamed, so that either the old file or the new one exists; it is used as a whole or not at all.
Links, and files of other users than this one and root, are refused.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.files import beside_of, make_own_directory, read_own, reason_of, write_new
from koordpolicy.engine.source import PolicyError, Problem

from .mount import Version
from .source_state import SourceReader, Sources

FILE: Final = "last-good.json"
LARGEST: Final = 64 * 1024 * 1024
"""The maximum size in bytes; sixty times that of a ConfigMap."""
_LATEST: Final = 253_402_300_800
"""The year 10000 in seconds since the epoch."""
_FORMAT: Final = "koord-policy/last-good/1"


@dataclass(frozen=True, slots=True)
class Saved:
    """A version of one source that was active since `since`, in seconds since the epoch."""

    version: Version
    since: float
    projected: bool
    """True if it came through `..data`."""
    blocked: str = ""
    """The digest of the version that the source held and that was blocked."""


class Store:
    """Stores the last good set in a directory (`--state-dir`); `write` writes a new file to the disk."""

    def __init__(
        self, directory: str | os.PathLike[str], *, write: Callable[[Path, bytes], None] = write_new,
    ) -> None:
        self._directory = Path(directory)
        self._write = write
        self.path = self._directory / FILE

    def save(self, sources: Mapping[str, Saved]) -> None:
        """Write the set; raises `OSError`, and then the previous set is unchanged."""
        # One file at a time: a single call that writes 50 MB would block decisions until it returns.
        body = b"{" + b",".join(self._written(path, saved) for path, saved in sources.items()) + b"}"
        head = f"{_FORMAT} {len(body)} {hashlib.sha256(body).hexdigest()}\n".encode()
        if len(head) + len(body) > LARGEST:
            raise OSError(errno.EFBIG, f"the set has more than {LARGEST:,} bytes", str(self.path))
        make_own_directory(self._directory)
        self._remove_left_over()
        beside = beside_of(self.path)
        try:
            self._write(beside, head + body)
            beside.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        # The rename itself must survive a power cut, too.
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _remove_left_over(self) -> None:
        """Remove temporary files of killed writers: those older than the set itself."""
        with contextlib.suppress(OSError):
            newest = self.path.lstat().st_mtime
            for left in self._directory.glob(f".{FILE}.*"):
                if left.lstat().st_mtime < newest:
                    left.unlink()

    @staticmethod
    def _written(path: str, saved: Saved) -> bytes:
        about = {"digest": saved.version.digest, "since": saved.since, "projected": saved.projected,
                 "rejected": saved.blocked}
        files = b",".join(
            _json(name) + b":" + _json({"sha256": saved.version.hashes[name], "text": source.text})
            for name, source in saved.version.files.items())
        return _json(path) + b":" + _json(about)[:-1] + b',"files":{' + files + b"}}"

    def load(self, readers: Mapping[str, SourceReader]) -> dict[str, Saved]:
        """Return the saved versions of these sources, by path; unknown sources are absent.

        Raises `PolicyError` if there is no set, or it is damaged.
        """
        try:
            content = read_own(self.path, most=LARGEST)
        except FileNotFoundError:
            raise _refusal(f"there is no last good set in `{self._directory}`", "missing-state") from None
        except OSError as error:
            raise _refusal(f"the last good set `{self.path}` cannot be read: {reason_of(error)}",
                           "unreadable-state") from None
        head, _, body = content.partition(b"\n")
        words = head.decode("ascii", "replace").split(" ")
        if len(words) != 3 or words[0] != _FORMAT:
            raise _refusal(f"`{self.path}` is not a last good set of this version", "damaged-state")
        if words[1] != str(len(body)):
            raise _refusal(f"the last good set `{self.path}` has {len(body)} of {words[1]} bytes", "damaged-state")
        if words[2] != hashlib.sha256(body).hexdigest():
            raise _refusal(f"the last good set `{self.path}` is damaged: its checksum does not fit", "damaged-state")
        try:
            sources = _mapping(json.loads(body.decode("utf-8", "surrogateescape")))
            return {path: _saved(readers[path], _mapping(data)) for path, data in sources.items() if path in readers}
        except (ValueError, KeyError, RecursionError):
            raise _refusal(f"`{self.path}` is not a last good set of this version", "damaged-state") from None


class StateSaver:
    """Writes the active set to a store after each activation, once it is `proven`; retries every `retry` seconds."""

    def __init__(self, store: Store | None, sources: Sources, *, retry: float) -> None:
        self._store = store
        self._sources = sources
        self._retry = retry
        self._state_dirty = False
        self._not_before = float("-inf")
        self.trouble = ""
        """The reason why the set cannot be written; empty if it can."""

    def mark_dirty(self) -> None:
        """Let the next `save` write the set."""
        self._state_dirty, self._not_before = True, float("-inf")

    def save(self, now: float, *, proven: bool) -> None:
        """Write the set if it has changed."""
        if self._store is None or not self._state_dirty or now < self._not_before or not proven:
            return
        try:
            self._store.save({
                source.path: Saved(source.active, source.active_since, source.projected, source.blocked_digest)
                for source in self._sources if source.active is not None})
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self.trouble = (f"the last good set cannot be kept in `{self._store.path}`: {reason.lower()}; "
                            "a restart may find an older one or none")
            self._not_before = now + self._retry
        else:
            self.trouble, self._state_dirty = "", False


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _saved(reader: SourceReader, data: Mapping[str, Any]) -> Saved:
    # The hashes are of the published bytes, which may begin with a BOM that the text lacks.
    held = {name: _mapping(file) for name, file in _mapping(data["files"]).items()}
    files = {name: reader.source_of(name, _text(file["text"])) for name, file in held.items()}
    hashes = {name: _text(file["sha256"]) for name, file in held.items()}
    version = Version.of(files, hashes)
    since, projected = data["since"], data["projected"]
    if version.digest != data["digest"] or isinstance(since, bool) or not isinstance(since, int | float) or not (
            0 <= since < _LATEST) or not isinstance(projected, bool):
        raise ValueError(data)
    return Saved(version, float(since), projected, _text(data.get("rejected", "")))


def _mapping(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ValueError(data)  # noqa: TRY004 - all that is wrong with a file is one kind of fault
    return data


def _text(data: Any) -> str:
    if not isinstance(data, str):
        raise ValueError(data)  # noqa: TRY004 - whatever is wrong with a file is one error
    return data


def _refusal(message: str, code: str) -> PolicyError:
    return PolicyError([Problem(message, help="start from valid policies; the next good set is written anew",
                                code=code)])
