"""Run the unit tests of policies: PolicyTest documents in files and directories, each with the policies of its
directory. A case builds a small cluster, runs the policies with the production code, and compares the results. An
unknown name, an empty selection, or a case in which nothing was evaluated is a failure, so that no case passes by
accident; and an error is never equal to false.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.source import PolicyError, did_you_mean, in_order, render

from .composition import discovered_plugins
from .exits import Exit, Stop
from .numbers import percent
from .policy_sources import add_bundle_options, as_files, bundle_options, is_bundle
from .terminal import progress, reports_begun, warn, write, write_file, write_json, write_report
from .time_limit import compile_limit

if TYPE_CHECKING:
    from koordpolicy.engine.cel.check.environment import Function
    from koordpolicy.engine.documents import Case
    from koordpolicy.engine.testing.coverage import CoverageReport, ExpressionCoverage
    from koordpolicy.engine.testing.failed_cases import TestFault
    from koordpolicy.engine.testing.mutation import MutationOutcome
    from koordpolicy.engine.testing.results import CaseResult
    from koordpolicy.engine.testing.suites import LoadedSuites, Suite

    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy test policies
  koord-policy test policies/scheduler --run 'hot-nodes/.*watermark' -v
  koord-policy test policies --coverage html --min-coverage 100
  koord-policy test policies --mutate
  koord-policy test policies --require-tests --output junit > report.xml
  koord-policy test policies --output github
  koord-policy test oci:registry.example.org/team/policies:v1 --verify-key sign.pub

exit codes: 0 all cases passed, 2 usage, 3 documents are invalid, 4 a case failed, coverage is too low, a
mutant survives, or with `--require-tests` a policy has no suite
"""

COVERAGE_FORMATS: Final = ("text", "json", "html", "sarif")
_LOOK_EVERY_S: Final = 0.5
_MOST_SHOWN: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path,
                        help="a file or a directory with PolicyTests, or `oci:REGISTRY/REPOSITORY:TAG`")
    add_bundle_options(parser)
    parser.add_argument("--run", dest="chosen", metavar="REGEX", type=_pattern,
                        help="run only cases whose SUITE/CASE matches; no match is a failure")
    parser.add_argument("--verbose", "-v", action="store_true",
                        help="list every case, and show the values of sub-expressions where one fails")
    parser.add_argument("--watch", action="store_true", help="run again whenever a file changes, until Ctrl-C")
    parser.add_argument("--require-tests", action="store_true", help="fail for policies without a suite")
    parser.add_argument("--output", "-o", choices=("text", "json", "junit", "github", "sarif"), default="text",
                        help="text for people, json and junit for machines, github and sarif for code hosts")
    parser.add_argument("--coverage", choices=COVERAGE_FORMATS,
                        help="report the outcomes of expressions that no case produces; html and sarif are written "
                             "to `--coverage-out`")
    parser.add_argument("--coverage-out", metavar="FILE", type=Path,
                        help="where coverage is written (default: text and json are printed, others go to "
                             "policy-coverage.html or .sarif)")
    parser.add_argument("--min-coverage", metavar="PERCENT", type=percent, help="fail below this coverage")
    parser.add_argument("--mutate", action="store_true",
                        help="change constants and operators of the policies one at a time, and list the changes "
                             "that no case detects")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"`{text}` is not a regular expression: {error}") from None


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    for path in options.paths:
        if not is_bundle(str(path)) and not path.exists():
            raise Stop(f"there is no file or directory `{path}`")
    if options.watch and any(is_bundle(str(path)) for path in options.paths):
        raise Stop("`--watch` watches files: `koord-policy pull` writes those of a bundle")
    file = options.coverage_out
    if file is not None and options.coverage is None:
        raise Stop("`--coverage-out` goes with `--coverage`: say which format")
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise Stop(f"`--coverage-out {file}`: " + (
            "it is a directory" if file.is_dir() else f"there is no directory `{file.parent}`"))
    if options.watch:
        return watch(options.paths, lambda: _run_and_report(options, builtins))
    with as_files(options.paths, bundle_options(options)) as paths:
        options.paths = paths
        before = reports_begun()
        try:
            return _run(options, builtins)
        except (PolicyError, Stop) as error:
            if reports_begun() == before:
                _annotate_end(error, options.output)
            raise


def _annotate_end(error: PolicyError | Stop, output: str) -> None:
    """Write the report for a code host if a run ended early: an empty one would be a fault of its own there."""
    if output not in ("github", "sarif"):
        return
    from koordpolicy.engine.testing.failed_cases import faults_of, invalid_documents

    problems = error.problems if isinstance(error, PolicyError) else ()
    complaints = (str(error),) if isinstance(error, Stop) else ()
    write_report(_as_annotations((*invalid_documents(problems), *faults_of((), None, complaints)), output))


def watch(
    paths: Sequence[Path], again: Callable[[], None], wait: Callable[[float], None] = time.sleep,
) -> int:
    """Call `again` now and whenever a file of the paths changes, until an interrupt; `wait` takes seconds."""
    seen: Mapping[Path, tuple[int, int]] | None = None
    try:
        while True:
            now = _stamps(paths)
            if now != seen:
                seen = now
                again()
            wait(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        return Exit.OK


def _stamps(paths: Sequence[Path]) -> dict[Path, tuple[int, int]]:
    """Return size and time of all files that tests may read: those of the paths, and their neighbours."""
    stamps: dict[Path, tuple[int, int]] = {}
    for path in paths:
        for file in (path if path.is_dir() else path.parent).rglob("*"):
            with suppress(OSError):
                if file.suffix in (".yaml", ".yml", ".json") and file.is_file():
                    found = file.stat()
                    stamps[file] = found.st_size, found.st_mtime_ns
    return stamps


def _run_and_report(options: argparse.Namespace, builtins: Builtins) -> None:
    try:
        _run(options, builtins)
    except (PolicyError, Stop) as error:  # a file is being written: the next change may correct it
        warn(str(error))


@dataclass(frozen=True, slots=True)
class _RunOutcome:
    """The result of a run."""

    results: tuple[CaseResult, ...]
    reports: tuple[CoverageReport, ...] | None
    mutation: MutationOutcome | None
    complaints: tuple[str, ...]
    """Reasons of failure other than failing cases."""

    @property
    def exit(self) -> Exit:
        """The exit code."""
        failing = any(not each.passed for each in self.results)
        return Exit.FAILED if failing or self.complaints else Exit.OK


def _run(options: argparse.Namespace, builtins: Builtins) -> int:
    from koordpolicy.engine.testing.settings import fixtures_without_effect
    from koordpolicy.engine.testing.suites import load_suites

    start = time.perf_counter()
    discovered = discovered_plugins(builtins)
    with compile_limit():
        loaded = load_suites(options.paths, discovered.plugins, discovered.functions)
    if not loaded.suites:
        named = ", ".join(f"`{path}`" for path in options.paths)
        beside = [each for path in options.paths if path.is_file()
                  if (each := path.with_suffix(".test.yaml")).is_file()]
        hint = f", but there is `{beside[0]}`" if beside else ""
        raise Stop(f"there is no PolicyTest in {named}: nothing was tested{hint}", Exit.FAILED)
    if idle := fixtures_without_effect(loaded.suites):
        warn(render(in_order(idle)))
    chosen = _chosen(loaded.suites, options.chosen)
    coverage = _coverage(options)
    results = _results(chosen, coverage, explains=options.verbose)
    outcome = _judged(options, loaded, results, coverage, discovered.functions)
    seconds = time.perf_counter() - start
    if options.output == "json":
        write_json(_json(outcome, seconds))
    elif options.output == "junit":
        from koordpolicy.engine.testing.results import to_junit

        write_report(to_junit(outcome.results))
    elif options.output in ("github", "sarif"):
        write_report(_annotated(outcome, options.output))
    else:
        _show(outcome, seconds, verbose=options.verbose)
    _write_coverage(options, outcome)
    if options.output == "junit":
        for complaint in outcome.complaints:
            warn(complaint)
    return outcome.exit


def _annotated(outcome: _RunOutcome, output: str) -> str:
    from koordpolicy.engine.testing.failed_cases import faults_of

    return _as_annotations(tuple(faults_of(outcome.results, outcome.mutation, outcome.complaints)), output)


def _as_annotations(faults: Sequence[TestFault], output: str) -> str:
    from koordpolicy import __version__
    from koordpolicy.engine.annotations import to_json_text
    from koordpolicy.engine.testing.failed_cases import to_github, to_sarif

    return to_github(faults) if output == "github" else to_json_text(to_sarif(faults, __version__))


def _chosen(suites: Iterable[Suite], pattern: re.Pattern[str] | None) -> list[tuple[Suite, Case]]:
    from koordpolicy.engine.explanation import counted
    from koordpolicy.engine.testing.suites import cases_of

    found = list(cases_of(suites))
    if pattern is None:
        return found
    names = {f"{suite.name}/{case.name}": (suite, case) for suite, case in found}
    chosen = [each for name, each in names.items() if pattern.search(name)]
    if not chosen:
        are = "is" if len(names) == 1 else "are"
        hint = did_you_mean(pattern.pattern, names) or f"there {are} {counted(len(names), 'case')}"
        raise Stop(f"no case is called like `{pattern.pattern}`: {hint}", Exit.FAILED)
    return chosen


def _coverage(options: argparse.Namespace) -> ExpressionCoverage | None:
    if options.coverage is None and options.min_coverage is None:
        return None
    from koordpolicy.engine.testing.coverage import ExpressionCoverage

    return ExpressionCoverage()


def _results(
    chosen: Sequence[tuple[Suite, Case]], coverage: ExpressionCoverage | None, *, explains: bool,
) -> tuple[CaseResult, ...]:
    from koordpolicy.engine.testing.cases import run_case

    results = []
    with progress("testing", len(chosen)) as done:
        for number, (suite, case) in enumerate(chosen, start=1):
            results.append(run_case(suite, case, coverage, explains=explains))
            done(number)
    return tuple(results)


def _judged(
    options: argparse.Namespace,
    loaded: LoadedSuites,
    results: tuple[CaseResult, ...],
    coverage: ExpressionCoverage | None,
    functions: tuple[Function, ...],
) -> _RunOutcome:
    complaints: list[str] = []
    if options.require_tests:
        complaints += [f"no suite is about `{each.name}` ({each.origin})" for each in loaded.untested]
    reports = None
    if coverage is not None:
        from koordpolicy.engine.compile import compile_documents
        from koordpolicy.engine.testing.coverage import percent

        # Untested policies have no coverage, which must not look better than a partial test.
        with compile_limit():
            compiled = {each.name: each for each in compile_documents(loaded.untested, extensions=functions)}
        reports = coverage.reports(loaded.suites, [
            (each, compiled[each.name]) for each in loaded.untested if each.name in compiled
        ])
        found = percent(reports)
        if options.min_coverage is not None and found < options.min_coverage:
            complaints.append(f"coverage is {found:.1f} %, less than {options.min_coverage:g} %")
    mutation = None
    if options.mutate and any(not each.passed for each in results):
        complaints.append("mutants are not looked at before all cases pass")
    elif options.mutate:
        mutation = _mutated(loaded.suites)
        if mutation.survivors:
            complaints.append(f"{len(mutation.survivors)} of {len(mutation.fates)} mutants were noticed by no case")
        complaints += [f"`{suite}` justifies the mutant `{each.at}` {each.change}, which does not survive"
                       for suite, each in mutation.stale]
    return _RunOutcome(results, reports, mutation, tuple(complaints))


def _mutated(suites: Sequence[Suite]) -> MutationOutcome:
    from koordpolicy.engine.testing.mutation import mutate

    with progress("mutating", 1000) as done:
        return mutate(suites, lambda number, total: done(1000 * number // total))


def _json(outcome: _RunOutcome, seconds: float) -> dict[str, Any]:
    failing = sum(not each.passed for each in outcome.results)
    data: dict[str, Any] = {
        "cases": len(outcome.results), "failed": failing, "seconds": round(seconds, 3),
        "complaints": list(outcome.complaints), "results": [each.to_json() for each in outcome.results],
    }
    if outcome.reports is not None:
        from koordpolicy.engine.testing.coverage import to_json

        data["coverage"] = to_json(outcome.reports)
    if outcome.mutation is not None:
        data["mutation"] = outcome.mutation.to_json()
    return data


def _show(outcome: _RunOutcome, seconds: float, *, verbose: bool) -> None:
    from koordpolicy.engine.explanation import counted
    from koordpolicy.engine.testing.results import lines_of

    suites: dict[str, list[CaseResult]] = {}
    for each in outcome.results:
        suites.setdefault(each.suite, []).append(each)
    for name, of_suite in suites.items():
        failing = [each for each in of_suite if not each.passed]
        bad = f", {len(failing)} failed" if failing else ""
        write(f"{'FAIL' if failing else 'ok  '}  {name}  {counted(len(of_suite), 'case')}{bad}, "
              f"{counted(max(each.rules for each in of_suite), 'rule')}, "
              f"{counted(sum(each.rows for each in of_suite), 'row')}")
        for each in of_suite:
            if verbose or not each.passed:
                write(f"  {'ok  ' if each.passed else 'FAIL'}  {each.name}  {counted(each.rules, 'rule')}, "
                      f"{counted(each.rows, 'row')}" + ("" if each.passed else f"  ({each.file}:{each.line})"))
            for mismatch in each.mismatches:
                for line in lines_of(mismatch):
                    write(f"          {line}")
    failing_count = sum(not each.passed for each in outcome.results)
    write()
    if outcome.mutation is not None:
        _show_mutants(outcome.mutation)
    write(f"{len(outcome.results) - failing_count} passed, {failing_count} failed in {seconds:.2f} s")
    for complaint in outcome.complaints:
        write(f"FAIL  {complaint}")


def _show_mutants(mutation: MutationOutcome) -> None:
    for fate in mutation.survivors:
        mutant = fate.mutant
        write(f"survives  {mutant.place}: {mutant.original.name} at {mutant.at}: {mutant.change}")
    killed = sum(bool(fate.killed_by) for fate in mutation.fates)
    justified = sum(bool(fate.justified) for fate in mutation.fates)
    write(f"{len(mutation.fates)} mutants: {killed} noticed, {justified} justified, {len(mutation.survivors)} survive")


def _write_coverage(options: argparse.Namespace, outcome: _RunOutcome) -> None:
    reports, kind, file = outcome.reports, options.coverage, options.coverage_out
    if reports is None or kind is None:
        return
    import json

    from koordpolicy import __version__
    from koordpolicy.engine.testing import coverage

    if kind == "text":
        text = "\n".join(_coverage_lines(reports)) + "\n"
    elif kind == "html":
        text = coverage.to_html(reports)
    else:
        data = coverage.to_json(reports) if kind == "json" else coverage.to_sarif(reports, __version__)
        text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if file is None and kind in ("html", "sarif"):
        file = Path(f"policy-coverage.{kind}")
    if file is not None:
        write_file(file, text)
        warn(f"coverage is in {file}")
    elif kind == "text" and options.output != "text":
        warn(text.rstrip())
    elif options.output == "text":  # in JSON it is part of the result
        write(text.rstrip())


def _coverage_lines(reports: Sequence[CoverageReport]) -> Iterable[str]:
    from koordpolicy.engine.testing.coverage import EVALUATED, percent

    yield ""
    yield "coverage"
    width = max(len(each.document.name) for each in reports)
    for report in reports:
        yield f"  {report.document.name:<{width}}  {percent([report]):6.1f} %  {report.seen} of {report.goals}"
        missed = [(each, goal) for each in report.expressions for goal in each.missed]
        for each, goal in missed[:_MOST_SHOWN]:
            _, line, _ = goal.span.place
            outcome = "not evaluated" if goal.outcome == EVALUATED else f"never {goal.outcome}"
            yield f"    {report.document.file}:{line}: {each.place.name}: {outcome}: {goal.text}"
        if len(missed) > _MOST_SHOWN:
            yield f"    ... and {len(missed) - _MOST_SHOWN} more"
    yield f"  {'all':<{width}}  {percent(reports):6.1f} %"
