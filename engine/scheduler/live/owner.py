"""The deciding thread of a live scheduler: it applies changes of the cluster, and schedules pods one after the other.

Everything that waits for the API server is done elsewhere: informers, bindings, patches and events in the event loop
of the I/O thread, plugins that block on workers, leader election on a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.leader_election import Ended
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.cluster.sources.comparer import dump
from koordpolicy.engine.cluster.sources.following import ClusterFeed, FeedBarrier, OwnerView
from koordpolicy.engine.framework.handle import Count
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.serving.console_links import ConsoleLinks

from ..cycle.executor import WorkerExecutor
from ..cycle.loop import Attempt, SchedulingLoop
from ..cycle.schedule_one import Debug, Settings
from ..observe.cycle_observer import CycleObserver
from ..observe.monitor import Monitor
from .announcements import Announcements
from .client import LiveClient
from .gates import GateReporter
from .reporting import AttemptReporter
from .waiting import WaitReasons
from .watchdogs import LostPods, UnconfirmedBindings

_LOG: Final = logging.getLogger(__name__)
_SECOND: Final = 1_000_000_000
_APPLY_S: Final = 0.005
_FIRST_APPLY_S: Final = 0.1
"""Before the first lists are applied there are no decisions that could be late."""
_LONGEST_WAIT_S: Final = 1.0
"""Controllers and watchdogs run, and changes of policies are noticed, at least once a second."""
_VIEW_S: Final = 1
_FREEZE_S: Final = 60
_MONITOR_S: Final = 10.0
"""Seconds between two looks for attempts that take long, as in koord-scheduler."""
_COMPARE_S: Final = 300
"""Seconds between two comparisons of the cluster with what informers delivered."""
MOST_BINDING: Final = 256
"""The number of bindings under way at which no more pods are taken: they would only wait for the API server."""
DRAIN_S: Final = 5.0


class Observer(Protocol):
    """Observes a live scheduler, in the deciding thread, which it must not delay."""

    def observe(self, attempt: Attempt) -> None:
        """Take note of an attempt that has ended; must not change the cluster."""
        ...


@dataclass(frozen=True, slots=True)
class LiveView(OwnerView):
    """The state of a live scheduler for other threads, published once a second."""

    leading: bool = False
    queue: Mapping[str, int] = field(default_factory=dict)
    """The number of active, backing-off, unschedulable and gated pods (kube-scheduler's `pending_pods`)."""
    binding: int = 0
    waiting: int = 0
    """The number of pods that wait for a permit."""
    oldest_unscheduled_s: float = 0.0
    """The age of the oldest pod in the queue, gated ones aside, since its creation."""
    lost_pods: int = 0
    """The number of pods that were found in no queue, and were queued again."""
    corrected_bindings: int = 0
    """The number of pods that the API server does not show on the node that they were bound to."""


class LiveScheduler:
    """Schedules the pods of a live cluster until it is stopped; `run` is called in the thread that then owns all of it.

    Other threads read `view`, and call `wake` and `stop`.
    """

    def __init__(
        self, cluster: Cluster, live: Live, settings: Settings, *, feed: ClusterFeed, client: LiveClient, io: IoThread,
        leads: Callable[[], bool] = lambda: True, gave_up: Callable[[], bool] = lambda: False,
        clock: Callable[[], int] = time.time_ns, count: Count | None = None, observers: Sequence[Observer] = (),
        debug: Debug | None = None, ready: Callable[[LiveScheduler], None] = lambda _: None,
        freeze: Callable[[], None] = lambda: None, drain_s: float = DRAIN_S, most_binding: int = MOST_BINDING,
        cycle_observers: Sequence[CycleObserver] = (), links: ConsoleLinks | None = None,
        timer: Callable[[], float] = time.monotonic, monitor_s: float = _MONITOR_S,
    ) -> None:
        """`leads` returns whether this process may schedule now, `gave_up` whether it led and must end.

        `ready` is called once, when the first lists are applied and the plugins are made, in the deciding thread;
        `freeze` then and once a minute, as most objects are long-lived. Events link to the console by `links`.

        Each `monitor_s` seconds attempts that take longer than 30 s by `timer` (monotonic, in seconds) are logged, and
        counted by `count`.
        """
        self.view = LiveView()
        self.cluster = cluster
        self.loop: SchedulingLoop | None = None
        """None until the first lists are applied."""
        self.reasons = WaitReasons()
        self._live = live
        self._settings = settings
        self._feed = feed
        self._client = client
        self._leads = leads
        self._gave_up = gave_up
        self._clock = clock
        self._count = count
        self._debug = debug or Debug()
        self._ready = ready
        self._freeze = freeze
        self._drain_s = drain_s
        self._most_binding = most_binding
        self._cycle_observers = cycle_observers
        self._timer = timer
        self._monitor_s = monitor_s
        self._monitoring: Future[object] | None = None
        self._io = io
        self._executor = WorkerExecutor(wake=self.wake, io=io)
        self._observers: tuple[Observer, ...] = (
            AttemptReporter(client, self.reasons, links), *observers)
        self._lost = LostPods(clock)
        self._gates = GateReporter(client.statuses, clock)
        self._announcements = Announcements(client.statuses, clock)
        self._unconfirmed = UnconfirmedBindings(io, client, clock, self.wake)
        self._woken = threading.Event()
        self._stopping = False
        self._dump = False
        self._barrier: FeedBarrier | None = None
        """The barrier of this leadership; None while this process does not lead."""
        self._takes = False
        """True if the last round could take a pod."""
        self._next_look = 0
        self._next_comparison = 0
        self._next_freeze = 0

    def wake(self) -> None:
        """Let the deciding thread look for work, if it waits; for any thread."""
        if not self._woken.is_set():
            self._woken.set()

    def stop(self) -> None:
        """Take no more pods, wait for the bindings under way, and return from `run`; for any thread."""
        self._stopping = True
        self._woken.set()

    def request_dump(self) -> None:
        """Compare the cluster with what informers delivered, and log it with the queue; for any thread."""
        self._dump = True
        self.wake()

    def run(self) -> Ended:
        """Schedule until `stop` is called or the Lease is lost.

        Raises:
            PolicyError: a plugin of the registry cannot be made for a profile.
        """
        self._client.own(self.cluster)
        try:
            while not self._stopping:
                if self._gave_up():
                    return Ended.LOST_LEASE
                self._woken.clear()
                if not self._work():
                    self._executor.hand_over()
                    self._woken.wait(self._idle_s())
            self._drain()
            return Ended.LOST_LEASE if self._gave_up() else Ended.STOPPED
        finally:
            self._close()

    # One round

    def _work(self) -> bool:
        """Apply changes and schedule one pod; return whether there may be more to do at once."""
        more = self._feed.apply(self.cluster, _APPLY_S if self.loop is not None else _FIRST_APPLY_S)
        if self.loop is None:
            if not self._feed.synced:
                return more
            self._begin()
        loop = self.loop
        assert loop is not None
        for failed in self._client.take_failed_preemptions():
            known = self.cluster.object("Pod", failed.victim.key)
            if known is not None and (unmarked := failed.unmarked(known)) is not None:
                self.cluster.upsert(unmarked)
            loop.scheduler.nominations.withdraw(failed.preemptor)
            loop.queue.activate((failed.preemptor.key,))
        self._look(loop)
        self._takes = self._may_schedule() and len(loop.scheduler.in_flight) < self._most_binding
        if not self._takes:
            loop.scheduler.process_bindings()
            return more
        return loop.schedule_one() is not None or more

    def _may_schedule(self) -> bool:
        """Return whether this process leads, and has seen all bindings of the leader before it."""
        if not self._leads():
            self._barrier = None
            return False
        if self._barrier is None:
            self._barrier = self._feed.barrier()
        return self._barrier.passed

    def _begin(self) -> None:
        monitor = Monitor(self._timer, count=self._count)
        self._monitoring = self._io.spawn(self._check_attempts(monitor), "the monitor of attempts")
        self.loop = SchedulingLoop(
            self.cluster, self._live, self._settings, clock=self._clock, client=self._client, count=self._count,
            monitor=monitor, executor=self._executor, observe=self._observe, cycle_observers=self._cycle_observers)
        self.loop.scheduler.debug = self._debug
        self._ready(self)

    async def _check_attempts(self, monitor: Monitor) -> None:
        """Report attempts that take long while they run; in the event loop, as the deciding thread is in them."""
        while True:
            await asyncio.sleep(self._monitor_s)
            monitor.check()

    def _observe(self, attempt: Attempt) -> None:
        if attempt.verdict.node is not None:
            self._unconfirmed.add(attempt.queued.pod, attempt.verdict.node)
        for observer in self._observers:
            try:
                observer.observe(attempt)
            except Exception:  # a report or a metric is worth less than the pod
                _LOG.exception("%s: the attempt was not reported", attempt.queued.pod.key,
                               extra={"pod": attempt.queued.pod.key})

    def _idle_s(self) -> float:
        """Return the seconds until there is something to do without a wake-up."""
        if self.loop is None:
            return _LONGEST_WAIT_S
        # A deadline that this round already handled must not wake the thread again.
        unconfirmed = self._unconfirmed.next_time()
        times = ((self.loop if self._takes else self.loop.scheduler).next_time(),
                 None if unconfirmed is None else max(unconfirmed, self._next_look))
        due = min((each for each in times if each is not None), default=None)
        wait_s = _LONGEST_WAIT_S if due is None else (due - self._clock()) / 1e9
        return min(max(wait_s, 0.001), _LONGEST_WAIT_S)

    def _look(self, loop: SchedulingLoop) -> None:
        """Run the watchdogs, and renew the view, once a second."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + _VIEW_S * _SECOND
        self._compare(loop, now)
        self._unconfirmed.look(loop)
        if self._leads():
            self._lost.look(loop)
            self._gates.look(loop)
            self._announcements.look(loop)
        self._renew_view(loop)
        if now >= self._next_freeze:
            self._next_freeze = now + _FREEZE_S * _SECOND
            self._freeze()

    def _compare(self, loop: SchedulingLoop, now: int) -> None:
        if self._next_comparison == 0:
            self._next_comparison = now + _COMPARE_S * _SECOND
        if self._dump or now >= self._next_comparison:
            self._next_comparison = now + _COMPARE_S * _SECOND
            self._feed.compare()
        if self._dump:
            self._dump = False
            for line in dump(self.cluster, [pod.key for pod in loop.queue.pods()]):
                _LOG.info("%s", line)

    def _renew_view(self, loop: SchedulingLoop) -> None:
        self.view = LiveView(
            synced=True, leading=self._leads(), stopping=self._stopping, queue=loop.queue.counts(),
            binding=len(loop.scheduler.in_flight), waiting=len(loop.scheduler.waiting.keys()),
            nodes=len(self.cluster.names), pods=len(self.cluster.objects("Pod")),
            oldest_unscheduled_s=self._oldest_s(loop), lost_pods=self._lost.requeued,
            corrected_bindings=self._unconfirmed.corrected, looked_at=time.monotonic())

    def _oldest_s(self, loop: SchedulingLoop) -> float:
        created = min(
            (stamp for pod in loop.queue.pods() if pod.key not in loop.gated
             and (stamp := (pod.object.get("metadata") or {}).get("creationTimestamp"))), default=None)
        if created is None:
            return 0.0
        return max(0.0, (self._clock() - nanoseconds(created, "creationTimestamp")) / 1e9)

    # The end

    def _drain(self) -> None:
        """Wait for the bindings under way, for a few seconds at most; pods that wait for a permit are given up."""
        self.view = replace(self.view, stopping=True)
        if self.loop is None:
            return
        scheduler = self.loop.scheduler
        deadline = time.monotonic() + self._drain_s
        while True:
            self._woken.clear()
            scheduler.process_bindings()
            self._executor.hand_over()
            remaining_s = deadline - time.monotonic()
            if not scheduler.in_flight or remaining_s <= 0:
                break
            self._woken.wait(remaining_s)
        if scheduler.in_flight:
            _LOG.warning("%d bindings have no answer yet: the next scheduler finds out what became of them",
                         len(scheduler.in_flight))

    def _close(self) -> None:
        if self._monitoring is not None:
            self._monitoring.cancel()
        if self.loop is not None:
            self.loop.close()
        else:
            self._executor.close()
        self.view = replace(self.view, leading=False, stopping=True)
