"""The cluster as the migration controller sees it: a snapshot, with this process' own writes, and reads where it lags.

An object that the snapshot does not have is read from the API server before a step concludes that it is gone: informers
of different kinds are not in step with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from koordpolicy.engine.cluster.snapshot import Snapshot

from . import jobs, reservations
from .object_limiter import ObjectLimiter
from .written_jobs import WrittenJobs

Json = Mapping[str, Any]


class ObjectReader(Protocol):
    """Reads objects from the API server; raises `OSError` if it does not answer."""

    def pod(self, namespace: str, name: str) -> Json | None:
        """Return a pod as the API server has it, or None."""
        ...

    def reservation(self, name: str) -> Json | None:
        """Return a reservation as the API server has it, or None."""
        ...


class LiveMigrationView:
    """Implements `ControllerView` over a snapshot; valid as long as it."""

    def __init__(
        self, snapshot: Snapshot, written: WrittenJobs, limiter: ObjectLimiter, reader: ObjectReader, ticks: int,
    ) -> None:
        """`ticks` is the time of the step by a clock that is never set, in ns."""
        self.ticks = ticks
        self._snapshot = snapshot
        self._written = written
        self._limiter = limiter
        self._reader = reader

    @property
    def now(self) -> int:
        """The time, ns since the epoch."""
        return self._snapshot.now

    def pod(self, namespace: str, name: str) -> Json | None:
        """Return the pod, or None; some of its fields may be missing."""
        known = self._snapshot.object("Pod", f"{namespace}/{name}")
        return known if known is not None or not namespace or not name else self._reader.pod(namespace, name)

    def whole_pod(self, namespace: str, name: str) -> Json | None:
        """Return the pod as the API server has it now, with all fields, or None."""
        return self._reader.pod(namespace, name)

    def reservation(self, name: str) -> Json | None:
        """Return the reservation, or None."""
        known = self._snapshot.object(reservations.KIND, name)
        return known if known is not None else self._reader.reservation(name)

    def latest_reservation(self, name: str) -> Json | None:
        """Return the reservation as the API server has it now, or None."""
        return self._reader.reservation(name)

    def limited(self, pod: Json) -> bool:
        """Return whether an object limit lets no pod of this workload or namespace be evicted now."""
        return self._limiter.exceeded(pod, self.ticks)

    def jobs(self) -> Iterable[Json]:
        """Return all jobs."""
        return self._written.newest_of(self._snapshot.objects(jobs.KIND).values())

    def reservations(self) -> Iterable[Json]:
        """Return all reservations."""
        return self._snapshot.objects(reservations.KIND).values()
