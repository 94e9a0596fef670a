"""The layout of YAML: indentation, blanks within lines, empty lines and comments.

The tokens of the parser say where each line and each blank may change. Their text does not change, nor do their order
and the breaks of lines, so that comments and the author's tables remain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.source import Source

from .edits import Replacement

_STEP: Final = 2
"""The blanks by which a level is indented."""
_HEADER: Final = re.compile(r"[|>]([-+]?)([1-9]?)([-+]?)([ \t]*)(#[^\n]*)?")
_OPENING: Final = frozenset(("FlowSequenceStartToken", "FlowMappingStartToken"))
_CLOSING: Final = frozenset(("FlowSequenceEndToken", "FlowMappingEndToken"))


@dataclass(slots=True)
class _Block:
    """A list or a mapping in block style that is open: its column before and after."""

    old: int
    new: int
    is_list: bool
    has_items: bool = False
    """True in the value of a mapping's key that is a list with its dashes under the key."""


@dataclass(frozen=True, slots=True)
class _Line:
    """The column of the first token of a line, before and after."""

    old: int
    new: int


def layout_edits(source: Source) -> Iterator[Replacement]:
    """Return the edits that give a readable YAML text, whose line breaks are LF, the standard layout."""
    return _Layout(source.text).edits()


def _tokens(text: str) -> Iterator[Any]:
    import yaml  # noqa: PLC0415 - not every command reads YAML

    loader: Any = getattr(yaml, "CLoader", yaml.Loader)
    scanner = loader(text)
    try:
        while (token := scanner.get_token()) is not None:
            yield token
    finally:
        scanner.dispose()


class _Layout:
    def __init__(self, text: str) -> None:
        self.text = text
        self.blocks: list[_Block] = []
        self.blocks_before: tuple[tuple[int, int], ...] = ()
        """Columns of the blocks that were open after the previous token, before and after."""
        self.flow = 0
        self.shift = 0
        """By how much the current line moves to the right."""
        self.flow_shift = 0
        self.last = ""
        """The kind of the previous token that has text."""
        self.end = 0
        self.is_open_end = False

    def edits(self) -> Iterator[Replacement]:
        for token in _tokens(self.text):
            kind = type(token).__name__
            start, end = token.start_mark.index, token.end_mark.index
            if kind == "BlockEndToken":
                self.blocks.pop()
            elif kind in ("BlockMappingStartToken", "BlockSequenceStartToken"):
                self.open(token.start_mark.column, is_list=kind == "BlockSequenceStartToken")
            elif kind == "KeyToken" and not self.flow and self.blocks:
                self.blocks[-1].has_items = False
            if start == end and kind not in ("ScalarToken", "StreamEndToken"):
                continue
            yield from self.token(kind, token, start, end)

    def open(self, column: int, *, is_list: bool) -> None:
        """Begin a block; a list stands under its key, all else is indented."""
        new = 0
        if self.blocks:
            above = self.blocks[-1]
            new = above.new + (0 if is_list and not above.is_list and not above.has_items else _STEP)
        self.blocks.append(_Block(column, new, is_list))

    def token(self, kind: str, token: Any, start: int, end: int) -> Iterator[Replacement]:
        if kind == "BlockEntryToken" and self.blocks and not self.blocks[-1].is_list:
            self.blocks[-1].has_items = True
        line = self.text.rfind("\n", 0, start) + 1
        if kind == "StreamEndToken":
            yield from self.gap(len(self.text), _Line(-1, 0))
            return
        if self.last == "" or line >= self.end:
            column = start - line
            new = self.indentation(kind, column)
            yield from self.gap(line, _Line(column, new))
            if self.text[line:start] != " " * new:
                yield Replacement(line, start, " " * new)
            self.shift = new - column
        elif (standard := self.inline(kind)) != self.text[self.end:start]:
            yield Replacement(self.end, start, standard)
        if kind in _OPENING:
            if self.flow == 0:
                self.flow_shift = self.shift
            self.flow += 1
        elif kind in _CLOSING:
            self.flow -= 1
        self.end, self.is_open_end = end, False
        if kind == "ScalarToken" and token.style in ("|", ">"):
            yield from self.block_scalar(start, end)
        elif kind == "ScalarToken" and "\n" in self.text[start:end]:
            yield from self.continued(start, end, is_plain=token.plain)
        self.last = kind
        self.blocks_before = tuple((each.old, each.new) for each in self.blocks)

    def indentation(self, kind: str, column: int) -> int:
        """Return the new column of a token that begins a line."""
        if self.flow:
            return max(0, column + self.flow_shift)
        if not self.blocks or kind in ("DocumentStartToken", "DocumentEndToken", "DirectiveToken"):
            return 0
        block = self.blocks[-1]
        is_first = kind == "BlockEntryToken" or (not block.is_list and column == block.old)
        return block.new if is_first else block.new + _STEP

    def inline(self, kind: str) -> str:
        """Return the blanks between the previous token and one of this kind in the same line."""
        last = self.last
        if last in _OPENING:
            return ""
        if last == "ValueToken":
            return " "
        if kind in _CLOSING or kind == "FlowEntryToken":
            return ""
        if kind == "ValueToken" and last not in ("AliasToken", "KeyToken", "FlowEntryToken", "AnchorToken", "TagToken"):
            return ""
        return " "

    def gap(self, stop: int, following: _Line) -> Iterator[Replacement]:
        """Yield the edits of comments and empty lines from the previous token to the line of the next one."""
        text, position = self.text, self.end
        if position and text[position - 1] != "\n":
            position = text.find("\n", position, stop)
            rest = text[self.end:position if position >= 0 else stop]
            yield from self.rest(self.end, rest, at_end=position < 0 and not self.is_open_end)
            if position < 0:
                return
            position += 1
        blank: Replacement | None = None
        begun = self.last != ""
        while position < stop:
            end = text.find("\n", position, stop)
            end = stop if end < 0 else end + 1
            comment = text[position:end].strip(" \t\n")
            if comment:
                if blank is not None:
                    yield blank._replace(text="\n" if begun else "")
                    blank = None
                lead = len(text[position:end]) - len(text[position:end].lstrip(" \t"))
                standard = f"{' ' * self.comment_column(lead, following)}{comment}\n"
                if standard != text[position:end]:
                    yield Replacement(position, end, standard)
                begun = True
            else:
                blank = Replacement(position if blank is None else blank.start, end, "")
            position = end
        if blank is not None:
            ends = following.old < 0
            standard = "\n" if begun and not ends else ""
            if text[blank.start:blank.end] != standard:
                yield blank._replace(text=standard)

    def rest(self, start: int, rest: str, *, at_end: bool) -> Iterator[Replacement]:
        """Yield the edits of the text behind the last token of a line: blanks and a comment."""
        comment = rest.lstrip(" \t")
        lead = rest[:len(rest) - len(comment)]
        standard = ("  " if "\t" in lead else lead) + comment.rstrip(" \t") if comment else ""
        if at_end:
            standard += "\n"
        if standard != rest:
            yield Replacement(start, start + len(rest), standard)

    def comment_column(self, column: int, following: _Line) -> int:
        """Return the new column of a comment that has its own line: that of what it stands with."""
        if self.flow:
            return max(0, column + self.flow_shift)
        deepest = self.blocks_before[-1][0] if self.blocks_before else -1
        if column == following.old or following.old > deepest:
            return following.new
        above = [new for old, new in self.blocks_before if old <= column]
        return above[-1] if above else following.new

    def block_scalar(self, start: int, end: int) -> Iterator[Replacement]:
        """Indent the lines of a block scalar by one level under the key or the dash that it belongs to."""
        text = self.text
        header = _HEADER.match(text, start)
        assert header is not None, "the scanner read a header"
        if header[4] and (header[5] is None or "\t" in header[4]):
            yield Replacement(header.start(4), header.end(4), "  " if header[5] else "")
        first = text.find("\n", start) + 1
        if not first:
            self.end = len(text) if header[5] is None else header.end()
            return
        block = self.blocks[-1] if self.blocks else _Block(0, 0, is_list=False)
        lines = text[first:end].removesuffix("\n").split("\n")
        found = [len(each) - len(each.lstrip(" ")) for each in lines if each.strip(" ")]
        if header[2]:
            old, new = block.old + int(header[2]), block.new + int(header[2])
        elif found:
            old, new = found[0], block.new + _STEP
        else:
            old = new = max(map(len, lines))
        keeps = "+" in (header[1], header[3])
        # Lines behind the last one with content are empty lines of the file.
        last = max((number for number, each in enumerate(lines) if each.strip(" ") or len(each) > old), default=-1)
        position = first
        for number, each in enumerate(lines):
            if number > last and not keeps:
                break
            stripped = each.lstrip(" ")
            standard = " " * (new + len(each) - len(stripped) - old) if stripped or len(each) > old else ""
            lead = len(each) - len(stripped)
            if each[:lead] != standard:
                yield Replacement(position, position + lead, standard)
            position = min(position + len(each) + 1, len(text))
        self.end = position
        # Of a text without a last line break, adding one would add it to the value.
        strips = "-" in (header[1], header[3])
        self.is_open_end = position == len(text) and (keeps or not (strips or text.endswith("\n")))

    def continued(self, start: int, end: int, *, is_plain: bool) -> Iterator[Replacement]:
        """Move the further lines of a plain or quoted scalar with its first one."""
        text = self.text
        shift = self.flow_shift if self.flow else self.shift
        position = text.find("\n", start, end) + 1
        while position:
            following = text.find("\n", position, end)
            line = text[position:end if following < 0 else following]
            content = line.lstrip(" \t")
            column = len(line) - len(content)
            standard = " " * max(0, column + shift) if content else ""
            if line[:column] != standard:
                yield Replacement(position, position + column, standard)
            position = following + 1
        if is_plain:
            for match in re.finditer(r"(?<=[^ \t\n])[ \t]+(?=\n)", text[start:end]):
                yield Replacement(start + match.start(), start + match.end(), "")
