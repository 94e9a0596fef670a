"""MigrationController: which pods may migrate now, and the jobs for it (Koordinator's controllers/migration).

Its filter is whole: pods, their namespaces and workloads, jobs in flight. An eviction creates a PodMigrationJob, which
`engine/descheduler/migration` works off. In a dry run the evictions of the cycle count as jobs, so that it shows what
the limits would leave.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.builtin_plugins.descheduler.default_evictor.plugin import DefaultEvictor, EvictorFilter
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.migration import jobs
from koordpolicy.engine.descheduler.migration.filters import MigrationFilter
from koordpolicy.engine.descheduler.migration.job_index import JobIndex
from koordpolicy.engine.descheduler.migration.object_limiter import ObjectLimiter
from koordpolicy.engine.descheduler.migration.settings import RESERVATION_FIRST
from koordpolicy.engine.descheduler.migration.worker import MigratesPods
from koordpolicy.engine.descheduler.migration.workloads import SnapshotWorkloads, WorkloadFinder
from koordpolicy.engine.framework.descheduler import EvictionMode, EvictionResult, EvictOptions
from koordpolicy.engine.framework.handle import EvictionRefusedError, Handle
from koordpolicy.engine.framework.points import Refusal

from .args import check_args, constraints_of, reads_of, settings_of

Json = Mapping[str, Any]

_STEP_S: Final = 0.2
"""The time after which a step leaves the rest to the next one, in seconds."""


@dataclass(slots=True)
class _Look:
    """The jobs of one snapshot, planned ones included, and its workloads."""

    snapshot: Snapshot
    index: JobIndex
    workloads: WorkloadFinder
    filter: MigrationFilter


class MigrationController:
    """The filter of pods that may migrate, and their migration; without a client that migrates pods it only filters.

    Arguments are checked and defaulted ones, in v1alpha2 form.
    """

    name = "MigrationController"
    eviction_modes = frozenset(EvictionMode)
    """Always by a job; any other mode is how the job evicts the pod."""

    def __init__(
        self, args: Json, workloads: WorkloadFinder | None = None, client: MigratesPods | None = None,
        snapshot: Callable[[], Snapshot] = lambda: Cluster().snapshot(),
        new_name: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """`snapshot` returns the current cluster, and `new_name` unique names of jobs."""
        self.settings = settings_of(args, "" if client is None else client.identity)
        self.limiter = ObjectLimiter(self.settings)
        self._workloads = workloads
        self._client = client
        self._snapshot = snapshot
        self._new_name = new_name
        self._constraints = EvictorFilter(constraints_of(args))
        skipped = self.settings.skipped_gates
        self._fit = DefaultEvictor({
            "nodeFit": args["nodeFit"] and "NodeFit" not in skipped, "nodeSelector": args["nodeSelector"],
        })
        namespaces = {} if "Namespaces" in skipped else args.get("namespaces") or {}
        self._included = frozenset(namespaces.get("include") or ())
        self._excluded = frozenset(namespaces.get("exclude") or ())
        self._latest: _Look | None = None
        self._candidate: PodInfo | None = None

    def evict(self, pod: PodInfo, reason: str) -> EvictionResult:
        """Create the job that migrates the pod; see `evict_with_options`."""
        return self.evict_with_options(pod, EvictOptions(reason, "", self.name))

    def evict_with_options(self, pod: PodInfo, options: EvictOptions) -> EvictionResult:
        """Create the job that migrates the pod, unless this controller makes a dry run.

        Raises `EvictionRefusedError` if the pod may not migrate now, `OSError` if the API server refuses the job.
        """
        snapshot = self._snapshot()
        refusal = self.request_refusal(pod, snapshot)
        if refusal is not None:
            raise EvictionRefusedError(refusal.message, refusal.rule)
        if self.settings.dry_run:
            return EvictionResult.EVICTED
        if self._client is None:
            raise OSError("nothing migrates pods here")
        mode, grace_s = options.choice.mode, options.choice.grace_period_s
        job = self.new_job(
            pod, self._new_name(), options.reason, options.plugin,
            labels=None if mode in (None, EvictionMode.MIGRATION_JOB) else {jobs.POLICY_LABEL: str(mode)},
            delete_options=None if grace_s is None else {
                **(self.settings.default_delete_options or {}), "gracePeriodSeconds": grace_s})
        self.requested(self._client.migrations.create(job), snapshot)
        return EvictionResult.EVICTED

    def background_step(self, snapshot: Snapshot) -> int | None:
        """Work off jobs; return when more is due, in ns since the epoch."""
        return None if self._client is None else self._client.migrations.work(self, snapshot, _STEP_S)

    def close(self) -> None:
        """Leave the jobs in flight to another controller."""
        if self._client is not None:
            self._client.migrations.release(self)

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why no migration of the pod may be asked for, or None."""
        self._candidate = pod
        if pod.object["metadata"].get("deletionTimestamp") is not None:
            return Refusal("terminating", "the pod is terminating already")
        return self._at(snapshot).filter.refusal(pod.object)

    def pre_eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod may not be evicted now: `nodeFit` is set, and no other node takes it; or None."""
        return self._fit.pre_eviction_filter(pod, snapshot)

    def avoids_node(self, pod: PodInfo) -> bool:
        """Return whether jobs reserve room on another node first."""
        return self.settings.default_mode == RESERVATION_FIRST

    def plan_eviction(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Count an eviction of a dry run as a job, or return why no job would be created."""
        refusal = self.request_refusal(pod, snapshot)
        if refusal is None and not self.settings.dry_run:
            self.requested(self.new_job(pod, f"planned-{pod.key}", "", self.name), snapshot)
        return refusal

    def request_refusal(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why no job is created for the pod, or None: its filter again, and the limits of its objects."""
        if self.settings.dry_run:
            return None
        refusal = self.eviction_filter(pod, snapshot)
        now = snapshot.now if self._client is None else self._client.migrations.ticks()
        if refusal is None and self.limiter.exceeded(pod.object, now):
            refusal = Refusal("objectLimiters", "its workload or its namespace had its evictions for now")
        return refusal

    def new_job(self, pod: PodInfo, name: str, reason: str, trigger: str, **overrides: Any) -> dict[str, Any]:
        """Return the job that asks for the pod's migration; see `jobs.new_job`."""
        return jobs.new_job(pod.object, self.settings, name=name, reason=reason, trigger=trigger, **overrides)

    def requested(self, job: Json, snapshot: Snapshot) -> None:
        """Count a job that was created since the snapshot."""
        self._at(snapshot).index.put(job)

    def arbitration(self, snapshot: Snapshot, of: Iterable[Json]) -> tuple[JobIndex, MigrationFilter]:
        """Return the jobs `of` as an index, and the filter of pods that arbitration applies."""
        index = JobIndex(of, snapshot)
        workloads = self._workloads or SnapshotWorkloads(snapshot)
        return index, MigrationFilter(
            self.settings, index, workloads, lambda item: self._evictable(item, snapshot), arbitrating=True,
        )

    def _at(self, snapshot: Snapshot) -> _Look:
        if self._latest is None or self._latest.snapshot is not snapshot:
            known = None if self._client is None else self._client.migrations.jobs(snapshot)
            index = JobIndex.of(snapshot) if known is None else JobIndex(known, snapshot)
            workloads = self._workloads or SnapshotWorkloads(snapshot)
            self._latest = _Look(snapshot, index, workloads, MigrationFilter(
                self.settings, index, workloads, lambda item: self._evictable(item, snapshot),
            ))
        return self._latest

    def _evictable(self, item: Json, snapshot: Snapshot) -> Refusal | None:
        candidate = self._candidate
        pod = candidate if candidate is not None and candidate.object is item else PodInfo.of(item)
        if (self._included and pod.namespace not in self._included) or pod.namespace in self._excluded:
            return Refusal("namespaces", f"namespace `{pod.namespace}` is not evictable")
        return self._constraints.eviction_filter(pod, snapshot)


def make(args: Json, handle: Handle) -> MigrationController:
    """Make MigrationController for one profile."""
    client = handle.client if isinstance(handle.client, MigratesPods) else None
    return MigrationController(args, client=client, snapshot=handle.snapshot)


__all__ = ["MigrationController", "check_args", "make", "reads_of"]
