"""Give policy files the standard layout: indentation, blanks, empty lines, and the blanks in expressions.

Comments, the order of fields, line breaks and quotes are preserved, and no document changes its meaning. A file that is
not YAML, or has an expression that cannot be parsed, is reported with its place and left as it is. A path may be a
file, a directory (walked recursively, JSON files left out) or `-` for standard input, whose result is printed.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.documents import GROUP, decode, files_of, read
from koordpolicy.engine.documents.nodes import LARGEST_FILE
from koordpolicy.engine.explanation import counted
from koordpolicy.engine.files import reason_of, write_whole
from koordpolicy.engine.formatting import format_source
from koordpolicy.engine.source import PolicyError, Problem, Source, in_order, render

from .exits import Exit, Stop
from .terminal import warn, write
from .time_limit import compile_limit

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy fmt policies/
  koord-policy fmt policies/ --check
  koord-policy fmt policies/ --diff
  koord-policy fmt - < policies/zone.yaml

exit codes: 0 ok, 2 usage, 3 a file cannot be read or parsed, 6 with --check: a file has another layout
"""

_STANDARD_INPUT: Final = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a file, a directory, or - for standard input")
    parser.add_argument("--check", action="store_true",
                        help="write nothing, list the files that have another layout, and end with 6 if there are any")
    parser.add_argument("--diff", action="store_true", help="write nothing, and print what would change")
    parser.add_argument("--stdin-name", metavar="FILE", default="<stdin>",
                        help="file name of standard input in reports, for editors")


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given them
    """Run the command; see the module."""
    problems: list[Problem] = []
    changed = 0
    files = dict.fromkeys(_files(options.paths, problems))
    for path in files:
        try:
            with compile_limit("formatting"):
                changed += _formatted(path, options)
        except PolicyError as error:
            problems.extend(error.problems)
    if options.check or options.diff or _STANDARD_INPUT not in files:
        outcome = "would change" if options.check or options.diff else "changed"
        write(f"{changed} of {counted(len(files), 'file')} {outcome}")
    if problems:
        warn(render(in_order(problems)))
        return Exit.INVALID
    return Exit.EXCEEDED if changed and options.check else Exit.OK


def _files(paths: list[str], problems: list[Problem]) -> Iterator[str]:
    for name in paths:
        path = Path(name)
        if name == _STANDARD_INPUT:
            yield name
        elif not path.exists():
            raise Stop(f"there is no file or directory `{name}`")
        elif path.is_dir():
            yield from (str(each) for each in files_of(path, problems) if each.suffix != ".json")
        elif path.suffix == ".json":
            raise Stop(f"`{name}` is JSON: `fmt` is for YAML")
        else:
            yield name


def _formatted(path: str, options: argparse.Namespace) -> bool:
    """Format a file, or report about it; return whether its layout differs."""
    is_input = path == _STANDARD_INPUT
    name = options.stdin_name if is_input else path
    data = sys.stdin.buffer.read(LARGEST_FILE + 1) if is_input else _read(path)
    source = decode(name, data)
    before = data.decode()
    after = format_source(source)
    if not is_input and path in options.paths and not _holds_policy(source):
        warn(f"warning: there is no policy document in `{name}`: it is laid out as other YAML")
    if options.diff:
        lines = difflib.unified_diff(before.split("\n"), after.split("\n"), name, f"{name} (formatted)", lineterm="")
        for each in lines:
            write(each)
    elif options.check:
        if before != after:
            write(name)
    elif is_input:
        sys.stdout.write(after)
    elif before != after:
        _write(Path(path), data, after.encode())
        write(name)
    return before != after


def _holds_policy(source: Source) -> bool:
    """Return whether a document of a file is one of ours, by its `apiVersion`; it may be invalid."""
    versions = (node.at("apiVersion") for node in read(source))
    return any(version is not None and version.text.startswith(f"{GROUP}/") for version in versions)


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise PolicyError([
            Problem(f"cannot read `{path}`: {reason_of(error)}", code="unreadable"),
        ]) from None


def _write(path: Path, before: bytes, after: bytes) -> None:
    """Replace a file, with its rights, unless somebody has saved another text meanwhile."""
    real = path.resolve()
    rights = real.stat().st_mode & 0o7777
    if real.read_bytes() != before:
        raise PolicyError([Problem(f"`{path}` changed while it was formatted: run it again", code="changed")])
    try:
        write_whole(real, after)
        real.chmod(rights)
    except OSError as error:
        raise Stop(f"cannot write `{path}`: {reason_of(error)}") from None
