"""The daemon of a node: collectors, then strategies, at their intervals in one thread; what they return is done here.

Nothing is written before node and pods are known. What strategies changed is given back when they are switched off, and
when the daemon ends; what a process that died has left behind is given back by the next one before its first rounds.
"""

from __future__ import annotations

import argparse
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.framework.border import describe, must_be_survived
from koordpolicy.engine.framework.handle import Handle
from koordpolicy.engine.framework.points import Enforcement, Point
from koordpolicy.engine.framework.qos import Adjustment, StrategyContext
from koordpolicy.engine.framework.registry import Live, Plugin, Registry

from .counts import AgentCounts
from .enforcement import EVICT, DryRun, LockedApplier, LockedFiles, LoggedCauses, PodEvictions
from .live_readings import LiveReadings, VariablesCache
from .parts import AgentParts
from .pass_time import PassTime
from .qos_manager.documents import RoundError, RoundReport
from .qos_manager.lives import InjectedPolicies, PluginThreads, follow_strategies, plugins_at
from .qos_manager.manager import Manager, RunningStrategy, Writers
from .qos_manager.plugin_states import PluginStates
from .resource_executor.results import AdjustmentResult
from .rounds import Rounds

_LOG: Final = logging.getLogger(__name__)
_DECIDE: Final = 1_000_000
"""The priority of strategies; collectors have their position."""
_FORGET_S: Final = 60.0
"""The interval at which files of pods that ended are forgotten."""
_LONGEST_WAIT: Final = 1.0
"""The daemon looks at least so often, in seconds, whether policies have changed."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings of a daemon; `extension_gates` are off by default.

    `restore_on_exit` gives back all values at the end; without it they stay for the next process.
    """

    dry_run: bool = False
    restore_on_exit: bool = True
    once: bool = False
    """`run` ends when each strategy had one round."""
    extension_gates: Mapping[str, bool] = field(default_factory=dict)
    options: argparse.Namespace = field(default_factory=argparse.Namespace)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One round of a strategy with its results, for observers: audit log, recording, metrics."""

    time: int
    node: str
    plugin: str
    report: RoundReport
    enforced: bool
    results: tuple[AdjustmentResult, ...] = ()


class Agent:
    """The daemon; `observers` are called with each round. `step` makes one pass, `run` makes them until it is stopped.

    All methods belong to one thread, except `stop`, `wake`, and the properties.
    """

    def __init__(
        self, parts: AgentParts, policies: Live, manager: Manager, settings: AgentSettings | None = None, *,
        observers: Sequence[Callable[[Conclusion, LiveReadings], object]] = (), counts: AgentCounts | None = None,
    ) -> None:
        self._parts = parts
        self._policies = policies
        self.manager = manager
        self._settings = settings or AgentSettings()
        self._observers = tuple(observers)
        self.counts = counts or AgentCounts()
        self._rounds = Rounds()
        self._causes = LoggedCauses(parts.clock.monotonic)
        self._lock = threading.RLock()
        """Guards executor and files, which threads of plugins use too."""
        self._dry = DryRun() if self._settings.dry_run else None
        self._writers = Writers()
        self._variables = VariablesCache()
        self._strategies = PluginThreads()
        self._others = PluginThreads()
        """The threads of extensions and grey control, which run until the process ends."""
        self._injected = InjectedPolicies(())
        self._generation: int | None = None
        self._unrecovered = False
        self._had: set[str] = set()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._ready = False
        self._started = False
        self._pass_began: float | None = None
        self._pass_time = PassTime(parts.clock)
        self._forgot = parts.clock.monotonic()
        self._due = math.inf
        self._time = 0
        """The time of the current pass, in nanoseconds since the epoch."""

    # For any thread.

    @property
    def ready(self) -> bool:
        """Return whether strategies run: node and pods are known."""
        return self._ready

    @property
    def stopped(self) -> bool:
        """Return whether `stop` was called."""
        return self._stopped.is_set()

    @property
    def seconds_in_pass(self) -> float:
        """Return the seconds since the current pass began; 0 between passes."""
        began = self._pass_began
        return 0.0 if began is None else self._parts.clock.monotonic() - began

    def stop(self) -> None:
        """Let `run` end."""
        self._stopped.set()
        self._wake.set()

    def wake(self) -> None:
        """Let the next pass begin now."""
        self._wake.set()

    # The life of the daemon.

    def run(self, ready: Callable[[], object] = lambda: None, *, until: float = math.inf) -> None:
        """Make passes until `stop` is called, or the monotonic clock has reached `until`; then give back all.

        `ready` is called once, when strategies run.
        """
        clock, announced = self._parts.clock, False
        try:
            while not self._stopped.is_set() and clock.monotonic() < until:
                self._wake.clear()
                due = self.step()
                if self._ready and not announced:
                    announced = True
                    ready()
                if self._settings.once and self._ready and self._had.issuperset(self.manager.intervals):
                    return
                self._wake.wait(max(min(due, until) - clock.monotonic(), 0.0))
        finally:
            self.close()

    def step(self) -> float:
        """Make one pass: what is due now is called. Return when the next one is due, by the monotonic clock."""
        self._pass_began = now = self._parts.clock.monotonic()
        if not self._started:
            self._start(now)
        with self._lock:
            self._time = self._pass_time.of(self._due)
            self._attempt("callbacks", self._parts.run_callbacks)
            if self._generation != self._policies.registry.generation:
                self._use(self._policies.registry, now)
            if not self._ready and self._parts.is_synced():
                self._begin_deciding(now)
            if self._ready and self._unrecovered:
                self._recover_leaving()
            if self._ready and self._dry is None:
                self._parts.executor.recover_again(self._now())
            self._due = due = self._rounds.run_due(now)
            if now - self._forgot >= _FORGET_S:
                self._forgot = now
                self._attempt("forgetting what is gone", self._forget)
        self._pass_began = None
        return min(due, now + _LONGEST_WAIT)

    def close(self) -> None:
        """Stop the threads of plugins, and give back what the strategies changed."""
        self._strategies.stop(self._strategies.names)
        self._others.stop(self._others.names)
        if not self._started or self._dry is not None or not self._settings.restore_on_exit:
            return
        with self._lock:
            readings = self._readings()
            if readings is not None:
                for name, running in sorted(self.manager.running.items()):
                    if running.enforcement is Enforcement.ENFORCE and hasattr(running.strategy, "recover"):
                        self._recover(name, running.strategy, readings)
            self._parts.executor.restore(self._now())

    def _forget(self) -> None:
        """Drop what is known of files that are gone: pods come and go as long as a node lives."""
        files = self._parts.files()
        self._writers.forget_others(self._parts.node, files.__contains__)
        if self._dry is not None:
            self._dry.forget_others(files.__contains__)

    def _start(self, now: float) -> None:
        self._started = True
        for position, collector in enumerate(self._parts.collectors):
            self._rounds.add(f"collect {collector.name}", collector.interval,
                             partial(self._collect, collector.name, collector.collect), now=now, priority=position)

    def _begin_deciding(self, now: float) -> None:
        """Give back what a former process has left, and let the first rounds follow at once: they decide anew."""
        self._ready = True
        left_behind = self._parts.journaled() if self._dry is None else frozenset()
        if left_behind:
            _LOG.info("%d files that a former process has changed are given back", len(left_behind))
            self._parts.executor.restore(self._now(), left_behind)
        for name in self._rounds.names:  # collectors too: they come first, in step
            self._rounds.bring_forward(name, now)
        self._start_extensions(self._policies.registry)
        follow_strategies(self._strategies, self.manager.running, self._context)

    def _collect(self, name: str, collect: Callable[[int], object]) -> None:
        self._attempt(f"collector {name}", lambda: collect(self._time))

    def _attempt(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # one odd object must not end the daemon
            self.counts.add("failures", what)
            if self._causes.is_new((what, describe(error))):
                _LOG.exception("%s failed; this is logged once in ten minutes", what)

    # The active set.

    def _use(self, registry: Registry, now: float) -> None:
        first = self._generation is None
        self._generation = registry.generation
        before = self.manager.intervals
        self.manager.use(registry)
        after = self.manager.intervals
        for name in before.keys() - after.keys():
            self._rounds.remove(name)
        for name, interval in after.items():
            if before.get(name) != interval:
                self._rounds.add(name, interval / 1e9, partial(self._round, name), now=now, priority=_DECIDE)
            else:
                self._rounds.bring_forward(name, now)
        self._unrecovered = not first
        if first:
            self._start_grey_control(registry)
        if self._ready:
            follow_strategies(self._strategies, self.manager.running, self._context)
        for name, why in sorted(self.manager.idle.items()):
            _LOG.debug("`%s` does not run: %s", name, why)

    def _start_grey_control(self, registry: Registry) -> None:
        """Start grey control plugins, which run until the process ends."""
        injecting: list[tuple[str, Any]] = []
        for plugin in plugins_at(registry, Point.GREY_CONTROL):
            made = self._made(plugin)
            if made is not None and self._others.start(plugin.name, made, self._context(name=plugin.name)):
                injecting.append((plugin.name, made))
        self._injected = InjectedPolicies(injecting)

    def _start_extensions(self, registry: Registry) -> None:
        """Start extensions whose gates are on, which run until the process ends."""
        for plugin in plugins_at(registry, Point.EXTENSION):
            if self._settings.extension_gates.get(plugin.name, False):
                made = self._made(plugin)
                if made is not None:
                    self._others.start(plugin.name, made, self._context(name=plugin.name))

    def _made(self, plugin: Plugin) -> Any:
        log = logging.getLogger(f"koordpolicy.qos.{plugin.name}")
        try:
            args = plugin.check_args({}) if plugin.check_args is not None else {}
            return plugin.make(args, Handle("", self.manager.snapshot, self._parts.clock.wall, log))
        except BaseException as error:  # foreign code: the others run without it
            must_be_survived(error)
            _LOG.error("`%s` cannot be made: %s", plugin.name, describe(error))
            return None

    def _context(self, running: RunningStrategy | None = None, name: str = "") -> StrategyContext:
        enforced = self._dry is None and (running is None or running.enforcement is Enforcement.ENFORCE)
        name = name if running is None else running.name
        return StrategyContext(
            node=self._parts.node, readings=self._locked_readings,
            executor=LockedApplier(self._lock, self._parts.executor if enforced else None, name,
                                   self._parts.clock.monotonic),
            evictor=PodEvictions(self._parts.evictor if enforced else None, name),
            strategies={each: found.strategy for each, found in self.manager.running.items()},
            log=logging.getLogger(f"koordpolicy.qos.{name}" if name else "koordpolicy.qos"),
            options=self._settings.options,
            states=PluginStates(self._parts.states, name),
        )

    def _locked_readings(self) -> LiveReadings:
        with self._lock:
            return self._readings_or_raise(LockedFiles(self._lock, self._files()))

    # Rounds of strategies.

    def _files(self) -> Mapping[str, str]:
        files = self._parts.files()
        return files if self._dry is None else self._dry.over(files)

    def _readings_or_raise(self, files: Mapping[str, str]) -> LiveReadings:
        return LiveReadings(self._parts, self._time, files=files, variables=self._variables,
                            inject=self._injected.pods)

    def _readings(self) -> LiveReadings | None:
        try:
            return self._readings_or_raise(self._files())
        except EvaluationError as error:
            if self._causes.is_new(("readings", error.message)):
                _LOG.warning("no strategy runs: %s", error.message)
            return None

    def _round(self, name: str) -> None:
        if not self._ready or (readings := self._readings()) is None:
            return
        began = self._parts.clock.monotonic()
        report, enforced = self.manager.run(name, readings)
        self.counts.add("rounds", name)
        self.counts.add("seconds", name, amount=self._parts.clock.monotonic() - began)
        self._conclude(name, report, readings, enforced=enforced)
        self._had.add(name)

    def _conclude(self, name: str, report: RoundReport, readings: LiveReadings, *, enforced: bool) -> None:
        """Do what a round requests, and say what went wrong."""
        errors = report.errors
        results: tuple[AdjustmentResult, ...] = ()
        if enforced:
            errors += self._writers.note(self._parts.node, name, report.adjustments, self.manager.intervals)
            if self._dry is not None:
                self._dry.say(name, report.adjustments, readings.files)
            else:
                results = self._apply(report.adjustments)
                self._evict(report.adjustments, readings)
        else:
            self._warn(name, report.adjustments)
        for each in report.adjustments:
            self.counts.add("adjustments", name, each.kind)
        self._report_errors(name, errors)
        conclusion = Conclusion(readings.now, self._parts.node, name, report, enforced, results)
        for observe in self._observers:
            self._attempt("an observer", partial(observe, conclusion, readings))

    def _apply(self, adjustments: Iterable[Adjustment]) -> tuple[AdjustmentResult, ...]:
        written = [each for each in adjustments if each.writes]
        if not written:
            return ()
        results = tuple(self._parts.executor.apply(written, self._now()))
        for write in (write for each in results for write in each.writes):
            self.counts.add("writes", write.status.value)
        return results

    def _evict(self, adjustments: Iterable[Adjustment], readings: LiveReadings) -> None:
        evictions = [each for each in adjustments if each.kind == EVICT]
        pods = {pod.key: pod for pod in readings.pods} if evictions else {}
        for each in evictions:
            if each.subject in pods:
                self._parts.evictor.evict(pods[each.subject], each)

    def _now(self) -> int:
        return int(self._parts.clock.monotonic() * 1e9)

    def _warn(self, name: str, adjustments: Iterable[Adjustment]) -> None:
        for each in adjustments:
            if self._causes.is_new((name, each.kind, each.subject, each.reason)):
                _LOG.warning("`%s` is not enforced; it would: %s %s: %s%s", name, each.kind, each.subject, each.reason,
                             "".join(f", {file}={text.strip()}" for file, text in each.writes))

    def _report_errors(self, name: str, errors: Iterable[RoundError]) -> None:
        for each in errors:
            self.counts.add("errors", name, each.reason or "Failed")
            if self._causes.is_new((name, each.item, each.reason or each.message)):
                _LOG.warning("`%s`%s of %s: %s", name, f", `{each.item}`" if each.item else "", each.subject,
                             each.message)

    # Giving back.

    def _recover_leaving(self) -> None:
        readings = self._readings()
        if readings is None:
            return
        self._unrecovered = False
        for name, found in self.manager.recover_leaving(readings):
            self._conclude(name, found, readings, enforced=True)
        self.manager.drop_leaving()

    def _recover(self, name: str, strategy: Any, readings: LiveReadings) -> None:
        try:
            found = RoundReport(tuple(strategy.recover(readings)))
        except BaseException as error:  # foreign code: the others give back what is theirs
            must_be_survived(error)
            _LOG.error("`%s` gives nothing back: %s", name, describe(error))
            return
        self._conclude(name, found, readings, enforced=True)
