"""Checks of pods' migrations against other migrations and their workloads (Koordinator's arbitrator filter)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.kubernetes.vocabulary import EVICTION_COST_ANNOTATION

from . import jobs
from .job_index import JobIndex
from .settings import RESERVATION_FIRST, MigrationSettings
from .workloads import WorkloadFinder, controller_of, workload_limit

Json = Mapping[str, Any]
Check = Callable[[Json], Refusal | None]

NEVER: Final = "2147483647"
"""The eviction cost of pods that are never evicted."""
GATES: Final = (
    "MaxMigratingGlobally", "MaxMigratingPerNode", "MaxMigratingPerNamespace", "MaxMigratingPerWorkload",
    "MaxUnavailablePerWorkload", "ExpectedReplicas", "Namespaces", "LabelSelector", "PriorityThreshold",
    "SystemCritical", "LocalStorage", "PVC", "BarePods", "NodeFit",
)
"""Checks that `skipEvictionGates` can switch off."""


class MigrationFilter:
    """The checks on a pod's migration; valid as long as its index and workloads.

    `evictable` are the constraints on the pod itself, with its namespace. While `arbitrating`, jobs that wait for
    arbitration do not count.
    """

    def __init__(
        self, settings: MigrationSettings, index: JobIndex, workloads: WorkloadFinder,
        evictable: Check = lambda _: None, *, arbitrating: bool = False,
    ) -> None:
        self._settings = settings
        self._index = index
        self._workloads = workloads
        self._evictable = evictable
        self._arbitrating = arbitrating
        self._unavailable: dict[tuple[str, str], frozenset[str]] = {}

    def refusal(self, pod: Json) -> Refusal | None:
        """Return why no migration of the pod may be asked for, or None."""
        checks = (self.existing_job, self.reservation, self.non_retryable, self.retryable)
        return _first(checks, pod)

    def non_retryable(self, pod: Json) -> Refusal | None:
        """Return why the pod may not migrate, and will not later either, or None."""
        if jobs.EVICT_ANNOTATION in jobs.annotations_of(pod):
            return None
        return _first((self.eviction_cost, self._evictable, self.expected_replicas), pod)

    def retryable(self, pod: Json) -> Refusal | None:
        """Return why the pod may not migrate now, or None."""
        if jobs.EVICT_ANNOTATION in jobs.annotations_of(pod):
            return None
        return _first((self.globally, self.per_node, self.per_namespace, self.per_workload), pod)

    def existing_job(self, pod: Json) -> Refusal | None:
        """Refuse a pod that has a job already."""
        return Refusal("existingJob", "a migration job for the pod exists already") if self._index.has_job(
            pod) else None

    def reservation(self, pod: Json) -> Refusal | None:
        """Refuse a pod whose scheduler does not know reservations, if one is to be made first."""
        scheduler = (pod.get("spec") or {}).get("schedulerName") or "default-scheduler"
        if self._settings.default_mode != RESERVATION_FIRST or scheduler in self._settings.scheduler_names:
            return None
        return Refusal("schedulerName", f"its scheduler `{scheduler}` is not one of those that know reservations")

    def eviction_cost(self, pod: Json) -> Refusal | None:
        """Refuse a pod whose eviction cost is the highest."""
        if jobs.annotations_of(pod).get(EVICTION_COST_ANNOTATION) != NEVER:
            return None
        return Refusal("evictionCost", f"its eviction cost {NEVER} says never")

    def expected_replicas(self, pod: Json) -> Refusal | None:
        """Refuse a pod of a workload of one replica, or of one that could lose all its replicas at once."""
        owner = controller_of(pod)
        if owner is None or self._settings.skip_expected_replicas or self._skips("ExpectedReplicas"):
            return None
        found = self._workloads.find(owner, _namespace(pod))
        if found is None:
            return None
        replicas = found.replicas
        migrating = workload_limit(replicas, self._settings.max_migrating_per_workload)
        unavailable = workload_limit(replicas, self._settings.max_unavailable_per_workload)
        if replicas != 1 and replicas not in (migrating, unavailable):
            return None
        return Refusal("expectedReplicas", f"its workload has {replicas} replicas, too few to miss one"
                       if replicas else "its workload was not found")

    def globally(self, pod: Json) -> Refusal | None:
        """Refuse the pod while enough others migrate."""
        most = self._settings.max_migrating_globally or 0
        if most <= 0 or self._skips("MaxMigratingGlobally"):
            return None
        count = self._index.others(pod, passed_only=self._arbitrating)
        return _over("maxMigratingGlobally", count, most, "") if count >= most else None

    def per_node(self, pod: Json) -> Refusal | None:
        """Refuse the pod while enough others of its node migrate."""
        most, node = self._settings.max_migrating_per_node or 0, (pod.get("spec") or {}).get("nodeName")
        if most <= 0 or not node or self._skips("MaxMigratingPerNode"):
            return None
        count = self._index.others_of_node(pod, node, passed_only=self._arbitrating)
        return _over("maxMigratingPerNode", count, most, f" of node `{node}`") if count >= most else None

    def per_namespace(self, pod: Json) -> Refusal | None:
        """Refuse the pod while enough others of its namespace migrate."""
        most = self._settings.max_migrating_per_namespace or 0
        if most <= 0 or self._skips("MaxMigratingPerNamespace"):
            return None
        count = self._index.others_of_namespace(pod, passed_only=self._arbitrating)
        of = f" of namespace `{_namespace(pod)}`"
        return _over("maxMigratingPerNamespace", count, most, of) if count >= most else None

    def per_workload(self, pod: Json) -> Refusal | None:
        """Refuse the pod while enough others of its workload migrate or are not available."""
        owner = controller_of(pod)
        skips_migrating, skips_unavailable = map(self._skips, ("MaxMigratingPerWorkload", "MaxUnavailablePerWorkload"))
        if owner is None or (skips_migrating and skips_unavailable):
            return None
        found = self._workloads.find(owner, _namespace(pod))
        if found is None:
            return None
        controller = str(owner.get("uid") or "")
        migrating = self._index.others_of_workload(pod, controller, passed_only=self._arbitrating)
        most = workload_limit(found.replicas, self._settings.max_migrating_per_workload)
        if migrating and len(migrating) >= most and not skips_migrating:
            return _over("maxMigratingPerWorkload", len(migrating), most, " of its workload")
        if skips_unavailable:
            return None
        place = (_namespace(pod), controller)
        if place not in self._unavailable:
            self._unavailable[place] = frozenset(_key(each) for each in found.pods if not is_available(each))
        missing = migrating | self._unavailable[place]
        most = workload_limit(found.replicas, self._settings.max_unavailable_per_workload)
        if len(missing) < most:
            return None
        return Refusal("maxUnavailablePerWorkload", f"{len(missing)} pods of its workload migrate or are not "
                       f"available, the maximum is {most}")

    def _skips(self, gate: str) -> bool:
        return gate in self._settings.skipped_gates


def is_available(pod: Json) -> bool:
    """Return whether a pod is Ready, and neither finished nor terminating.

    A running pod without any condition, as some dumps have them, counts as Ready.
    """
    if jobs.metadata_of(pod).get("deletionTimestamp") is not None:
        return False
    status = pod.get("status") or {}
    if status.get("phase") == "Running" and not status.get("conditions"):
        return True
    return status.get("phase") not in ("Succeeded", "Failed") and jobs.is_true(jobs.condition(pod, "Ready"))


def _first(checks: tuple[Check, ...], pod: Json) -> Refusal | None:
    for check in checks:
        found = check(pod)
        if found is not None:
            return found
    return None


def _over(rule: str, count: int, most: int, of: str) -> Refusal:
    return Refusal(rule, f"{count} other pods{of} migrate already, the maximum is {most}")


def _namespace(pod: Json) -> str:
    return str(jobs.metadata_of(pod).get("namespace") or "default")


def _key(pod: Json) -> str:
    return f"{_namespace(pod)}/{jobs.name_of(pod)}"
