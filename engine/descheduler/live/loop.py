"""The thread of a live descheduler: it applies changes of the cluster, runs cycles, and steps background controllers.

Cycles begin at fixed times, counted from the start of the one before, whatever happens to the clock. Informers,
requests and events run in the event loop of the I/O thread, leader election on a thread of its own; only evictions and
the writes of plugins are waited for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from koordpolicy.engine.client.leader_election import Ended
from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.sources.following import ClusterFeed, FeedBarrier, OwnerView
from koordpolicy.engine.cluster.sources.leaving_pods import LeavingPods
from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.descheduler import BackgroundController
from koordpolicy.engine.framework.handle import Client

from ..background import BackgroundEvictions
from ..framework import CyclePart, run_cycle
from ..profile import DeschedulerProfile, RunningPlugin
from ..proof.prove import Proving
from ..proof.verdicts import SuccessorPlacements
from ..results import CycleResult
from .activation import ActiveProfiles, ProfileActivator
from .freshness import stale_kinds
from .memory import CycleMemory
from .shards import PartKind, ShardedCycles, ShardPart

_LOG: Final = logging.getLogger(__name__)
_SECOND: Final = 1_000_000_000
_APPLY_S: Final = 0.05
_LONGEST_WAIT_S: Final = 1.0
_RETRY: Final = _SECOND
_FREEZE: Final = 60 * _SECOND
_STEP_PERIOD: Final = _SECOND // 10
"""The shortest time between two steps of a background controller, in ns: changes come in bursts."""


class ReportObserver(Protocol):
    """Observes a live descheduler, in its thread."""

    def observe(self, report: CycleReport) -> None:
        """Take note of a cycle that has ended."""
        ...


@dataclass(frozen=True, slots=True)
class CycleReport:
    """A cycle that has ended; times in seconds since the epoch."""

    number: int
    began: float
    seconds: float
    result: CycleResult
    stale: tuple[str, ...] = ()
    """Why nothing was looked at: the kinds whose objects are too old; empty if the cycle ran."""


@dataclass(frozen=True, slots=True)
class LoopView(OwnerView):
    """The state of a live descheduler, for other threads."""

    generation: int = 0
    cycles: int = 0
    last: CycleReport | None = None
    next_cycle: float | None = None
    """When the next cycle is due, in seconds since the epoch; None if none is."""


@dataclass(slots=True)
class _Stepped:
    """A background controller, and when it is stepped next, in ns of the monotonic clock; None if no time is set."""

    controller: BackgroundController
    kinds: frozenset[str]
    due: int | None = 0
    changed: bool = True
    stepped_at: int = -_STEP_PERIOD


class LiveDescheduler:
    """Deschedules a live cluster until it is stopped; `run` is called in the thread that then owns all of it.

    Other threads read `view`, and call `wake` and `stop`.
    """

    def __init__(
        self, cluster: Cluster, activator: ProfileActivator, *, feed: ClusterFeed, client: Client,
        leaving: LeavingPods, leads: Callable[[], bool] = lambda: True, gave_up: Callable[[], bool] = lambda: False,
        clock: Callable[[], int] = time.time_ns, wall: Callable[[], float] = time.time,
        ticks: Callable[[], int] = time.monotonic_ns,
        longest_staleness_s: float = 180.0, once: bool = False,
        observers: Sequence[ReportObserver] = (), ready: Callable[[LiveDescheduler], None] = lambda _: None,
        freeze: Callable[[], None] = lambda: None,
        memory: CycleMemory | None = None,
        placements: Callable[[Sequence[DeschedulerProfile]], SuccessorPlacements | None] = lambda _: None,
        shards: ShardedCycles | None = None,
    ) -> None:
        """`leads` returns whether this process may write now, `gave_up` whether it led and must end.

        `clock` returns the API server's time in nanoseconds since the epoch, `wall` this machine's in seconds, by
        which views are dated. `ticks` measures intervals, in nanoseconds. `client` writes for plugins, `leaving` has
        the pods that it evicted. `ready` is called once, when the first lists are applied. With `once`, `run` returns
        after one cycle. A kind not heard of for `longest_staleness_s` seconds stops the cycles and the background
        controllers that read it. `freeze` is called once a minute. `memory` remembers useless evictions. `placements`
        returns the placements of successors that prove the evictions of profiles; None if they are not proved. With
        `shards` several replicas run each cycle together.
        """
        self.view = LoopView()
        self.cluster = cluster
        self._activator = activator
        self._feed = feed
        self._client = client
        self._leaving = leaving
        self._leads = leads
        self._gave_up = gave_up
        self._clock = clock
        self._wall = wall
        self._ticks = ticks
        self._longest_staleness_s = longest_staleness_s
        self._once = once
        self._observers = tuple(observers)
        self._ready = ready
        self._freeze = freeze
        self._memory = memory
        self._placements = placements
        self.shards = shards
        self._pending: tuple[ShardPart, FeedBarrier] | None = None
        """A part of a cycle that waits until all evictions before it are seen."""
        self._share: CycleReport | None = None
        """The report of the leader's own share, until the rest of the cycle was run."""
        self._woken = threading.Event()
        self._stopping = False
        self._synced = False
        self._barrier: FeedBarrier | None = None
        """The barrier of this leadership; None while this process does not lead."""
        self._led = False
        self._next_cycle: int | None = 0
        self._last_began: int | None = None
        """When the last cycle began; as `_next_cycle` of the monotonic clock."""
        self._interval = 0
        self._background = BackgroundEvictions()
        self._stepped: dict[int, _Stepped] = {}
        self._faults = RepeatedFaults()
        self._active: ActiveProfiles | None = None
        self._next_freeze = 0
        cluster.listen(self._note)
        cluster.listen(leaving.note)

    def wake(self) -> None:
        """Let the thread look for work, if it waits; for any thread."""
        if not self._woken.is_set():
            self._woken.set()

    def stop(self) -> None:
        """Begin no more cycles, evict no more pods, and return from `run`; for any thread."""
        self._stopping = True
        self._woken.set()

    @property
    def stopping(self) -> bool:
        """True after `stop`."""
        return self._stopping

    def run(self) -> Ended:
        """Deschedule until `stop` is called, the Lease is lost, or the only cycle has ended."""
        try:
            while not self._stopping:
                if self._gave_up():
                    return Ended.LOST_LEASE
                self._woken.clear()
                if not self._work():
                    self._woken.wait(self._idle_s())
            return Ended.LOST_LEASE if self._gave_up() else Ended.STOPPED
        finally:
            self.view = replace(self.view, stopping=True)
            self._activator.close()

    # One round

    def _work(self) -> bool:
        """Apply changes, and do what is due; return whether there may be more to do at once."""
        more = self._feed.apply(self.cluster, _APPLY_S)
        if not self._synced:
            if not self._feed.synced:
                return more
            self._synced = True
            self._publish_view()
            self._ready(self)
        if not self._may_write():
            self._publish_view()
            return more
        self._activate()
        if self.shards is not None:
            self._run_part(self.shards)
        elif self._next_cycle is not None and self._ticks() >= self._next_cycle:
            self._cycle()
            self._leaving.apply(self.cluster)
        if self._leads():
            self._step()
        self._publish_view()
        return more

    def _acts(self) -> bool:
        """Return whether this process leads, or has a shard."""
        return self._leads() or (self.shards is not None and self.shards.acts())

    def _may_write(self) -> bool:
        """Return whether this process leads or has a shard, and has seen all evictions of the leader before it."""
        led, self._led = self._led, self._leads()
        if not led and self._led:
            self._barrier = None
        if not self._acts():
            self._barrier = self._pending = None
            if self._memory is not None:
                self._memory.forget()
            return False
        if self._barrier is None:
            self._barrier = self._feed.barrier()
        return self._barrier.passed

    def _activate(self) -> None:
        """Take over new policies and a new configuration, which may set another interval."""
        self._active = self._activator.activate(self._active)
        configuration = self._active.configuration
        if configuration.interval != self._interval:
            if self._last_began is not None:
                self._next_cycle = self._last_began + configuration.interval if configuration.interval else None
            self._interval = configuration.interval

    # Cycles

    def _cycle(self) -> None:
        self._last_began = self._ticks()
        self._next_cycle = self._last_began + self._interval if self._interval else None
        self._publish(self._run_and_report(None))
        if self._once:
            self.stop()

    def _run_and_report(self, part: CyclePart | None) -> CycleReport:
        """Run a cycle, or a part of one, unless the objects are too old."""
        active = self._active
        assert active is not None
        began = self._clock()
        self._renew_view()
        started = time.monotonic()
        stale = self._stale(active.kinds)
        if stale:
            result = CycleResult(active.registry.generation, active.configuration.dry_run, 0, error="; ".join(stale))
        else:
            result = self._run(active, began, part)
        return CycleReport(self.view.cycles + 1, began / 1e9, time.monotonic() - started, result, stale)

    def _publish(self, report: CycleReport) -> None:
        self.view = replace(self.view, cycles=report.number, last=report)
        if report.result.error:
            _LOG.error("Error descheduling pods: %s", report.result.error)
        for observer in self._observers:
            try:
                observer.observe(report)
            except Exception:  # a report is worth less than the cycle
                _LOG.exception("a cycle was not reported")

    def _run_part(self, shards: ShardedCycles) -> None:
        """Run the part of a shared cycle that is due, once all evictions before it are seen."""
        if self._pending is None:
            due = shards.due(leads=self._leads(), interval=self._interval)
            if due is None:
                return
            self._pending = due, self._feed.barrier()
        part, barrier = self._pending
        if not barrier.passed:
            return
        self._pending = None
        if part.kind is PartKind.CUT_OFF:
            active = self._active
            assert active is not None
            report = CycleReport(self.view.cycles + 1, self._clock() / 1e9, 0.0, CycleResult(
                active.registry.generation, active.configuration.dry_run, 0, error=part.error))
        else:
            report = self._run_and_report(part.part)
            self._leaving.apply(self.cluster)
        if self._memory is not None:
            self._memory.forget()  # the other replicas write it, too
        shards.finish(part, report.result.error)
        if part.kind is not PartKind.SHARE and self._share is not None:
            report = _joined(self._share, report)
        # The report of a cycle that another leader ended is dropped, so that no later one is joined with it.
        self._share = None if part.last else report
        if part.last:
            self._publish(report)

    def _stale(self, kinds: frozenset[str]) -> tuple[str, ...]:
        """Return which of the kinds are too old, of those that the cluster has: what it lacks is refused plugin by
        plugin.
        """
        known = kinds if self.cluster.kinds is None else kinds & self.cluster.kinds
        return stale_kinds(self._feed.views, known, self._wall(), self._longest_staleness_s)

    def _run(self, active: ActiveProfiles, now: int, part: CyclePart | None) -> CycleResult:
        configuration = active.configuration
        memory = None if self._memory is None else self._memory.begin()
        placements = self._placements(active.profiles)
        proving = None if memory is None and placements is None else Proving(placements, memory=memory)
        try:
            result = run_cycle(
                active.profiles, self.cluster.snapshot(now), limits=configuration.limits,
                dry_run=configuration.dry_run, node_selector=configuration.node_selector, proving=proving,
                generation=active.registry.generation, client=self._client, background=self._background,
                part=part, interval=configuration.interval)
        except BaseException as error:
            must_be_survived(error)
            _LOG.exception("a cycle failed")
            return CycleResult(active.registry.generation, configuration.dry_run, 0,
                               error=f"{type(error).__name__}: {error}")
        # Else another process leads now, and writes its own.
        if self._memory is not None and self._acts():
            self._memory.end(result.memory, dry_run=configuration.dry_run)
        for pod, _, decision in result.evicted:
            if decision.proof is not None and decision.proof.warns:
                _LOG.warning("the eviction of %s may not help: %s", pod, decision.proof.message, extra={"pod": pod})
        return result

    # Background controllers

    def _note(self, event: Event) -> None:
        for each in self._stepped.values():
            if event.kind in each.kinds:
                each.changed = True

    def _step(self) -> None:
        """Step the background controllers that are due; in a dry run none is, as they write."""
        active = self._active
        if active is None or self._stopping:
            return
        if active.configuration.dry_run:
            self._stepped = {}
            return
        self._stepped = {id(plugin.instance): self._stepped.get(id(plugin.instance)) or _stepped(plugin)
                         for plugin in active.plugins if isinstance(plugin.instance, BackgroundController)}
        for each in self._stepped.values():
            now = self._ticks()
            if now < each.stepped_at + _STEP_PERIOD or not (
                    each.changed or (each.due is not None and now >= each.due)):
                continue
            stale = self._stale(each.kinds)
            if stale:
                each.due, each.stepped_at = now + _RETRY, now
                if self._faults.is_due("stale", ""):
                    _LOG.warning("background controllers wait: %s", "; ".join(stale))
                continue
            each.changed, each.stepped_at = False, now
            time_of_step = self._clock()
            try:
                due = each.controller.background_step(self.cluster.snapshot(time_of_step))
                each.due = None if due is None else now + due - time_of_step
            except BaseException as error:
                must_be_survived(error)
                _LOG.exception("a step of a background controller failed")
                each.due = now + _RETRY
            self._leaving.apply(self.cluster)

    # The view, and the end of a round

    def _publish_view(self) -> None:
        self._renew_view()
        now = self._ticks()
        if now >= self._next_freeze:
            self._next_freeze = now + _FREEZE
            self._freeze()

    def _renew_view(self) -> None:
        self.view = replace(
            self.view, synced=self._synced, stopping=self._stopping, nodes=len(self.cluster.names),
            pods=len(self.cluster.objects("Pod")),
            generation=0 if self._active is None else self._active.registry.generation,
            next_cycle=self._next_cycle_at(), looked_at=time.monotonic())

    def _next_cycle_at(self) -> float | None:
        """Return when the next cycle is due, in seconds since the epoch; None if none is."""
        now = self._clock()
        if self.shards is not None:
            opened = self.shards.view.opened
            return max(now, opened + self._interval) / 1e9 if self._interval or not opened else None
        return None if self._next_cycle is None else (now + max(self._next_cycle - self._ticks(), 0)) / 1e9

    def _idle_s(self) -> float:
        """Return the seconds until there is something to do without a wake-up."""
        if not self._synced or self._barrier is None or not self._barrier.passed or self._pending is not None:
            return _LONGEST_WAIT_S
        times = [self._next_cycle if self.shards is None else self.shards.next_look]
        for each in self._stepped.values():
            times += [each.stepped_at + _STEP_PERIOD] if each.changed else [each.due]
        due = min((each for each in times if each is not None), default=None)
        wait_s = _LONGEST_WAIT_S if due is None else (due - self._ticks()) / 1e9
        return min(max(wait_s, 0.001), _LONGEST_WAIT_S)


def _joined(share: CycleReport, rest: CycleReport) -> CycleReport:
    """Return the report of both parts of a cycle that the leader ran."""
    first, second = share.result, rest.result
    result = replace(
        second, nodes=max(first.nodes, second.nodes), decisions=first.decisions + second.decisions,
        failures=(*first.failures, *second.failures), node_notes=(*first.node_notes, *second.node_notes),
        error=first.error or second.error, lacks=tuple(dict.fromkeys((*first.lacks, *second.lacks))),
        changes=(*first.changes, *second.changes))
    return CycleReport(rest.number, share.began, share.seconds + rest.seconds, result,
                       tuple(dict.fromkeys((*share.stale, *rest.stale))))


def _stepped(plugin: RunningPlugin) -> _Stepped:
    return _Stepped(plugin.instance, frozenset(read.kind for read in plugin.reads))
