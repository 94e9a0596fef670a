"""Works off the migration jobs of a live cluster, one step after the other, in the thread that owns the cluster.

A job is due when it, its reservation, its pod or the successor changed, when its last step said so, and at the end of
its time to live. Arbitration and the scavenger have intervals of their own. Changes are found by comparing snapshots.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from koordpolicy.engine.cluster.snapshot import Snapshot

from . import jobs, reservations
from .arbitrator import waits
from .controller import MigrationApi, MigrationJobController, RequestFailed
from .filters import MigrationFilter
from .job_index import JobIndex
from .live_view import LiveMigrationView, ObjectReader
from .object_limiter import ObjectLimiter
from .scavenger import INTERVAL, is_stale
from .settings import MigrationSettings
from .workloads import SnapshotWorkloads
from .written_jobs import WrittenJobs

Json = Mapping[str, Any]
_Key = tuple[str, str]

_LOG: Final = logging.getLogger(__name__)
_NEVER: Final = 2**63 - 1

_BUDGETS: Final = "PodDisruptionBudget"


class MigrationPolicy(Protocol):
    """The settings of migrations, and the filter of pods: the plugin MigrationController of one profile."""

    settings: MigrationSettings
    limiter: ObjectLimiter

    def arbitration(self, snapshot: Snapshot, of: Iterable[Json]) -> tuple[JobIndex, MigrationFilter]:
        """Return the jobs `of` as an index, and the filter of pods that arbitration applies."""
        ...


class LiveApi(MigrationApi, ObjectReader, Protocol):
    """The requests of migrations, and reads (`LiveMigrationApi`)."""

    def reservation(self, name: str) -> Json | None:
        """Return a reservation as the API server has it, or None."""
        ...


@runtime_checkable
class MigratesPods(Protocol):
    """A client of a live descheduler that migrates pods by jobs."""

    migrations: MigrationWorker
    """The only one of the process."""
    identity: str
    """The name of this process in the jobs that it creates."""


@dataclass(frozen=True, slots=True)
class MigrationFigures:
    """Counters of a worker since its start, for other threads."""

    waiting: int = 0
    """Jobs that wait for arbitration."""
    running: int = 0
    """Other jobs that have not ended."""
    ended: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Jobs that this process ended, by phase and reason."""
    steps: int = 0
    failures: int = 0
    """Steps whose writes failed."""


class MigrationWorker:
    """Works off the jobs of a cluster, for one policy at a time.

    All methods are for the thread that owns the cluster; `figures` may be read anywhere. Nothing is lost with it:
    another one goes on from the objects of the cluster.
    """

    def __init__(
        self, api: LiveApi, *, clock: Callable[[], float] = time.monotonic,
        ticks: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`clock` measures the time of a step in seconds, `ticks` all other intervals in ns: the time of snapshots is
        the API server's, which may be set.
        """
        self.ticks = ticks
        self.figures = MigrationFigures()
        self.written = WrittenJobs()
        self._api = api
        self._clock = clock
        self._policy: MigrationPolicy | None = None
        self._controller: MigrationJobController | None = None
        self._shown: dict[str, Json] = {}
        """The jobs of the snapshot that was looked at last, by name."""
        self._shown_version = -1
        self._budgets_version = -1
        self._due: dict[str, int] = {}
        """When each job that has not ended is to be looked at, by name, in ticks; 0 for as soon as possible."""
        self._waiting: set[str] = set()
        """The names of jobs that wait for arbitration."""
        self._references: dict[str, dict[_Key, Json | None]] = {}
        """The objects whose changes a job waits for, by its name, as they were in its last step."""
        self._next_arbitration = 0
        self._next_scavenging = 0
        self._ended: Counter[tuple[str, str]] = Counter()
        self._steps = 0

    def work(self, policy: MigrationPolicy, snapshot: Snapshot, budget_s: float = 0.0) -> int:
        """Do what is due, for about `budget_s` seconds; return when more is, in ns since the epoch, if nothing changes.

        The first policy governs all jobs until it is released; for any other one there is nothing to do meanwhile.
        """
        if self._policy is None:
            self._policy = policy
            self._controller = MigrationJobController(self._api, policy.settings, policy.limiter, self.written)
        now = self.ticks()
        if self._policy is not policy or self._controller is None:
            return snapshot.now + INTERVAL
        end = self._clock() + budget_s
        view = LiveMigrationView(snapshot, self.written, policy.limiter, self._api, now)
        self._look(self._controller, snapshot)
        if now >= self._next_scavenging:
            self._next_scavenging = now + INTERVAL
            self._scavenge(self._controller, view, snapshot)
        if self._waiting and now >= self._next_arbitration:
            self._arbitrate(self._controller, policy, view, snapshot)
            self._next_arbitration = now + policy.settings.arbitration_interval
        while self._step(self._controller, view, snapshot, now) and self._clock() < end:
            pass
        self.figures = MigrationFigures(
            len(self._waiting), len(self._due.keys() - self._waiting), dict(self._ended), self._steps,
            self._controller.failures)
        due = min((self._next_scavenging, *self._due.values()))
        due = min(due, self._next_arbitration) if self._waiting else due
        return snapshot.now + max(due - now, 0)

    def release(self, policy: MigrationPolicy) -> None:
        """Let another policy govern the jobs, if this one does."""
        if self._policy is policy:
            self._policy = self._controller = None
            self._due = dict.fromkeys(self._due, 0)

    def create(self, job: Json) -> Json:
        """Create a job, and return it as stored; raises `OSError` if the API server refuses it."""
        stored = self._api.create_job(job)
        self.written.note(stored)
        return stored

    def jobs(self, snapshot: Snapshot) -> Iterable[Json]:
        """Return the jobs of a snapshot, as this process wrote them last, and those that it does not show yet."""
        if self._policy is None:
            # Another replica works jobs off, and may have done so before a snapshot showed them here.
            for name in self.written.unseen():
                job = self.written.unseen_job(name)
                if job is not None and is_stale(job, snapshot.now):
                    self.written.forget(name)
        return self.written.newest_of(snapshot.objects(jobs.KIND).values())

    # What is due

    def _look(self, controller: MigrationJobController, snapshot: Snapshot) -> None:
        """Find what changed since the last look."""
        if snapshot.version_of(jobs.KIND) != self._shown_version:
            self._shown_version = snapshot.version_of(jobs.KIND)
            before, self._shown = self._shown, dict(snapshot.objects(jobs.KIND))
            for name, old in before.items():
                new = self._shown.get(name)
                if new is None or jobs.uid_of(new) != jobs.uid_of(old):
                    self.written.forget(name)
                    self._forget(name)
                    controller.deleted(old)
            for name, job in self._shown.items():
                if before.get(name) is not job and self.written.newest(job) is job:
                    self._follow(job, snapshot)
        for name in self.written.unseen():
            unseen = self.written.unseen_job(name)
            if name not in self._due and name not in self._shown and unseen is not None:
                self._follow(unseen, snapshot)
        for name, references in self._references.items():
            if any(snapshot.object(*key) is not known for key, known in references.items()):
                self._due[name] = 0
        if snapshot.version_of(_BUDGETS) != self._budgets_version:
            self._budgets_version = snapshot.version_of(_BUDGETS)
            self._due.update((name, 0) for name in controller.budget_changed() if name in self._due)

    def _scavenge(self, controller: MigrationJobController, view: LiveMigrationView, snapshot: Snapshot) -> None:
        for name in self.written.unseen():
            if snapshot.object(jobs.KIND, name) is None:
                # It may have been deleted before the cluster showed it.
                try:
                    if self._api.job(name) is None:
                        self.written.forget(name)
                except RequestFailed as error:
                    _LOG.warning("%s", error)
        controller.scavenge(view)

    def _arbitrate(
        self, controller: MigrationJobController, policy: MigrationPolicy, view: LiveMigrationView, snapshot: Snapshot,
    ) -> None:
        try:
            index, checks = policy.arbitration(snapshot, view.jobs())
            controller.arbitrate(view, index, checks.non_retryable, checks.retryable)
        except RequestFailed as error:
            _LOG.warning("jobs wait on, as arbitration failed: %s", error)
            return
        for name in tuple(self._waiting):
            job = self._newest(name, snapshot)
            if job is None:
                self._forget(name)
            elif not waits(job):
                self._follow(job, snapshot)
                self._count_if_ended(job)

    def _step(
        self, controller: MigrationJobController, view: LiveMigrationView, snapshot: Snapshot, now: int,
    ) -> bool:
        """Take one step of the job that is due longest; return False if none is due."""
        name = min(self._due, key=self._due.__getitem__, default="")
        if not name or self._due[name] > now:
            return False
        job = self._newest(name, snapshot)
        if job is None:
            self._forget(name)
            return True
        wait = controller.reconcile(job, view, SnapshotWorkloads(snapshot))
        self._steps += 1
        after = self._newest(name, snapshot)
        if after is None:
            self._forget(name)
            return True
        self._follow(after, snapshot)
        if name in self._due:
            due, end = _NEVER if wait is None else now + wait, now + _left_of(after, snapshot.now)
            # After its end a job goes on only because it could not be ended: it waits like any other, or it would be
            # the one that is due longest for ever.
            self._due[name] = due if end <= now and wait is not None else min(due, end)
        self._count_if_ended(after)
        return True

    # The jobs

    def _newest(self, name: str, snapshot: Snapshot) -> Json | None:
        shown = snapshot.object(jobs.KIND, name)
        return self.written.newest(shown) if shown is not None else self.written.unseen_job(name)

    def _follow(self, job: Json, snapshot: Snapshot) -> None:
        """Look at a job as soon as possible, and whenever what it waits for changes; unless it has ended."""
        name = jobs.name_of(job)
        self._forget(name)
        if jobs.phase_of(job) in jobs.TERMINAL or jobs.metadata_of(job).get("deletionTimestamp") is not None:
            return
        if waits(job) and (self._policy is None or self._policy.settings.arbitration):
            self._waiting.add(name)
        if (job.get("spec") or {}).get("paused"):
            return
        self._due[name] = 0
        successor = (job.get("status") or {}).get("podRef") or {}
        keys = (("Pod", jobs.pod_key(job)), (reservations.KIND, jobs.reservation_ref(job)),
                ("Pod", f"{successor.get('namespace') or ''}/{successor.get('name') or ''}"))
        self._references[name] = {key: snapshot.object(*key) for key in keys}

    def _forget(self, name: str) -> None:
        self._due.pop(name, None)
        self._waiting.discard(name)
        self._references.pop(name, None)

    def _count_if_ended(self, job: Json) -> None:
        if jobs.phase_of(job) in jobs.TERMINAL:
            self._ended[jobs.phase_of(job), str((job.get("status") or {}).get("reason") or "")] += 1


def _left_of(job: Json, now: int) -> int:
    """Return the time until the job times out, in ns; negative after that. `now` is the API server's time."""
    ttl = jobs.ttl_of(job)
    return jobs.created_at(job) + ttl - now if ttl > 0 else _NEVER
