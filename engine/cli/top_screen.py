"""The screen of `top`: which part of a frame is shown, the keys that change that, and their list."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

ENDS: Final = ("q", "Q", "\x03", "\x04")
"""The keys that end the command."""
HELP: Final = (
    "1 2 3 4         all, servers with all their problems, nodes, waiting pods",
    "Tab             the next of these",
    "j, down         a row down",
    "k, up           a row up",
    "space, PgDn     a page down",
    "b, PgUp         a page up",
    "g, Home         the first row",
    "G, End          the last row",
    "?               this list; any key closes it",
    "q, Ctrl-C       quit",
)
"""The keys, a line each."""


class Part(enum.Enum):
    """The part of a frame that is shown."""

    ALL = "all"
    SERVERS = "servers"
    NODES = "nodes"
    PODS = "pods"


@dataclass(slots=True)
class TopScreen:
    """The part of a frame that is shown, from a row on. `page` and `last` are set when it is drawn."""

    part: Part = Part.ALL
    offset: int = 0
    """The number of rows above the first one that is shown."""
    helping: bool = False
    page: int = 1
    """The number of rows that fit."""
    last: int = 0
    """The greatest offset at which all rows that fit are there."""

    def press(self, key: str) -> None:
        """Change what is shown by a key; one without a meaning changes nothing."""
        if self.helping:
            self.helping = False
        elif key == "?":
            self.helping = True
        elif key in _PARTS:
            self._show(_PARTS[key])
        elif key == "\t":
            parts = list(Part)
            self._show(parts[(parts.index(self.part) + 1) % len(parts)])
        elif key in _MOVES:
            self.offset = min(max(0, _MOVES[key](self)), self.last)

    def fit(self, rows: int, room: int) -> None:
        """Note that so many rows are there, and how many of them fit; the offset is corrected."""
        self.page, self.last = max(1, room), max(0, rows - room)
        self.offset = min(self.offset, self.last)

    def _show(self, part: Part) -> None:
        self.part, self.offset = part, 0


_PARTS: Final[Mapping[str, Part]] = MappingProxyType(dict(zip("1234", Part, strict=True)))
_DOWN: Final = ("j", "\x1b[B", "\x1bOB")
_UP: Final = ("k", "\x1b[A", "\x1bOA")
_PAGE_DOWN: Final = (" ", "\x1b[6~")
_PAGE_UP: Final = ("b", "\x1b[5~")
_FIRST: Final = ("g", "\x1b[H", "\x1b[1~", "\x1bOH")
_LAST: Final = ("G", "\x1b[F", "\x1b[4~", "\x1bOF")
_MOVES: Final[Mapping[str, Callable[[TopScreen], int]]] = MappingProxyType({
    **dict.fromkeys(_DOWN, lambda screen: screen.offset + 1), **dict.fromkeys(_UP, lambda screen: screen.offset - 1),
    **dict.fromkeys(_PAGE_DOWN, lambda screen: screen.offset + screen.page),
    **dict.fromkeys(_PAGE_UP, lambda screen: screen.offset - screen.page),
    **dict.fromkeys(_FIRST, lambda _: 0), **dict.fromkeys(_LAST, lambda screen: screen.last),
})
