"""Sources, spans in them, and problems with places.

All user text is read as a `Source`. An expression inside a YAML scalar is a *part* of its file: it has, for each of its
characters, the offset in the file, so that a problem at the third letter of a folded, escaped, re-indented CEL string
points at the right column of the file.
"""

from __future__ import annotations

import bisect
import difflib
import enum
import hashlib
import heapq
import itertools
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from koordpolicy.engine.escaping import one_line, visible

_HINTS = {
    "mapping values are not allowed in this context": "is the line before indented right, or a string not quoted?",
    "could not find expected ':'": "is there a `:` behind the key, or a string not quoted?",
    "did not find expected key": "is the line indented as the keys around it, or a string not quoted as a whole?",
    "did not find expected ',' or '}'": "is a `,` or `}` missing, or an expression not quoted?",
    "did not find expected ',' or ']'": "is a `,` or `]` missing, or an expression not quoted?",
    "did not find expected comment or line break": "is that an expression not quoted?",
    "did not find expected alphabetic or numeric character": "is that an expression not quoted?",
    "did not find expected node content": "is a value missing there, or the file cut off?",
    "found unexpected end of stream": "is a quote or bracket not closed, or the file cut off?",
}
_EXCERPT_WIDTH = 160
_MESSAGE_WIDTH = 1000
_SHOWN_PROBLEMS = 100
_HASHED_AT_ONCE = 1 << 18
_MOST_LOOKED_AT = 2000
_MOST_COMPARED = 200
_LONGEST_WORD = 64
_MOST_CHARACTER_PAIRS = 20_000
"""Above this product of lengths only the most alike words are compared: difflib takes 0.5 ms for two long ones."""
_MOST_ALIKE = 4


class Severity(enum.IntEnum):
    """The severity of a problem: only an error keeps a document from running."""

    ERROR = 0
    WARNING = 1
    NOTE = 2


@dataclass(frozen=True, eq=False)
class Source:
    """A text with a display name (a path as given, `<expression>`, a URL).

    A part of another source (see `part`) has a `parent` and one parent offset per character plus one for its end.
    """

    name: str
    text: str = field(repr=False)
    parent: Source | None = field(default=None, repr=False)
    offsets: Sequence[int] = field(default=(), repr=False)
    field_at: Callable[[int], str] | None = field(default=None, repr=False)
    """Returns the path of the field at an offset, for the text of an API object: its lines are known to nobody."""

    @cached_property
    def digest(self) -> bytes:
        """The sha256 of the text; in pieces, since the hash that Python computes of 10 MB holds the interpreter."""
        found = hashlib.sha256()
        for first in range(0, len(self.text), _HASHED_AT_ONCE):
            found.update(self.text[first:first + _HASHED_AT_ONCE].encode("utf-8", "surrogatepass"))
        return found.digest()

    @cached_property
    def _line_starts(self) -> list[int]:
        # Only LF ends a line (CRLF keeps its CR at the end of the line): str.splitlines knows too many separators.
        starts = [0]
        position = self.text.find("\n")
        while position != -1:
            starts.append(position + 1)
            position = self.text.find("\n", position + 1)
        return starts

    def part(self, text: str, offsets: Sequence[int]) -> Source:
        """Return `text` as a part of this source; `offsets[i]` is the offset of character i in this source.

        `len(offsets)` is `len(text) + 1`: the last one is the end of the part.
        """
        if len(offsets) != len(text) + 1:
            raise ValueError(f"a part of {len(text)} characters needs {len(text) + 1} offsets, got {len(offsets)}")
        return Source(self.name, text, self, offsets)

    def span(self, start: int, end: int | None = None) -> Span:
        """Return the span from `start` to `end` (default: one character)."""
        return Span(self, start, start + 1 if end is None else end)

    def whole(self) -> Span:
        """Return the span of the whole text."""
        return Span(self, 0, len(self.text))

    def position(self, offset: int) -> tuple[int, int]:
        """Return the 1-based (line, column) of `offset` in this text; columns count code points."""
        offset = max(0, min(offset, len(self.text)))
        line = bisect.bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def line(self, number: int) -> str:
        """Return the text of the 1-based line `number` without its end."""
        start = self._line_starts[number - 1]
        end = self.text.find("\n", start)
        return self.text[start : len(self.text) if end == -1 else end].rstrip("\r")


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` (included) to `end` (excluded) of a source."""

    source: Source
    start: int
    end: int

    def root(self) -> Span:
        """Return the same span in the file that the source is a part of."""
        span = self
        while span.source.parent is not None:
            offsets = span.source.offsets
            last = len(offsets) - 1
            start = offsets[min(span.start, last)]
            # The end is one past the last character *of the part*, not the start of the next character of the file.
            end = offsets[min(span.end, last) - 1] + 1 if span.end > span.start else start
            span = Span(span.source.parent, start, max(start, end))
        return span

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.source.name

    @property
    def place(self) -> tuple[str, int, int]:
        """File, 1-based line, 1-based column: the sort key of problems."""
        root = self.root()
        line, column = root.source.position(root.start)
        return root.source.name, line, column

    @property
    def field(self) -> str | None:
        """The path of the field, such as `spec.filter[0].expression`, in an API object; None in a file."""
        root = self.root()
        return None if root.source.field_at is None else root.source.field_at(root.start)

    def __str__(self) -> str:
        name, line, column = self.place
        field = self.field
        return f"{name}:{line}:{column}" if field is None else f"{name}: {field}" if field else name


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: the fault, its position, and help.

    `message` is a lower-case fragment without a full stop, with the user's text in backticks; `help` says what to do.
    `code` is a stable identifier for machines (`yaml-syntax`, `unknown-field`, `cel-type`, ...).
    """

    message: str
    span: Span | None = None
    help: str = ""
    severity: Severity = Severity.ERROR
    code: str = ""

    def render(self) -> str:
        """Return the problem as text for people: place, message, the line, a caret and the help."""
        level = self.severity.name.lower()
        message = one_line(self.message)
        if len(message) > _MESSAGE_WIDTH:  # the message quotes a word of thousands of characters
            message = f"{message[: _MESSAGE_WIDTH // 2]} ... {message[-_MESSAGE_WIDTH // 2 :]}"
        if self.span is None:
            return f"{level}: {message}" + (f"\n  = {self.help}" if self.help else "")
        root = self.span.root()
        _, line, column = self.span.place
        head = f"{one_line(str(self.span))}: {level}: {message}"
        number = str(line) if root.source.field_at is None else ""
        text = root.source.line(line)
        # A very long line (minified JSON) is shown around the fault only.
        first = max(0, column - 1 - _EXCERPT_WIDTH // 2) if len(text) > _EXCERPT_WIDTH else 0
        shown = text[first : first + _EXCERPT_WIDTH]
        shown = "".join(c if c == "\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in visible(shown))
        width = max(1, min(root.end - root.start, len(text) - column + 1, len(shown) - (column - 1 - first)))
        blank = "".join(_blank(c) for c in shown[: column - 1 - first])
        gutter = len(number) + 1
        hint = f" {self.help}" if self.help else ""
        return f"{head}\n {number} | {shown}\n{' ' * gutter} | {blank}{'^' * width}{hint}"

    def to_json(self) -> dict[str, object]:
        """Return the problem as plain data for `--output json`."""
        result: dict[str, object] = {"severity": self.severity.name.lower(), "code": self.code, "message": self.message}
        if self.help:
            result["help"] = self.help
        if self.span is not None:
            root = self.span.root()
            file, line, column = self.span.place
            if (field := self.span.field) is not None:
                return result | {"file": file, "field": field}
            end_line, end_column = root.source.position(root.end)
            result |= {"file": file, "line": line, "column": column, "endLine": end_line, "endColumn": end_column}
        return result


def _blank(character: str) -> str:
    """Return blanks as wide as the character in a terminal."""
    if character == "\t":
        return "\t"
    if character.isascii():
        return " "
    if unicodedata.combining(character):
        return ""
    return "  " if unicodedata.east_asian_width(character) in "WF" else " "


class PolicyError(Exception):
    """One or more problems that keep a set of policies from running; sorted by place, never empty."""

    problems: tuple[Problem, ...]

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = in_order(problems)
        super().__init__(render(self.problems))


@dataclass(slots=True)
class Problems:
    """A collection of problems, reported together."""

    found: list[Problem] = field(default_factory=list)

    def add(
        self, message: str, span: Span | None = None, *, help: str = "", severity: Severity = Severity.ERROR,  # noqa: A002 - as `Problem` calls it
        code: str = "",
    ) -> None:
        """Add a problem."""
        self.found.append(Problem(message, span, help, severity, code))

    def extend(self, problems: Iterable[Problem]) -> None:
        """Add the problems of another stage."""
        self.found.extend(problems)

    @property
    def errors(self) -> bool:
        """True if any problem is an error."""
        return any(problem.severity is Severity.ERROR for problem in self.found)

    def raise_errors(self) -> None:
        """Raise `PolicyError` with all problems, if any of them is an error."""
        if self.errors:
            raise PolicyError(self.found)


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems without repetitions, sorted by file, line, column, severity and message."""

    def place(problem: Problem) -> tuple[tuple[str, int, int], int, str]:
        return problem.span.place if problem.span else ("", 0, 0), problem.severity, problem.message

    unique = {(place(problem), problem.help): problem for problem in problems}
    return tuple(sorted(unique.values(), key=place))


def first_problems(problems: Sequence[Problem], most: int) -> tuple[Problem, ...]:
    """Return the first problems; if there are more, then another one says so at the place of the next of them."""
    if len(problems) <= most:
        return tuple(problems)
    return (*problems[:most], replace(
        problems[most], message=f"there are more than {most:,} problems: from this one on they are not listed",
        help="they are listed once the others are mended"))


def render(problems: Sequence[Problem]) -> str:
    """Return the problems as text, at most a hundred of them, and how many are left out: the less severe ones first."""
    severe = most_severe([problem.severity for problem in problems], _SHOWN_PROBLEMS)
    shown = [problems[index].render() for index in severe]
    if len(problems) > len(shown):
        shown.append(f"... and {len(problems) - len(shown)} more")
    return "\n".join(shown)


def most_severe(severities: Sequence[Severity], most: int) -> list[int]:
    """Return the indices of at most `most` entries in their order; the less severe ones are left out first."""
    ranked = sorted(range(len(severities)), key=lambda index: (severities[index], index))
    return sorted(ranked[:most])


def syntax_hint(text: str, offset: int, message: str) -> str:
    """Return a likely cause of a fault of syntax that YAML's parser reports; empty if none is known."""
    return "indent with spaces: YAML allows no tabs there" if text.startswith("\t", offset) else _HINTS.get(message, "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "did you mean `x`?" for the known word nearest to `word`, or an empty string if none is near."""
    if len(word) > _LONGEST_WORD:  # not a typing mistake
        return ""
    # A long text may have many mistakes and many names, so their product is bounded.
    names = list(itertools.islice(known, _MOST_LOOKED_AT))
    if len(names) > _MOST_COMPARED:
        names = [each for each in names if abs(len(each) - len(word)) <= 2][:_MOST_COMPARED]
    words = {each.lower(): each for each in names}
    if len(word) * sum(map(len, words)) > _MOST_CHARACTER_PAIRS:
        words = _most_alike(word.lower(), words)
    near = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    return f"did you mean `{words[near[0]]}`?" if near else ""


def _most_alike(word: str, words: Mapping[str, str]) -> dict[str, str]:
    """Return the few words that share most pairs of neighbouring characters with a word."""
    pairs = set(itertools.pairwise(word))
    shared = {each: len(pairs.intersection(itertools.pairwise(each))) for each in words if len(each) <= _LONGEST_WORD}
    return {each: words[each] for each in heapq.nlargest(_MOST_ALIKE, shared, key=shared.__getitem__)}
