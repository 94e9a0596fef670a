from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

_VOID = {"meta", "br", "input", "link", "img", "hr", "wbr"}


class Page(HTMLParser):
    """A page taken to pieces: tags must close in order; what it links to, its tables, its tiles and its data."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.tiles: dict[str, str] = {}
        self.headings: list[str] = []
        self.data: dict[str, object] = {}
        self.scripts: list[str] = []
        self._text: list[str] = []
        self._id = ""
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in _VOID:
            return
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th", "h1", "h2", "dt", "dd", "script", "style"):
            self._text = []
            self._id = dict(attrs).get("id") or ""

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self._text.append(data)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        text = "".join(self._text)
        if tag in ("td", "th"):
            self.tables[-1][-1].append(text.strip())
        if tag in ("h1", "h2"):
            self.headings.append(text)
        if tag == "dt":
            self._name = text
        if tag == "dd":
            self.tiles[self._name] = text
        if tag == "script" and self._id:
            self.data[self._id] = json.loads(text)
        elif tag == "script":
            self.scripts.append(text)
        if tag in ("td", "th"):
            self._text = []

    def table(self, first: str) -> list[dict[str, str]]:
        """Return the rows of the table whose first heading this is."""
        (found,) = (table for table in self.tables if table[0][0] == first)
        return [dict(zip(found[0], row, strict=True)) for row in found[1:]]

    def links(self) -> list[str]:
        return [value for _, attrs in self.tags for name in ("src", "href", "xlink:href", "data", "action")
                if (value := attrs.get(name)) is not None and not value.startswith("#")]


@pytest.fixture
def taken_to_pieces():
    return Page
