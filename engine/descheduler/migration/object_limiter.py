"""Limits of evictions of one workload or one namespace in a time (Koordinator's object limiters)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .settings import MigrationSettings, ObjectLimit
from .workloads import WorkloadFinder, controller_of, workload_limit

Json = Mapping[str, Any]


@dataclass(slots=True)
class _Bucket:
    """Tokens in units of `token x duration`, so that the arithmetic is exact."""

    level: int
    per_duration: int
    updated: int


class ObjectLimiter:
    """Counts evictions by workload and namespace; a bucket of tokens per object.

    It begins empty after a restart, as Koordinator's does. Times are in ns, of one clock that is never set.
    """

    def __init__(self, settings: MigrationSettings) -> None:
        self._settings = settings
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def exceeded(self, pod: Json, now: int) -> bool:
        """Return whether the pod's workload or namespace had its evictions for now."""
        for name, key, limit in self._limits_of(pod):
            bucket = self._buckets.get((name, key))
            if bucket is None:
                continue
            if 2 * (now - bucket.updated) >= 3 * limit.duration:
                del self._buckets[name, key]
            elif _level(bucket, limit, now) < limit.duration:
                return True
        return False

    def track(self, pod: Json, workloads: WorkloadFinder, now: int) -> None:
        """Count an eviction of the pod."""
        for name, key, limit in self._limits_of(pod):
            most = self._most(name, pod, limit, workloads)
            if most <= 0:
                continue
            bucket = self._buckets.get((name, key))
            if bucket is None or 2 * (now - bucket.updated) >= 3 * limit.duration:
                bucket = self._buckets[name, key] = _Bucket(_full(limit), most, now)
            bucket.level, bucket.updated, bucket.per_duration = _level(bucket, limit, now), now, most
            if bucket.level >= limit.duration:
                bucket.level -= limit.duration

    def _limits_of(self, pod: Json) -> Iterator[tuple[str, str, ObjectLimit]]:
        for name, limit in self._settings.object_limits:
            if limit.duration <= 0:
                continue
            if name == "namespace":
                yield name, str(pod["metadata"].get("namespace") or "default"), limit
            elif name == "workload":
                owner = controller_of(pod)
                if owner is not None:
                    yield name, str(owner.get("uid") or ""), limit

    def _most(self, name: str, pod: Json, limit: ObjectLimit, workloads: WorkloadFinder) -> int:
        if name == "namespace":
            return limit.max_migrating if isinstance(limit.max_migrating, int) else 0
        given = limit.max_migrating
        if given is None:
            given = self._settings.max_migrating_per_workload
        owner = controller_of(pod) or {}
        found = workloads.find(owner, str(pod["metadata"].get("namespace") or "default"))
        return workload_limit(found.replicas, given) if found is not None else 0


def _full(limit: ObjectLimit) -> int:
    return (limit.burst or 1) * limit.duration


def _level(bucket: _Bucket, limit: ObjectLimit, now: int) -> int:
    gained = max(now - bucket.updated, 0) * bucket.per_duration
    return min(_full(limit), bucket.level + gained)
