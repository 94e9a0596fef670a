"""The number of parts that `split` returns at least, for texts that contain a known text or match a known pattern."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

_LONGEST_TEXT: Final = 256
_LONGEST_SEPARATOR: Final = 4
"""The maximum length of the separators of which a test guarantees anything."""
_MOST_REPEATED: Final = 16
_DEEPEST: Final = 32
_QUANTIFIER: Final = re.compile(r"([*+?])|\{(\d{1,3})(,(\d{0,3}))?\}")
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]")
_META: Final = frozenset("()[]{}*+?|^$.\\")

_Piece: TypeAlias = "str | tuple[_Sequence, ...]"
_Sequence: TypeAlias = "list[_Piece]"
"""The contents of every match, in order: a text, or one of several sequences. An empty text separates two texts that
need not be adjacent."""


def parts_with(text: str) -> Mapping[str, int]:
    """Return by separator the number of parts of any text that contains `text`; other separators guarantee one."""
    return {each: _parts(text, each) for each in _separators([text])}


def parts_matching(pattern: str) -> Mapping[str, int] | None:
    """Return by separator the number of parts of any text that a pattern matches; None if the pattern is not simple."""
    if len(pattern) > _LONGEST_TEXT:
        return None
    reader = _PatternReader(pattern)
    try:
        found = reader.alternatives()
    except _NotSimpleError:
        return None
    if reader.place != len(pattern):
        return None
    return {each: number for each in _separators(_texts(found)) if (number := _least(found, each) + 1) > 1}


def _parts(text: str, separator: str) -> int:
    return text.count(separator) + 1 if separator else len(text)


def _separators(texts: Iterator[str] | list[str]) -> frozenset[str]:
    return frozenset(
        text[start:start + length]
        for text in (each[:_LONGEST_TEXT] for each in texts) for start in range(len(text))
        for length in range(1, min(_LONGEST_SEPARATOR, len(text) - start) + 1)
    )


def _texts(alternatives: tuple[_Sequence, ...]) -> Iterator[str]:
    for sequence in alternatives:
        for adjacent, text in itertools.groupby(sequence, key=lambda each: isinstance(each, str) and each != ""):
            if adjacent:
                yield "".join(map(str, text))
        for each in sequence:
            if not isinstance(each, str):
                yield from _texts(each)


def _least(alternatives: tuple[_Sequence, ...], separator: str) -> int:
    """Return how often a separator is in any match at least."""
    return min(_least_of(sequence, separator) for sequence in alternatives)


def _least_of(sequence: _Sequence, separator: str) -> int:
    texts = [""]
    inside = 0
    for each in sequence:
        if isinstance(each, str) and each:
            texts[-1] += each
        else:
            texts.append("")
            inside += 0 if isinstance(each, str) else _least(each, separator)
    return inside + sum(text.count(separator) for text in texts)


class _NotSimpleError(Exception):
    """The pattern has a part that is not followed here."""


@dataclass(slots=True)
class _PatternReader:
    """Reads the subset of RE2's patterns that policies use."""

    pattern: str
    place: int = 0
    _depth: int = field(default=0)

    def alternatives(self) -> tuple[_Sequence, ...]:
        """Return the sequences of a pattern up to its end, or to the parenthesis that ends a group."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _NotSimpleError
        found = [self._sequence()]
        while self._next() == "|":
            self.place += 1
            found.append(self._sequence())
        self._depth -= 1
        return tuple(found)

    def _next(self) -> str:
        return self.pattern[self.place:self.place + 1]

    def _sequence(self) -> _Sequence:
        found: _Sequence = []
        while (sign := self._next()) and sign not in "|)":
            found.extend(self._repeated(self._piece()))
        return found

    def _piece(self) -> _Piece:
        sign = self._next()
        self.place += 1
        if sign in "^$.":
            return ""
        if sign == "(":
            return self._group()
        if sign == "[":
            return self._class()
        if sign == "\\":
            return self._escape()
        if sign in _META:
            raise _NotSimpleError
        return sign

    def _group(self) -> _Piece:
        if self._next() == "?":
            named = re.compile(r"\?:|\?P?<\w+>").match(self.pattern, self.place)
            if named is None:  # flags change what the group matches
                raise _NotSimpleError
            self.place = named.end()
        found = self.alternatives()
        if self._next() != ")":
            raise _NotSimpleError
        self.place += 1
        return found

    def _class(self) -> _Piece:
        found = _CLASS.match(self.pattern, self.place - 1)
        if found is None:
            raise _NotSimpleError
        self.place = found.end()
        inside = found[0][1:-1]
        if len(inside) == 2 and inside[0] == "\\" and not inside[1].isalnum():
            return inside[1]
        return inside if len(inside) == 1 else ""

    def _escape(self) -> _Piece:
        sign = self._next()
        self.place += 1
        if sign in tuple("dDwWsSbBAz"):
            return ""
        if not sign or sign.isalnum():
            raise _NotSimpleError
        return sign

    def _repeated(self, piece: _Piece) -> _Sequence:
        found = _QUANTIFIER.match(self.pattern, self.place)
        body = piece[0] if isinstance(piece, tuple) and len(piece) == 1 else [piece]
        if found is None:
            return body
        self.place = found.end() + (self.pattern[found.end():found.end() + 1] == "?")
        least = {"*": 0, "?": 0, "+": 1}[found[1]] if found[1] else int(found[2])
        exact = found[2] is not None and found[3] is None
        copies = body * min(least, _MOST_REPEATED)
        if len(copies) > _LONGEST_TEXT:
            raise _NotSimpleError
        return copies if exact and least <= _MOST_REPEATED else [*copies, ""]
