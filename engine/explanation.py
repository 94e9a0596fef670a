"""Explanations of decisions as trees of findings: one structure for people, machines, HTTP and events.

A finding is a line of text, its kind, and its facts; its children are the findings that it follows from. Schedulers,
QoS managers and deschedulers make such trees; nothing here depends on them.
"""

from __future__ import annotations

import enum
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from koordpolicy.engine.escaping import one_line, visible
from koordpolicy.engine.texts import beginning

_INDENT: Final = "  "
_GAP: Final = "  "
_BINARY: Final = (("Ti", 1024**4), ("Gi", 1024**3), ("Mi", 1024**2), ("Ki", 1024))
_WHOLE: Final = 1 - 0.0005 / 1024
_LONGEST: Final = 300
MOST_PARTS: Final = 1_000_000
"""The maximum number of elements and entries of a value that are written out."""
_REST: Final = "..."
_NARROWEST: Final = 30


class Mark(enum.Enum):
    """The mark of a finding; the value is the word before its text, and its name in JSON."""

    PASSED = "passed"
    REFUSED = "refused"
    ERROR = "error"
    WATCHED = "would refuse"
    """A finding of a plugin that does not enforce (`enforcement: Warn` or `Audit`)."""
    CHANGE = "change"
    """A change that would change the outcome, and has been tried."""
    HEADING = "heading"
    PLAIN = ""


_WORDS: Final = (Mark.PASSED, Mark.REFUSED, Mark.ERROR, Mark.WATCHED)
_WIDTH: Final = max(len(mark.value) for mark in (Mark.PASSED, Mark.REFUSED, Mark.ERROR))

Paint: TypeAlias = Callable[[str, Mark], str]
"""Colours a piece of a line (never its indentation)."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with headers; columns of numbers are aligned to the right."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str | int, ...], ...]

    def lines(self) -> Iterator[str]:
        """Yield the lines, as wide as they need to be."""
        cells = [tuple(one_line(str(cell)) for cell in row) for row in (self.headers, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        numeric = [not any(any(map(str.isalpha, cell)) for cell in column[1:])
                   for column in zip(*cells, strict=True)]
        for row in cells:
            yield _GAP.join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, numeric, strict=True)
            ).rstrip()


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding, and the findings that it follows from.

    `kind` is its topic (`decision`, `node`, `plugin`, `rule`, `distance`, `value`, `change`, ...); `facts` are plain
    data for machines: names, numbers, values.
    """

    kind: str
    text: str = ""
    mark: Mark = Mark.PLAIN
    facts: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Finding, ...] = ()
    table: Table | None = None
    lead: str = ""
    """The text's prefix (a number, a dash); the children are indented by its width."""

    def as_text(self, paint: Paint = lambda text, _: text, *, width: int = 0) -> str:
        """Return the tree as lines for people, without a line break at the end.

        Texts are wrapped at `width` columns, between words; 0 means no wrapping. Tables are not wrapped.
        """
        return "\n".join(self.lines("", paint, width))

    def to_json(self) -> dict[str, Any]:
        """Return the tree as plain data; `truncated` is set on a finding with too many facts to include all."""
        data: dict[str, Any] = {"kind": self.kind}
        if self.text:
            data["text"] = self.text
        if self.mark in _WORDS:
            data["outcome"] = self.mark.name.lower()
        facts, cut = plain_or_cut(self.facts)
        data |= {key: value for key, value in facts.items() if key not in data and key != "parts"}
        if cut:
            data["truncated"] = True
        if self.table is not None:
            data["rows"] = [dict(zip(self.table.headers, row, strict=True)) for row in self.table.rows]
        if self.parts:
            data["parts"] = [part.to_json() for part in self.parts]
        return data

    def find(self, kind: str) -> Iterator[Finding]:
        """Yield all findings of a kind in this tree, in order."""
        if self.kind == kind:
            yield self
        for part in self.parts:
            yield from part.find(kind)

    def lines(self, indent: str, paint: Paint, width: int = 0) -> Iterator[str]:
        """Yield the lines of `as_text`, indented."""
        below = indent
        if self.mark is Mark.HEADING:
            if not (self.parts or self.table):
                return
            yield ""
            yield indent + paint(one_line(self.text), self.mark)
            below = indent + _INDENT
        elif self.text:
            lead = f"{self.mark.value.ljust(_WIDTH)}  " if self.mark in _WORDS else self.lead
            word = lead.rstrip()
            for place, line in enumerate(self._wrapped(width - len(indent) - len(lead) if width else 0)):
                before = paint(word, self.mark) + lead[len(word):] if word and not place else " " * len(lead)
                yield indent + before + (paint(line, self.mark) if not lead else line)
            below = indent + (" " * len(lead) or _INDENT)
        if self.table is not None:
            for place, line in enumerate(self.table.lines()):
                yield below + (paint(line, Mark.HEADING) if place == 0 else line)
        for part in self.parts:
            yield from part.lines(below, paint, width)

    def _wrapped(self, width: int) -> Iterator[str]:
        for line in visible(self.text).splitlines():
            if not width or len(line) <= width:
                yield line
            else:
                yield from textwrap.wrap(line, max(width, _NARROWEST), break_long_words=False, break_on_hyphens=False)


def heading(text: str, parts: Sequence[Finding] = (), *, table: Table | None = None, kind: str = "part") -> Finding:
    """Return a heading over other findings; without any it is not shown."""
    return Finding(kind, text, Mark.HEADING, {}, tuple(parts), table)


def shown(value: object, unit: str = "") -> str:
    """Return a value as text for people: `1.5 cores`, `2Gi`, `71 %`, `200 s`, `'eu-1'`.

    `unit` is `milli-cores`, `cores`, `bytes`, `seconds`, `%`, or empty if it is not known.
    """
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return repr(shortened(value))
    if not isinstance(value, int | float):
        return shortened(str(plain(value, _LONGEST)))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    match unit:
        case "milli-cores":
            return _cores(value / 1000)
        case "cores":
            return _cores(value)
        case "bytes":
            # A value that rounds to 1024 of the smaller unit is 1 of the larger.
            return next((f"{_short(value / size)}{suffix}" for suffix, size in _BINARY if abs(value) >= size * _WHOLE),
                        f"{_short(value)} bytes")
        case "seconds":
            return f"{_short(value)} s"
        case "%":
            return f"{_short(value)} %"
        case _:
            return _short(value)


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and the number of the others."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def left_out(number: int, thing: str) -> Finding:
    """Return the finding that ends a truncated list: the number of the others, in words and as `leftOut`."""
    return Finding("more", f"and {counted(number, f'more {thing}')}", facts={"leftOut": number})


def counted(number: int, thing: str) -> str:
    """Return `1 node`, `2,000 nodes`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Return a text on one line and of bounded length."""
    line = " ".join(text.split())
    return beginning(line, longest)


def plain(value: object, most: int = MOST_PARTS) -> Any:
    """Return a value as JSON data; values without a JSON form become their text.

    Parts may be shared many times: after `most` parts the rest is replaced by `...`.
    """
    return plain_or_cut(value, most)[0]


def plain_or_cut(value: object, most: int = MOST_PARTS) -> tuple[Any, bool]:
    """Return the value as `plain` does, and whether it was truncated."""
    left = _PartBudget(most)
    return _plain(value, left), left.cut


@dataclass(slots=True)
class _PartBudget:
    """The remaining number of parts to include, and whether there were more."""

    parts: int
    cut: bool = False

    def exhausted(self) -> bool:
        self.cut = self.cut or self.parts <= 0
        return self.parts <= 0


def _plain(value: object, left: _PartBudget) -> Any:
    left.parts -= 1
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        entries = {}
        for key, each in value.items():
            if left.exhausted():
                entries[_REST] = _REST
                break
            entries[str(key)] = _plain(each, left)
        return entries
    if isinstance(value, list | tuple | set | frozenset):
        items = []
        for each in value:
            if left.exhausted():
                items.append(_REST)
                break
            items.append(_plain(each, left))
        return items
    return value.hex() if isinstance(value, bytes) else str(value)


def _cores(value: float) -> str:
    return f"{_short(value)} core{'' if value == 1 else 's'}"


def _short(value: float) -> str:
    """Return a number with few significant digits; whole numbers keep all of them."""
    if value == int(value):
        return str(int(value))
    return f"{value:.3f}".rstrip("0").rstrip(".") if abs(value) >= 0.001 else f"{value:.3g}"
