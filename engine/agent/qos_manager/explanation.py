"""Explanations of the QoS manager: the findings of each QoS plugin on one node at one time.

A recording is replayed up to that time; then each threshold is reported with its distance from the other result and its
timers, and each action with its result or the reason why it did nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

from koordpolicy.engine.cel.scalar.tracing import explain
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.compile import ActionProgram, EvictProgram, SuppressCPUProgram, ThresholdProgram, settings_of
from koordpolicy.engine.documents import format_duration
from koordpolicy.engine.evaluation.distances import distances_to
from koordpolicy.engine.explanation import Finding, Mark, counted, heading, left_out, listed, plain, shortened, shown
from koordpolicy.engine.framework.border import describe, must_be_survived
from koordpolicy.engine.framework.explain import ExplainsRound
from koordpolicy.engine.framework.points import Enforcement, Framework
from koordpolicy.engine.framework.qos import Adjustment
from koordpolicy.engine.framework.registry import Registry

from ..recorded_files import apply_writes
from ..recording import MetricsRecording, RecordedReadings
from ..replay import ReplayedRound, rounds
from .documents import DocumentStrategy
from .evict_action import leaving_pods
from .evictions import eviction_allowed, eviction_id
from .manager import Manager, RunningStrategy
from .strategy_state import StateKey, Timer
from .subjects import QoSSubject

_WIDTH: Final = 10
_MOST_PODS: Final = 5
_CONFLICT: Final = "Conflict"
"""The reason of an error outside of expressions: two strategies write the same files."""


def explain_round(
    recording: MetricsRecording, registry: Registry, node: str, *, at: int | None = None, plugin: str = "",
    gates: Mapping[str, bool] | None = None, enable: Iterable[str] = (),
) -> Finding:
    """Return the findings of each QoS plugin (or one of them) on a node in its last round at or before `at`.

    `at` is in nanoseconds after the start of the recording; None is its end.

    Raises:
        KeyError: the recording has no such node.
        PolicyError: a plugin cannot be activated.
    """
    if node not in recording.nodes:
        raise KeyError(node)
    moment = recording.end if at is None else min(recording.start + at, recording.end)
    until = copy(recording)
    until.times = [recording.start, max(moment, recording.start)]
    manager = Manager(gates or {}, frozenset(enable), snapshot=lambda: recording.snapshot, now=recording.start)
    manager.use(registry)
    last: dict[str, ReplayedRound] = {}
    files = dict(recording.files.get(node, {}))
    for each in rounds(until, manager):
        if each.node == node:
            last[each.plugin] = each
            if each.enforced:
                for adjustment in each.adjustments:
                    apply_writes(files, adjustment.writes)
    elapsed = format_duration(until.end - recording.start)
    seconds = (until.end - recording.start) / 1e9
    parts = [Finding("moment", f"{node} at {elapsed}", facts={"node": node, "elapsedSeconds": seconds})]
    idle: list[Finding] = []
    for known in registry.of_framework(Framework.QOS):
        if plugin not in ("", known.name):
            continue
        running = manager.running.get(known.name)
        if running is None:
            why = manager.idle.get(known.name, "it is not active")
            idle.append(Finding("idle", f"{known.name}: {why}", facts={"plugin": known.name, "reason": why}))
        elif known.name in last:
            readings = RecordedReadings(recording, node, last[known.name].time, files)
            parts.append(_plugin(running, last[known.name], readings))
    parts.append(heading("not active", tuple(idle), kind="idle"))
    return Finding("qos", facts={"node": node}, parts=tuple(parts))


def _plugin(running: RunningStrategy, last: ReplayedRound, readings: RecordedReadings) -> Finding:
    watched = "" if running.enforcement is Enforcement.ENFORCE else (
        f" [{running.enforcement.value.lower()} only: what it would do is not done]")
    done = sum(not each.recovers for each in last.adjustments)
    did = "acted" if done else "gave back" if last.adjustments else "failed" if last.errors else "did nothing"
    strategy = running.strategy
    if isinstance(strategy, DocumentStrategy):
        parts = tuple(_document(strategy, last, readings))
    elif isinstance(strategy, ExplainsRound):
        try:
            parts = tuple(strategy.explain_round(readings))
        except EvaluationError as error:
            parts = (_said("failed", shortened(error.message), Mark.ERROR),)
        except BaseException as error:  # the border between framework and plugin
            must_be_survived(error)
            parts = (_said("failed", describe(error), Mark.ERROR),)
    else:
        parts = ()
    if not isinstance(strategy, DocumentStrategy):
        explained = isinstance(strategy, ExplainsRound)
        parts += tuple(_adjustment(each, brief=explained) for each in last.adjustments)
    parts += tuple(_said("failed", f"{f'{each.item}: ' if each.item else ''}{shortened(each.message)}", Mark.ERROR)
                   for each in last.errors if not isinstance(strategy, DocumentStrategy) or each.reason == _CONFLICT)
    elapsed = format_duration(last.elapsed)
    found = heading(f"{running.name} {did} at {elapsed}{watched}", parts or (_said("idle", "it says no more"),),
                    kind="plugin")
    return replace(found, facts={
        "plugin": running.name, "gate": ", ".join(running.gates), "enforcement": running.enforcement.value,
        "outcome": did, "elapsedSeconds": last.elapsed / 1e9,
    })


def _document(strategy: DocumentStrategy, last: ReplayedRound, readings: RecordedReadings) -> Iterator[Finding]:
    compiled = strategy.compiled
    if not strategy.matches_node(readings):
        yield _said("no match", "`match.nodes` does not take this node")
        return
    subjects = tuple(strategy.subjects(readings))
    if not subjects:
        yield _said("no one", f"`forEach: {compiled.spec.for_each.value}`: nothing on the node is of that kind")
    yield from _window(strategy, readings)
    for subject in subjects:
        whose = f"{subject.name}: " if len(subjects) > 1 else ""
        for rule in compiled.match_conditions:
            try:
                matches = rule.program.evaluate(subject.bindings) is True
            except EvaluationError as error:
                yield _said("failed", f"{whose}matchConditions {rule.name}: {shortened(error.message)}", Mark.ERROR)
                break
            if not matches:
                yield _said("no match", f"{whose}matchConditions {rule.name}",
                            parts=distances_to(rule.program, subject.bindings))
                break
        else:
            look = _Look(strategy, subject, readings, last, whose)
            yield from (_threshold(look, threshold) for threshold in compiled.thresholds)
            yield from (_action(look, action) for action in compiled.actions)


def _window(strategy: DocumentStrategy, readings: RecordedReadings) -> Iterator[Finding]:
    """Yield a finding if there is no current sample: expressions that read usage then fail."""
    window = strategy.compiled.spec.window_ns
    if readings.measured("node", str(readings.node["metadata"]["name"]), "last", window):
        return
    try:
        age = f"the last one is {format_duration(readings.age())} old"
    except EvaluationError as error:
        age = error.message
    text = f"no sample of the node within the window of {format_duration(window)}: {age}"
    yield _said("unmeasured", text, Mark.ERROR)


@dataclass(frozen=True, slots=True)
class _Look:
    """One subject of one document after its last round; `whose` names the subject if there are several."""

    strategy: DocumentStrategy
    subject: QoSSubject
    readings: RecordedReadings
    last: ReplayedRound
    whose: str

    def key(self, item: str) -> StateKey:
        """Return the key of an item's state for the subject."""
        return item, str(self.readings.node["metadata"]["name"]), self.subject.name


def _threshold(look: _Look, threshold: ThresholdProgram) -> Finding:
    strategy, subject, readings, last = look.strategy, look.subject, look.readings, look.last
    name = f"{look.whose}{threshold.rule.name}"
    error = next((each for each in last.errors
                  if each.item == threshold.rule.name and each.subject == subject.name), None)
    if error is not None:
        stays = format_duration(strategy.compiled.spec.stale_after_ns)
        return _said("failed", f"{name}: {shortened(error.message)}; what was done before stays for at most {stays}",
                     Mark.ERROR)
    state = next((each for each in last.thresholds
                  if each.name == threshold.rule.name and each.subject == subject.name), None)
    timer = strategy.memory.timers.get(look.key(threshold.key)) or Timer()
    word, text = _timing(threshold, timer, readings.now)
    facts = {
        "threshold": threshold.rule.name, "subject": subject.name, "true": bool(state and state.true),
        "holds": timer.holds, "forSeconds": threshold.for_ns / 1e9, "coolDownSeconds": threshold.cool_down_ns / 1e9,
        "trueForSeconds": 0 if timer.since is None else (readings.now - timer.since) / 1e9,
    }
    message = f": {shortened(state.message)}" if state is not None and state.message else ""
    return _said(word, f"{name}{message}{text}", facts=facts,
                 parts=distances_to(threshold.rule.program, subject.bindings))


def _timing(threshold: ThresholdProgram, timer: Timer, now: int) -> tuple[str, str]:
    if timer.since is None:
        return "false", ""
    true_for = now - timer.since
    if timer.holds:
        return "holds", f" (true for {format_duration(true_for)})"
    waits = []
    if true_for < threshold.for_ns:
        waits.append(f"true for {format_duration(true_for)} of {format_duration(threshold.for_ns)}")
    if timer.ceased is not None and now - timer.ceased < threshold.cool_down_ns:
        left = threshold.cool_down_ns - (now - timer.ceased)
        waits.append(f"it ceased {format_duration(now - timer.ceased)} ago and cools down for another "
                     f"{format_duration(left)}")
    return "waits", f" ({', '.join(waits)})" if waits else ""


def _action(look: _Look, action: ActionProgram) -> Finding:
    strategy, subject, last = look.strategy, look.subject, look.last
    name, bindings = f"{look.whose}{action.name}", _with_thresholds(subject, last)
    applied = look.key(action.key) in strategy.memory.applied
    facts: dict[str, Any] = {"action": action.name, "subject": subject.name, "applied": applied}
    stays = "; what it did before stays" if applied else ""
    mine = tuple(_adjustment(each, brief=True) for each in last.adjustments
                 if each.item == action.name and (subject.name == each.subject or each.kind == "evict"))
    try:
        if action.when is not None and action.when.evaluate(bindings) is not True:
            what = f" ({action.otherwise.value.lower()})"
            return _said("idle", f"{name}: `when` is false{what}", facts=facts,
                         parts=(*distances_to(action.when, bindings), *mine))
        parts, text = _effect(look, action, bindings)
    except EvaluationError as error:
        return _said("failed", f"{name}: {shortened(error.message)}{stays}", Mark.ERROR, facts)
    word = "acts" if mine else "applied" if applied else "idle"
    return _said(word, f"{name}{text}", facts=facts, parts=(*parts, *mine))


def _with_thresholds(subject: QoSSubject, last: ReplayedRound) -> Mapping[str, object]:
    bindings: Any = subject.bindings
    bindings["thresholds"] = {each.name: each.holds for each in last.thresholds if each.subject == subject.name}
    return subject.bindings


def _effect(
    look: _Look, action: ActionProgram, bindings: Mapping[str, object],
) -> tuple[tuple[Finding, ...], str]:
    effect = action.effect
    if isinstance(effect, SuppressCPUProgram):
        target: Any = effect.target.evaluate(bindings)
        read = [f"{text} {plain(value)}" for _, text, value in explain(effect.target, bindings)
                if isinstance(value, int | float) and not isinstance(value, bool) and "." in text and " " not in text]
        part = Finding("target", f"from {', '.join(dict.fromkeys(read))} (milli-cores)") if read else None
        return (part,) if part else (), f": best-effort pods may use {shown(target, 'milli-cores')}, by {effect.policy}"
    if isinstance(effect, EvictProgram):
        return _eviction(look, effect, bindings)
    values = {name: program.evaluate(bindings) for name, program in settings_of(effect).items()}
    return (), f": {', '.join(f'{name} {plain(value)}' for name, value in values.items())}" if values else ""


def _eviction(
    look: _Look, effect: EvictProgram, bindings: Mapping[str, object],
) -> tuple[tuple[Finding, ...], str]:
    strategy, subject, readings = look.strategy, look.subject, look.readings
    text, parts = "", []
    if effect.amount is not None:
        amount: Any = effect.amount.evaluate(bindings)
        text = f": {plain(amount)} of {effect.release.resource if effect.release else ''} must be released"
        if amount <= 0:
            return (), f": nothing must be released ({plain(amount)})"
    gate, leaving = strategy.compiled.spec.feature_gate, leaving_pods(strategy.memory, readings)
    for pod in subject.pods[:_MOST_PODS]:
        if eviction_id(pod) in leaving:
            parts.append(_said("leaving", pod.key))
        elif gate and not eviction_allowed(pod.object, gate):
            parts.append(_said("stays", f"{pod.key}: its annotation does not allow evictions by {gate}"))
        else:
            parts += _kept(effect, pod.key, strategy.bindings_of_pod(readings, pod))
    rest = len(subject.pods) - _MOST_PODS
    more = (left_out(rest, "pod"),) if rest > 0 else ()
    return (*parts, *more), text or f": {counted(len(subject.pods), 'pod')} looked at"


def _kept(effect: EvictProgram, key: str, bindings: Mapping[str, object]) -> Iterator[Finding]:
    for rule in effect.criteria:
        try:
            if rule.program.evaluate(bindings) is True:
                continue
        except EvaluationError as error:
            yield _said("stays", f"{key}: {rule.name}: {shortened(error.message)}", Mark.ERROR)
            return
        yield _said("stays", f"{key}: {rule.name} is false", parts=distances_to(rule.program, bindings))
        return
    yield _said("may go", key)


def _adjustment(each: Adjustment, *, brief: bool = False) -> Finding:
    highest = sorted(each.writes, key=lambda pair: pair[0].count("/"))
    writes = listed([f"{name}={text.strip()}" for name, text in highest], 1)
    wrote = f": writes {writes}" if each.writes else ""
    verb = "gave back" if each.recovers else "did"
    item = f"{each.item} " if each.item else ""
    text = f"{each.kind} {each.subject}{wrote}" if brief else f"{item}{each.kind} {each.subject}{wrote}"
    return _said(verb, text, facts={
        "adjustment": each.kind, "subject": each.subject, "recovers": each.recovers, "reason": each.reason,
        "values": plain(dict(each.values)), "writes": [list(pair) for pair in each.writes],
    }, parts=(Finding("reason", shortened(each.reason)),) if each.reason and not brief else ())


def _said(
    word: str, text: str, mark: Mark = Mark.PLAIN, facts: Mapping[str, Any] | None = None,
    parts: tuple[Finding, ...] = (),
) -> Finding:
    data = {"state": word, **(facts or {})}
    shown_mark = Mark.PLAIN if mark is Mark.ERROR else mark
    return Finding("state", text, shown_mark, data, parts, lead=f"{word.ljust(_WIDTH)}  ")
