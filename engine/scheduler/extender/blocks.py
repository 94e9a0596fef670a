"""Large request bodies, block by block.

A call into C code that decodes, copies or frees 64 MiB holds the interpreter for 20 to 90 ms. So a large body is never
one piece of memory: it is read, cut and freed block by block.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, Self

BLOCK: Final = 256 * 1024
"""Bytes."""
WHOLE: Final = 512 * 1024
"""The largest body that is one piece of memory, in bytes: it is decoded within a millisecond or two."""

_FREED_AT_ONCE: Final = 64
_OVERLAP: Final = 1024
"""Longer than what a pattern of this package matches."""


class Blocks:
    """A body in blocks; `len` is its size as it arrived, also after blocks were taken. One thread adds, then another
    one takes.
    """

    def __init__(self) -> None:
        self._blocks: deque[bytes | bytearray] = deque()
        self._last = bytearray()
        self._size = 0

    @classmethod
    def of(cls, body: bytes | bytearray) -> Self:
        """Return the blocks of a body that is in memory."""
        found = cls()
        view = memoryview(body)
        for first in range(0, len(view), BLOCK):
            found.add(view[first:first + BLOCK])
        return found

    def __len__(self) -> int:
        return self._size

    def add(self, chunk: bytes | memoryview) -> None:
        """Append bytes, at most about a block."""
        self._last += chunk
        self._size += len(chunk)
        if len(self._last) >= BLOCK:
            self._blocks.append(self._last)
            self._last = bytearray()

    def take(self) -> bytes | bytearray | None:
        """Remove and return the next block; None after the last."""
        if self._blocks:
            return self._blocks.popleft()
        last, self._last = self._last, bytearray()
        return last or None

    def clear(self) -> None:
        """Free all blocks, one after the other."""
        with suppress(IndexError):
            while True:
                self._blocks.popleft()
        self._last = bytearray()

    def joined(self) -> bytearray:
        """Remove all blocks and return them as one."""
        found = bytearray()
        while (block := self.take()) is not None:
            found += block
        return found


class Rest:
    """The rest of a body, of which only the beginning is in one piece of memory."""

    def __init__(self, body: Blocks) -> None:
        self._body = body
        self._begin = bytearray()
        self.ended = False
        """True once all that is left is in one piece."""

    def until(self, end: int) -> bytes:
        """Return the bytes before an offset, which a match had."""
        return bytes(memoryview(self._begin)[:end])

    def drop(self, end: int) -> None:
        """Remove the bytes before an offset."""
        del self._begin[:end]

    def matches(self, pattern: re.Pattern[bytes], first: int, most: int) -> Iterator[re.Match[bytes]]:
        """Yield the matches from an offset on, until the body ends or more than `most` bytes are in one piece.

        Use each match before the next: the bytes move.
        """
        while True:
            end = min(first + BLOCK, len(self._begin))
            match = pattern.search(self._begin, first, end)
            if match is not None:
                first = match.end()
                yield match
                continue
            first = max(first, end - _OVERLAP)
            if end == len(self._begin) and (end > most or not self._take()):
                return

    def all(self, most: int) -> bytes | None:
        """Return all that is left; None if it is more than `most` bytes."""
        while len(self._begin) <= most:
            if not self._take():
                return bytes(self._begin)
        return None

    def _take(self) -> bool:
        block = self._body.take()
        self.ended = block is None
        if block is not None:
            self._begin += block
        return not self.ended


def free(items: list[Any]) -> None:
    """Empty a list, a few items at a time: other threads have their turn in between."""
    while items:
        del items[-_FREED_AT_ONCE:]
