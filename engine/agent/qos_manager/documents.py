"""Strategies of QoSPlugin documents: thresholds with hysteresis, actions that adjust and recover, for each subject.

If an expression fails, its action changes nothing: the applied values stay for at most `staleAfter`, and are then
reverted. Timers and applied values are stored by item, node and subject in a `StrategyState`, which survives a new
generation if the text is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import ActionProgram, CompiledQoS, Rule, ThresholdProgram
from koordpolicy.engine.documents import Otherwise
from koordpolicy.engine.evaluation.facts import Facts
from koordpolicy.engine.framework.qos import Adjustment

from ..readings import NodeReadings
from .action_kinds import ActionContext, Recovery
from .actions import ACTION_KINDS, refuse_unknown_files
from .strategy_state import AppliedAction, StateKey, StrategyState, Timer
from .subjects import QoSSubject, RoundBindings, RoundView, SelectedPods


@dataclass(frozen=True, slots=True)
class ThresholdState:
    """A threshold of one subject in one round: whether its expression is true, and whether the threshold holds."""

    name: str
    subject: str
    true: bool
    holds: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class RoundError:
    """A failed expression, and its effect on the applied values."""

    item: str
    subject: str
    message: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """The report of one round of one plugin on one node."""

    adjustments: tuple[Adjustment, ...] = ()
    thresholds: tuple[ThresholdState, ...] = ()
    errors: tuple[RoundError, ...] = ()


class DocumentStrategy:
    """A compiled QoSPlugin: a strategy that needs `NodeReadings`."""

    def __init__(self, compiled: CompiledQoS, memory: StrategyState | None = None) -> None:
        refuse_unknown_files(compiled)
        self._compiled = compiled
        self._memory = memory or StrategyState()
        self._selection = SelectedPods(compiled)

    @property
    def name(self) -> str:
        """The document's name."""
        return self._compiled.name

    @property
    def interval(self) -> int:
        """The interval between two rounds, in nanoseconds."""
        return self._compiled.spec.interval_ns

    @property
    def compiled(self) -> CompiledQoS:
        """The programs."""
        return self._compiled

    @property
    def memory(self) -> StrategyState:
        """The state between rounds."""
        return self._memory

    def subjects(self, readings: NodeReadings) -> Iterator[QoSSubject]:
        """Yield the subjects of thresholds and actions, with their variables; for explanations."""
        yield from RoundView(self._compiled, readings, SelectedPods(self._compiled)).subjects()

    def bindings_of_pod(self, readings: NodeReadings, pod: PodInfo) -> Mapping[str, object]:
        """Return the variables of an eviction's expressions for a pod; for explanations."""
        return RoundView(self._compiled, readings, SelectedPods(self._compiled)).of_pod(pod)

    def matches_node(self, readings: NodeReadings) -> bool:
        """Return whether the document matches the node."""
        match, node = self._compiled.spec.match.nodes, readings.node["metadata"]
        return match is None or match.accepts(node["name"], node.get("labels") or {})

    @property
    def action_keys(self) -> frozenset[str]:
        """The keys of its actions' effects."""
        return frozenset(action.key for action in self._compiled.actions)

    def adjust(self, readings: NodeReadings) -> Sequence[Adjustment]:
        """Return the adjustments of this round."""
        return self.run(readings).adjustments

    def run(self, readings: NodeReadings) -> RoundReport:
        """Evaluate thresholds and actions for every subject of the node.

        Changes for a subject that the document no longer matches are recovered.
        """
        view = RoundView(self._compiled, readings, self._selection)
        round_ = _Round(self._compiled, self._memory, view)
        met: set[str] = set()
        if self.matches_node(readings):
            for subject in view.subjects():
                met.add(subject.name)
                round_.ask(subject)
        round_.forget_others(met)
        return RoundReport(tuple(round_.adjustments), tuple(round_.thresholds), tuple(round_.errors))

    def recover(self, readings: NodeReadings) -> Sequence[Adjustment]:
        """Revert all changes on the node, except those of actions that hold."""
        return recover_applied(self._memory, self.action_keys, readings, "the plugin is removed")


def recover_applied(
    memory: StrategyState, keys: Iterable[str], readings: NodeReadings, reason: str,
) -> tuple[Adjustment, ...]:
    """Revert the changes that the actions of these keys have made on the node, and drop their state."""
    node, chosen = readings.node["metadata"]["name"], frozenset(keys)
    found: list[Adjustment] = []
    for key in tuple(memory.applied):
        if key[0] in chosen and key[1] == node:
            found += _recover(memory, key, readings, reason)
    return tuple(found)


def _recover(memory: StrategyState, key: StateKey, readings: NodeReadings, reason: str) -> tuple[Adjustment, ...]:
    """Drop the state of an action for one subject; return the adjustments that revert it, unless it holds."""
    applied = memory.applied.pop(key, None)
    memory.limiters.pop(key, None)
    memory.burst_pods.pop(key, None)
    if applied is None or applied.action.otherwise is not Otherwise.RECOVER:
        return ()
    kind = ACTION_KINDS[type(applied.action.effect)]
    recovery = Recovery(applied.action.name, key[2], readings, reason, applied.originals)
    return kind.recover(applied.action.effect, recovery)


class _Round:
    """One round of one document on one node."""

    def __init__(self, compiled: CompiledQoS, memory: StrategyState, view: RoundView) -> None:
        self._compiled = compiled
        self._memory = memory
        self._view = view
        self._readings = view.readings
        self.adjustments: list[Adjustment] = []
        self.thresholds: list[ThresholdState] = []
        self.errors: list[RoundError] = []

    def ask(self, subject: QoSSubject) -> None:
        """Evaluate thresholds and actions for one subject."""
        bindings = cast("RoundBindings", subject.bindings)
        try:
            matches = all(bindings.evaluate(rule.program) is True for rule in self._compiled.match_conditions)
        except EvaluationError as error:
            self._fail("matchConditions", subject, error)
            for action in self._compiled.actions:
                self._keep_or_recover(action, subject)
            return
        thresholds = Facts()
        for threshold in self._compiled.thresholds:
            try:
                thresholds[threshold.rule.name] = matches and self._holds(threshold, subject)
            except EvaluationError as error:
                thresholds.errors[threshold.rule.name] = error
                self._fail(threshold.rule.name, subject, error)
                if self._is_stale(threshold.key, subject):
                    # An unknown value of that duration interrupts the time for which it was true.
                    self._memory.timers.pop(self._key(threshold.key, subject), None)
            else:
                self._memory.failing.pop(self._key(threshold.key, subject), None)
        bindings["thresholds"] = thresholds
        for action in self._compiled.actions:
            self._act(action, subject, matches=matches)

    def _holds(self, threshold: ThresholdProgram, subject: QoSSubject) -> bool:
        true = threshold.rule.program.evaluate(subject.bindings) is True
        timer = self._memory.timers.setdefault(self._key(threshold.key, subject), Timer())
        holds = timer.update(true, threshold, self._readings.now)
        message = _message(threshold.rule, subject.bindings) if true else ""
        self.thresholds.append(ThresholdState(threshold.rule.name, subject.name, true, holds, message))
        return holds

    def _act(self, action: ActionProgram, subject: QoSSubject, *, matches: bool) -> None:
        key = self._key(action.key, subject)
        try:
            bindings = cast("RoundBindings", subject.bindings)
            chosen = matches and (action.when is None or bindings.evaluate(action.when) is True)
            effects = self._effects(action, subject) if chosen else ()
        except EvaluationError as error:
            self._fail(action.name, subject, error)
            self._keep_or_recover(action, subject)
            return
        self._memory.failing.pop(key, None)
        if chosen:
            self._apply(action, key, effects)
        elif action.otherwise is Otherwise.RECOVER:
            self._recover(action, subject, "its condition is not true any more")

    def _apply(self, action: ActionProgram, key: StateKey, effects: Sequence[Adjustment]) -> None:
        applied = self._memory.applied.get(key)
        if effects or applied is not None:
            originals = applied.originals if applied is not None else {}
            for effect in effects:
                for file, _ in effect.writes:
                    if file not in originals and (text := self._readings.files.get(file)) is not None:
                        originals[file] = text
            self._memory.applied[key] = AppliedAction(action, originals)
        self.adjustments += effects

    def _effects(self, action: ActionProgram, subject: QoSSubject) -> Sequence[Adjustment]:
        def report(pod: str, error: EvaluationError) -> None:
            self.errors.append(RoundError(action.name, pod, error.message, error.reason))

        context = ActionContext(self._compiled, action, subject, self._view, self._memory, report)
        return ACTION_KINDS[type(action.effect)].adjust(action.effect, context)

    def forget_others(self, met: Collection[str]) -> None:
        """Revert the changes for subjects that are gone, or that the document no longer matches."""
        memory, node = self._memory, self._view.node
        actions = {action.key for action in self._compiled.actions}
        for key in [key for key in memory.applied if key[0] in actions and key[1] == node and key[2] not in met]:
            self.adjustments += _recover(memory, key, self._readings, "the document does not match it any more")
        items = actions | {threshold.key for threshold in self._compiled.thresholds}
        states: Any
        for states in (memory.timers, memory.failing, memory.evictions, memory.limiters, memory.burst_pods):
            for key in [key for key in states if key[0] in items and key[1] == node and key[2] not in met]:
                del states[key]

    def _key(self, item: str, subject: QoSSubject) -> StateKey:
        return item, self._view.node, subject.name

    def _fail(self, item: str, subject: QoSSubject, error: EvaluationError) -> None:
        self.errors.append(RoundError(item, subject.name, error.message, error.reason))

    def _keep_or_recover(self, action: ActionProgram, subject: QoSSubject) -> None:
        """Leave the applied values, or revert them if the failure has lasted too long."""
        if self._is_stale(action.key, subject):
            self._recover(action, subject, "it failed for longer than `staleAfter`")

    def _is_stale(self, key: str, subject: QoSSubject) -> bool:
        """Return whether the failing item has failed for `staleAfter` without interruption."""
        now = self._readings.now
        since = self._memory.failing.setdefault(self._key(key, subject), now)
        return now - since >= self._compiled.spec.stale_after_ns

    def _recover(self, action: ActionProgram, subject: QoSSubject, reason: str) -> None:
        self.adjustments += _recover(self._memory, self._key(action.key, subject), self._readings, reason)


def _message(rule: Rule, bindings: Mapping[str, object]) -> str:
    if rule.message_program is not None:
        try:
            text = rule.message_program.evaluate(bindings)
        except EvaluationError:
            text = ""
        if isinstance(text, str) and text:
            return text
    return rule.message
