"""One running case: its world, its expectations, and their comparison with outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.tracing import EvaluationObserver
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import Rule
from koordpolicy.engine.documents import EVERY_OTHER, Case, Expectation, ExpectedResult
from koordpolicy.engine.framework.points import Code, FailurePolicy, Refusal
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.source import Span, did_you_mean
from koordpolicy.engine.texts import quoted_list

from .fixtures import FixtureError, World
from .instruments import CallTally, ProgramCall, values_of
from .results import Mismatch
from .suites import Suite


@dataclass(frozen=True, slots=True)
class Got:
    """The outcome of one subject, in the terms of expectations."""

    result: ExpectedResult
    rule: str = ""
    message: str = ""
    reason: str = ""
    calls: tuple[ProgramCall, ...] = ()

    def __str__(self) -> str:
        if self.result is ExpectedResult.PASS:
            return str(self.result.value)
        if self.result is ExpectedResult.SKIP:
            return f"{self.result.value}: the document does not apply here"
        return str(self.result.value) + _details(self.rule, self.message, self.reason)


def _details(rule: str, message: str | None, reason: str | None) -> str:
    return f" of `{rule}`" + (f" ({reason})" if reason else "") + (f": {message}" if message else "")


@dataclass(slots=True)
class RunningCase:
    """One running case."""

    suite: Suite
    case: Case
    tally: CallTally
    observer: EvaluationObserver
    explains: bool
    mismatches: list[Mismatch] = field(default_factory=list)
    only_skips: bool = True
    """True if all expectations are that nothing is evaluated."""

    @property
    def now(self) -> int:
        """The time of the decision, in nanoseconds since the epoch."""
        return self.suite.spec.now_ns if self.case.now_ns is None else self.case.now_ns

    @property
    def seed(self) -> int:
        """The seed of all randomness."""
        return self.suite.spec.seed if self.case.seed is None else self.case.seed

    @property
    def params(self) -> Mapping[str, Any]:
        """The overrides of the plugin's params."""
        return {**self.suite.spec.params, **self.case.params}

    @property
    def profile(self) -> str | None:
        """The name of the profile, if one is given."""
        return self.case.profile or self.suite.spec.profile

    def world(self, now: int | None = None) -> World:
        """Return the world of the case, at its time or another one."""
        case = self.case
        return self.suite.worlds.world(self.now if now is None else now, case.overlay, case.nodes, case.pod_given)

    def pod(self, world: World) -> PodInfo:
        """Return the pod to schedule."""
        if self.case.pod_given is not None:
            return self.suite.worlds.pod_of(self.case.pod_given, self.case.overlay, world.now)
        assert self.case.pod is not None
        return world.pod(self.case.pod)

    def miss(
        self, about: str, expected: str, got: str, span: Span | None = None, calls: Iterable[ProgramCall] = (),
        *, refusals: Iterable[Refusal] = (),
    ) -> None:
        """Record an expectation that was not met, with the evaluations or refusals that led to it."""
        values: list[tuple[int, str, object]] = []
        rest = 0
        if self.explains:
            for each in calls:
                lines, others = values_of(each)
                values += lines
                rest += others
            values += ((0, text, value) for refusal in refusals for text, value in refusal.values)
        self.mismatches.append(Mismatch(about, expected, got, span or self.case.span, tuple(values), rest))

    def expect(self, about: str, expected: Expectation, got: Got, rules: Mapping[str, Program]) -> None:
        """Compare one outcome; a rule that the plugin does not have is always a failure."""
        if expected.result is not ExpectedResult.SKIP:
            self.only_skips = False
        if expected.rule and expected.rule not in rules:
            hint = did_you_mean(expected.rule, rules) or f"there are {quoted_list(rules) or 'none'}"
            self.miss(about, f"the rule `{expected.rule}`", f"there is no such rule: {hint}", expected.span)
            return
        described = expected.result.value
        if expected.rule:
            described += _details(expected.rule, expected.message, expected.reason)
        same = expected.result is got.result and (not expected.rule or expected.rule == got.rule)
        if expected.message is not None and expected.message != got.message:
            same = False
        if expected.reason is not None and expected.reason != got.reason:
            same = False
        if not same:
            self.miss(about, described, str(got), expected.span, got.calls)


def checked_params(plugin: Plugin, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the plugin's params with overrides; raise `FixtureError` if they are invalid."""
    try:
        return plugin.check_args(params) if plugin.check_args is not None else params
    except ValueError as error:
        raise FixtureError(str(error)) from None


def outcome_of(
    refusal: Refusal | None, rules: Iterable[Rule], conditions: Iterable[Rule], *, row: int, tally: CallTally,
    policy: FailurePolicy,
) -> Got:
    """Return the result of a check at a row: passed, skipped (not evaluated), failed, or an error.

    An error that the failure policy ignores is still an error.
    """
    known = [(rule, tally.calls(rule.program, row)) for rule in rules]
    calls = tuple(each for _, found in known for each in found)
    if refusal is not None:
        error = refusal.error
        of_rule = tuple(each for rule, answers in known if rule.name == refusal.rule for each in answers)
        if error is not None or refusal.code is Code.ERROR:
            message = error.message if error is not None else refusal.message
            return Got(
                ExpectedResult.ERROR, refusal.rule, message,
                error.reason if error is not None else "", of_rule or calls,
            )
        return Got(ExpectedResult.FAIL, refusal.rule, refusal.message, calls=of_rule)
    if policy is FailurePolicy.IGNORE:
        checks = [*((rule, tally.calls(rule.program, row)) for rule in conditions), *known]
        for rule, answers in checks:
            for each in answers:
                if isinstance(each.result, EvaluationError):
                    return Got(ExpectedResult.ERROR, rule.name, each.result.message, each.result.reason, (each,))
    return Got(ExpectedResult.PASS if calls else ExpectedResult.SKIP, calls=calls)


def rules_by_name(rules: Iterable[Rule], conditions: Iterable[Rule]) -> dict[str, Program]:
    """Return programs by the names that expectations may use; the conditions fail together, as one."""
    found = {rule.name: rule.program for rule in rules}
    for rule in conditions:
        found.setdefault("matchConditions", rule.program)
        found.setdefault(rule.name, rule.program)
    return found


def by_node(expectations: Iterable[Any], world: World) -> dict[str, Any]:
    """Return the expectations by node; `*` means all nodes that no other expectation names."""
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
