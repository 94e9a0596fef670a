"""The input and the result of one step of a migration: what it reads, and what it writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from . import jobs
from .settings import SECOND
from .writes import DeleteReservation, RecordEvent, UpdateJobStatus, Write

Json = Mapping[str, Any]

REQUEUE: Final = 3 * SECOND


class MigrationView(Protocol):
    """The objects that a step reads, and the time."""

    @property
    def now(self) -> int:
        """The time, ns since the epoch."""
        ...

    def pod(self, namespace: str, name: str) -> Json | None:
        """Return the pod, or None; some of its fields may be missing."""
        ...

    def whole_pod(self, namespace: str, name: str) -> Json | None:
        """Return the pod as the API server has it now, with all fields, or None."""
        ...

    def reservation(self, name: str) -> Json | None:
        """Return the reservation, or None."""
        ...

    def latest_reservation(self, name: str) -> Json | None:
        """Return the reservation as the API server has it now, or None."""
        ...

    def limited(self, pod: Json) -> bool:
        """Return whether an object limit lets no pod of this workload or namespace be evicted now."""
        ...


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """One step: the job after all writes, the writes, and when to look again.

    `requeue_after` is in ns: 0 at once, None when something changes. `error` says why the job failed by a fault.
    """

    job: Json
    writes: tuple[Write, ...] = ()
    requeue_after: int | None = None
    error: str = ""


def combined(writes: Iterable[Write]) -> tuple[Write, ...]:
    """Return the writes with one write of the status in place of several with nothing but events between them.

    The last status contains what those before it changed.
    """
    found: list[Write] = []
    place = None
    for write in writes:
        if isinstance(write, UpdateJobStatus) and place is not None:
            found[place] = write
            continue
        if not isinstance(write, RecordEvent):
            place = len(found) if isinstance(write, UpdateJobStatus) else None
        found.append(write)
    return tuple(found)


def reservation_failed(job: Json, message: str, now: int) -> MigrationStep:
    """Return the step after a reservation could not be created; it is tried again until the job times out."""
    text = f"Failed to create Reservation caused by {message}"
    changed = jobs.with_condition(job, "ReservationCreated", "False", reason="FailedCreateReservation", message=text,
                                  now=now)
    event = RecordEvent(changed, "FailedCreateReservation", text, warning=True)
    writes = (UpdateJobStatus(changed), event) if changed != job else ()
    return MigrationStep(changed, writes, REQUEUE, text)


def eviction_failed(job: Json, message: str) -> RecordEvent:
    """Return the event about an eviction that the API server refused."""
    return RecordEvent(
        job, "Evicting", f'Failed evict Pod "{jobs.pod_key(job)}" caused by {message}', warning=True,
    )


def release(job: Json) -> tuple[Write, ...]:
    """Return the reservation that ends with a deleted job, also one that it does not refer to yet."""
    names = dict.fromkeys((jobs.reservation_ref(job), jobs.uid_of(job)))
    return tuple(DeleteReservation(name) for name in names if name)
