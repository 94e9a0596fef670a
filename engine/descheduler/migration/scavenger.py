"""The scavenger: jobs that are long over, and reservations whose job is gone (Koordinator's scavenger)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from . import jobs, reservations
from .migration_step import release
from .settings import SECOND
from .writes import DeleteJob, Write

Json = Mapping[str, Any]

INTERVAL: Final = 60 * SECOND
_GRACE: Final = 300 * SECOND
_WITHOUT_TTL: Final = 1800 * SECOND


def is_stale(job: Json, now: int) -> bool:
    """Return whether a job, in whatever phase, is to be deleted: five minutes after its ttl, or at 30 minutes."""
    ttl = jobs.ttl_of(job)
    return now - jobs.created_at(job) >= (ttl + _GRACE if ttl > 0 else _WITHOUT_TTL)


def stale_jobs(of: Iterable[Json], now: int) -> list[Write]:
    """Return the deletions of stale jobs, each after that of its reservation."""
    return [write for job in of if is_stale(job, now)
            for write in (*release(job), DeleteJob(jobs.name_of(job), jobs.uid_of(job)))]


def orphans(of: Iterable[Json], made: Iterable[Json]) -> list[Json]:
    """Return the reservations of jobs that are not among `of`, without those that a pod took."""
    known = {jobs.uid_of(job) for job in of}
    found = []
    for reservation in made:
        owners = {uid for _, uid in reservations.owning_jobs(reservation)}
        if owners and known.isdisjoint(owners) and reservations.bound_pod(reservation) is None:
            found.append(reservation)
    return found
