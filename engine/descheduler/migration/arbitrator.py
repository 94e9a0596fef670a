"""Arbitration: the order of waiting jobs, and the choice of those that may run (Koordinator's arbitrator)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler.pods import eviction_order
from koordpolicy.engine.framework.points import Refusal

from . import jobs
from .job_index import JobIndex
from .settings import SECOND
from .workloads import controller_of

Json = Mapping[str, Any]
Pods = Mapping[str, Json]
"""The pods of waiting jobs, by name of the job; a job without one is missing."""


class Ruling(Enum):
    """The decision of arbitration about one job."""

    PASSED = "passed"
    WAITING = "waiting"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ruled:
    """The jobs of one round: those that passed and those that failed are changed and have to be written."""

    waiting: tuple[Json, ...] = ()
    passed: tuple[Json, ...] = ()
    failed: tuple[Json, ...] = ()


def by_creation(waiting: Sequence[Json]) -> list[Json]:
    """Return the jobs, the newest first; by whole seconds."""
    return sorted(waiting, key=lambda job: -(jobs.created_at(job) // SECOND))


def by_pod(waiting: Sequence[Json], pods: Pods, key: Callable[[Json], Any] | None = None) -> list[Json]:
    """Return the jobs in the order in which their pods would be evicted; those without a pod come first.

    `key` replaces the order of pods.
    """
    order = eviction_order()
    of_pod = key or (lambda pod: order(PodInfo.of(pod)))
    without = [job for job in waiting if jobs.name_of(job) not in pods]
    others = [job for job in waiting if jobs.name_of(job) in pods]
    return without + sorted(others, key=lambda job: of_pod(pods[jobs.name_of(job)]))


def by_controller(waiting: Sequence[Json], pods: Pods) -> list[Json]:
    """Return the jobs with those of one batch Job's pods next to the first of them."""
    first: dict[str, int] = {}
    ranks: list[int] = []
    for place, job in enumerate(waiting):
        uid = _batch_job(pods.get(jobs.name_of(job)))
        ranks.append(first.setdefault(uid, place) if uid else place)
    return [waiting[place] for place in sorted(range(len(waiting)), key=ranks.__getitem__)]


def by_migrating(waiting: Sequence[Json], pods: Pods, index: JobIndex) -> list[Json]:
    """Return the jobs of the batch Jobs with most migrating pods first, so that one is finished before the next."""

    def migrating(job: Json) -> int:
        uid = _batch_job(pods.get(jobs.name_of(job)))
        return -index.migrating_of(uid) if uid else 0

    return sorted(waiting, key=migrating)


def sort_jobs(waiting: Sequence[Json], pods: Pods, index: JobIndex) -> list[Json]:
    """Return waiting jobs in the order of arbitration: four stable sorts, of which the last one weighs most."""
    return by_migrating(by_controller(by_pod(by_creation(waiting), pods), pods), pods, index)


def _batch_job(pod: Json | None) -> str:
    owner = controller_of(pod) if pod is not None else None
    return str(owner.get("uid") or "") if owner is not None and owner.get("kind") == "Job" else ""


def decide(
    pod: Json | None, non_retryable: Callable[[Json], Refusal | None], retryable: Callable[[Json], Refusal | None],
) -> tuple[Ruling, Refusal | None]:
    """Return the verdict about a job of this pod; without a pod it passes, and its reconciliation finds out."""
    if pod is None:
        return Ruling.PASSED, None
    refusal = non_retryable(pod)
    if refusal is not None:
        return Ruling.FAILED, refusal
    refusal = retryable(pod)
    return (Ruling.PASSED, None) if refusal is None else (Ruling.WAITING, refusal)


def arbitrate(
    ordered: Iterable[Json], pods: Pods,
    non_retryable: Callable[[Json], Refusal | None], retryable: Callable[[Json], Refusal | None],
    ruled: Callable[[Json], None] = lambda _: None,
) -> Ruled:
    """Decide about waiting jobs, in their order.

    `ruled` is called with each job that passed or failed at once, so that it counts for those behind it. Jobs that
    ended, as after a restart, are left out. Nothing is written here. A job has passed once its annotation is written;
    deciding again after a failed write changes nothing.
    """
    found: dict[Ruling, list[Json]] = {each: [] for each in Ruling}
    for job in ordered:
        if jobs.phase_of(job) in jobs.TERMINAL:
            continue
        ruling, _ = decide(pods.get(jobs.name_of(job)), non_retryable, retryable)
        changed = job
        if ruling is Ruling.PASSED:
            changed = jobs.with_annotations(job, **{jobs.PASSED_ANNOTATION: "true"})
        elif ruling is Ruling.FAILED:
            changed = jobs.with_status(
                job, phase=jobs.FAILED, reason="ForbiddenMigratePod",
                message=FORBIDDEN.format(jobs.pod_key(job)),
            )
        if changed is not job:
            ruled(changed)
        found[ruling].append(changed)
    return Ruled(*(tuple(found[each]) for each in (Ruling.WAITING, Ruling.PASSED, Ruling.FAILED)))


def waits(job: Json) -> bool:
    """Return whether the job waits for arbitration: it is Pending and did not pass yet, in any process."""
    return jobs.phase_of(job) == jobs.PENDING and not jobs.has_passed(job)


FORBIDDEN: Final = 'Pod "{}" is forbidden to migrate because it does not meet the requirements'
