"""Read-your-writes: the jobs as the API server answered writes of them, until the cluster shows them so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import jobs

Json = Mapping[str, Any]


class WrittenJobs:
    """The jobs that this process wrote last, in versions that are newer than those of the cluster."""

    def __init__(self) -> None:
        self._jobs: dict[str, Json] = {}
        self._seen: set[str] = set()
        """Names of those that the cluster showed in an older version."""

    def note(self, job: Json) -> None:
        """Take the answer to a write or a read of a job; an older version than the known one changes nothing."""
        known = self._jobs.get(jobs.name_of(job))
        if known is None or jobs.uid_of(known) != jobs.uid_of(job) or version_of(known) < version_of(job):
            self._jobs[jobs.name_of(job)] = job

    def newest(self, shown: Json) -> Json:
        """Return the newer one of a job of the cluster and of what was written of it; forget the latter if it is not.

        A job of another UID has taken the place of the written one.
        """
        name = jobs.name_of(shown)
        known = self._jobs.get(name)
        if known is None:
            return shown
        if jobs.uid_of(known) == jobs.uid_of(shown) and version_of(known) > version_of(shown):
            self._seen.add(name)
            return known
        self.forget(name)
        return shown

    def newest_of(self, shown: Iterable[Json]) -> list[Json]:
        """Return the jobs of the cluster, each as `newest` does, and those that it does not show yet."""
        found = {jobs.name_of(job): self.newest(job) for job in shown}
        return [*found.values(), *(job for name, job in self._jobs.items() if name not in found)]

    def unseen(self) -> list[str]:
        """Return the names of jobs that the cluster never showed."""
        return [name for name in self._jobs if name not in self._seen]

    def unseen_job(self, name: str) -> Json | None:
        """Return a job that the cluster never showed, or None."""
        return None if name in self._seen else self._jobs.get(name)

    def forget(self, name: str) -> None:
        """Forget a job: it is gone, or the cluster is up to date."""
        self._jobs.pop(name, None)
        self._seen.discard(name)


def version_of(item: Json) -> int:
    """Return an object's resourceVersion as a number, in which they are ordered; 0 if it is none."""
    text = str(jobs.metadata_of(item).get("resourceVersion") or "")
    return int(text) if text.isascii() and text.isdecimal() else 0
