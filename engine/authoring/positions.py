"""Positions of the Language Server Protocol: lines and UTF-16 code units from 0."""

from __future__ import annotations

from koordpolicy.engine.source import Source, Span


def offset_of(source: Source, line: int, character: int) -> int:
    """Return the offset of a position; one behind the end of its line or of the text is moved to that end."""
    if line < 0 or line >= source.text.count("\n") + 1:
        return 0 if line < 0 else len(source.text)
    text = source.line(line + 1)
    start = sum(len(each) + 1 for each in source.text.split("\n")[:line])
    units = 0
    for number, each in enumerate(text):
        if units >= character:
            return start + number
        units += 2 if each > "\uffff" else 1
    return start + len(text)


def position_of(source: Source, offset: int) -> tuple[int, int]:
    """Return line and character of an offset."""
    line, column = source.position(offset)
    before = source.text[offset - column + 1:offset]
    return line - 1, len(before) + sum(each > "\uffff" for each in before)


def range_of(span: Span) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the positions of the start and the end of a span in its file."""
    root = span.root()
    return position_of(root.source, root.start), position_of(root.source, root.end)
