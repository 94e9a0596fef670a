"""Runs one case: builds its world, asks its plugin through the framework's own code, and compares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.tracing import Observer
from koordpolicy.engine.cel.scalar.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import Rule
from koordpolicy.engine.documents import EVERY_OTHER, Case, Expectation, ProblemExpectation, Wanted, load, read_file
from koordpolicy.engine.framework.points import Code, FailurePolicy, Framework, Refusal
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.source import PolicyError, Problem, Severity, Source, Span, did_you_mean

from .fixtures import FixtureError, World
from .instruments import Asked, Both, Tally, values_of
from .results import CaseResult, Mismatch
from .suites import Suite, compiled

_NOTHING: Final = "nothing was evaluated"


@dataclass(frozen=True, slots=True)
class Got:
    """What came out for one subject, in the words of expectations."""

    wanted: Wanted
    rule: str = ""
    message: str = ""
    reason: str = ""
    asked: tuple[Asked, ...] = ()

    def __str__(self) -> str:
        if self.wanted in (Wanted.PASS, Wanted.SKIP):
            return str(self.wanted.value)
        return str(self.wanted.value) + _details(self.rule, self.message, self.reason)


def _details(rule: str, message: str | None, reason: str | None) -> str:
    return f" of `{rule}`" + (f" ({reason})" if reason else "") + (f": {message}" if message else "")


@dataclass(slots=True)
class Asking:
    """One case while it runs."""

    suite: Suite
    case: Case
    tally: Tally
    observer: Observer
    explains: bool
    mismatches: list[Mismatch] = field(default_factory=list)
    only_skips: bool = True
    """Whether everything that is expected is that nothing is evaluated."""

    @property
    def now(self) -> int:
        """The moment of the decision, in nanoseconds since the epoch."""
        return self.suite.spec.now_ns if self.case.now_ns is None else self.case.now_ns

    @property
    def seed(self) -> int:
        """What chance follows from."""
        return self.suite.spec.seed if self.case.seed is None else self.case.seed

    @property
    def params(self) -> Mapping[str, Any]:
        """What is given in place of the plugin's own params."""
        return {**self.suite.spec.params, **self.case.params}

    @property
    def profile(self) -> str | None:
        """The profile that is named, if one is."""
        return self.case.profile or self.suite.spec.profile

    def world(self, now: int | None = None) -> World:
        """Return what the case is about, at its moment or another one."""
        case = self.case
        return self.suite.worlds.world(self.now if now is None else now, case.overlay, case.nodes, case.pod_given)

    def pod(self, world: World) -> PodInfo:
        """Return the pod that is decided about."""
        if self.case.pod_given is not None:
            return self.suite.worlds.pod_of(self.case.pod_given, self.case.overlay, world.now)
        assert self.case.pod is not None
        return world.pod(self.case.pod)

    def miss(
        self, about: str, expected: str, got: str, span: Span | None = None, asked: Iterable[Asked] = (),
        *, refusals: Iterable[Refusal] = (),
    ) -> None:
        """Note that an expectation was not met, with what was asked or who refused on the way to it."""
        values: list[tuple[int, str, object]] = []
        rest = 0
        if self.explains:
            for each in asked:
                lines, others = values_of(each)
                values += lines
                rest += others
            values += ((0, text, value) for refusal in refusals for text, value in refusal.values)
        self.mismatches.append(Mismatch(about, expected, got, span or self.case.span, tuple(values), rest))

    def expect(self, about: str, expected: Expectation, got: Got, rules: Mapping[str, Program]) -> None:
        """Compare one outcome; a rule that the plugin does not have is a failure whatever came out."""
        if expected.wanted is not Wanted.SKIP:
            self.only_skips = False
        if expected.rule and expected.rule not in rules:
            hint = did_you_mean(expected.rule, rules) or "there are " + (", ".join(f"`{r}`" for r in rules) or "none")
            self.miss(about, f"the rule `{expected.rule}`", f"there is no such rule: {hint}", expected.span)
            return
        wanted = expected.wanted.value
        if expected.rule:
            wanted += _details(expected.rule, expected.message, expected.reason)
        same = expected.wanted is got.wanted and (not expected.rule or expected.rule == got.rule)
        if expected.message is not None and expected.message != got.message:
            same = False
        if expected.reason is not None and expected.reason != got.reason:
            same = False
        if not same:
            self.miss(about, wanted, str(got), expected.span, got.asked)


def run_case(suite: Suite, case: Case, observer: Observer | None = None, *, explains: bool = False) -> CaseResult:
    """Run a case. `observer` is told of every evaluation; `explains` adds the values of sub-expressions to failures."""
    start = time.perf_counter()
    tally = suite.kept.setdefault("tally", Tally())
    tally.clear()
    if observer is None:
        told: Observer = tally
    else:
        told = suite.kept.setdefault(("both", id(observer)), Both(tally, observer))
    asking = Asking(suite, case, tally, told, explains)
    try:
        if case.expect_invalid is not None:
            _check_invalid(asking)
            asking.only_skips = True
        else:
            _run(asking)
            if not asking.only_skips and not asking.mismatches and not _is_touched(suite, case, tally):
                asking.miss("the case", "something is evaluated", f"{_NOTHING}: is the plugin about this pod?")
    except FixtureError as error:
        asking.miss("the case", "a case that can run", str(error))
    except PolicyError as error:
        asking.miss("the case", "a case that can run", "; ".join(each.message for each in error.problems))
    file, line, _ = case.span.place
    return CaseResult(
        suite.name, case.name, file, line, tuple(asking.mismatches), tally.rules, tally.rows,
        time.perf_counter() - start,
    )


def _is_touched(suite: Suite, case: Case, tally: Tally) -> bool:
    """Return whether anything was evaluated of the plugin that the case asks, or of any where it asks all of them."""
    try:
        own = suite.sources_of(suite.plugin_of(case))
    except FixtureError:
        return bool(tally.everything)
    return any(each.program.source in own for each in tally.everything)


_SCHEDULING: Final = ("pre_enqueue", "pre_filter", "filter", "score", "order")
_EXPECTED_OF: Final[Mapping[str, Framework]] = {
    **dict.fromkeys(_SCHEDULING, Framework.SCHEDULER), "rounds": Framework.QOS,
    **dict.fromkeys(("eviction_filter", "evicts", "evicted_count", "keeps", "roles", "errors"), Framework.DESCHEDULER),
}


def _run(asking: Asking) -> None:
    # The frameworks need numpy and more, which nobody should wait for who only reads suites.
    from . import descheduling, qos, scheduling  # noqa: PLC0415

    case = asking.case
    if case.place is not None or case.refused:
        scheduling.run_cycle(asking)
        asking.tally.turn()
    # What is None is not asked for, nor is what is empty, but for evictions: none is something to expect.
    given = [name for name in _EXPECTED_OF if getattr(case, name) not in (None, ()) or
             (name == "evicts" and case.evicts is not None)]
    if not given:
        return
    plugin = asking.suite.plugin_of(case)
    for name in given:
        if _EXPECTED_OF[name] is not plugin.framework:
            name = "evicts" if name == "evicted_count" else name  # noqa: PLW2901
            raise FixtureError(f"`{_written(name)}` cannot be asked of `{plugin.name}`, a {plugin.framework.value} "
                               f"plugin")
    runners: Mapping[Framework, Callable[[Asking, Plugin], None]] = {
        Framework.SCHEDULER: scheduling.run_points, Framework.QOS: qos.run, Framework.DESCHEDULER: descheduling.run,
    }
    runners[plugin.framework](asking, plugin)


def _written(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.capitalize() for each in rest)


def checked_params(plugin: Plugin, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the plugin's params with those given; raise `FixtureError` where it does not take them."""
    try:
        return plugin.check_args(params) if plugin.check_args is not None else params
    except ValueError as error:
        raise FixtureError(str(error)) from None


def outcome_of(
    refusal: Refusal | None, rules: Iterable[Rule], conditions: Iterable[Rule], *, row: int, tally: Tally,
    policy: FailurePolicy,
) -> Got:
    """Return what a check came to at a row: told apart are what passed, what nobody asked, what is false, and errors.

    An error that the failure policy leaves out is an error still.
    """
    known = [(rule, tally.answers(rule.program, row)) for rule in rules]
    asked = tuple(each for _, answers in known for each in answers)
    if refusal is not None:
        error = refusal.error
        of_rule = tuple(each for rule, answers in known if rule.name == refusal.rule for each in answers)
        if error is not None or refusal.code is Code.ERROR:
            message = error.message if error is not None else refusal.message
            return Got(Wanted.ERROR, refusal.rule, message, error.reason if error is not None else "", of_rule or asked)
        return Got(Wanted.FAIL, refusal.rule, refusal.message, asked=of_rule)
    if policy is FailurePolicy.IGNORE:
        checks = [*((rule, tally.answers(rule.program, row)) for rule in conditions), *known]
        for rule, answers in checks:
            for each in answers:
                if isinstance(each.answer, EvaluationError):
                    return Got(Wanted.ERROR, rule.name, each.answer.message, each.answer.reason, (each,))
    return Got(Wanted.PASS if asked else Wanted.SKIP, asked=asked)


def rules_by_name(rules: Iterable[Rule], conditions: Iterable[Rule]) -> dict[str, Program]:
    """Return programs by the names that expectations may use; the conditions fail together, as one."""
    found = {rule.name: rule.program for rule in rules}
    for rule in conditions:
        found.setdefault("matchConditions", rule.program)
        found.setdefault(rule.name, rule.program)
    return found


def by_node(expectations: Iterable[Any], world: World) -> dict[str, Any]:
    """Return the expectation of each node that one is about; `*` stands for all that no other names."""
    found: dict[str, Any] = {}
    rest: Any = None
    for each in expectations:
        if each.subject == EVERY_OTHER:
            rest = each
        else:
            world.node(each.subject)
            found[each.subject] = each
    if rest is not None:
        others = [name for name in world.cluster.names if name not in found]
        if not others:
            raise FixtureError("`*` is about no node: all are named")
        found.update(dict.fromkeys(others, rest))
    return found


def _check_invalid(asking: Asking) -> None:
    invalid = asking.case.expect_invalid
    assert invalid is not None
    if invalid.text is not None:
        source = Source("<document>", invalid.text.text)
    else:
        path = asking.suite.worlds.directory / str(invalid.file)
        if not path.is_file():
            raise FixtureError(f"there is no file `{invalid.file}` beside the suite")
        source = read_file(path)
    loaded = load([source])
    problems = [each for each in loaded.problems if each.severity is Severity.ERROR]
    try:
        # PolicyParams of the suite may be named, and its plugins' names are taken.
        compiled((*asking.suite.documents, *loaded.documents), asking.suite.functions)
    except PolicyError as error:
        problems += [each for each in error.problems if each.severity is Severity.ERROR and each not in problems]
    if not loaded.read:
        raise FixtureError("there is no document in what is to be refused")
    left = list(problems)
    for expected in invalid.problems:
        found = [each for each in left if _is_meant(each, expected)]
        for each in found:
            left.remove(each)
        if not found:
            asking.miss("the document", _problem_text(expected), _told(problems), expected.span)
    for each in left:
        asking.miss("the document", "no other problem", _told([each]))


def _is_meant(problem: Problem, expected: ProblemExpectation) -> bool:
    line = problem.span.place[1] if problem.span is not None else None
    return ((expected.message is None or expected.message in problem.message)
            and (expected.code is None or expected.code == problem.code)
            and (expected.line is None or expected.line == line))


def _problem_text(expected: ProblemExpectation) -> str:
    parts = [] if expected.message is None else [f"`{expected.message}`"]
    parts += [] if expected.code is None else [f"code {expected.code}"]
    parts += [] if expected.line is None else [f"in line {expected.line}"]
    return "it is refused for " + ", ".join(parts)


def _told(problems: Iterable[Problem]) -> str:
    texts = [f"line {each.span.place[1]}: {each.message}" if each.span else each.message for each in problems]
    return "; ".join(texts) or "it is valid"

