"""Edits of a text by offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Replacement(NamedTuple):
    """`text` in place of the characters `start` (included) to `end` (excluded)."""

    start: int
    end: int
    text: str


def replaced(text: str, edits: Iterable[Replacement]) -> str:
    """Return a text with all edits applied; they must not overlap."""
    parts: list[str] = []
    position = 0
    for start, end, new in sorted(edits):
        parts += (text[position:start], new)
        position = end
    return "".join((*parts, text[position:]))
