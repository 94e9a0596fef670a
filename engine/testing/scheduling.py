"""Cases about SchedulerPlugins: single points, and whole cycles."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from koordpolicy.engine.cel.scalar.tracing import NO_ROW
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.compile import CompiledScheduler
from koordpolicy.engine.compile.programs import Rule
from koordpolicy.engine.documents import ExpectedResult, SchedulerSpec, ScoreExpectation
from koordpolicy.engine.framework.handle import Handle
from koordpolicy.engine.framework.instances import Adoption
from koordpolicy.engine.framework.points import Answer, Framework, Refusal, Scores
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.framework.scheduler import CycleState
from koordpolicy.engine.kubernetes.release import release_of
from koordpolicy.engine.scheduler.cycle.schedule_one import decide
from koordpolicy.engine.scheduler.cycle.tie_break import tie_break
from koordpolicy.engine.scheduler.documents.plugin import DocumentScheduler, make_instance
from koordpolicy.engine.scheduler.profiles.profile import Profile, ProfileSpec
from koordpolicy.engine.scheduler.verdict.verdict import Verdict

from .case_run import Got, RunningCase, by_node, checked_params, outcome_of, rules_by_name
from .fixtures import FixtureError, World, unknown
from .instruments import compiled_of, instrumented
from .suites import DEFAULT_PROFILE


def run_points(running: RunningCase, plugin: Plugin) -> None:
    """Run a document at the points for which the case has expectations."""
    case, world = running.case, running.world()
    scheduler = _scheduler(running, plugin)
    compiled, state = scheduler.compiled, CycleState()
    pod, snapshot = running.pod(world), world.cluster.snapshot(world.now)
    spec = compiled.document.spec
    assert isinstance(spec, SchedulerSpec)
    checks: tuple[tuple[Any, tuple[Rule, ...], Callable[[], Refusal | None], str], ...] = (
        (case.pre_enqueue, compiled.pre_enqueue, lambda: scheduler.pre_enqueue(pod, snapshot), "preEnqueue"),
        (case.pre_filter, (*compiled.pre_enqueue, *compiled.pre_filter),
         lambda: scheduler.pre_filter(state, pod, snapshot), "preFilter"),
    )
    for expected, rules, check, point in checks:
        if expected is None:
            continue
        if not rules:
            raise FixtureError(f"`{plugin.name}` has no `{point}`")
        refusal = check()
        got = outcome_of(refusal, rules, compiled.conditions, row=NO_ROW, tally=running.tally,
                         policy=spec.failure_policy)
        running.expect(point, expected, got, rules_by_name(rules, compiled.conditions))
    rows = np.arange(snapshot.size, dtype=np.intp)
    if case.filter or case.score or case.order:
        if not snapshot.size:
            raise FixtureError("there is no node that the pod could run on")
        answer = scheduler.filter(state, pod, snapshot, rows) if compiled.filter else Answer(np.ones(len(rows), bool))
        if case.filter:
            _check_filter(running, world, compiled, answer)
        if case.score or case.order:
            if not compiled.score:
                raise FixtureError(f"`{plugin.name}` has no `score`")
            # As in a cycle, only nodes that passed are scored: what is normalised depends on which they are.
            passed = rows[answer.passed]
            scores = scheduler.score(state, pod, snapshot, passed).spread(passed, snapshot.size)
            _check_scores(running, world, compiled, scores, answer)
            _check_order(running, world, scores, answer)


def _scheduler(running: RunningCase, plugin: Plugin) -> DocumentScheduler:
    key = ("scheduler", plugin.name, repr(running.params), id(running.observer))
    found = running.suite.cache.get(key)
    if found is None:
        params = checked_params(plugin, running.params)
        compiled = instrumented(compiled_of(plugin, {}), running.observer)
        found = running.suite.cache[key] = DocumentScheduler(replace(compiled, params=params))
    assert isinstance(found, DocumentScheduler)
    return found


def _check_filter(running: RunningCase, world: World, compiled: CompiledScheduler, answer: Answer) -> None:
    if not compiled.filter:
        raise FixtureError(f"`{compiled.document.name}` has no `filter`")
    spec = compiled.document.spec
    assert isinstance(spec, SchedulerSpec)
    known = rules_by_name(compiled.filter, compiled.conditions)
    for name, expected in by_node(running.case.filter, world).items():
        row = world.node(name)
        refusal = None if answer.passed[row] else answer.explain(row)
        got = outcome_of(refusal, compiled.filter, compiled.conditions, row=row, tally=running.tally,
                         policy=spec.failure_policy)
        running.expect(f"filter of `{name}`", expected, got, known)


def _check_scores(
    running: RunningCase, world: World, compiled: CompiledScheduler, scores: Scores, answer: Answer,
) -> None:
    items = {each.item.name: each.program for each in compiled.score}
    for name, expected in by_node(running.case.score, world).items():
        row, about = world.node(name), f"score of `{name}`"
        calls = [each for program in items.values() for each in running.tally.calls(program, row)]
        if expected.result is not ExpectedResult.SKIP:
            running.only_skips = False
        if expected.rule and expected.rule not in items:
            listed = ", ".join(f"`{each}`" for each in items)
            running.miss(about, f"the item `{expected.rule}`", f"there is no such item: there are {listed}",
                         expected.span)
            continue
        got = _score(row, scores, answer, is_evaluated=bool(calls))
        if not _is_met(expected, got):
            running.miss(about, _score_text(expected), str(got), expected.span, calls)


def _error(scores: Scores, row: int) -> tuple[str, EvaluationError] | None:
    """Return the item that fails at a row, and its error."""
    return next(((item, of_item[row]) for item, of_item in scores.errors.items() if row in of_item), None)


def _score(row: int, scores: Scores, answer: Answer, *, is_evaluated: bool) -> Got | int:
    if not answer.passed[row]:
        return Got(ExpectedResult.FAIL, answer.explain(row).rule, "the filter refuses the node")
    error = _error(scores, row)
    if error is not None:
        return Got(ExpectedResult.ERROR, error[0], error[1].message, error[1].reason)
    if not is_evaluated:
        return Got(ExpectedResult.SKIP)
    return int(scores.values[row])


def _is_met(expected: ScoreExpectation, got: Got | int) -> bool:
    if isinstance(got, int):
        return expected.result is ExpectedResult.PASS and expected.low <= got <= expected.high
    return (expected.result is got.result and expected.rule in ("", got.rule)
            and expected.message in (None, got.message))


def _score_text(expected: ScoreExpectation) -> str:
    if expected.result is ExpectedResult.PASS:
        return str(expected.low) if expected.low == expected.high else f"{expected.low}..{expected.high}"
    message = f": {expected.message}" if expected.message else ""
    return f"error of `{expected.rule}`{message}" if expected.result is ExpectedResult.ERROR else expected.result.value


def _check_order(running: RunningCase, world: World, scores: Scores, answer: Answer) -> None:
    groups = running.case.order
    if not groups:
        return
    running.only_skips = False
    values: dict[str, int] = {}
    for name in (name for group in groups for name in group):
        row = world.node(name)
        if name in values:
            raise FixtureError(f"`order` names the node `{name}` twice")
        if not answer.passed[row]:
            running.miss("order", f"`{name}` is scored", "the filter refuses it")
            return
        error = _error(scores, row)
        if error is not None:
            running.miss("order", f"`{name}` is scored", f"error of `{error[0]}`: {error[1].message}")
            return
        values[name] = int(scores.values[row])
    required = [sorted(group) for group in groups]
    ranked = sorted(set(values.values()), reverse=True)
    got = [sorted(name for name, value in values.items() if value == rank) for rank in ranked]
    if required != got:
        running.miss("order", _groups(required), _groups(got) + " with " + ", ".join(
            f"{name} {value}" for name, value in sorted(values.items(), key=lambda each: (-each[1], each[0]))
        ))


def _groups(groups: list[list[str]]) -> str:
    return " > ".join(" = ".join(group) for group in groups)


def run_cycle(running: RunningCase) -> None:
    """Run a whole scheduling cycle with the suite's documents and the built-in plugins."""
    case, world = running.case, running.world()
    running.only_skips = False
    profile = _profile(running)
    snapshot = world.cluster.snapshot(world.now)
    tie = tie_break("first" if case.seed is None and not running.suite.spec.seed else "random", running.seed)
    verdict = decide(profile, running.pod(world), snapshot, tie_break=tie, exhaustive=True)
    for failure in verdict.failures:
        running.miss("the cycle", "no failure", f"{failure.plugin} at {failure.point.value}: {failure.message}")
    for name in case.place or ():
        world.node(name)
    if case.place is not None and (verdict.node not in case.place if case.place else verdict.node is not None):
        required = " or ".join(case.place) or "no node"
        got = verdict.node or "no node"
        running.miss("place", required, f"{got} ({_why(verdict, case.place)})", refusals=_refusals(verdict, case.place))
    for expected in case.refused:
        world.node(expected.subject)
        if (Framework.SCHEDULER, expected.plugin) not in _registry(running).plugins:
            raise unknown("plugin", expected.plugin, tuple(
                each.name for each in _registry(running).of_framework(Framework.SCHEDULER)
            ))
        refusals = [(plugin, refusal.rule, refusal.message) for plugin, refusal in verdict.why_not(expected.subject)]
        if not any(plugin == expected.plugin and expected.rule in ("", rule) for plugin, rule, _ in refusals):
            required = expected.plugin + (f"/{expected.rule}" if expected.rule else "")
            got = "; ".join(f"{plugin}/{rule}: {message}" if rule else f"{plugin}: {message}"
                            for plugin, rule, message in refusals)
            running.miss(f"refusal of `{expected.subject}`", required, got or "it is not refused", expected.span)


def _refusals(verdict: Verdict, required: tuple[str, ...]) -> Iterator[Refusal]:
    """Yield the first refusals of the expected nodes."""
    for name in required:
        yield from (refusal for _, refusal in verdict.why_not(name)[:1])


def _why(verdict: Verdict, required: tuple[str, ...]) -> str:
    if verdict.node is None:
        return verdict.summary()
    best = ", ".join(f"{name} {score}" for name, score in verdict.best(3))
    for name in required:
        refused = verdict.why_not(name)
        if refused:
            plugin, refusal = refused[0]
            return f"{name} is refused by {plugin}: {refusal.message}"
    return f"scores: {best}"


def _registry(running: RunningCase) -> Any:
    key = ("registry", id(running.observer))
    cache = running.suite.cache
    if key not in cache:
        own = [each for (framework, _), each in running.suite.plugins.items() if framework is Framework.SCHEDULER]
        python = [each for each in running.suite.python_plugins if each.framework is Framework.SCHEDULER]
        cache[key] = running.suite.registry((*python, *own), running.observer)
    return cache[key]


def _profile(running: RunningCase) -> Profile:
    registry = _registry(running)
    name = running.profile
    named = running.case.plugin or running.suite.spec.plugin
    if named is None:
        own = [each.name for (framework, _), each in running.suite.plugins.items() if framework is Framework.SCHEDULER]
        named = own[0] if len(own) == 1 else None
    plugin = running.suite.plugin_of(running.case) if named is not None else None
    if plugin is not None and plugin.framework is not Framework.SCHEDULER:
        raise FixtureError(f"`place` cannot be expected of `{plugin.name}`, a {plugin.framework.value} plugin")
    if name is None:
        name = min(plugin.profiles) if plugin is not None and plugin.profiles else DEFAULT_PROFILE
    if running.params and plugin is None:
        raise FixtureError("for which plugin are the `params`? name it with `plugin`")
    args = {plugin.name: running.params} if plugin is not None and running.params else {}
    key = ("profile", name, repr(args), running.seed, id(running.observer))
    cache = running.suite.cache
    if key not in cache:
        if plugin is not None and plugin.profiles is not None and name not in plugin.profiles:
            raise FixtureError(f"`{plugin.name}` is not active in the profile `{name}`")

        def handle(profile: str, plugin: str) -> Handle:
            snapshot = running.world().cluster.snapshot
            return Handle(profile, lambda: snapshot(running.now), lambda: running.now,
                          logging.getLogger(f"koordpolicy.testing.{plugin}"), seed=running.seed,
                          kubernetes=release_of(profile))

        adoption = Adoption({}, threading.Lock(), handle, make_instance)
        cache[key] = Profile.of(ProfileSpec(name, args=args), registry, adoption)
    profile: Profile = cache[key]
    return profile
