"""Places of the characters of a YAML scalar in the file.

A fault in a CEL expression has an offset in the *value*; users need the position in the *file*. `locate` repeats the
YAML parser's processing of the raw text (folding, escapes, indentation, chomping) and records the origin of every
character. The parser's value is authoritative: if the two differ, every character gets the position of the scalar's
start, which is imprecise but never wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_ESCAPES: Final = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "'": "'", "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}
_HEXADECIMAL: Final = {"x": 2, "u": 4, "U": 8}
# The YAML 1.1 line breaks: the parser reads NEL, LS and PS as such, whatever YAML 1.2 says.
_BREAKS: Final = "\r\n\x85\u2028\u2029"
_BLANKS: Final = " \t"
_HEADER: Final = re.compile(r"[|>]([-+]?)([1-9]?)([-+]?)[ \t]*(?:#[^\r\n\x85\u2028\u2029]*)?")
_LARGEST_INDENT: Final = 64

Located = tuple[str, int]
"""A character of the value and its offset."""


def locate(text: str, start: int, end: int, style: str, value: str) -> Sequence[int]:
    """Return one offset into `text` per character of `value`, and one for its end.

    The scalar's raw text is `text[start:end]`; `style` is the parser's: "" (plain), "'", '"', "|" or ">".
    """
    if style == "" and text.startswith(value, start):
        return range(start, start + len(value) + 1)
    if style in ("'", '"') and end - start == len(value) + 2 and text.startswith(value, start + 1):
        return range(start + 1, start + len(value) + 2)
    if style in ("|", ">"):
        candidates: Iterable[list[Located]] = _block(text, start, end, literal=style == "|")
    elif style in ("'", '"'):
        candidates = [_flow(text, start + 1, end - 1, style)]
    else:
        candidates = [_flow(text, start, end, style)]
    for located in candidates:
        if "".join([character for character, _ in located]) == value:
            return [*[offset for _, offset in located], end]
    return [start] * (len(value) + 1)


def _read_break(text: str, position: int) -> tuple[str, int]:
    """Return the normalised line break at a position, and the start of the next line."""
    if text.startswith("\r\n", position):
        return "\n", position + 2
    return text[position] if text[position] in "\u2028\u2029" else "\n", position + 1


def _flow(text: str, start: int, end: int, style: str) -> list[Located]:
    """Decode a plain or quoted scalar whose content is `text[start:end]`."""
    result: list[Located] = []
    position = start
    while position < end:
        escaped_break = False
        while position < end and (character := text[position]) not in _BLANKS and character not in _BREAKS:
            if style == "'" and character == "'":
                result.append(("'", position))
                position += 2
            elif style == '"' and character == "\\" and position + 1 < end:
                selector = text[position + 1]
                if selector in _BREAKS:
                    _, position = _read_break(text, position + 1)
                    escaped_break = True
                    break
                if digits := _HEXADECIMAL.get(selector, 0):
                    code = int(text[position + 2 : position + 2 + digits], 16)
                    result.append((chr(code) if code < 0x110000 else "\ufffd", position))
                    position += 2 + digits
                else:
                    result.append((_ESCAPES.get(selector, selector), position))
                    position += 2
            else:
                result.append((character, position))
                position += 1
        position = _fold(text, position, end, result, broken=escaped_break)
    return result


def _fold(text: str, position: int, end: int, result: list[Located], *, broken: bool) -> int:
    """Decode the blanks and line breaks between two words; return the start of the next word."""
    blanks: list[Located] = []
    leading: Located | None = None
    trailing: list[Located] = []
    while position < end and (text[position] in _BLANKS or text[position] in _BREAKS):
        if text[position] in _BLANKS:
            if not broken:
                blanks.append((text[position], position))
            position += 1
            continue
        character, following = _read_break(text, position)
        if broken:
            trailing.append((character, position))
        else:
            blanks, leading, broken = [], (character, position), True
        position = following
    if not broken:
        result.extend(blanks)
    elif leading is not None and leading[0] == "\n":
        result.extend(trailing or [(" ", leading[1])])
    else:
        result.extend([leading, *trailing] if leading else trailing)
    return position


def _block(text: str, start: int, end: int, *, literal: bool) -> Iterable[list[Located]]:
    """Decode a block scalar, once per possible indentation, the likeliest first."""
    header = _HEADER.match(text, start)
    if header is None:  # pragma: no cover - the parser accepted it
        return
    chomping = header[1] or header[3]
    position = header.end()
    if position < end and text[position] in _BREAKS:
        _, position = _read_break(text, position)
    likeliest = 0 if header[2] else _detect_indent(text, position, end)
    for indent in [likeliest, *range(1, _LARGEST_INDENT)] if likeliest else range(1, _LARGEST_INDENT):
        yield _block_at(text, position, end, indent, chomping, literal=literal)


def _detect_indent(text: str, position: int, end: int) -> int:
    """Return the indentation of the first line that has content, or the longest of the blank ones before it."""
    longest = 0
    while position < end:
        line = position
        while position < end and text[position] == " ":
            position += 1
        longest = max(longest, position - line)
        if position >= end or text[position] not in _BREAKS:
            break
        _, position = _read_break(text, position)
    return max(longest, 1)


def _block_at(text: str, position: int, end: int, indent: int, chomping: str, *, literal: bool) -> list[Located]:
    result: list[Located] = []
    leading: list[Located] = []
    leading_blank = False
    position, column, trailing = _skip_breaks(text, position, end, indent)
    while position < end and column == indent:
        trailing_blank = text[position] in _BLANKS
        folds = not literal and leading and leading[0][0] == "\n" and not leading_blank and not trailing_blank
        if not folds:
            result.extend(leading)
        elif not trailing:
            result.append((" ", leading[0][1]))
        result.extend(trailing)
        leading_blank = trailing_blank
        while position < end and text[position] not in _BREAKS:
            result.append((text[position], position))
            position += 1
        leading = []
        if position < end:
            character, following = _read_break(text, position)
            leading = [(character, position)]
            position = following
        position, column, trailing = _skip_breaks(text, position, end, indent)
    if chomping != "-":
        result.extend(leading)
    if chomping == "+":
        result.extend(trailing)
    return result


def _skip_breaks(text: str, position: int, end: int, indent: int) -> tuple[int, int, list[Located]]:
    """Skip indentation and empty lines; return the end, its column, and the skipped breaks."""
    breaks: list[Located] = []
    while True:
        column = 0
        while position < end and column < indent and text[position] == " ":
            position += 1
            column += 1
        if position >= end or text[position] not in _BREAKS:
            return position, column, breaks
        character, following = _read_break(text, position)
        breaks.append((character, position))
        position = following
