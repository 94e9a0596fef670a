"""Check policy files: YAML, schema, types and cost of every expression, names across documents.

All problems of all files are told at once, each with its line and a caret under the fault. A path may be a file, a
directory (walked recursively) or `-` for standard input. A path that holds no document is an error: nothing passes
because nobody looked at it.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..compile import compile_documents
from ..documents import Documents, decode, files_of, load, read_configmap, read_file
from ..plugins import discover
from ..registry import Registry
from ..source import PolicyError, Problem, Problems, Severity, Source, in_order, render
from .exits import Exit, Stop
from .terminal import add_output, progress, write, write_json

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy lint policies/
  koord-policy lint policies/scheduler/keep-off-hot-nodes.yaml --output json
  kustomize build overlays/production | koord-policy lint --configmap -

exit codes: 0 no errors (there may be warnings), 2 usage, 3 errors
"""

STANDARD_INPUT: Final = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a file, a directory, or - for standard input")
    parser.add_argument("--configmap", action="store_true",
                        help="the files are manifests with ConfigMaps: check their keys and size (1 MiB), and the "
                             "documents inside, with places in the manifest")
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    with _without_collector():
        loaded, files = _load(options.paths, configmap=options.configmap)
        problems = in_order(_problems(loaded, builtins))
    errors = sum(problem.severity is Severity.ERROR for problem in problems)
    warnings = sum(problem.severity is Severity.WARNING for problem in problems)
    if options.output == "json":
        write_json({
            "errors": errors, "warnings": warnings, "documents": loaded.read, "files": files,
            "problems": [problem.to_json() for problem in problems],
        })
    else:
        if problems:
            write(render(problems))
            write()
        found = f"{_counted(errors, 'error')}, {_counted(warnings, 'warning')}"
        write(f"{found} in {_counted(loaded.read, 'document')} of {_counted(files, 'file')}")
    return Exit.INVALID if errors else Exit.OK


@contextmanager
def _without_collector() -> Iterator[None]:
    # Everything that checking makes is kept until the end: looking for garbage in it costs a fifth of the time.
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _load(paths: Sequence[str], *, configmap: bool) -> tuple[Documents, int]:
    """Return the documents of all paths with their problems, and how many files were read."""
    for path in paths:
        if path != STANDARD_INPUT and not Path(path).exists():
            raise Stop(f"there is no file or directory `{path}`")
    problems: list[Problem] = []
    # A file that two paths lead to is checked once.
    files = {path: list(_files(path, problems)) for path in dict.fromkeys(paths)}
    unique = dict.fromkeys(file for found in files.values() for file in found)
    by_file: dict[str, Documents] = {}
    with progress("checking", len(unique)) as done:
        for number, file in enumerate(unique, start=1):
            by_file[file] = _read(file, configmap=configmap)
            done(number)
    for path, found in files.items():
        if not any(by_file[file].read or by_file[file].problems for file in found):
            problems.append(Problem(f"there is no document in `{path}`", code="no-document",
                                    help="name a file or a directory that holds some"))
    loaded = Documents(
        tuple(document for each in by_file.values() for document in each.documents),
        (*problems, *(problem for each in by_file.values() for problem in each.problems)),
        sum(each.read for each in by_file.values()),
    )
    return loaded, len(unique)


def _files(path: str, problems: list[Problem]) -> Iterator[str]:
    if path == STANDARD_INPUT:
        yield path
    else:
        yield from map(str, files_of(Path(path), problems))


def _read(file: str, *, configmap: bool) -> Documents:
    try:
        source = _standard_input() if file == STANDARD_INPUT else read_file(Path(file))
        if not configmap:
            return load([source])
        problems = Problems()
        inside = [part for _, part in read_configmap(source, problems)]
        loaded = load(inside)
        return Documents(loaded.documents, (*problems.found, *loaded.problems), loaded.read)
    except PolicyError as error:
        return Documents((), error.problems)


def _standard_input() -> Source:
    return decode("<stdin>", sys.stdin.buffer.read())


def _problems(loaded: Documents, builtins: Builtins) -> list[Problem]:
    problems = Problems(list(loaded.problems))
    offers = discover(_ignored)
    compiled = compile_documents(loaded.documents, problems, extensions=offers.functions)
    try:
        Registry.of((*builtins(), *offers.plugins, *compiled), generation=1)
    except PolicyError as error:
        problems.extend(error.problems)
    return problems.found


def _ignored(_: Problem) -> None:
    """Pass over a plugin that cannot be loaded: it is no fault of the files that are checked."""
