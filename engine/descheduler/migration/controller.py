"""The migration controller: takes waiting jobs through arbitration and running ones step by step, over an API.

It holds nothing that it could not lose: after a restart it goes on from the jobs, reservations and pods that are there,
those of a former process included. It is called by its owner, and starts no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.points import Refusal

from . import jobs, reservations
from .arbitrator import Ruled, arbitrate, sort_jobs, waits
from .job_index import JobIndex
from .object_limiter import ObjectLimiter
from .reconcile import MigrationStep, MigrationView, eviction_failed, reconcile_step, release, reservation_failed
from .scavenger import scavenge
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

Json = Mapping[str, Any]

_FIRST_DELAY: Final = SECOND // 200
_LONGEST_DELAY: Final = 1000 * SECOND


class AlreadyExists(Exception):
    """An object of this name exists already."""


class TooManyEvictions(Exception):
    """The evictions of this second are used up."""


class MigrationApi(Protocol):
    """The requests of a migration. Each raises what the API server refuses; deleting what is gone succeeds.

    Updates are conditional on the object's resourceVersion.
    """

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
        """Write a reservation without its status."""
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


def apply(step: MigrationStep, api: MigrationApi, before_eviction: Callable[[], None] = lambda: None) -> Applied:
    """Make the writes of a step in their order; the first one that fails ends it.

    `before_eviction` may raise, so that a limit on evictions stops the step before the request.
    """
    job, evicted = step.job, False
    for write in step.writes:
        try:
            if isinstance(write, EvictPod):
                before_eviction()
            stored = _write(write, job, api)
        except BaseException as error:
            must_be_survived(error)
            return Applied(job, write, str(error) or type(error).__name__, evicted)
        evicted = evicted or isinstance(write, EvictPod)
        if stored is not None:
            job = stored
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


@dataclass(slots=True)
class MigrationJobController:
    """Works off PodMigrationJobs. Its owner calls `arbitrate` each interval, `reconcile` when something changed or at
    the time it returned, `deleted` for each deleted job, and `scavenge` each minute.
    """

    api: MigrationApi
    settings: MigrationSettings
    limiter: ObjectLimiter
    _retries: dict[str, _Retry] = field(default_factory=dict)
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
        return jobs.name_of(step.job) if apply(step, self.api).failed is not None else ""

    def reconcile(self, job: Json, view: ControllerView, workloads: WorkloadFinder) -> int | None:
        """Take one step of a job; return the ns after which the next one is due, None if only a change makes it due."""
        name = jobs.name_of(job)
        retry = self._retries.get(name)
        if retry is not None and view.now < retry.due:
            return retry.due - view.now
        step = reconcile_step(job, view, self.settings)
        ref = jobs.pod_ref(job)
        pod = view.pod(str(ref.get("namespace") or ""), str(ref.get("name") or ""))
        done = apply(step, self.api, lambda: self._take(view.now))
        if done.evicted and pod is not None:
            self.limiter.track(pod, workloads, view.now)
        if done.failed is None:
            self._retries.pop(name, None)
            return step.requeue_after
        if isinstance(done.failed, CreateReservation):
            apply(reservation_failed(done.job if done.job is not step.job else job, done.error, view.now), self.api)
        elif isinstance(done.failed, EvictPod):
            self.api.record(eviction_failed(job, done.error))
        retry = self._retries.setdefault(name, _Retry())
        delay = min(_FIRST_DELAY << min(retry.failures, 30), _LONGEST_DELAY)
        retry.failures, retry.due = retry.failures + 1, view.now + delay
        return delay

    def deleted(self, job: Json) -> None:
        """Delete what a deleted job leaves behind."""
        self._retries.pop(jobs.name_of(job), None)
        apply(MigrationStep(job, release(job)), self.api)

    def scavenge(self, view: ControllerView) -> None:
        """Delete jobs that are long over and reservations whose job is gone; a failure stops it until the next time."""
        apply(MigrationStep({}, tuple(scavenge(view.jobs(), view.reservations(), view.now))), self.api)

    def _take(self, now: int) -> None:
        """Take a token for one eviction."""
        burst = self.settings.evict_burst
        gained = (now - self._refilled) * self.settings.evict_per_second / SECOND
        self._tokens = burst if self._tokens < 0 else min(burst, self._tokens + max(gained, 0.0))
        self._refilled = now
        if self._tokens < 1:
            raise TooManyEvictions("TooManyEvictions")
        self._tokens -= 1
