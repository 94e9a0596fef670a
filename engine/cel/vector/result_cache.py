"""The cache of columns and of results per distinct input, from decision to decision; bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from ..check.checked_ast import Path
from .dictionary import DistinctResults, EncodedRows
from .encoding import key_of
from .frame import Column, Frame, Rows
from .vectors import Mask

CACHE_BYTES: Final = 64 * 1024 * 1024
"""Most bytes that are cached for one cluster."""


class CachedColumn:
    """A computed column, and the stamp of the rows that it was computed from."""

    __slots__ = ("column", "holds", "stamp")

    def __init__(self, column: Column, stamp: int, holds: Mask | None) -> None:
        """`holds` are the rows in which the column is valid; None: all."""
        self.column = column
        self.stamp = stamp
        self.holds = holds

    def covers(self, rows: Rows | None) -> bool:
        """Return whether the column is valid in these rows; None: in all."""
        return self.holds is None or (rows is not None and bool(self.holds[rows].all()))


class ColumnCache:
    """Cached columns and results, bounded in bytes; the least recently used are evicted first."""

    __slots__ = ("_bytes", "_constants", "_entries", "_limit", "_sizes", "inputs", "seen")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._entries: OrderedDict[Hashable, CachedColumn | DistinctResults] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._constants: dict[Path, tuple[object, Hashable]] = {}
        self.inputs: dict[tuple[Path, ...], EncodedRows] = {}
        self.seen: set[int] = set()
        """Hashes of keys that were looked up once: only keys that are looked up again are cached."""

    def get(self, key: Hashable) -> CachedColumn | DistinctResults | None:
        """Return the entry of a key."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Hashable, entry: CachedColumn | DistinctResults, size: int) -> None:
        """Cache an entry of approximately this many bytes."""
        self._bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while self._bytes > self._limit and len(self._entries) > 1:
            oldest, _ = self._entries.popitem(last=False)
            self._bytes -= self._sizes.pop(oldest)

    def constant_key(self, path: Path, value: object) -> Hashable:
        """Return the key of a CONSTANT value (a long list, say), which usually is the same object as before."""
        known = self._constants.get(path)
        if known is None or known[0] is not value:
            known = self._constants[path] = value, key_of(value)
        return known[1]

    def seen_before(self, key: Hashable) -> bool:
        """Return whether the key was looked up before, and record that it was."""
        number = hash(key)
        if number in self.seen:
            return True
        if len(self.seen) > 10_000:
            self.seen.clear()
        self.seen.add(number)
        return False

    def encoded(self, frame: Frame, paths: tuple[Path, ...], path_set: frozenset[Path]) -> EncodedRows:
        """Return the rows of a frame encoded by these paths, refreshed for changed rows."""
        known = self.inputs.get(paths)
        stamp = frame.stamp(path_set)
        if known is not None:
            if known.stamp == stamp:
                return known
            rows = frame.changed(path_set, known.stamp)
            if rows is not None and known.refresh(frame, stamp, rows):
                return known
        fresh = self.inputs[paths] = EncodedRows(frame, paths, stamp)
        return fresh
