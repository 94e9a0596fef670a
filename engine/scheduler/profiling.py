"""Profiling of decisions for reports: the cost of plugins and expressions, and the reasons of refusals.

The plugins of a profile, and the expressions of documents, are wrapped by timers. Decisions and cached results
stay the same, and without profiling there is no cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.timing import TimedProgram, TimeSpent
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile.programs import CompiledScheduler, with_programs
from koordpolicy.engine.framework.points import Enforcement
from koordpolicy.engine.scheduler.documents.plugin import DocumentScheduler
from koordpolicy.engine.scheduler.documents.refusals import one_line

from .cycle.schedule_one import Scheduler
from .observe.tracing import TracedPlugin, watched
from .profiles.profile import Active, Profile
from .verdict.verdict import Filtered, Verdict, in_fixed_words

OTHER_REASONS: Final = "other reasons"
"""The label of further reasons if a plugin has a different reason for every node."""
_MOST_REASONS: Final = 50


@dataclass(frozen=True, slots=True)
class Blame:
    """The origin of a refusal: a plugin, its rule (or empty), and the rule's message."""

    plugin: str
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A pod without a node: the number of its decision (from 0), and the number of nodes by origin of the refusal."""

    number: int
    nodes: Mapping[Blame, int]
    """The number of nodes by origin; a rejection before the filters counts all nodes."""


@dataclass(slots=True)
class PluginCost:
    """The cost of a plugin: the number of calls of each method, and the seconds of all calls together."""

    calls: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    refused: int = 0
    """The number of nodes for which it was the first to refuse, also for pods that got a node; summed over
    decisions."""


@dataclass(frozen=True, slots=True)
class ExpressionCost:
    """The cost of an expression of a document; `rows` and `errors` as `/status` counts them."""

    plugin: str
    point: str
    """The point's key in the document."""
    rule: str
    text: str
    rows: int
    errors: int
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurements:
    """The measurements: seconds are those of one thread, and of decisions only."""

    decisions: int
    seconds: float
    """The seconds of all decisions together."""
    plugins: Mapping[str, PluginCost]
    """The plugins, most expensive first, including those that never ran."""
    expressions: tuple[ExpressionCost, ...]
    """The expressions, in the same order."""
    unplaced: tuple[Unplaced, ...]


class DecisionMeter:
    """Measures the decisions that a scheduler makes through it. For one thread; `timer` returns seconds."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._deciding = False
        self._decisions = 0
        self._seconds = 0.0
        self._profiles: dict[Profile, Profile] = {}
        self._plugins: dict[str, PluginCost] = {}
        self._documents: dict[DocumentScheduler, DocumentScheduler] = {}
        self._unplaced: list[Unplaced] = []
        self._known: dict[tuple[str, str], Blame] = {}
        """By plugin and reason, or for the rejection of a whole pod by plugin and rule."""
        self._reasons: Counter[str] = Counter()

    def schedule(self, scheduler: Scheduler, pod: PodInfo) -> Verdict:
        """Return the result of `scheduler.schedule`, and measure it."""
        scheduler.watch = self._watched
        self._deciding, begun = True, self._timer()
        try:
            verdict = scheduler.schedule(pod)
        finally:
            self._seconds += self._timer() - begun
            # Reading the reasons of a verdict calls plugins again, which is not part of the decision.
            self._deciding = False
        for step in verdict.filters:
            if step.enforcement is Enforcement.ENFORCE:
                self._plugins[step.plugin].refused += len(step.refused)
        if verdict.node is None:
            self._unplaced.append(Unplaced(self._decisions, self._blamed(verdict)))
        self._decisions += 1
        return verdict

    def measured(self) -> Measurements:
        """Return the measurements so far."""
        expressions = [
            each for document, timed in self._documents.items() for each in _expressions(document.name, timed)
        ]
        return Measurements(
            self._decisions, self._seconds,
            dict(sorted(self._plugins.items(), key=lambda item: (-item[1].seconds, item[0]))),
            tuple(sorted(expressions, key=lambda each: (-each.seconds, each.plugin, each.point, each.rule))),
            tuple(self._unplaced),
        )

    def _watched(self, profile: Profile) -> Profile:
        known = self._profiles.get(profile)
        if known is None:
            known = self._profiles[profile] = watched(profile, self._watch)
        return known

    def _watch(self, active: Active) -> TracedPlugin:
        cost = self._plugins.setdefault(active.name, PluginCost())

        def report(method: str, seconds: float, *_: object) -> None:
            if self._deciding:
                cost.calls[method] += 1
                cost.seconds += seconds

        return TracedPlugin(self._timed(active.instance), report, self._timer)

    def _timed(self, instance: object) -> object:
        if not isinstance(instance, DocumentScheduler):
            return instance
        known = self._documents.get(instance)
        if known is None:
            compiled: CompiledScheduler = with_programs(instance.compiled, self._timed_program)
            known = self._documents[instance] = DocumentScheduler(compiled)
        return known

    def _timed_program(self, program: Program) -> Program:
        return TimedProgram(program.checked, self._timer, _WhileDeciding(self))

    @property
    def deciding(self) -> bool:
        """True if a decision is under way."""
        return self._deciding

    def _blamed(self, verdict: Verdict) -> Mapping[Blame, int]:
        if verdict.refusal is not None:
            plugin, _, refusal = verdict.refusal
            # Its message may differ from pod to pod: the first one represents the rule.
            first = Blame(plugin, refusal.rule, refusal.message)
            return {self._known.setdefault((plugin, refusal.rule or refusal.message), first): verdict.size}
        found: Counter[Blame] = Counter()
        for step in verdict.filters:
            if step.enforcement is not Enforcement.ENFORCE or not len(step.refused):
                continue
            for reason, rows in in_fixed_words(step, step.refused).items():
                known = self._known.get((step.plugin, reason))
                if known is None:
                    known = self._first(step, reason, int(rows[0]))
                found[known] += len(rows)
        return found

    def _first(self, step: Filtered, reason: str, row: int) -> Blame:
        """Return the origin of a reason that occurs for the first time."""
        self._reasons[step.plugin] += 1
        if self._reasons[step.plugin] > _MOST_REASONS:
            return Blame(step.plugin, "", OTHER_REASONS)
        rule = step.answer.explain(row).rule
        known = self._known[step.plugin, reason] = Blame(step.plugin, rule, reason)
        return known


class _WhileDeciding(TimeSpent):
    """Counts the time spent in decisions."""

    __slots__ = ("_meter",)

    def __init__(self, meter: DecisionMeter) -> None:
        super().__init__()
        self._meter = meter

    def add(self, rows: int, seconds: float) -> None:
        """Count a call, if it is part of a decision."""
        if self._meter.deciding:
            super().add(rows, seconds)


def _expressions(plugin: str, timed: DocumentScheduler) -> list[ExpressionCost]:
    found = []
    named: list[tuple[str, str, Program | None, int]] = [
        (each.point, each.rule, each.program, each.failed) for each in timed.evaluations.values()]
    for aggregate in timed.compiled.aggregates:
        parts = (("aggregates", aggregate.program), ("aggregates.groupBy", aggregate.group_by))
        named += [(point, aggregate.name, program, 0) for point, program in parts if program is not None]
    for point, rule, program, failed in named:
        if isinstance(program, TimedProgram):
            spent = program.spent
            found.append(ExpressionCost(plugin, point, rule, one_line(program.source.text), spent.rows, failed,
                                        spent.calls, spent.seconds))
    return found
