"""A descheduler for a live cluster: its connections, threads, Lease and end.

```
 I/O thread: informers, evictions, patches, events          descheduling thread: changes, cycles, background steps
 election thread: the Lease, on a connection of its own     reload threads: policies, the configuration
```
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.event_recorder import EventRecorder, end_recording
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.leader_election import Ended, LeaderElection, LeaseSettings, new_identity
from koordpolicy.engine.client.permissions import Permission
from koordpolicy.engine.client.resources import BY_KIND
from koordpolicy.engine.client.shard_leases import ShardLeases
from koordpolicy.engine.client.transport import RequestObserver
from koordpolicy.engine.client.transports import Transports
from koordpolicy.engine.client.writes import ClusterWriter
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.kinds import WORKLOAD_READS, FieldSets, Read
from koordpolicy.engine.cluster.sources.feed import Feed
from koordpolicy.engine.cluster.sources.leaving_pods import LeavingPods
from koordpolicy.engine.framework.handle import Closeable
from koordpolicy.engine.framework.points import Proof
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.serving.garbage_collection import ShortCollections

from .. import ledger
from ..config import DeschedulerConfiguration
from ..migration.live_api import CONTROLLER, LiveMigrationApi
from ..migration.worker import MigrationWorker
from ..pods import budgets_of
from ..profile import DeschedulerProfile
from ..proof import store
from ..proof.verdicts import SuccessorPlacements
from .activation import ProfileActivator, reads_of
from .client import DeschedulerClient
from .config_map import ConfigMapKey
from .evictions import AttemptedEviction, LiveEvictions, Silence
from .loop import LiveDescheduler, ReportObserver
from .memory import ConfigMapMemoryStore, CycleMemory
from .permissions import needed, shard_names
from .shards import ConfigMapLedgerStore, ShardedCycles, ShardsView

USER_AGENT: Final = "koord-policy/descheduler"
QPS: Final = 50.0
BURST: Final = 100
LONGEST_STALENESS_S: Final = 180.0
_RELEASE_S: Final = 2.0
_CLOSE_S: Final = 1.0
_READS_S: Final = 30.0
"""Seconds for which new policies wait for the objects that they read and that were not followed before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeschedulerSettings:
    """The settings of a live descheduler, besides its configuration."""

    qps: float = QPS
    """Requests per second, watches aside; 0 for no limit. Events have a limit of their own, of the same size."""
    burst: int = BURST
    lease: LeaseSettings | None = None
    """None to deschedule without a Lease: then this must be the only process that does."""
    longest_staleness_s: float = LONGEST_STALENESS_S
    """Seconds without news of a kind after which no cycle looks at its objects."""
    once: bool = False
    """True to end after one cycle."""
    memory: tuple[str, str] | None = None
    """Namespace and name of the ConfigMap with the useless evictions; None if they are not remembered."""
    shards: int = 0
    """The most replicas that share the nodes; 0 if one works and the others wait."""


@dataclass(frozen=True, slots=True)
class SchedulerOfPods:
    """The scheduler by which evictions are proved."""

    reads: Callable[[Registry], Iterable[Read]]
    """The objects that its plugins read, of the policies of a registry."""
    placements: Callable[[Cluster, Callable[[], int]], SuccessorPlacements]
    """Its placements on snapshots of a cluster; with a clock, in nanoseconds since the epoch."""
    assumed: bool = False
    """True if nobody said how it is configured: then it is followed only for profiles whose evictions a proof may
    stop or warn of."""

    def proves(self, profiles: Iterable[DeschedulerProfile]) -> bool:
        """Return whether evictions of these profiles are proved."""
        return not self.assumed or any(
            each.proof is not Proof.OFF for profile in profiles for each in (*profile.deschedule, *profile.balance))


class DeschedulerServer:
    """One descheduler of a live cluster. `run` it once; `stop` may be called from any thread, or a signal handler."""

    def __init__(
        self, connect: Callable[[], Connection], live: Live, configuration: Callable[[], DeschedulerConfiguration], *,
        settings: DeschedulerSettings | None = None, requests: RequestObserver | None = None,
        observers: Sequence[ReportObserver] = (), on_attempt: Sequence[Callable[[AttemptedEviction], object]] = (),
        ready: Callable[[DeschedulerServer], None] = lambda _: None, collections: ShortCollections | None = None,
        scheduler: SchedulerOfPods | None = None,
    ) -> None:
        """`connect` returns a new connection; its errors are raised here. `configuration` returns the newest one.

        `ready` is called when the first lists are applied, before the process waits for the Lease. `requests` measures
        all requests but those for the Lease; `observers` see each cycle, `on_attempt` each eviction. Without a
        `scheduler` no eviction is proved.

        Raises:
            PolicyError: the configuration and the policies do not go together.
        """
        self.settings = settings = settings or DeschedulerSettings()
        self.io = IoThread()
        self._live = live
        self._configuration = configuration
        self._ready = ready
        self._collections = collections
        self._scheduler = scheduler
        self._placements: SuccessorPlacements | None = None
        self._transports = transports = Transports.of(
            connect, USER_AGENT, rate=settings.qps, burst=settings.burst, observer=requests)
        self.recorder = EventRecorder(transports.events)
        lease = settings.lease
        self.election = None if lease is None else LeaderElection(
            connect, lease, user_agent=USER_AGENT, on_started=self._wake, on_stopped=self._wake,
            events=self.recorder, controller=CONTROLLER)
        self._shard_leases = None if lease is None or not settings.shards else ShardLeases(
            connect, [replace(lease, name=name) for name in shard_names(lease.name, settings.shards)],
            user_agent=USER_AGENT, looks=self.leads, changed=self._wake)
        writer, clock = ClusterWriter(transports.writes), transports.watches.server_clock.nanoseconds
        cluster = Cluster()
        leaving = LeavingPods(clock)
        silence = Silence()
        self.evictions = LiveEvictions(
            self.io, writer, events=self.recorder, budgets=lambda pod: budgets_of(pod, cluster),
            may_write=self.may_write, observers=on_attempt, now=clock, on_evicted=leaving.add_later,
            silence=silence)
        cluster.listen(self._note_budget)
        self.migrations = MigrationWorker(LiveMigrationApi(
            self.io, transports.writes, self.recorder, self.evictions, may_write=self.may_write, leads=self.leads))
        self.client = DeschedulerClient(
            self.io, writer, self.evictions, clock=clock, migrations=self.migrations,
            identity=new_identity() if lease is None else lease.identity, may_write=self.may_write, silence=silence)
        self.activator = ProfileActivator(live, configuration, snapshot=lambda: cluster.snapshot(clock()),
                                          client=self.client)
        self._checked = self.activator.check(live.registry, configuration())
        """The profiles as they were vetted last, for the kinds that they read."""
        self._vetting = threading.Lock()
        self.io.start()
        try:
            transports.close_with(self.io)
            self.feed = Feed(
                self.io, transports.watches, self._reads(live.registry, _limit_reads(configuration()), self._checked),
                wake=self._wake, revise=leaving.revise, finished_pods=True)
            self.descheduler = LiveDescheduler(
                cluster, self.activator, feed=self.feed, client=self.client, leaving=leaving, leads=self.leads,
                gave_up=self._gave_up, clock=self.feed.now, longest_staleness_s=settings.longest_staleness_s,
                once=settings.once, observers=observers, ready=self._begin, freeze=self._freeze,
                memory=self._memory(writer), placements=partial(self._placements_for, cluster, clock),
                shards=self._shards(writer))
            self.feed.start()
        except BaseException:
            self.io.close()
            raise

    def _reads(
        self, registry: Registry, limits: tuple[Read, ...], *made: tuple[DeschedulerProfile, ...],
    ) -> FieldSets:
        return reads_of(*made, others=(*limits, *self._proof_reads(registry, *made)))

    def _proof_reads(self, registry: Registry, *made: tuple[DeschedulerProfile, ...]) -> tuple[Read, ...]:
        scheduler = self._scheduler
        if scheduler is None or not scheduler.proves(each for profiles in made for each in profiles):
            return ()
        return tuple(scheduler.reads(registry))

    def _placements_for(
        self, cluster: Cluster, clock: Callable[[], int], profiles: Iterable[DeschedulerProfile],
    ) -> SuccessorPlacements | None:
        """Return the prover that places successors for these profiles, in the thread of the cycles; None without
        proofs.
        """
        if self._scheduler is None or not self._scheduler.proves(profiles):
            return None
        if self._placements is None:
            self._placements = self._scheduler.placements(cluster, clock)
        return self._placements

    def _memory(self, writer: ClusterWriter) -> CycleMemory | None:
        if self.settings.memory is None:
            return None
        namespace, name = self.settings.memory
        return CycleMemory(ConfigMapMemoryStore(ConfigMapKey(
            self.io, self._transports.writes, writer, namespace=namespace, name=name, key=store.KEY)))

    def _shards(self, writer: ClusterWriter) -> ShardedCycles | None:
        lease, leases = self.settings.lease, self._shard_leases
        if lease is None or leases is None:
            return None
        config_map = ConfigMapKey(self.io, self._transports.writes, writer, namespace=lease.namespace,
                                  name=lease.name, key=ledger.KEY)
        return ShardedCycles(ConfigMapLedgerStore(config_map), lease.identity, holders=leases.holders,
                             shard=lambda: leases.shard, clock=self.feed.now, ticks=time.monotonic_ns)

    @property
    def shards(self) -> ShardsView | None:
        """The shards as this replica sees them; None without shards."""
        shards = self.descheduler.shards
        return None if shards is None else shards.view

    @property
    def configuration(self) -> DeschedulerConfiguration:
        """The newest configuration."""
        return self._configuration()

    def permissions(self) -> tuple[Permission, ...]:
        """Return the cluster-wide permissions of this process."""
        found = list(needed(self._checked, dry_run=self.configuration.dry_run))
        known = {(each.group, each.resource) for each in found}
        proofs = self._proof_reads(self._live.registry, self._checked)
        limits = _limit_reads(self.configuration)
        for reads, reader in ((limits, "limits per workload"), (proofs, "proofs of evictions")):
            resources = {resource for read in reads if (resource := BY_KIND.get(read.kind)) is not None}
            found += [Permission(each.group, each.plural, ("list", "watch"), reader)
                      for each in sorted(resources, key=lambda each: each.plural)
                      if (each.group, each.plural) not in known]
            known |= {(each.group, each.plural) for each in resources}
        return tuple(found)

    def leads(self) -> bool:
        """Return True while this process may run cycles; for any thread."""
        return self.election is None or self.election.leads()

    def may_write(self) -> bool:
        """Return True while this process leads or has a shard, and is not about to end; for any thread."""
        return (self.leads() or self._has_shard()) and not self.descheduler.stopping

    def _has_shard(self) -> bool:
        return self._shard_leases is not None and bool(self._shard_leases.shard)

    def stop(self) -> None:
        """Let `run` end: the eviction under way is waited for, and no other one follows."""
        self.descheduler.stop()

    def vet(self, registry: Registry | None = None, configuration: DeschedulerConfiguration | None = None) -> None:
        """Check new policies or a new configuration, and follow the objects that they read; for reloading threads.

        What is None is as it is now.

        Raises:
            PolicyError: a plugin cannot be made for a profile, or these objects are not listed in time.
        """
        with self._vetting:
            newest = registry or self._live.registry
            checked = self.activator.check(newest, configuration or self._configuration())
            # What is checked may be refused, and the active ones go on.
            limits = _limit_reads(self._configuration())
            active = self._reads(self._live.registry, limits, self._checked)
            read_limits = limits if configuration is None else _limit_reads(configuration) or limits
            reads = self._reads(newest, read_limits, checked, self._checked)
            if self.descheduler.view.synced:
                self.feed.cover(reads, _READS_S, active=active,
                                ended=lambda: self.descheduler.stopping)
            else:
                self.feed.require(reads)
            self._checked = checked

    def run(self) -> Ended:
        """Deschedule in this thread until `stop` is called, the Lease is lost, or the only cycle has ended.

        Raises:
            PolicyError: the profiles cannot be made.
        """
        recording = self.io.spawn(self.recorder.run(), "to record events")
        self._freeze()  # lists are read without full collections
        try:
            ended = self.descheduler.run()
            self._release()  # before the last events, as some of them are about the Lease
            if ended is Ended.STOPPED:
                end_recording(self.io, self.recorder, recording)
            return ended
        finally:
            self._release()
            self.io.close(_CLOSE_S)
            if isinstance(self._placements, Closeable):
                self._placements.close()
            if self._collections is not None:
                self._collections.close()

    def _note_budget(self, event: Event) -> None:
        if event.kind == "PodDisruptionBudget" and event.new is not None:
            self.evictions.budget_changed(event.new)

    def _begin(self, _: LiveDescheduler) -> None:
        self._ready(self)
        if self.election is not None:
            self.election.start()
        if self._shard_leases is not None:
            self._shard_leases.start()

    def _release(self) -> None:
        for each in (self._shard_leases, self.election):
            if each is not None:
                each.release(_RELEASE_S)

    def _gave_up(self) -> bool:
        return self.election is not None and self.election.state.gave_up

    def _freeze(self) -> None:
        if self._collections is not None:
            self._collections.freeze()

    def _wake(self) -> None:
        self.descheduler.wake()


def _limit_reads(configuration: DeschedulerConfiguration) -> tuple[Read, ...]:
    """Return the reads of the limits of a configuration; those of documents are among the reads of their plugins."""
    limits = configuration.limits.workloads
    return WORKLOAD_READS if limits.per_workload is not None or limits.per_owner is not None else ()
