"""Cases about DeschedulerPlugins: vetoes, and whole cycles with the vetoes of each candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from koordpolicy.engine.cel.scalar.tracing import NO_ROW
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.compile import CompiledDescheduler
from koordpolicy.engine.descheduler.documents import DocumentPlugin, SourceStreaks
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.descheduler.results import CycleResult, Decision, DeschedulerFailure, EvictionOutcome
from koordpolicy.engine.documents import DeschedulerType, ErrorExpectation, ExpectedVeto
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin, Registry

from .case_run import RunningCase, checked_params, outcome_of, rules_by_name
from .fixtures import FixtureError, World, unknown
from .instruments import compiled_of, instrumented

_PROFILE = "test"
"""The profile of plugins that are active in all; others run in the first of theirs."""


def run(running: RunningCase, plugin: Plugin) -> None:
    """Run a document on single pods, or run cycles with it and other plugins."""
    case = running.case
    if case.eviction_filter or case.eviction:
        _run_filter(running, plugin)
    if case.evicts is not None or case.evicted_count is not None or case.keeps or case.roles or case.errors:
        _run_cycles(running, plugin)


def _run_filter(running: RunningCase, plugin: Plugin) -> None:
    world = running.world()
    snapshot = world.cluster.snapshot(world.now)
    params = checked_params(plugin, running.params)
    compiled = instrumented(replace(compiled_of(plugin, {}), params=params), running.observer)
    assert isinstance(compiled, CompiledDescheduler)
    spec = compiled.spec
    if spec.type is not DeschedulerType.EVICTION_FILTER:
        raise FixtureError(f"`{plugin.name}` is of the type {spec.type.value}, and vetoes nothing")
    document = DocumentPlugin(compiled)
    for expected in running.case.eviction_filter:
        running.tally.turn()
        refusal = document.eviction_filter(world.pod(expected.subject), snapshot)
        got = outcome_of(refusal, compiled.criteria, compiled.match_conditions, row=NO_ROW, tally=running.tally,
                         policy=spec.failure_policy)
        running.expect(f"eviction of `{expected.subject}`", expected, got,
                       rules_by_name(compiled.criteria, compiled.match_conditions))
    for choice in running.case.eviction:
        running.tally.turn()
        expected_choice = f"an error with `{choice.error}`" if choice.error is not None else _choice(
            choice.mode, choice.grace_period_s)
        try:
            chosen = document.choose_eviction(world.pod(choice.subject), snapshot)
            found = _choice(chosen.mode, chosen.grace_period_s)
        except EvaluationError as error:
            is_expected = choice.error is not None and choice.error in error.message
            found = expected_choice if is_expected else f"the error `{error.message}`"
        if found != expected_choice:
            running.miss(f"choice for `{choice.subject}`", expected_choice, found, choice.span)


def _choice(mode: str | None, grace_period_s: int | None) -> str:
    parts = [mode or "", "" if grace_period_s is None else f"grace period {grace_period_s} s"]
    return ", ".join(part for part in parts if part) or "no choice"


def _run_cycles(running: RunningCase, plugin: Plugin) -> None:
    case = running.case
    running.only_skips = False
    if Point.EVICTION_FILTER in plugin.points:
        raise FixtureError(f"`{plugin.name}` evicts nothing by itself: expect `evictionFilter` of it")
    registry, named = _registry(running, plugin)
    spec = DeschedulerProfileSpec(min(plugin.profiles or {_PROFILE}), filter=named,
                                  args={plugin.name: running.params} if running.params else {})
    checked_params(plugin, running.params)
    result = CycleResult(1, dry_run=True, nodes=0)
    world = running.world()
    profiles = build_profiles([spec], registry, dry_run=True, memory=SourceStreaks(),
                              snapshot=lambda: world.cluster.snapshot(world.now))
    for number in range(case.cycles):
        if number:
            world = running.world(running.now + number * case.every_ns)
        result = run_cycle(profiles, world.cluster.snapshot(world.now), generation=1)
    if result.error:
        raise FixtureError(f"the cycle ended early: {result.error}")
    _check(running, world, plugin, result)


def _registry(running: RunningCase, plugin: Plugin) -> tuple[Registry, tuple[str, ...]]:
    """Return the plugins of the cycle, and the vetoes that must be named because they are no documents."""
    suite = running.suite
    beside: list[Plugin] = []
    named: list[str] = []
    known = {
        each.name: each for each in (*suite.python_plugins, *suite.plugins.values())
        if each.framework is Framework.DESCHEDULER
    }
    for name in running.case.beside:
        if name not in known:
            raise unknown("descheduler plugin", name, known)
        beside.append(known[name])
        if (Framework.DESCHEDULER, name) not in suite.plugins:
            if Point.EVICTION_FILTER not in known[name].points:
                raise FixtureError(f"`{name}` vetoes nothing: only vetoes and documents can stand beside")
            named.append(name)
    return suite.registry([plugin, *beside], running.observer), tuple(named)


def _check(running: RunningCase, world: World, plugin: Plugin, result: CycleResult) -> None:
    case = running.case
    of_plugin = [each for each in result.outcomes if each.decision.plugin == plugin.name]
    evicted = [world.named(each.pod) for each in of_plugin if each.decision.evicted]
    for name in (*(case.evicts or ()), *(each.subject for each in case.keeps)):
        world.pod(name)
    if case.evicts is not None and list(case.evicts) != evicted:
        running.miss("evictions", ", ".join(case.evicts) or "none",
                     (", ".join(evicted) or "none") + _stops(of_plugin, world))
    if case.evicted_count is not None and case.evicted_count != len(evicted):
        running.miss("number of evictions", str(case.evicted_count), str(len(evicted)))
    for expected in case.keeps:
        key = world.pod(expected.subject).key
        outcome = next((each for each in of_plugin if each.pod == key), None)
        about = f"what stops `{expected.subject}`"
        if outcome is None:
            running.miss(about, expected.by, "it is not a candidate", expected.span)
        elif outcome.decision.evicted:
            running.miss(about, expected.by, "it is evicted", expected.span)
        elif not _is_stopped_by(expected, outcome.decision, plugin.name):
            described = expected.by + (f": {expected.message}" if expected.message is not None else "")
            running.miss(about, described, f"{_stopper(outcome.decision)}: {outcome.decision.message}", expected.span)
    for role in case.roles:
        world.node(role.subject)
        found = sorted({each.role for each in result.node_notes
                        if each.node == role.subject and each.plugin == plugin.name})
        if (role.role not in found) if role.role != "none" else bool(found):
            running.miss(f"the role of `{role.subject}`", role.role, ", ".join(found) or "none", role.span)
    _check_errors(running, world, plugin, result.failures)


def _stops(outcomes: Sequence[EvictionOutcome], world: World) -> str:
    stopped = [f"{world.named(pod)} is stopped by {_stopper(decision)}" for pod, _, decision in outcomes
            if not decision.evicted]
    return f" ({'; '.join(stopped)})" if stopped else ""


def _stopper(decision: Decision) -> str:
    return decision.stopped_by + (f"/{decision.stopped_rule}" if decision.stopped_rule else "")


def _is_stopped_by(expected: ExpectedVeto, decision: Decision, plugin: str) -> bool:
    ways = {decision.stopped_by if decision.stopped_by != plugin else decision.stopped_rule, _stopper(decision)}
    return expected.by in ways and expected.message in (None, decision.message)


def _check_errors(running: RunningCase, world: World, plugin: Plugin, failures: Sequence[DeschedulerFailure]) -> None:
    left = list(failures)
    for expected in running.case.errors:
        found = [each for each in left if _is_expected(expected, each, world)]
        for each in found:
            left.remove(each)
        if not found:
            running.miss("errors", f"`{expected.item}`{f' of {expected.subject}' if expected.subject else ''}",
                         "; ".join(map(_failure, failures)) or "none", expected.span)
    for each in left:
        running.miss("errors", f"no other error of `{plugin.name}`", _failure(each))


def _is_expected(expected: ErrorExpectation, failure: DeschedulerFailure, world: World) -> bool:
    return (expected.item == failure.rule and expected.subject in (None, failure.subject, world.named(failure.subject))
            and expected.message in (None, failure.message))


def _failure(failure: DeschedulerFailure) -> str:
    head = f"`{failure.rule}`" if failure.rule else f"`{failure.plugin}`"
    return head + (f" of {failure.subject}" if failure.subject else "") + f": {failure.message}"
