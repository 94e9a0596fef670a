"""Strategies of QoSPlugin documents: thresholds with hysteresis, actions that adjust and recover, for each subject.

If an expression fails, its action does nothing: the last values stay for at most `staleAfter`, then they are recovered.
Timers and applied values are stored by (item, subject) in a `StrategyState`, which survives a new generation if the
text is the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.tracing import explain
from koordpolicy.engine.cel.syntax.ast import Select
from koordpolicy.engine.cel.values.values import EvaluationError, Timestamp
from koordpolicy.engine.cluster.kinds import lacking
from koordpolicy.engine.cluster.objects.metrics import MeasuredList, Unmeasured
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.pod_variables import pod_values
from koordpolicy.engine.compile import (
    ActionProgram,
    CompiledQoS,
    EvictProgram,
    Rule,
    SuppressCPUProgram,
    ThresholdProgram,
)
from koordpolicy.engine.documents import Otherwise, Subject
from koordpolicy.engine.evaluation.aggregation import Facts, summarize_rows
from koordpolicy.engine.evaluation.selection import accepts_pod
from koordpolicy.engine.evaluation.sort_order import sort_key
from koordpolicy.engine.framework.qos import Adjustment
from koordpolicy.engine.kubernetes.vocabulary import BE, QOS_CLASSES

from ..metric_cache.series import STATISTICS
from ..readings import NodeReadings
from .actions import ActionRound, evict, eviction_allowed, recover_cpu, refuse_unavailable, suppress_cpu

_EVICTED_FOR: Final = 120_000_000_000
"""The time for which an evicted pod counts as leaving (as in koordlet's evictor)."""
_NODE: Final = ("node", "nodeInfo", "allocatable", "requested")


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


@dataclass(slots=True)
class Timer:
    """The timer of a threshold: since when its expression is true, whether it holds, and when it last ceased to hold
    (in ns).
    """

    since: int | None = None
    holds: bool = False
    ceased: int | None = None

    def update(self, true: bool, threshold: ThresholdProgram, now: int) -> bool:
        """Update the timer with the expression's value; return whether the threshold holds."""
        if not true:
            if self.holds:
                self.ceased = now
            self.since, self.holds = None, False
            return False
        if self.since is None:
            self.since = now
        cold = self.ceased is None or now - self.ceased >= threshold.cool_down_ns
        self.holds = self.holds or (now - self.since >= threshold.for_ns and cold)
        return self.holds


@dataclass(slots=True)
class _Applied:
    """An action that has an effect on a node."""

    action: ActionProgram
    node: str


@dataclass(slots=True)
class StrategyState:
    """The state that survives generations: timers of thresholds, effects of actions, leaving pods."""

    timers: dict[tuple[str, str], Timer] = field(default_factory=dict)
    applied: dict[tuple[str, str], _Applied] = field(default_factory=dict)
    evicted: dict[str, int] = field(default_factory=dict)
    failing: dict[tuple[str, str], int] = field(default_factory=dict)

    def on_their_way_out(self, now: int) -> frozenset[str]:
        """Return the keys of recently evicted pods."""
        self.evicted = {pod: time for pod, time in self.evicted.items() if now - time < _EVICTED_FOR}
        return frozenset(self.evicted)


class DocumentStrategy:
    """A compiled QoSPlugin: a strategy that needs `NodeReadings`."""

    def __init__(self, compiled: CompiledQoS, memory: StrategyState | None = None) -> None:
        refuse_unavailable(compiled)
        self._compiled = compiled
        self._memory = memory or StrategyState()

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
        yield from _View(self._compiled, readings).subjects()

    def bindings_of_pod(self, readings: NodeReadings, pod: PodInfo) -> Mapping[str, object]:
        """Return the variables of an eviction's expressions for a pod; for explanations."""
        return _View(self._compiled, readings).of_pod(pod)

    def is_meant(self, readings: NodeReadings) -> bool:
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
        """Evaluate thresholds and actions for every subject of the node."""
        if not self.is_meant(readings):
            return RoundReport()
        view = _View(self._compiled, readings)
        round_ = _Round(self._compiled, self._memory, view)
        for subject in view.subjects():
            round_.ask(subject)
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
    for (key, subject), applied in tuple(memory.applied.items()):
        if key in chosen and applied.node == node:
            del memory.applied[key, subject]
            if applied.action.otherwise is Otherwise.RECOVER:
                found += _undo(applied.action, subject, readings, reason)
    return tuple(found)


def _undo(action: ActionProgram, subject: str, readings: NodeReadings, reason: str) -> tuple[Adjustment, ...]:
    if isinstance(action.effect, SuppressCPUProgram):
        return recover_cpu(action.effect, action.name, subject, readings, reason)
    return ()  # an eviction cannot be reverted


@dataclass(frozen=True, slots=True)
class QoSSubject:
    """A subject of thresholds and actions: its name for messages, its variables, and its pods."""

    name: str
    bindings: Mapping[str, object]
    pods: tuple[PodInfo, ...]


class _RoundBindings(dict[str, object]):
    """Variables by name, each computed when it is first read."""

    def __init__(self, values: Mapping[str, object], readers: Mapping[str, Callable[[], object]]) -> None:
        super().__init__(values)
        self._readers = readers

    def __missing__(self, name: str) -> object:
        value = self[name] = self._readers[name]()
        return value

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._readers


class _View:
    """The variables of expressions for one node in one round."""

    def __init__(self, compiled: CompiledQoS, readings: NodeReadings) -> None:
        self.compiled = compiled
        self.readings = readings
        self.node = str(readings.node["metadata"]["name"])
        self._snapshot = readings.snapshot
        self._row = self._snapshot.index[self.node]
        self._frame = self._snapshot.frame({})
        self._values: dict[str, object] = {"params": compiled.params, "now": Timestamp(readings.now)}

    @functools.cached_property
    def pods(self) -> tuple[PodInfo, ...]:
        """The pods that the document matches."""
        match = self.compiled.spec.match.pods
        return tuple(pod for pod in self.readings.pods if accepts_pod(match, pod, self._snapshot))

    def subjects(self) -> Iterator[QoSSubject]:
        """Yield the document's subjects."""
        match self.compiled.spec.for_each:
            case Subject.NODE:
                yield QoSSubject(self.node, self.of_node(), self.pods)
            case Subject.POD:
                for pod in self.pods:
                    yield QoSSubject(pod.key, self.of_pod(pod), (pod,))
            case Subject.CONTAINER:
                for pod in self.pods:
                    for container in (pod.object.get("spec") or {}).get("containers") or ():
                        yield self._container(pod, container)
            case Subject.QOS_CLASS:
                for name in QOS_CLASSES:
                    yield self._qos_class(name)

    def of_node(self) -> _RoundBindings:
        """Return the variables of the node."""
        return _RoundBindings(self._values, self._readers)

    def of_pod(self, pod: PodInfo) -> _RoundBindings:
        """Return the variables of a pod and the node."""
        values = {**self._values, **pod_values(pod), "podUsage": self._measured("pod", pod.key)}
        return _RoundBindings(values, self._readers)

    def _container(self, pod: PodInfo, container: Mapping[str, Any]) -> QoSSubject:
        name = f"{pod.key}/{container.get('name', '')}"
        bindings = self.of_pod(pod)
        bindings |= {"container": container, "containerUsage": self._measured("container", name)}
        return QoSSubject(name, bindings, (pod,))

    def _qos_class(self, name: str) -> QoSSubject:
        pods = tuple(pod for pod in self.pods if pod.qos_class == name)
        requests = ResourceList()
        for pod in pods:
            for resource, amount in pod.requests.items():
                requests[resource] += amount
        bindings = self.of_node()
        bindings |= {"qosClass": name, "classRequests": requests, "classUsage": self._sum(pods)}
        return QoSSubject(name, bindings, pods)

    @functools.cached_property
    def _readers(self) -> Mapping[str, Callable[[], object]]:
        rows: dict[str, Callable[[], object]] = {name: functools.partial(self._row_value, name) for name in _NODE}
        return {
            **rows, "usage": self._usage, "metricAge": self._metric_age, "nodeSLO": self._node_slo,
            "bestEffortUsage": self._best_effort, "nonBestEffortUsage": self._non_best_effort,
            "systemUsage": self._system, "aggregates": self._aggregates,
        }

    def _row_value(self, name: str) -> object:
        value = self._frame.row_value(name, self._row)
        if name == "nodeInfo":
            info: Any = value
            return {**info, "measured": not isinstance(self._usage(), Unmeasured)}
        return value

    @functools.cached_property
    def _node_usage(self) -> Mapping[str, object]:
        usage = self._measured("node", self.node)
        if isinstance(usage, Unmeasured):
            return usage
        statistics = {name: self._measured("node", self.node, name) for name in STATISTICS if name != "last"}
        return MeasuredList({**usage, **statistics})

    def _usage(self) -> Mapping[str, object]:
        return self._node_usage

    def _measured(self, what: str, name: str, statistic: str = "avg") -> Mapping[str, object]:
        """Return the measured amounts over the window, by resource."""
        amounts = self.readings.measured(what, name, statistic, self.compiled.spec.window_ns)
        if not amounts:
            return Unmeasured(f"no sample of {what} `{name}` in the window")
        return MeasuredList({resource: int(amount) for resource, amount in amounts.items()})

    def _metric_age(self) -> int:
        return self.readings.age() // 1_000_000_000

    def _node_slo(self) -> Mapping[str, Any]:
        return self.readings.object("NodeSLO") or Unmeasured(f"node `{self.node}` has no NodeSLO")

    def _sum(self, pods: Iterable[PodInfo]) -> Mapping[str, object]:
        """Return the total usage of pods; a pod without a sample counts as 0."""
        node = self._usage()
        if isinstance(node, Unmeasured):
            return node
        total = {resource: 0 for resource, amount in node.items() if isinstance(amount, int)}
        for pod in pods:
            used = self.readings.measured("pod", pod.key, "avg", self.compiled.spec.window_ns)
            for resource, amount in used.items():
                total[resource] = total.get(resource, 0) + int(amount)
        return MeasuredList(total)

    def _split(self) -> tuple[Mapping[str, int], Mapping[str, int], Mapping[str, int]] | Unmeasured:
        """Return the usage of the node, of its best-effort pods and of its other pods."""
        node = self._usage()
        if isinstance(node, Unmeasured):
            return node
        best = self._sum(pod for pod in self.readings.pods if pod.qos_class == BE)
        others = self._sum(pod for pod in self.readings.pods if pod.qos_class != BE)
        amounts = {resource: amount for resource, amount in node.items() if isinstance(amount, int)}
        return amounts, cast("Mapping[str, int]", best), cast("Mapping[str, int]", others)

    def _best_effort(self) -> Mapping[str, object]:
        return self._sum(pod for pod in self.readings.pods if pod.qos_class == BE)

    def _non_best_effort(self) -> Mapping[str, object]:
        split = self._split()
        if isinstance(split, Unmeasured):
            return split
        node, best, others = split
        # The pods' measured usage counts, even if the node's own sample is smaller.
        return MeasuredList({name: max(used - best[name], others[name]) for name, used in node.items()})

    def _system(self) -> Mapping[str, object]:
        split = self._split()
        if isinstance(split, Unmeasured):
            return split
        node, best, others = split
        return MeasuredList({name: max(used - best[name] - others[name], 0) for name, used in node.items()})

    def _aggregates(self) -> Facts:
        return self._facts

    @functools.cached_property
    def _facts(self) -> Facts:
        return summarize_rows(self.compiled.aggregates, lambda _: map(self.of_pod, self.pods))


class _Round:
    """One round of one document on one node."""

    def __init__(self, compiled: CompiledQoS, memory: StrategyState, view: _View) -> None:
        self._compiled = compiled
        self._memory = memory
        self._view = view
        self._readings = view.readings
        self.adjustments: list[Adjustment] = []
        self.thresholds: list[ThresholdState] = []
        self.errors: list[RoundError] = []

    def ask(self, subject: QoSSubject) -> None:
        """Evaluate thresholds and actions for one subject."""
        bindings = cast("_RoundBindings", subject.bindings)
        try:
            meant = all(rule.program.evaluate(bindings) is True for rule in self._compiled.match_conditions)
        except EvaluationError as error:
            self._fail("matchConditions", subject, error)
            for action in self._compiled.actions:
                self._keep_or_recover(action, subject)
            return
        held = Facts()
        for threshold in self._compiled.thresholds:
            try:
                held[threshold.rule.name] = meant and self._holds(threshold, subject)
            except EvaluationError as error:
                held.errors[threshold.rule.name] = error
                self._fail(threshold.rule.name, subject, error)
                if self._is_stale(threshold.key, subject):
                    # A value that was unknown for that long interrupts the time for which it was true.
                    self._memory.timers.pop((threshold.key, subject.name), None)
            else:
                self._memory.failing.pop((threshold.key, subject.name), None)
        bindings["thresholds"] = held
        for action in self._compiled.actions:
            self._act(action, subject, meant=meant)

    def _holds(self, threshold: ThresholdProgram, subject: QoSSubject) -> bool:
        true = threshold.rule.program.evaluate(subject.bindings) is True
        timer = self._memory.timers.setdefault((threshold.key, subject.name), Timer())
        holds = timer.update(true, threshold, self._readings.now)
        message = _message(threshold.rule, subject.bindings) if true else ""
        self.thresholds.append(ThresholdState(threshold.rule.name, subject.name, true, holds, message))
        return holds

    def _act(self, action: ActionProgram, subject: QoSSubject, *, meant: bool) -> None:
        key = (action.key, subject.name)
        try:
            chosen = meant and (action.when is None or action.when.evaluate(subject.bindings) is True)
            effects = self._effects(action, subject) if chosen else ()
        except EvaluationError as error:
            self._fail(action.name, subject, error)
            self._keep_or_recover(action, subject)
            return
        self._memory.failing.pop(key, None)
        if chosen:
            if effects or key in self._memory.applied:
                self._memory.applied[key] = _Applied(action, self._view.node)
            self.adjustments += effects
            for effect in effects:
                if effect.kind == "evict":
                    self._memory.evicted[effect.subject] = self._readings.now
        elif action.otherwise is Otherwise.RECOVER:
            self._recover(action, subject, "its condition is not true any more")

    def _effects(self, action: ActionProgram, subject: QoSSubject) -> tuple[Adjustment, ...]:
        effect = action.effect
        if isinstance(effect, SuppressCPUProgram):
            target = float(cast("float", effect.target.evaluate(subject.bindings)))
            found = suppress_cpu(effect, action.name, ActionRound(self._readings, subject.name, target))
            return tuple(
                replace(each, values={**each.values, **_values_read(effect.target, subject.bindings)}) for each in found
            )
        for lack in lacking({self._compiled.name: self._compiled.reads}, self._readings.snapshot.cluster):
            raise EvaluationError(f"no pod is evicted, as {lack.message}", reason="Lacking")
        amount = 0.0
        if effect.amount is not None:
            amount = float(cast("float", effect.amount.evaluate(subject.bindings)))
        given = ActionRound(
            self._readings, subject.name, amount, self._candidates(effect, action, subject),
            self._memory.on_their_way_out(self._readings.now),
        )
        criteria = ", ".join(rule.name for rule in effect.criteria) or action.name
        return evict(effect, action.name, given, criteria)

    def _candidates(self, effect: EvictProgram, action: ActionProgram, subject: QoSSubject) -> list[PodInfo]:
        """Return the candidates for eviction, in order; a pod for which an expression fails stays."""
        gate, found = self._compiled.spec.feature_gate, []
        for pod in subject.pods:
            if gate and not eviction_allowed(pod.object, gate):
                continue
            bindings = self._view.of_pod(pod)
            try:
                if all(rule.program.evaluate(bindings) is True for rule in effect.criteria):
                    found.append((sort_key(effect.sort, bindings), pod))
            except EvaluationError as error:
                self.errors.append(RoundError(action.name, pod.key, error.message, error.reason))
        return [pod for _, pod in sorted(found, key=lambda each: each[0])]

    def _fail(self, item: str, subject: QoSSubject, error: EvaluationError) -> None:
        self.errors.append(RoundError(item, subject.name, error.message, error.reason))

    def _keep_or_recover(self, action: ActionProgram, subject: QoSSubject) -> None:
        """Leave the applied values, unless the failure has lasted too long."""
        if self._is_stale(action.key, subject):
            self._recover(action, subject, "it failed for longer than `staleAfter`")

    def _is_stale(self, key: str, subject: QoSSubject) -> bool:
        """Return whether the failing item has failed for `staleAfter` without interruption."""
        now = self._readings.now
        since = self._memory.failing.setdefault((key, subject.name), now)
        return now - since >= self._compiled.spec.stale_after_ns

    def _recover(self, action: ActionProgram, subject: QoSSubject, reason: str) -> None:
        if self._memory.applied.pop((action.key, subject.name), None) is not None:
            self.adjustments += _undo(action, subject.name, self._readings, reason)


def _values_read(program: Program, bindings: Mapping[str, object]) -> dict[str, object]:
    """Return the values that an expression read, by text."""
    return {
        text: value for expr, text, value in explain(program, bindings)
        if isinstance(expr, Select) and isinstance(value, (int, float, str))
    }


def _message(rule: Rule, bindings: Mapping[str, object]) -> str:
    if rule.message_program is not None:
        try:
            text = rule.message_program.evaluate(bindings)
        except EvaluationError:
            text = ""
        if isinstance(text, str) and text:
            return text
    return rule.message
