"""The scavenger: jobs that are long over, and reservations whose job is gone (Koordinator's scavenger)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from . import jobs, reservations
from .reconcile import release
from .settings import SECOND
from .writes import DeleteJob, DeleteReservation, Write

Json = Mapping[str, Any]

INTERVAL: Final = 60 * SECOND
_GRACE: Final = 300 * SECOND
_WITHOUT_TTL: Final = 1800 * SECOND


def is_stale(job: Json, now: int) -> bool:
    """Return whether a job, in whatever phase, is to be deleted: five minutes after its ttl, or at 30 minutes."""
    ttl = jobs.ttl_of(job)
    return now - jobs.created_at(job) >= (ttl + _GRACE if ttl > 0 else _WITHOUT_TTL)


def scavenge(of: Iterable[Json], made: Iterable[Json], now: int) -> list[Write]:
    """Return what to delete: stale jobs, each after its reservation, and reservations of jobs that are gone.

    A reservation that a pod took is not deleted for that its job is gone.
    """
    writes: list[Write] = []
    alive: set[str] = set()
    for job in of:
        if is_stale(job, now):
            writes += [*release(job), DeleteJob(jobs.name_of(job), jobs.uid_of(job))]
        else:
            alive.add(jobs.uid_of(job))
    for reservation in made:
        owners = [
            str(each.get("uid") or "") for each in jobs.metadata_of(reservation).get("ownerReferences") or ()
            if each.get("kind") == jobs.KIND
        ]
        delete = DeleteReservation(jobs.name_of(reservation))
        if owners and alive.isdisjoint(owners) and reservations.bound_pod(reservation) is None and delete not in writes:
            writes.append(delete)
    return writes
