"""The metrics of a scheduler that runs its own loop, most of them with kube-scheduler's names."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import time_ns
from typing import Final

from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.framework.points import Code, Enforcement, Point
from koordpolicy.engine.framework.scheduler import QueuedPod
from koordpolicy.engine.reload.reloader import Reloader
from koordpolicy.engine.serving.instruments import Metric, MetricsRegistry

from ..profiles.profile import Profile
from ..verdict.verdict import Verdict
from . import metric_table as table
from .counters import Counters
from .metrics_recorder import POINT_NAMES, UNSCHEDULABLE_TIMEOUT, event_label
from .policy_metrics import ExpressionTotals, plugin_counters, policies

SAMPLED_SHARE: Final = 0.1
"""The part of the attempts whose plugins are measured, as kube-scheduler's `pluginMetricsSamplePercent`."""
_MOST_ATTEMPTS: Final = 15
"""From this number on attempts share a label."""
_COUNTED_POINTS: Final = (Point.PRE_FILTER, Point.FILTER, Point.SCORE)


@dataclass(frozen=True, slots=True)
class Sources:
    """The values that each scrape reads, in another thread than the scheduler's."""

    pending: Callable[[], Mapping[str, int]]
    """Returns the number of pods by part of the queue."""
    sizes: Callable[[], Mapping[str, int]]
    """Returns the number of nodes, pods and assumed_pods."""
    events: Callable[[], tuple[Event, ...]]
    """Returns the events stored for running attempts."""
    binding_seconds: Callable[[], tuple[float, ...]]
    """Returns for how long each binding has been running."""
    profiles: Callable[[], tuple[Profile, ...]]
    reloader: Reloader | None = None
    counters: Counters = field(default_factory=Counters)


@dataclass(frozen=True, slots=True)
class _Decisions:
    """The decisions that one profile made."""

    profile: Profile
    counts: Counter[tuple[frozenset[str], bool]] = field(default_factory=Counter)
    """By the plugins that preFilter skipped, and whether scorers ran."""

    def evaluations(self) -> Counter[tuple[str, str, str]]:
        """Return how many of them each plugin took part in, by plugin, point and profile."""
        found: Counter[tuple[str, str, str]] = Counter()
        for (skipped, scored), count in self.counts.items():
            for point in _COUNTED_POINTS if scored else _COUNTED_POINTS[:2]:
                for active in self.profile.at[point]:
                    if point is not Point.FILTER or active.name not in skipped:
                        found[active.name, POINT_NAMES[point], self.profile.name] += count
        return found


class SchedulerMetrics:
    """Counts and measures what a scheduling loop reports (implements `MetricsRecorder`)."""

    def __init__(
        self, sources: Sources, registry: MetricsRegistry | None = None, *, clock: Callable[[], int] = time_ns,
        sample: Callable[[], float] = random.random,  # noqa: S311 - it chooses what is measured
    ) -> None:
        """`clock` is the loop's; `sample` returns numbers in [0, 1)."""
        self._sources = sources
        self._clock = clock
        self._sample = sample
        self.registry = registry or MetricsRegistry()
        counter, histogram = self.registry.counter, self.registry.histogram
        self._attempts = counter(table.SCHEDULE_ATTEMPTS)
        self._attempt_seconds = histogram(table.ATTEMPT_SECONDS)
        self._algorithm_seconds = histogram(table.ALGORITHM_SECONDS)
        self._sli_seconds = histogram(table.SLI_SECONDS)
        self._pod_attempts = histogram(table.POD_ATTEMPTS)
        self._after_flush = counter(table.SCHEDULED_AFTER_FLUSH)
        self._point_seconds = histogram(table.POINT_SECONDS)
        self._plugin_seconds = histogram(table.PLUGIN_SECONDS)
        self._hint_seconds = histogram(table.HINT_SECONDS)
        self._event_seconds = histogram(table.EVENT_SECONDS)
        self._incoming = counter(table.INCOMING_PODS)
        self._unschedulable = counter(table.UNSCHEDULABLE_PODS)
        self._permit_seconds = histogram(table.PERMIT_SECONDS)
        self._victims = histogram(table.PREEMPTION_VICTIMS)
        self._preemptions = counter(table.PREEMPTION_ATTEMPTS)
        self._evaluated = histogram(table.EVALUATED_NODES)
        self._feasible = histogram(table.FEASIBLE_NODES)
        self._refusals = counter(table.REFUSALS)
        self._unenforced = counter(table.UNENFORCED_REFUSALS)
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._expressions = ExpressionTotals()
        self._lock = threading.Lock()
        self._decisions: dict[str, _Decisions] = {}
        self._decided_before: Counter[tuple[str, str, str]] = Counter()
        """Evaluations by plugin, point and profile, of profiles that a reload has replaced."""
        self._refused: dict[str, tuple[str, frozenset[str]]] = {}
        """The profile and the plugins that refused a waiting pod, by the pod's key."""
        self._flushed: set[str] = set()
        """The pods whose next attempt begins without an event."""
        self.registry.add(self)

    # MetricsRecorder

    def samples_plugins(self) -> bool:
        """Return true for one of ten attempts."""
        return self._sample() < SAMPLED_SHARE

    def plugin_ended(self, plugin: str, point: Point, status: str, seconds: float) -> None:
        """Measure a call of a plugin."""
        self._plugin_seconds.observe(seconds, plugin, POINT_NAMES[point], status)

    @property
    def point_ended(self) -> Callable[[float, str, str, str], None]:
        """Measures an extension point."""
        return self._point_seconds.observe

    def decided(self, profile: Profile, verdict: Verdict, seconds: float, skipped: frozenset[str]) -> None:
        """Measure a decision."""
        self._algorithm_seconds.observe(seconds)
        self._evaluated.observe(verdict.size)
        self._feasible.observe(len(verdict.passed))
        with self._lock:
            known = self._decisions.get(profile.name)
            if known is None or known.profile is not profile:
                if known is not None:
                    self._decided_before.update(known.evaluations())
                known = self._decisions[profile.name] = _Decisions(profile)
            known.counts[skipped, verdict.totals is not None] += 1

    def preempted(self, victims: int | None) -> None:
        """Count an attempt to preempt."""
        self._preemptions.add()
        if victims is not None:
            self._victims.observe(victims)

    def permit_ended(self, status: str, seconds: float) -> None:
        """Measure how long permits held a pod."""
        self._permit_seconds.observe(seconds, status)

    def attempt_began(self, queued: QueuedPod) -> None:
        """Note that a pod does not wait any more."""
        self._accept(queued.pod.key)

    def attempt_ended(self, queued: QueuedPod, verdict: Verdict, began: int) -> None:
        """Count an attempt and its result."""
        key, profile, now = queued.pod.key, verdict.profile, self._clock()
        result = _result(verdict)
        self._attempts.add(result, profile)
        self._attempt_seconds.observe(max(0, now - began) / 1e9, result, profile)
        for failure in verdict.failures:
            if not failure.rule:
                self._failures[failure.plugin, failure.point.value, ""] += 1
        flushed = key in self._flushed
        self._flushed.discard(key)
        if verdict.node is not None:
            seconds = max(0, now - queued.first_attempt) / 1e9
            many = queued.attempts >= _MOST_ATTEMPTS
            self._sli_seconds.observe(seconds, f"{_MOST_ATTEMPTS}+" if many else str(queued.attempts))
            self._pod_attempts.observe(queued.attempts)
            if flushed:
                self._after_flush.add()
        elif result == "unschedulable":
            self._refuse(key, verdict)

    def event_handled(self, event: Event, seconds: float) -> None:
        """Measure the handling of an event."""
        self._event_seconds.observe(seconds, event_label(event))

    def hint_ended(self, plugin: str, event: Event, result: str, seconds: float) -> None:
        """Measure a requeue hint."""
        self._hint_seconds.observe(seconds, plugin, event_label(event), result)

    def queued(self, key: str, part: str, event: str) -> None:
        """Count a pod that was added to a part of the queue."""
        self._incoming.add(part, event)
        if event == UNSCHEDULABLE_TIMEOUT:
            self._flushed.add(key)

    def removed(self, key: str) -> None:
        """Forget a pod that left the queue."""
        self._flushed.discard(key)
        self._accept(key)

    # Reading

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are computed on each scrape."""
        sources = self._sources
        yield table.PENDING_PODS.of(*(((part,), count) for part, count in sources.pending().items()))
        yield table.CACHE_SIZE.of(*(((kind,), count) for kind, count in sources.sizes().items()))
        stored = Counter(map(event_label, sources.events()))
        yield table.INFLIGHT_EVENTS.of(*(((event,), count) for event, count in sorted(stored.items())))
        ages = sources.binding_seconds()
        yield table.GOROUTINES.of((("binding",), len(ages)))
        yield table.BINDING_PODS.value(len(ages))
        yield table.OLDEST_BINDING.value(max(ages, default=0.0))
        yield self._plugin_evaluations()
        yield from self._expressions.collect(sources.profiles())
        yield self._errors(sources.profiles())
        if sources.reloader is not None:
            yield from policies(sources.reloader)
        yield from plugin_counters(sources.counters, table.BY_PLUGINS)
        for spec in table.EMPTY:
            yield spec.of()

    def _plugin_evaluations(self) -> Metric:
        with self._lock:
            found = Counter(self._decided_before)
            for decisions in self._decisions.values():
                found.update(decisions.evaluations())
        return table.PLUGIN_EVALUATIONS.of(*sorted(found.items()))

    def _errors(self, profiles: tuple[Profile, ...]) -> Metric:
        found = Counter(dict.copy(self._failures))
        for key, amounts in self._expressions.read(profiles).items():
            if amounts.failed:
                found[key] += amounts.failed
        return table.EXPRESSION_ERRORS.of(*sorted(found.items()))

    # Parts

    def _refuse(self, key: str, verdict: Verdict) -> None:
        refusing: set[str] = set()
        if verdict.refusal is not None:
            refusing.add(verdict.refusal[0])
        for step in verdict.filters:
            count = len(step.refused)
            if step.enforcement is not Enforcement.ENFORCE:
                self._unenforced.add(step.plugin, step.enforcement.value, amount=count)
            elif count:
                refusing.add(step.plugin)
                self._refusals.add(step.plugin, amount=count)
        self._accept(key)
        self._refused[key] = verdict.profile, frozenset(refusing)
        for plugin in refusing:
            self._unschedulable.add(plugin, verdict.profile)

    def _accept(self, key: str) -> None:
        """Take back the refusals of a pod that waits no longer."""
        profile, plugins = self._refused.pop(key, ("", frozenset()))
        for plugin in plugins:
            self._unschedulable.add(plugin, profile, amount=-1)


def _result(verdict: Verdict) -> str:
    if verdict.node is not None:
        return "scheduled"
    failed = verdict.refusal is not None and verdict.refusal[2].code is Code.ERROR
    return "error" if failed else "unschedulable"
