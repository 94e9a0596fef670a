"""Stores of the memory of useless evictions: a file for local runs, and the data of a ConfigMap for a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from koordpolicy.engine.files import read_own, write_whole
from koordpolicy.engine.source import PolicyError, Problem

from .memory import UselessEvictionMemory, memory_of

KEY: Final = "eviction-memory.json"
"""The key of a ConfigMap's data."""
LARGEST: Final = 1_000_000
"""The largest memory in bytes: a ConfigMap holds 1 MiB."""


class StoreChangedError(OSError):
    """Another process changed, created or deleted the store since this one read it; read it again."""


class MemoryStore(Protocol):
    """Keeps the memory over restarts."""

    def load(self) -> UselessEvictionMemory:
        """Return the stored memory; an empty one if there is none.

        Raises:
            PolicyError: it is damaged.
            OSError: it cannot be read.
        """
        ...

    def save(self, memory: UselessEvictionMemory) -> None:
        """Replace the stored memory.

        Raises:
            StoreChangedError: another process wrote it since this one read or wrote it; it is unchanged.
            OSError: it cannot be written and is unchanged, or the outcome is not known.
        """
        ...


class FileMemoryStore:
    """A file (implements `MemoryStore`); its directory must exist."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> UselessEvictionMemory:
        """Return the memory in the file; an empty one if there is no file."""
        try:
            content = read_own(self._path, most=LARGEST)
        except FileNotFoundError:
            return UselessEvictionMemory()
        return decoded(content, f"the file `{self._path}`")

    def save(self, memory: UselessEvictionMemory) -> None:
        """Write the memory atomically."""
        write_whole(self._path, encoded(memory))


def encoded(memory: UselessEvictionMemory) -> bytes:
    """Return the memory as JSON of at most `LARGEST` bytes, without its oldest parts if it is larger."""
    data = memory.to_json()
    content = _json(data)
    while len(content) > LARGEST and (data["useless"] or data["watched"]):
        for part in ("useless", "watched"):
            data[part] = data[part][-(len(data[part]) // 2):] if len(data[part]) > 1 else []
        content = _json(data)
    return content


def decoded(content: bytes, name: str) -> UselessEvictionMemory:
    """Return the memory of JSON; `name` is that of its store.

    Raises:
        PolicyError: it is damaged.
    """
    try:
        return memory_of(json.loads(content.decode("utf-8")))
    except (ValueError, RecursionError) as error:
        raise _damaged(name, str(error) or type(error).__name__) from None


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, indent=1, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def _damaged(name: str, reason: str) -> PolicyError:
    return PolicyError([Problem(
        f"{name} is no memory of evictions: {' '.join(reason.split())}",
        help="remove it to begin with an empty one; cool-downs that it held are lost", code="damaged-memory",
    )])
