"""Segments: the files of a flight recording. Each begins with all objects, and can be read without the others.

A segment is a magic text and then blocks: the length of the compressed block, its own length, and the CRC-32 of the
compressed bytes, each four bytes, big-endian; then the block, compressed by one stream of zlib for the whole segment
and flushed after each block. A block that is cut off or damaged ends the segment: everything before it is read.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.files import create_private, make_own_directory, open_own, open_regular

from .records import FORMAT, Header, Record, RecordError, decode_block, encode_block

MAGIC: Final = b"koord-policy flight recording 1\n"
_FRAME: Final = struct.Struct(">III")
_BLOCK: Final = 256 * 1024
_LARGEST_BLOCK: Final = 16 * 1024 * 1024
_LEVEL: Final = 1
_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{9}Z\.segment")
_SECOND: Final = 1_000_000_000
_LOCK: Final = "lock"
_LAST: Final = 2**62
"""The latest time of a record: after it Python's dates end, and sums of times are no 64-bit integers."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a segment ends and which segments stay; sizes in bytes, as on the disk."""

    segment_bytes: int = 64 * 1024 * 1024
    segment_seconds: float = 3600.0
    total_bytes: int = 1024 * 1024 * 1024
    """The size of all segments; the oldest are removed."""


class Busy(Exception):
    """Another process records into the directory."""


class Directory:
    """The directory of a recording, locked for one recording process until `close`."""

    def __init__(self, path: Path, limits: Limits) -> None:
        """Make the directory if there is none.

        Raises:
            Busy: another process records there.
            OSError: it cannot be made, or belongs to another user.
        """
        self.path = path
        self._limits = limits
        make_own_directory(path)
        self._lock = open_own(path / _LOCK, mode=0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise Busy from None

    def create(self, time: int) -> SegmentFile:
        """Begin a segment at a time (ns since the epoch), and remove old ones over the limit.

        Raises `OSError`.
        """
        while True:
            path = self.path / name_of(time)
            try:
                made = SegmentFile(path)
            except FileExistsError:
                time += 1  # the clock of a dump stands still
                continue
            self.prune(made)
            return made

    def prune(self, current: SegmentFile) -> int:
        """Remove the oldest segments until all fit the limit, never the current one; return how many."""
        found = [(path, path.lstat().st_size) for path in segments_in(self.path) if path != current.path]
        excess = sum(size for _, size in found) + current.size - self._limits.total_bytes
        removed = 0
        for path, size in found:
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= size
            removed += 1
        return removed

    def close(self) -> None:
        """Unlock the directory."""
        os.close(self._lock)


class SegmentFile:
    """A segment that is being written; for one thread."""

    def __init__(self, path: Path) -> None:
        """Raises `FileExistsError` if the path exists, and `OSError`."""
        self.path = path
        self.size = 0
        """The bytes on the disk."""
        self._descriptor = create_private(path)
        self._stream = zlib.compressobj(_LEVEL)
        self._records: list[bytes] = []
        self._waiting = 0
        self._write(MAGIC)

    @property
    def unwritten(self) -> int:
        """The bytes of records that `flush` would write, before compression."""
        return self._waiting

    def add(self, record: bytes) -> None:
        """Append an encoded record; writes a block once there is enough for one. Raises `OSError`."""
        self._records.append(record)
        self._waiting += len(record)
        if self._waiting >= _BLOCK:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting as one block. Raises `OSError`; the segment ends before this block then."""
        if not self._records:
            return
        block = encode_block(self._records)
        self._records, self._waiting = [], 0
        packed = self._stream.compress(block) + self._stream.flush(zlib.Z_SYNC_FLUSH)
        self._write(_FRAME.pack(len(packed), len(block), zlib.crc32(packed)) + packed)

    def close(self) -> None:
        """Write what is waiting, and close the file. Raises `OSError`, closed in any case."""
        try:
            self.flush()
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)

    def abandon(self) -> None:
        """Close the file without writing what is waiting."""
        os.close(self._descriptor)

    def _write(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            written = os.write(self._descriptor, view)
            view = view[written:]
            self.size += written


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two blocks of a segment, from which another reader goes on."""

    offset: int
    """In bytes from the start of the file."""
    stream: Any = field(repr=False)
    """The decompressor there; it is copied before it is used."""


class SegmentReader:
    """The records of one segment, read block by block.

    A segment that is being written is iterated again and again: each iteration yields the records that were added.
    """

    def __init__(self, path: Path, at: Position | None = None) -> None:
        """`at` is a position in the same segment, from which it is read on."""
        self.path = path
        self.fault = ""
        """Why the segment ended before its file did, after the last record was read; empty if it did not."""
        self.intact_bytes = 0 if at is None else at.offset
        """The bytes of the file that could be read."""
        self._stream = zlib.decompressobj() if at is None else at.stream.copy()
        self._first = at is None

    def __iter__(self) -> Iterator[Record]:
        """Yield the records; a block that is cut off or damaged ends them, and `fault` says why.

        The first record is a `Header` of a known format.

        Raises:
            OSError: the file cannot be read, is a link, or not a file.
        """
        for records in self.blocks():
            yield from records

    @property
    def position(self) -> Position:
        """The place after the block that was read last."""
        return Position(self.intact_bytes, self._stream.copy())

    def blocks(self) -> Iterator[list[Record]]:
        """Yield the records block by block, as iteration does; `position` is that after the block.

        Raises:
            OSError: the file cannot be read, is a link, or not a file.
        """
        self.fault = ""
        for block in self._blocks():
            try:
                records = decode_block(block)
            except RecordError as error:
                self.fault = f"a block holds no records: {error}"
                return
            for number, record in enumerate(records):
                self.fault = self._fault_of(record)
                if self.fault:
                    yield records[:number]
                    return
            yield records
        if self._first and not self.fault:
            self.fault = "it is empty"

    def _fault_of(self, record: Record) -> str:
        first, self._first = self._first, False
        if first and not isinstance(record, Header):
            return "it does not begin with a header"
        if isinstance(record, Header) and (not first or record.format != FORMAT):
            return "it has a second header" if not first else (
                f"it has format {record.format}, and this program reads format {FORMAT}")
        if not 0 <= (time := getattr(record, "time", 0)) <= _LAST:
            return f"it has the time {time}"
        return ""

    def _blocks(self) -> Iterator[bytes]:
        with os.fdopen(open_regular(self.path), "rb") as file:
            if not self.intact_bytes:
                if file.read(len(MAGIC)) != MAGIC:
                    self.fault = "it is no segment of a flight recording"
                    return
                self.intact_bytes = len(MAGIC)
            file.seek(self.intact_bytes)
            while head := file.read(_FRAME.size):
                if len(head) < _FRAME.size:
                    self.fault = "its last block is cut off"
                    return
                packed_size, size, checksum = _FRAME.unpack(head)
                if max(packed_size, size) > _LARGEST_BLOCK:
                    self.fault = f"a block has more than {_LARGEST_BLOCK:,} bytes"
                    return
                packed = file.read(packed_size)
                if len(packed) < packed_size:
                    self.fault = "its last block is cut off"
                    return
                if zlib.crc32(packed) != checksum:
                    self.fault = "a block is damaged"
                    return
                try:
                    block = self._stream.decompress(packed, size + 1)
                except zlib.error as error:
                    self.fault = f"a block cannot be decompressed: {error}"
                    return
                if len(block) != size:
                    self.fault = "a block has another length than it says"
                    return
                self.intact_bytes += _FRAME.size + packed_size
                yield block


def name_of(time: int) -> str:
    """Return the name of a segment that begins at a time (ns since the epoch): names sort by time."""
    seconds, rest = divmod(time, _SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}.{rest:09d}Z.segment"


def begin_of(path: Path) -> int:
    """Return the time at which a segment begins (ns since the epoch), by its name."""
    text, _, rest = path.name.removesuffix("Z.segment").partition(".")
    begin = datetime.strptime(f"{text}+0000", "%Y%m%dT%H%M%S%z")
    return int(begin.timestamp()) * _SECOND + int(rest)


def segments_in(directory: Path) -> list[Path]:
    """Return the segments in a directory, oldest first. Raises `OSError`."""
    return sorted(path for path in directory.iterdir()
                  if _NAME.fullmatch(path.name) and not path.is_symlink() and path.is_file())
