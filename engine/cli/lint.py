"""Check policy files: YAML, schema, types and cost of every expression, names across documents, and the linter's rules.

All problems of all files are reported at once, each with its line and a caret under the fault. A path may be a file, a
directory (walked recursively) or `-` for standard input. A path without a document is an error, so that a check never
passes by checking nothing. The rules are described in docs/lint.md, and configured in `koord-policy.yaml`, which is
searched for from the working directory up to the root of the repository.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from koordpolicy import __version__
from koordpolicy.engine.compile import Compiled, compile_documents
from koordpolicy.engine.documents import (
    Documents,
    YamlNode,
    configurations_in,
    decode,
    files_of,
    load,
    read,
    read_configmap,
    read_file,
)
from koordpolicy.engine.framework.discovery import discover_beside
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.kubernetes.vocabulary import SLO_CONFIG
from koordpolicy.engine.lint import RULES, LintConfiguration, Whole, check, strict, whole_of
from koordpolicy.engine.lint.configuration import FILE, nearest
from koordpolicy.engine.lint.configuration import load as load_settings
from koordpolicy.engine.lint.edits import apply
from koordpolicy.engine.lint.findings import LintFinding
from koordpolicy.engine.lint.reports import FORMATS, LintReport, ReportEntry, of_rules, ordered
from koordpolicy.engine.lint.slo import is_slo_config
from koordpolicy.engine.lint.subject import TextEdit
from koordpolicy.engine.source import PolicyError, Problem, Problems, Severity, Source, Span

from .composition import need_file
from .durations import seconds
from .exits import Exit, Stop
from .policy_sources import (
    FORMS,
    PolicyAccess,
    add_bundle_options,
    bundle_options,
    is_elsewhere,
    need_bundle,
    read_elsewhere,
)
from .terminal import progress, warn, write_report
from .time_limit import TimeLimit

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy lint policies/
  koord-policy lint policies/ --strict --changed-since origin/main
  koord-policy lint policies/ --config descheduler.yaml --output sarif
  koord-policy lint policies/ --fix
  koord-policy lint oci:registry.example.org/team/policies:v1 --verify-key sign.pub
  koord-policy lint - --stdin-name policies/zone.yaml --output lsp-json
  kustomize build overlays/production | koord-policy lint --configmap -

exit codes: 0 no errors (there may be warnings and notes), 2 usage, 3 errors, 6 not done within --timeout; with
--strict warnings are errors
"""

_SECONDS: Final = 120.0
STANDARD_INPUT: Final = "-"
_STANDARD_INPUT_NAME: Final = "<stdin>"
_CONFIGURATIONS: Final = frozenset(("KubeSchedulerConfiguration", "DeschedulerConfiguration", "DeschedulerPolicy"))
_MOST_ROUNDS: Final = 10
"""The maximum number of rounds of `--fix`, each of which checks the changed files again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("paths", metavar="PATH", nargs="*",
                        help=f"a file, a directory, {FORMS} (in the cluster of the kubeconfig), or - for standard "
                             "input")
    add_bundle_options(parser)
    parser.add_argument("--configmap", action="store_true",
                        help="the files are manifests with ConfigMaps: check their keys and size (1 MiB), and the "
                             "documents inside, with places in the manifest")
    parser.add_argument("--config", metavar="FILE", action="append", default=[], type=Path,
                        help="a component configuration to compare with the policies (KubeSchedulerConfiguration, "
                             "DeschedulerConfiguration, DeschedulerPolicy, slo-controller-config): its plugins and "
                             "thresholds; may be repeated")
    parser.add_argument("--settings", metavar="FILE", type=Path,
                        help=f"the linter's own settings (default: the nearest {FILE})")
    parser.add_argument("--strict", action="store_true", help="warnings are errors")
    parser.add_argument("--fix", action="store_true",
                        help="apply the fixes of rules that have one; comments and layout are preserved")
    parser.add_argument("--changed-since", metavar="REF",
                        help="read all files, but report only those that differ from this commit")
    parser.add_argument("--stdin-name", metavar="FILE", default=_STANDARD_INPUT_NAME,
                        help="file name of standard input in reports, for editors")
    parser.add_argument("--timeout", metavar="TIME", type=seconds, default=_SECONDS,
                        help="stop after this time, such as 90s or 5m, and name the file that was being checked; 0 for "
                             f"no limit (default: {_SECONDS:g}s)")
    parser.add_argument("--rules", action="store_true", help="list the rules and end")
    parser.add_argument("--output", "-o", choices=tuple(FORMATS), default="text", help="format of the report")


@dataclass(frozen=True, slots=True)
class _Files:
    """The files that were read: documents, their texts, and the component configurations."""

    loaded: Documents
    sources: tuple[Source, ...]
    configurations: tuple[YamlNode, ...]
    names: tuple[str, ...]


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    if options.rules:
        write_report(of_rules(tuple(RULES.values())))
        return Exit.OK
    if not options.paths:
        raise Stop("name a file or a directory, or - for standard input")
    changed = None
    if options.changed_since is not None:
        from .changes import changed_since  # few ask git

        changed = changed_since(options.changed_since, Path.cwd())
    settings = lint_settings(options.settings)
    limit = TimeLimit(options.timeout, "--timeout")

    def look() -> tuple[_Files, list[ReportEntry], tuple[LintFinding, ...]]:
        with limit.holds("linting"):  # but not while a file is written
            return _looked(options, builtins, settings, limit)

    with _without_collector():
        files, entries, findings = look()
        if options.fix:
            before = len(findings)
            for _ in range(_MOST_ROUNDS):
                if not _mend(_of_changed(findings, changed)):
                    break
                files, entries, findings = look()
            fixed = before - len(findings)
            warn(f"fixed {fixed} finding{'' if fixed == 1 else 's'}")
    if changed is not None:
        entries = [each for each in entries if _touches(each.problem.span, each.related, changed)]
    report = LintReport(ordered(entries), files.names, files.loaded.read, __version__)
    write_report(FORMATS[options.output](report))
    return Exit.INVALID if report.count(Severity.ERROR) else Exit.OK


def lint_settings(path: Path | None) -> LintConfiguration:
    """Return the linter's settings of a file; None means the nearest one of the working directory.

    Raises:
        Stop: there is no such file.
        PolicyError: it is invalid.
    """
    if path is None:
        path = nearest(Path.cwd())
        return load_settings(path, found=True) if path is not None else LintConfiguration()
    need_file(path, "`--settings` takes a koord-policy.yaml")
    return load_settings(path)


def _looked(
    options: argparse.Namespace, builtins: Builtins, settings: LintConfiguration, limit: TimeLimit,
) -> tuple[_Files, list[ReportEntry], tuple[LintFinding, ...]]:
    """Read and check all files once."""
    files = _load(options, limit)
    problems, whole = _compile(files, builtins)
    with progress("linting", len(whole.subjects) + len(whole.suites)) as done:
        findings = check(whole, files.sources, settings, done)
    if options.strict:
        findings = strict(findings)
        problems = [replace(each, severity=Severity.ERROR) if each.severity is Severity.WARNING else each
                    for each in problems]
    return files, _entries(problems, findings), findings


def _entries(problems: Iterable[Problem], findings: Iterable[LintFinding]) -> list[ReportEntry]:
    entries = [ReportEntry(each) for each in problems]
    entries.extend(ReportEntry(each.problem, each.found.related, _edit_of(each) is not None) for each in findings)
    return entries


def _edit_of(finding: LintFinding) -> TextEdit | None:
    """Return the edit that mends a finding; None if it has none, or none for the way the file is written."""
    edit = finding.found.fix() if finding.found.fix is not None else None
    return edit if edit is not None and edit.source.parent is None else None


def _touches(span: Span | None, related: Sequence[Span], changed: frozenset[Path]) -> bool:
    if span is None:
        return True
    names = (span.root().source.name, *(each.root().source.name for each in related))
    return any(name.startswith("<") or Path(name).resolve() in changed for name in names)


def _of_changed(findings: Sequence[LintFinding], changed: frozenset[Path] | None) -> list[LintFinding]:
    return [each for each in findings
            if changed is None or _touches(each.found.span, (), changed)]


def _mend(findings: Sequence[LintFinding]) -> bool:
    """Rewrite the files that can be fixed; return whether there were any."""
    edits = [edit for each in findings if (edit := _edit_of(each)) is not None and Path(edit.source.name).is_file()]
    written = False
    for name, text in apply(edits).items():
        path = Path(name)
        # Changes that were saved to the file meanwhile must not be lost.
        with path.open(encoding="utf-8", newline="") as file:
            before = file.read()
        if before.removeprefix("\ufeff") in {each.source.text for each in edits if each.source.name == name}:
            with path.open("w", encoding="utf-8", newline="") as file:
                file.write(("\ufeff" if before.startswith("\ufeff") else "") + text)
            written = True
    return written


@contextmanager
def _without_collector() -> Iterator[None]:
    # The objects of the check live until the end: collecting garbage among them would take a fifth of the time. After
    # this, they are old and rarely visited by the collector.
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _load(options: argparse.Namespace, limit: TimeLimit) -> _Files:
    """Return the documents of all paths with their problems."""
    paths: Sequence[str] = options.paths
    for path in paths:
        if path != STANDARD_INPUT and not is_elsewhere(path) and not Path(path).exists():
            raise Stop(f"there is no file or directory `{path}`")
    problems: list[Problem] = []
    bundles = bundle_options(options)
    need_bundle(paths, bundles)
    versions = read_elsewhere(dict.fromkeys(paths), PolicyAccess(bundles=bundles))
    problems += (problem for version in versions.values() for problem in version.problems)
    stored = {file.name: file for version in versions.values() for file in version.files.values()}
    # A file that is reached by two paths is checked once.
    files = {path: [file.name for file in versions[path].files.values()] if path in versions
             else list(_files(path, problems)) for path in dict.fromkeys(paths)}
    unique = dict.fromkeys(file for found in files.values() for file in found)
    by_file: dict[str, Documents] = {}
    sources: list[Source] = []
    with progress("reading", len(unique)) as done:
        for number, file in enumerate(unique, start=1):
            limit.file = file
            by_file[file] = _read(stored.get(file, file), options, sources)
            done(number)
    limit.file = ""
    for path, found in files.items():
        if not any(by_file[file].read or by_file[file].problems for file in found):
            problems.append(Problem(f"there is no document in `{path}`", code="no-document",
                                    help="name a file or a directory that holds some"))
    configurations = tuple(node for path in options.config for node in _configuration(path, problems, sources))
    loaded = Documents(
        tuple(document for each in by_file.values() for document in each.documents),
        (*problems, *(problem for each in by_file.values() for problem in each.problems)),
        sum(each.read for each in by_file.values()),
    )
    names = tuple(options.stdin_name if file == STANDARD_INPUT else file for file in unique)
    return _Files(loaded, tuple(sources), configurations, names)


def _configuration(path: Path, problems: list[Problem], sources: list[Source]) -> tuple[YamlNode, ...]:
    need_file(path, "`--config` takes a configuration of a scheduler or a descheduler, or slo-controller-config")
    found = Problems()
    try:
        source = read_file(path)
    except PolicyError as error:
        problems.extend(error.problems)
        return ()
    sources.append(source)
    nodes = read(source, found)
    problems.extend(found.found)
    documents = configurations_in(nodes, _CONFIGURATIONS)
    if not found.found and not any(
            is_slo_config(each) or ((kind := each.at("kind")) is not None and kind.scalar in _CONFIGURATIONS)
            for each in documents):
        # `lint` must not pass by checking nothing.
        problems.append(Problem(
            f"`{path}` holds no configuration", documents[0].span if documents else source.span(0),
            f"its `kind` must be {' or '.join(sorted(_CONFIGURATIONS))}, or it must be the ConfigMap {SLO_CONFIG}",
            code="not-a-configuration"))
    return documents


def _files(path: str, problems: list[Problem]) -> Iterator[str]:
    if path == STANDARD_INPUT:
        yield path
    else:
        for file in files_of(Path(path), problems):
            if file.name != FILE:  # the linter's own settings may be in a directory of policies
                yield str(file)


def _read(file: str | Source, options: argparse.Namespace, sources: list[Source]) -> Documents:
    try:
        if isinstance(file, Source):
            source = file
        else:
            source = _standard_input(options.stdin_name) if file == STANDARD_INPUT else read_file(Path(file))
        sources.append(source)
        if not options.configmap:
            return load([source])
        problems = Problems()
        inside = [part for _, part in read_configmap(source, problems)]
        loaded = load(inside)
        return Documents(loaded.documents, (*problems.found, *loaded.problems), loaded.read)
    except PolicyError as error:
        return Documents((), error.problems)


def lsp_report(texts: Mapping[str, bytes], builtins: Builtins) -> list[dict[str, Any]]:
    """Return parameters of `textDocument/publishDiagnostics` for files that are linted together, by path."""
    reported: list[dict[str, Any]] = json.loads(FORMATS["lsp-json"](report_of(texts, builtins)))
    return reported


def report_of(texts: Mapping[str, bytes], builtins: Builtins) -> LintReport:
    """Return the report about files that are linted together, by path, with the settings near the first of them."""
    sources: list[Source] = []
    problems: list[Problem] = []
    for name, text in texts.items():
        try:
            sources.append(decode(name, text))
        except PolicyError as error:
            problems.extend(error.problems)
    loaded = load(sources)
    files = _Files(replace(loaded, problems=(*problems, *loaded.problems)), tuple(sources), (), tuple(texts))
    found, whole = _compile(files, builtins)
    path = nearest(Path(next(iter(texts))).parent)
    settings = load_settings(path, found=True) if path is not None else LintConfiguration()
    entries = _entries(found, check(whole, sources, settings))
    return LintReport(ordered(entries), files.names, loaded.read, __version__)


def _standard_input(name: str) -> Source:
    return decode(name, sys.stdin.buffer.read())


def _compile(files: _Files, builtins: Builtins) -> tuple[list[Problem], Whole]:
    """Return the problems of documents and names, and the input of the rules."""
    problems = Problems(list(files.loaded.problems))
    discovered = discover_beside(builtins(), _ignored)
    compiled: list[Compiled] = []
    with progress("checking", len(files.loaded.documents)) as done:

        def observe(program: Compiled) -> None:
            compiled.append(program)
            done(len(compiled))

        plugins = compile_documents(
            files.loaded.documents, problems, extensions=discovered.functions, observe=observe,
        )
    everything: tuple[Plugin, ...] = (*discovered.plugins, *plugins)
    try:
        Registry.of(everything, generation=1)
    except PolicyError as error:
        problems.extend(error.problems)
    return problems.found, whole_of(files.loaded.documents, compiled, everything, files.configurations)


def _ignored(_: Problem) -> None:
    """Ignore a plugin that cannot be loaded: the checked files are not at fault."""
