"""The frame of all pages: one file with its style, for light and dark mode and for paper."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

_TEMPLATES: Final = Path(__file__).parent / "templates"


def page(title: str, about: str, parts: Iterable[str], *, tooltips: bool = False) -> str:
    """Return a page of finished HTML `parts`; `title` and `about` are text.

    `tooltips` adds the only script: it shows the `data` of charts and maps; the page works without it.
    """
    return Template(_read("page.html.tmpl")).substitute(
        title=escape(title), about=escape(about), style=_read("style.css"), body="\n".join(parts),
        script=_read("tooltips.html") if tooltips else "",
    )


def data(name: str, content: Any) -> str:
    """Return plain data for the script, under an id."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    # A closing tag would end the element, even inside of a string.
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return f'<script type="application/json" id="{escape(name)}">{text}</script>'


def tiles(figures: Iterable[tuple[str, str]]) -> str:
    """Return the key figures, each with its label."""
    each = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in figures)
    return f'<dl class="tiles">{each}</dl>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str | Cell]], *, numbers: Sequence[int] = ()) -> str:
    """Return a table; `numbers` are the columns that hold figures. Texts are escaped, a `Cell` is HTML."""

    def kind(column: int) -> str:
        return ' class="number"' if column in numbers else ""

    head = "".join(f'<th scope="col"{kind(column)}>{escape(name)}</th>' for column, name in enumerate(headings))
    body = "".join(
        "<tr>" + "".join(
            f"<td{kind(column)}>{each if isinstance(each, Cell) else escape(each)}</td>"
            for column, each in enumerate(row)
        ) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


class Cell(str):
    """The HTML of a table cell."""

    __slots__ = ()


def bar(share: float) -> Cell:
    """Return a bar that fills this share (0 to 1) of its cell."""
    return Cell(f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{share:.1%}">'
                f'<rect width="{100 * share:.2f}" height="10"/></svg>')


def code(text: str) -> Cell:
    """Return a text as code."""
    return Cell(f"<code>{escape(text)}</code>")


@cache
def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")
