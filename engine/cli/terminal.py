"""Output of commands: tables, bars and progress for terminals, and JSON for programs.

The border to rich: nothing else imports it. Colour and movement appear on a terminal only; piped output is plain and
as wide as it needs to be.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.escaping import one_line, visible, visible_json
from koordpolicy.engine.files import reason_of, write_whole

from .exits import Stop

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from koordpolicy.engine.explanation import Finding, Mark

_PIPE_WIDTH = 10_000
_GAP = 2
"""Blanks between two columns."""
_NARROWEST = 30
"""The least width of the last column of a table, in characters, if its text is that long."""


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add `--output text|json`, which every command has."""
    parser.add_argument("--output", "-o", choices=("text", "json"), default="text",
                        help="text for people, json for machines")


class _Written:
    """Counts the reports for programs that were begun in this process."""

    reports = 0


def reports_begun() -> int:
    """Return how many reports for programs `write_json` and `write_report` have begun to print in this process."""
    return _Written.reports


def write_json(data: object) -> None:
    """Print plain data as one JSON document."""
    _Written.reports += 1
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, allow_nan=False).iterencode(data):
        sys.stdout.write(visible_json(part))
    sys.stdout.write("\n")


def write(text: str = "") -> None:
    """Print text for people, with a line break after it; quoted text is escaped (see `escaping`)."""
    sys.stdout.write(visible(text) + "\n")


def write_report(text: str) -> None:
    """Print a report for programs, whose quoted text is already escaped for its format."""
    _Written.reports += 1
    sys.stdout.write(text)


def is_standard_output(path: Path | None) -> bool:
    """Return whether a path leads to this process's standard output, such as `/dev/stdout`."""
    try:
        return path is not None and os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # closed, or replaced by what is no file
        return False


def warn(text: str) -> None:
    """Print text on standard error as `write` does."""
    sys.stderr.write(visible(text) + "\n")


@cache
def _console() -> Console:
    from rich.console import Console  # 40 ms that only commands with tables pay

    terminal = sys.stdout.isatty()
    # It renders only: at a closed output rich would end the process with 1, and keep the text for its next output.
    return Console(file=io.StringIO(), force_terminal=terminal or None, highlight=False, markup=False, emoji=False,
                   soft_wrap=False, width=None if terminal else _PIPE_WIDTH)


def heading(text: str) -> None:
    """Print a heading with a blank line before it."""
    from rich.text import Text

    write()
    console = _console()
    with console.capture() as rendered:
        console.print(Text(one_line(text), style="bold"), soft_wrap=True)
    sys.stdout.write(rendered.get())


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under headers; a column whose cells are all numbers is aligned to the right.

    A column without any text in its rows is left out.
    If the terminal is too narrow the last column is wrapped, then the others between words; never within a name, so
    that names can be copied.
    """
    sys.stdout.write("\n".join(_table(headers, rows, _console())) + "\n")


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]], console: Console) -> list[str]:
    """Return the lines of a table; they exceed the console's width only if a word does."""
    from rich.table import Table
    from rich.text import Text

    filled = [index for index in range(len(headers)) if not rows or any(str(row[index]) for row in rows)]
    headers, rows = [headers[index] for index in filled], [[row[index] for index in filled] for row in rows]
    cells = [[cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in row] for row in rows]
    widths = [max([len(header), *(row[index].cell_len for row in cells)]) for index, header in enumerate(headers)]
    gaps, narrowest = _GAP * (len(headers) - 1), min(widths[-1], _NARROWEST)
    if sum(widths[:-1]) + gaps + narrowest > console.width:
        widths[:-1] = [max([len(header), *(len(word) for row in cells for word in row[index].plain.split())])
                       for index, header in enumerate(headers[:-1])]
    widths[-1] = max(narrowest, min(widths[-1], console.width - sum(widths[:-1]) - gaps))
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for index, header in enumerate(headers):
        numeric = all(isinstance(row[index], int | float) for row in rows) and bool(rows)
        grid.add_column(header, justify="right" if numeric else "left", overflow="fold", width=widths[index])
    for row in cells:
        grid.add_row(*row)
    width = console.width
    try:
        console.width = max(width, sum(widths) + gaps)
        with console.capture() as captured:
            console.print(grid)
    finally:
        console.width = width
    # The last column is padded with blanks, which disturb comparing and copying the output.
    return [line.rstrip() for line in captured.get().splitlines()]


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else one_line(str(value))


def bar(percent: float, width: int = 20, *, hot: float = 65.0) -> object:
    """Return a bar of `width` cells for 0..100 percent, red from `hot` on if colour is supported."""
    from rich.text import Text

    cells = max(0.0, min(100.0, percent)) / 100 * width
    whole = int(cells)
    eighths = " ▏▎▍▌▋▊▉"[int((cells - whole) * 8)]
    text = ("█" * whole + (eighths if whole < width else "")).ljust(width)
    return Text(text, style="red" if percent >= hot else "green")


def write_finding(finding: Finding) -> None:
    """Print an explanation; on a terminal in its width, and in colour unless NO_COLOR is set."""
    if not sys.stdout.isatty():
        write(finding.as_text())
        return
    width = shutil.get_terminal_size().columns
    sys.stdout.write(finding.as_text(_plainly if os.environ.get("NO_COLOR") else _paint, width=width) + "\n")


def _plainly(text: str, _: Mark) -> str:
    return text


def _paint(text: str, mark: Mark) -> str:
    code = _COLOURS.get(mark.name)
    return text if code is None else f"\x1b[{code}m{text}\x1b[0m"


_COLOURS: Final = {
    "PASSED": 32, "REFUSED": 31, "ERROR": 31, "WATCHED": 33, "CHANGE": 36, "HEADING": 1,
}
"""SGR codes by the name of the mark."""


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error while the block runs, if that is a terminal.

    Yields a function that takes how many of `total` are done by now.
    """
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=total)

        def advance(done: int) -> None:
            shown.update(task, completed=done)

        yield advance


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        Stop: it cannot be written.
    """
    if isinstance(content, str):
        # Names from files may contain lone surrogates, which cannot be encoded.
        content = content.encode("utf-8", "replace")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a device or a pipe cannot be replaced; a directory raises its own error
        else:
            write_whole(path, content)
    except OSError as error:
        raise Stop(f"cannot write `{path}`: {reason_of(error)}") from None
