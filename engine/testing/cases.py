"""Run of one case: build its world, call its plugin through the framework's own code, and compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from koordpolicy.engine.cel.scalar.tracing import EvaluationObserver
from koordpolicy.engine.documents import Case, ProblemExpectation, load, place_of, read_file
from koordpolicy.engine.documents.loader import holds_policies, is_inside
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.source import PolicyError, Problem, Severity, Source
from koordpolicy.engine.texts import camel

from .case_run import RunningCase
from .fixtures import FixtureError
from .instruments import Both, CallTally
from .results import CaseResult
from .suites import Suite, compiled

_NOTHING: Final = "nothing was evaluated"


def run_case(
    suite: Suite, case: Case, observer: EvaluationObserver | None = None, *, explains: bool = False,
) -> CaseResult:
    """Run a case. `observer` sees every evaluation; `explains` adds the values of sub-expressions to failures."""
    start = time.perf_counter()
    tally = suite.cache.setdefault("tally", CallTally())
    tally.clear()
    if observer is None:
        both: EvaluationObserver = tally
    else:
        both = suite.cache.setdefault(("both", id(observer)), Both(tally, observer))
    running = RunningCase(suite, case, tally, both, explains)
    try:
        if case.expect_invalid is not None:
            _check_invalid(running)
            running.only_skips = True
        else:
            _run(running)
            if not running.only_skips and not running.mismatches and not _is_touched(suite, case, tally):
                running.miss("the case", "something is evaluated", f"{_NOTHING}: is the plugin about this pod?")
    except FixtureError as error:
        span = place_of(suite.document, *error.path) if error.path else None
        running.miss("the case", "a case that can run", str(error), span)
    except PolicyError as error:
        running.miss("the case", "a case that can run", "; ".join(each.message for each in error.problems))
    file, line, _ = case.span.place
    return CaseResult(
        suite.name, case.name, file, line, tuple(running.mismatches), tally.rules, tally.rows,
        time.perf_counter() - start,
    )


def _is_touched(suite: Suite, case: Case, tally: CallTally) -> bool:
    """Return whether anything was evaluated of the plugin that the case names, or of any plugin if it names none."""
    try:
        own = suite.sources_of(suite.plugin_of(case))
    except FixtureError:
        return bool(tally.everything)
    return any(each.program.source in own for each in tally.everything)


_SCHEDULING: Final = ("pre_enqueue", "pre_filter", "filter", "score", "order")
_EXPECTED_OF: Final[Mapping[str, Framework]] = {
    **dict.fromkeys(_SCHEDULING, Framework.SCHEDULER), "rounds": Framework.QOS,
    **dict.fromkeys(
        ("eviction_filter", "eviction", "evicts", "evicted_count", "keeps", "roles", "errors"), Framework.DESCHEDULER,
    ),
}


def _run(running: RunningCase) -> None:
    from . import descheduling, qos, scheduling  # noqa: PLC0415 - they import numpy, which reading suites does not need

    case = running.case
    if case.place is not None or case.refused:
        scheduling.run_cycle(running)
        running.tally.turn()
    # None and empty fields are not requested, except evictions: an empty list is an expectation.
    given = [name for name in _EXPECTED_OF if getattr(case, name) not in (None, ()) or
             (name == "evicts" and case.evicts is not None)]
    if not given:
        return
    plugin = running.suite.plugin_of(case)
    for name in given:
        if _EXPECTED_OF[name] is not plugin.framework:
            field = "evicts" if name == "evicted_count" else name
            raise FixtureError(f"`{camel(field)}` cannot be expected of `{plugin.name}`, a {plugin.framework.value} "
                               f"plugin")
    runners: Mapping[Framework, Callable[[RunningCase, Plugin], None]] = {
        Framework.SCHEDULER: scheduling.run_points, Framework.QOS: qos.run, Framework.DESCHEDULER: descheduling.run,
    }
    runners[plugin.framework](running, plugin)


def _check_invalid(running: RunningCase) -> None:
    invalid = running.case.expect_invalid
    assert invalid is not None
    if invalid.text is not None:
        source = Source("<document>", invalid.text.text)
    else:
        path = running.suite.worlds.directory / str(invalid.file)
        if not path.is_file():
            raise FixtureError(f"there is no file `{invalid.file}` beside the suite", _path_of_file(running))
        if not is_inside(path, running.suite.worlds.directory) and not holds_policies(path):
            raise FixtureError(f"`{invalid.file}` holds no policies", _path_of_file(running))
        source = read_file(path)
    loaded = load([source])
    problems = [each for each in loaded.problems if each.severity is Severity.ERROR]
    try:
        # PolicyParams of the suite may be named, and its plugins' names are taken.
        compiled((*running.suite.documents, *loaded.documents), running.suite.functions)
    except PolicyError as error:
        problems += [each for each in error.problems if each.severity is Severity.ERROR and each not in problems]
    if not loaded.read:
        raise FixtureError("there is no document in what is to be refused")
    left = list(problems)
    for expected in invalid.problems:
        found = [each for each in left if _is_expected(each, expected)]
        for each in found:
            left.remove(each)
        if not found:
            running.miss("the document", _problem_text(expected), _listed(problems), expected.span)
    for each in left:
        running.miss("the document", "no other problem", _listed([each]))


def _path_of_file(running: RunningCase) -> tuple[str | int, ...]:
    return "spec", "cases", running.suite.spec.cases.index(running.case), "expectInvalid", "file"


def _is_expected(problem: Problem, expected: ProblemExpectation) -> bool:
    line = problem.span.place[1] if problem.span is not None else None
    return ((expected.message is None or expected.message in problem.message)
            and (expected.code is None or expected.code == problem.code)
            and (expected.line is None or expected.line == line))


def _problem_text(expected: ProblemExpectation) -> str:
    parts = [] if expected.message is None else [f"`{expected.message}`"]
    parts += [] if expected.code is None else [f"code {expected.code}"]
    parts += [] if expected.line is None else [f"in line {expected.line}"]
    return "it is refused for " + ", ".join(parts)


def _listed(problems: Iterable[Problem]) -> str:
    texts = [f"line {each.span.place[1]}: {each.message}" if each.span else each.message for each in problems]
    return "; ".join(texts) or "it is valid"
