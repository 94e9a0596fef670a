"""A scheduler for a live cluster: its connections, threads, Lease and end.

```
 I/O thread: informers, bindings, patches, events          deciding thread: changes, decisions
 election thread: the Lease, on a connection of its own     reload thread: policies
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.event_recorder import EventRecorder, end_recording
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.leader_election import Ended, LeaderElection, LeaseSettings
from koordpolicy.engine.client.transport import RequestObserver
from koordpolicy.engine.client.transports import Transports
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.kinds import FieldSets, Read, fields_read
from koordpolicy.engine.cluster.sources.feed import Feed
from koordpolicy.engine.framework.handle import Count
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.serving.console_links import ConsoleLinks
from koordpolicy.engine.serving.garbage_collection import ShortCollections

from ..cycle.schedule_one import Debug, Settings
from ..observe.cycle_observer import CycleObserver
from ..profiles.profile import all_reads_of
from .client import LiveClient
from .owner import LiveScheduler, Observer

USER_AGENT: Final = "koord-policy/scheduler"
QPS: Final = 50.0
BURST: Final = 100
_FOLLOWING_FROM: Final = 256
"""Nodes. The pods of a workload are alike, so that most results of the pod before are valid: it takes a fifth less time
per decision of 1,000 nodes to follow the changed ones. Pods that all differ take as long either way.
"""
_EVENTS: Final = 20_000
"""Events that wait to be written at most: each pod has one, and many may be bound at once."""
_RELEASE_S: Final = 2.0
_CLOSE_S: Final = 1.0
_BIND_SHARE: Final = 0.9
"""The part of the limit for a binding cycle in which its binding must have ended."""
_READS_S: Final = 30.0
"""Seconds for which new policies wait for the objects that they read and that were not followed before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of the client of a live scheduler."""

    qps: float = QPS
    """Requests per second, watches aside; 0 for no limit. Events have a limit of their own, of the same size."""
    burst: int = BURST
    links: ConsoleLinks = ConsoleLinks()  # noqa: RUF009 - frozen
    """Of the console that events lead to."""
    lease: LeaseSettings | None = None
    """None to schedule without a Lease: then this must be the only process with its scheduler names."""


class LiveServer:
    """One scheduler of a live cluster. `run` it once; `stop` may be called from any thread, or a signal handler."""

    def __init__(
        self, connect: Callable[[], Connection], live: Live, settings: Settings, *,
        server: ServerSettings | None = None, count: Count | None = None, observers: Sequence[Observer] = (),
        debug: Debug | None = None, ready: Callable[[LiveServer], None] = lambda _: None,
        cycle_observers: Sequence[CycleObserver] = (), requests: RequestObserver | None = None,
        reads: Sequence[Read] = (), collections: ShortCollections | None = None,
    ) -> None:
        """`connect` returns a new connection; its errors are raised here. `reads` are read beside what the profiles do.

        `ready` is called when the first lists are applied, before the process waits for the Lease. `requests` measures
        all requests but those for the Lease. `collections` freeze the objects before the first lists, after them and
        once a minute; they are closed at the end.
        """
        self.settings = server or ServerSettings()
        self.io = IoThread()
        self._ready = ready
        self._live = live
        self._profiles = settings.profiles
        self._collections = collections
        self._more_reads = tuple(reads)
        transports = Transports.of(
            connect, USER_AGENT, rate=self.settings.qps, burst=self.settings.burst, observer=requests)
        self.recorder = EventRecorder(transports.events, buffer=_EVENTS)
        lease = self.settings.lease
        self.election = None if lease is None else LeaderElection(
            connect, lease, user_agent=USER_AGENT, on_started=self._wake, on_stopped=self._wake,
            events=self.recorder, controller=self._profiles[0].name)
        self.io.start()
        try:
            transports.close_with(self.io)
            client = LiveClient(self.io, transports.writes, self.recorder, may_write=self.leads, wake=self._wake,
                                clock=transports.watches.server_clock.nanoseconds,
                                bind_s=settings.binding_timeout / 1e9 * _BIND_SHARE)
            self.feed = Feed(self.io, transports.watches, self._reads_of(live.registry), wake=self._wake,
                             revise=client.revise)
            self.scheduler = LiveScheduler(
                Cluster(following_from=_FOLLOWING_FROM), live, settings, feed=self.feed, client=client, io=self.io,
                leads=self.leads, gave_up=self._gave_up, clock=self.feed.now, count=count, observers=observers,
                debug=debug, ready=self._begin, cycle_observers=cycle_observers, freeze=self._freeze,
                links=self.settings.links)
            self.feed.start()
        except BaseException:
            self.io.close()
            raise

    def leads(self) -> bool:
        """Return True while this process may schedule and write; for any thread."""
        return self.election is None or self.election.leads()

    def stop(self) -> None:
        """Let `run` end: no more pods are taken, and the Lease is released when the bindings under way have ended."""
        self.scheduler.stop()

    def stage(self, registry: Registry) -> None:
        """Make the plugins of new policies, once the objects are followed that they read; for the reloading thread.

        Raises:
            PolicyError: a plugin cannot be made for a profile, or these objects are not listed in time.
        """
        reads = self._reads_of(registry, self._live.registry)  # these may be refused, and the active ones go on
        loop = self.scheduler.loop
        if loop is None:
            self.feed.require(reads)
            return  # the first lists are not applied: they have what these policies read too
        self.feed.cover(reads, _READS_S, active=self._reads_of(self._live.registry),
                        ended=lambda: self.scheduler.view.stopping)
        loop.scheduler.hot_swap.stage(registry)

    def run(self) -> Ended:
        """Schedule in this thread until `stop` is called or the Lease is lost.

        Raises:
            PolicyError: a plugin of the registry cannot be made for a profile.
        """
        recording = self.io.spawn(self.recorder.run(), "to record events")
        self._freeze()  # lists are read without full collections
        try:
            ended = self.scheduler.run()
            self._release()  # before the last events, as one of them is about the Lease
            if ended is Ended.STOPPED:
                end_recording(self.io, self.recorder, recording)
            return ended
        finally:
            self._release()
            self.io.close(_CLOSE_S)
            if self._collections is not None:
                self._collections.close()

    def _reads_of(self, *registries: Registry) -> FieldSets:
        return fields_read([*all_reads_of(self._profiles, *registries), *self._more_reads])

    def _begin(self, _: LiveScheduler) -> None:
        self.feed.require(self._reads_of(self._live.registry))  # a reload may have been faster than the first lists
        self._ready(self)
        if self.election is not None:
            self.election.start()

    def _release(self) -> None:
        if self.election is not None:
            self.election.release(_RELEASE_S)

    def _gave_up(self) -> bool:
        return self.election is not None and self.election.state.gave_up

    def _freeze(self) -> None:
        if self._collections is not None:
            self._collections.freeze()

    def _wake(self) -> None:
        self.scheduler.wake()
