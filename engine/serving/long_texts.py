"""Long texts in blocks: to join, encode or send megabytes at once would hold the interpreter for milliseconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

_BLOCK: Final = 1 << 16
"""Characters."""
_DIVIDED_LEVELS: Final = 4
_ITEMS_AT_ONCE: Final = 16


def in_blocks(texts: Iterable[str]) -> Iterator[bytes]:
    """Yield the texts, joined and encoded, in blocks of 64 KiB or a little more."""
    parts: list[str] = []
    size = 0
    for text in texts:
        parts.append(text)
        size += len(text)
        if size >= _BLOCK:
            yield "".join(parts).encode("utf-8", "replace")
            parts, size = [], 0
    if parts:
        yield "".join(parts).encode("utf-8", "replace")


def json_blocks(data: object) -> Iterator[bytes]:
    """Yield plain data as JSON, in blocks; what JSON has no form for is written as text.

    Long lists near the top are encoded a few items at a time, as other threads wait for the encoder.
    """
    return in_blocks(_json_texts(data, _DIVIDED_LEVELS))


def _json_texts(value: object, levels: int) -> Iterator[str]:
    if levels and value and isinstance(value, dict):
        for number, (key, below) in enumerate(value.items()):
            # Also a key that is not a text becomes one, as the encoder does it.
            yield f"{', ' if number else '{'}{json.dumps({key: 0}, default=str)[1:-4]}: "
            yield from _json_texts(below, levels - 1)
        yield "}"
    elif levels and isinstance(value, list | tuple) and len(value) > _ITEMS_AT_ONCE:
        for first in range(0, len(value), _ITEMS_AT_ONCE):
            yield f"{', ' if first else '['}{json.dumps(value[first:first + _ITEMS_AT_ONCE], default=str)[1:-1]}"
        yield "]"
    else:
        yield json.dumps(value, default=str)
