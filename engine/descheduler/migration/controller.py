"""The migration controller: takes waiting jobs through arbitration and running ones step by step, over an API.

It holds nothing that it could not lose: after a restart it goes on from the jobs, reservations and pods that are there,
those of a former process included. It is called by its owner, and starts no thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.points import Refusal

from . import jobs, reservations
from .arbitrator import Ruled, arbitrate, sort_jobs, waits
from .job_index import JobIndex
from .migration_step import MigrationStep, MigrationView, eviction_failed, release, reservation_failed
from .object_limiter import ObjectLimiter
from .reconcile import reconcile_step
from .scavenger import orphans, stale_jobs
from .settings import SECOND, MigrationSettings
from .workloads import WorkloadFinder
from .writes import (
    CreateJob,
    CreateReservation,
    DeleteJob,
    DeleteReservation,
    EvictPod,
    RecordEvent,
    UpdateJob,
    UpdateJobStatus,
    UpdateReservation,
    Write,
)
from .written_jobs import WrittenJobs

Json = Mapping[str, Any]

_LOG: Final = logging.getLogger(__name__)
_FIRST_DELAY: Final = SECOND // 200
_LONGEST_DELAY: Final = 1000 * SECOND


class AlreadyExists(Exception):
    """An object of this name exists already."""


class TooManyEvictions(Exception):
    """The evictions of this second are used up."""


class RequestFailed(OSError):
    """A request of a migration was refused, or it is not known to be carried out."""

    def __init__(self, message: str, *, retry_after: int = 0) -> None:
        """`retry_after` is the time in ns for which the server asks to wait."""
        super().__init__(message)
        self.retry_after = retry_after


class MigrationApi(Protocol):
    """The requests of a migration. Each raises an error if the API server refuses it; the deletion of an absent object
    succeeds.

    Updates are conditional on the object's resourceVersion. A `RequestFailed` may say when to try again.
    """

    def job(self, name: str) -> Json | None:
        """Return a job as the API server has it, or None."""
        ...

    def create_job(self, job: Json) -> Json:
        """Create a job and return it as stored."""
        ...

    def update_job(self, job: Json) -> Json:
        """Write a job without its status, and return it as stored."""
        ...

    def update_job_status(self, job: Json) -> Json:
        """Write a job's status, and return it as stored."""
        ...

    def delete_job(self, name: str, uid: str) -> None:
        """Delete a job of that UID."""
        ...

    def reservation(self, name: str) -> Json | None:
        """Return a reservation as the API server has it, or None."""
        ...

    def create_reservation(self, reservation: Json) -> None:
        """Create a reservation; raise `AlreadyExists` if there is one of that name."""
        ...

    def update_reservation(self, reservation: Json) -> None:
        """Write the labels of a reservation."""
        ...

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation."""
        ...

    def evict(self, eviction: EvictPod) -> None:
        """Evict a pod of that UID by the eviction's policy."""
        ...

    def record(self, event: RecordEvent) -> None:
        """Record an event; must not raise."""
        ...


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of writing a step: the job as stored last, and the write that failed with its error, if any did."""

    job: Json
    failed: Write | None = None
    error: str = ""
    evicted: bool = False
    retry_after: int = 0
    """The time in ns after which the failed write may be tried again."""


def apply(
    step: MigrationStep, api: MigrationApi, before_eviction: Callable[[], None] = lambda: None,
    stored_as: Callable[[Json], object] = lambda _: None,
) -> Applied:
    """Make the writes of a step in their order; the first one that fails ends it.

    `before_eviction` may raise, so that a limit on evictions stops the step before the request. `stored_as` is called
    with the job after each write of it.
    """
    job, evicted = step.job, False
    for write in step.writes:
        try:
            if isinstance(write, EvictPod):
                before_eviction()
            stored = _write(write, job, api)
        except BaseException as error:
            must_be_survived(error)
            retry_after = error.retry_after if isinstance(error, RequestFailed) else 0
            return Applied(job, write, str(error) or type(error).__name__, evicted, retry_after)
        evicted = evicted or isinstance(write, EvictPod)
        if stored is not None:
            job = stored
            stored_as(job)
    return Applied(job, evicted=evicted)


def _write(write: Write, latest: Json, api: MigrationApi) -> Json | None:
    match write:
        case CreateJob(job):
            return api.create_job(job)
        case UpdateJob(job):
            return api.update_job(_at_version(job, latest))
        case UpdateJobStatus(job):
            return api.update_job_status(_at_version(job, latest))
        case DeleteJob(name, uid):
            api.delete_job(name, uid)
        case CreateReservation():
            _create(write, latest, api)
        case UpdateReservation(reservation):
            api.update_reservation(reservation)
        case DeleteReservation(name):
            api.delete_reservation(name)
        case EvictPod():
            api.evict(write)
        case RecordEvent():
            api.record(write)
    return None


def _at_version(job: Json, latest: Json) -> Json:
    version = jobs.metadata_of(latest).get("resourceVersion")
    return job if version is None else {**job, "metadata": {**jobs.metadata_of(job), "resourceVersion": version}}


def _create(write: CreateReservation, job: Json, api: MigrationApi) -> None:
    try:
        api.create_reservation(write.reservation)
    except AlreadyExists:
        found = api.reservation(jobs.name_of(write.reservation))
        if found is None or not reservations.is_of(found, job):
            raise


class ControllerView(MigrationView, Protocol):
    """The cluster as the controller sees it: the objects of one step, and all jobs and reservations."""

    @property
    def ticks(self) -> int:
        """The time by a clock that is never set, in ns, for intervals."""
        ...

    def jobs(self) -> Iterable[Json]:
        """Return all jobs."""
        ...

    def reservations(self) -> Iterable[Json]:
        """Return all reservations."""
        ...


@dataclass(slots=True)
class _Retry:
    failures: int = 0
    due: int = 0
    of_eviction: bool = False


@dataclass(slots=True)
class MigrationJobController:
    """Works off PodMigrationJobs. Its owner calls `arbitrate` each interval, `reconcile` when something changed or at
    the time it returned, `deleted` for each deleted job, and `scavenge` each minute.
    """

    api: MigrationApi
    settings: MigrationSettings
    limiter: ObjectLimiter
    written: WrittenJobs = field(default_factory=WrittenJobs)
    """Receives what the API server answers about jobs."""
    failures: int = 0
    """The number of steps that failed."""
    _retries: dict[str, _Retry] = field(default_factory=dict)
    _faults: RepeatedFaults = field(default_factory=RepeatedFaults)
    _tokens: float = -1.0
    _refilled: int = 0

    def arbitrate(
        self, view: ControllerView, index: JobIndex, non_retryable: Callable[[Json], Refusal | None],
        retryable: Callable[[Json], Refusal | None],
    ) -> Ruled:
        """Decide about the jobs that wait, and write the decisions; a job whose write failed waits on."""
        waiting = [
            job for job in view.jobs()
            if waits(job) and jobs.metadata_of(job).get("deletionTimestamp") is None
        ]
        if not waiting:
            return Ruled()
        pods = {}
        for job in waiting:
            ref = jobs.pod_ref(job)
            pod = view.pod(str(ref.get("namespace") or ""), str(ref.get("name") or ""))
            if pod is not None:
                pods[jobs.name_of(job)] = pod
        ruled = arbitrate(sort_jobs(waiting, pods, index), pods, non_retryable, retryable, index.put)
        undone = [self._undone(MigrationStep(job, (UpdateJob(job),))) for job in ruled.passed]
        for job in ruled.failed:
            message = str(job["status"]["message"])
            undone.append(self._undone(MigrationStep(job, (
                UpdateJobStatus(job), RecordEvent(job, "ForbiddenMigratePod", message, warning=True)))))
        for job in waiting:
            if jobs.name_of(job) in undone:
                index.put(job)
        return ruled

    def _undone(self, step: MigrationStep) -> str:
        return jobs.name_of(step.job) if self._apply(step).failed is not None else ""

    def _apply(self, step: MigrationStep, now: int | None = None) -> Applied:
        """Make the writes of a step; evictions only if there is a token at the ticks `now`.

        After a refused update the job is read, so that the next step begins with its present state.
        """
        done = apply(step, self.api, lambda: self._take(now or 0), self.written.note)
        if isinstance(done.failed, (UpdateJob, UpdateJobStatus)):
            name = jobs.name_of(step.job)
            try:
                found = self.api.job(name)
            except RequestFailed:
                return done
            if found is None:
                self.written.forget(name)
            else:
                self.written.note(found)
        return done

    def reconcile(self, job: Json, view: ControllerView, workloads: WorkloadFinder) -> int | None:
        """Take one step of a job; return the ns after which the next one is due, None if only a change makes it due."""
        name = jobs.name_of(job)
        retry = self._retries.get(name)
        if retry is not None and view.ticks < retry.due:
            return retry.due - view.ticks
        try:
            step = reconcile_step(job, view, self.settings)
            ref = jobs.pod_ref(job)
            pod = view.pod(str(ref.get("namespace") or ""), str(ref.get("name") or ""))
        except BaseException as error:
            must_be_survived(error)
            retry_after = error.retry_after if isinstance(error, RequestFailed) else 0
            fault = f"it cannot be looked at: {error or type(error).__name__}"
            return self._failed(name, view.ticks, fault, retry_after)
        done = self._apply(step, view.ticks)
        if done.evicted and pod is not None:
            self.limiter.track(pod, workloads, view.ticks)
        if done.failed is None:
            self._retries.pop(name, None)
            return step.requeue_after
        if isinstance(done.failed, CreateReservation):
            self._apply(reservation_failed(done.job if done.job is not step.job else job, done.error, view.now))
        elif isinstance(done.failed, EvictPod):
            self.api.record(eviction_failed(job, done.error))
        return self._failed(name, view.ticks, f"{type(done.failed).__name__}: {done.error}", done.retry_after,
                            of_eviction=isinstance(done.failed, EvictPod))

    def _failed(self, name: str, now: int, fault: str, retry_after: int, *, of_eviction: bool = False) -> int:
        """Return the delay after one more failure of a job, which doubles from failure to failure."""
        if self._faults.is_due(fault, name):
            _LOG.warning("migration job %s: %s", name, fault)
        self.failures += 1
        retry = self._retries.setdefault(name, _Retry())
        delay = max(min(_FIRST_DELAY << min(retry.failures, 30), _LONGEST_DELAY), retry_after)
        retry.failures, retry.due, retry.of_eviction = retry.failures + 1, now + delay, of_eviction
        return delay

    def budget_changed(self) -> list[str]:
        """Let refused evictions be tried again at once, as a budget changed; return the names of their jobs."""
        found = [name for name, retry in self._retries.items() if retry.of_eviction]
        for name in found:
            self._retries[name].due = 0
        return found

    def deleted(self, job: Json) -> None:
        """Delete what a deleted job leaves behind."""
        self._retries.pop(jobs.name_of(job), None)
        apply(MigrationStep(job, release(job)), self.api)

    def scavenge(self, view: ControllerView) -> None:
        """Delete jobs that are long over and reservations whose job is gone; a failure stops it until the next time."""
        known = tuple(view.jobs())
        writes = [*stale_jobs(known, view.now)]
        try:
            writes += [DeleteReservation(jobs.name_of(each)) for each in orphans(known, view.reservations())
                       if not self._has_job(each)]
        except RequestFailed as error:
            _LOG.warning("reservations without a job cannot be looked for: %s", error)
        done = apply(MigrationStep({}, tuple(writes)), self.api)
        if done.failed is not None:
            _LOG.warning("%s: %s", type(done.failed).__name__, done.error)

    def _has_job(self, reservation: Json) -> bool:
        """Return whether the API server has a job that owns the reservation: the view may lag behind."""
        found = (self.api.job(name) for name, _ in reservations.owning_jobs(reservation))
        uids = {uid for _, uid in reservations.owning_jobs(reservation)}
        return any(job is not None and jobs.uid_of(job) in uids for job in found)

    def _take(self, now: int) -> None:
        """Take a token for one eviction."""
        burst = self.settings.evict_burst
        gained = (now - self._refilled) * self.settings.evict_per_second / SECOND
        self._tokens = burst if self._tokens < 0 else min(burst, self._tokens + max(gained, 0.0))
        self._refilled = now
        if self._tokens < 1:
            raise TooManyEvictions("TooManyEvictions")
        self._tokens -= 1
