"""Golden cases of MigrationController: its filter, arbitration, limits of objects, and steps of a migration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from koordpolicy.builtin_plugins.descheduler.migration_controller.args import check_args
from koordpolicy.builtin_plugins.descheduler.migration_controller.plugin import MigrationController
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.migration import jobs
from koordpolicy.engine.descheduler.migration.arbitrator import (
    Ruling,
    arbitrate,
    by_controller,
    by_creation,
    by_migrating,
    by_pod,
    decide,
    sort_jobs,
)
from koordpolicy.engine.descheduler.migration.controller import apply
from koordpolicy.engine.descheduler.migration.filters import MigrationFilter
from koordpolicy.engine.descheduler.migration.job_index import JobIndex
from koordpolicy.engine.descheduler.migration.object_limiter import ObjectLimiter
from koordpolicy.engine.descheduler.migration.reconcile import Migration
from koordpolicy.engine.descheduler.migration.scavenger import is_stale
from koordpolicy.engine.descheduler.migration.workloads import WorkloadState, workload_limit
from koordpolicy.engine.documents import parse_duration
from koordpolicy.engine.framework.points import Refusal

Case = Mapping[str, Any]
Found = dict[str, Any]


def _now(case: Case) -> int:
    text = case.get("now")
    return 0 if not text else int(datetime.fromisoformat(text).timestamp()) * 1_000_000_000


def _objects(case: Case, kind: str) -> list[Case]:
    return [each for each in case.get("objects") or () if each.get("kind") == kind]


def _whole(pod: Case) -> dict[str, Any]:
    """Return a pod with a container: the source's objects have none."""
    spec = pod.get("spec") or {}
    return {"kind": "Pod", **pod, "spec": {**spec, "containers": spec.get("containers") or [{"name": "c"}]}}


def _snapshot(case: Case) -> Snapshot:
    pods = [_whole(pod) for pod in case.get("pods") or []]
    nodes = [{"kind": "Node", **node} for node in case.get("nodes") or []]
    return Cluster([*nodes, *pods, *(case.get("objects") or [])]).snapshot(_now(case))


@dataclass
class _Workloads:
    """The answer of the case's finder; without one, a workload that is large enough."""

    case: Case

    def find(self, owner: Case, namespace: str) -> WorkloadState:
        given = self.case.get("workload")
        if given is None:
            return WorkloadState(100)
        return WorkloadState(given["expectedReplicas"], tuple(given.get("pods") or ()))


def _plugin(case: Case) -> MigrationController:
    return MigrationController(check_args(case.get("args") or {}), _Workloads(case))


def _target(case: Case) -> Any:
    target = case["target"]
    if isinstance(target, str):
        target = next(pod for pod in case["pods"] if pod["metadata"]["name"] == target)
    return _whole(target)


# Filters

_CHECKS: Mapping[str, str] = {
    "existingPodMigrationJob": "existing_job", "maxMigratingGlobally": "globally", "maxMigratingPerNode": "per_node",
    "maxMigratingPerNamespace": "per_namespace", "maxMigratingOrUnavailablePerWorkload": "per_workload",
    "maxMigratingPerWorkload": "per_workload", "maxUnavailablePerWorkload": "per_workload",
    "expectedReplicas": "expected_replicas", "maxEvictionCost": "eviction_cost", "reservation": "reservation",
    "nonRetryable": "non_retryable", "retryable": "retryable",
}


def _filter(case: Case) -> Found:
    plugin, pod, snapshot = _plugin(case), _target(case), _snapshot(case)
    method = _CHECKS.get(case.get("check") or "")
    if method is None:
        return {"allowed": plugin.eviction_filter(PodInfo.of(pod), snapshot) is None}
    arbitrating = jobs.ARBITRATING_ANNOTATION in jobs.annotations_of(pod)
    found = MigrationFilter(plugin.settings, JobIndex.of(snapshot), _Workloads(case), arbitrating=arbitrating)
    return {"allowed": getattr(found, method)(pod) is None}


def _max_unavailable(case: Case) -> Found:
    given = case["input"]
    return {"value": workload_limit(given["replicas"], given.get("intOrPercent"))}


def _object_limiter(case: Case) -> Found:
    limiter, given = ObjectLimiter(_plugin(case).settings), case["input"]
    for pod in given.get("evicted") or ():
        limiter.track(pod, _Workloads(case), _now(case))
    later = _now(case) + given.get("elapsedMsSinceEviction", 0) * 1_000_000
    world = _World(case, now=later, limiter=limiter)
    migration = Migration(_objects(case, jobs.KIND)[0], world, _plugin(case).settings)
    return {"requeue": not migration.respect_limits(), **_shown(migration)}


def _validate(case: Case) -> Found:
    try:
        check_args(case.get("args") or {})
    except ValueError as error:
        return {"error": str(error)}
    return {}


# Arbitration


def _waiting(case: Case) -> tuple[list[Case], dict[str, Case]]:
    by_name = {each["metadata"]["name"]: each for each in _objects(case, jobs.KIND)}
    given = case.get("input") or {}
    waiting = [by_name[name] for name in given.get("jobs") or given.get("waiting") or ()]
    pods = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": _whole(pod) for pod in case.get("pods") or ()}
    found = ((jobs.name_of(job), pods.get(jobs.pod_key(job))) for job in waiting)
    return waiting, {name: pod for name, pod in found if pod is not None}


def _sort_jobs(case: Case) -> Found:
    waiting, pods = _waiting(case)
    ranks = (case.get("input") or {}).get("podRank")
    index = JobIndex.of(_snapshot(case))
    if case.get("sort") == "creationTime":
        ordered = by_creation(waiting)
    elif case.get("sort") == "pod":
        ordered = by_pod(waiting, pods, None if ranks is None else lambda pod: ranks[jobs.name_of(pod)])
    elif case.get("sort") == "controller":
        ordered = by_controller(waiting, pods)
    elif case.get("sort") == "migratingNum":
        ordered = by_migrating(waiting, pods, index)
    else:
        ordered = sort_jobs(waiting, pods, index)
    return {"order": [jobs.name_of(job) for job in ordered]}


def _sort_pods(case: Case) -> Found:
    pods = [_whole(pod) for pod in case.get("pods") or ()]
    names = (case.get("input") or {}).get("pods")
    if names and isinstance(names[0], str):
        by_name = {pod["metadata"]["name"]: pod for pod in pods}
        pods = [by_name[name] for name in names]
    ordered = by_pod([{"metadata": pod["metadata"]} for pod in pods], {pod["metadata"]["name"]: pod for pod in pods})
    return {"order": [jobs.name_of(pod) for pod in ordered]}


def _stub(names: Any) -> Callable[[Case], Refusal | None]:
    return lambda pod: Refusal("stub", "no") if jobs.name_of(pod) in (names or ()) else None


def _decision(case: Case) -> Found:
    given = case["input"]

    def stub(passes: bool) -> Callable[[Case], Refusal | None]:
        return lambda _: None if passes else Refusal("stub", "no")

    pod = {"metadata": {"name": "p"}} if given.get("podExists", True) else None
    ruling, _ = decide(
        pod, stub(given.get("nonRetryableFilter", True)), stub(given.get("retryableFilter", True)),
    )
    return {"isFailed": ruling is Ruling.FAILED, "isPassed": ruling is Ruling.PASSED}


def _arbitrate(case: Case) -> Found:
    waiting, pods = _waiting(case)
    given = case["input"]
    order = given.get("order") or {}
    ordered = sorted(waiting, key=lambda job: order.get(jobs.name_of(job), 0))
    ruled = arbitrate(ordered, pods, _stub(given.get("nonRetryableFails")), _stub(given.get("retryableFails")))
    assert all(jobs.has_passed(job) for job in ruled.passed)
    assert all((job["status"]["phase"], job["status"]["reason"]) == ("Failed", "ForbiddenMigratePod")
               for job in ruled.failed)
    lists = {"waiting": ruled.waiting, "passed": ruled.passed, "failed": ruled.failed}
    return {
        key: _like([jobs.name_of(job) for job in found], case["expect"].get(key)) for key, found in lists.items()
    }


def _like(found: list[str], wanted: Any) -> Any:
    return wanted if sorted(found) == sorted(wanted or ()) else found


# Steps


@dataclass
class _World:
    case: Case
    now: int
    limiter: ObjectLimiter | None = None

    def pod(self, namespace: str, name: str) -> Case | None:
        pod: Case
        for pod in self.case.get("pods") or ():
            if (pod["metadata"].get("namespace"), pod["metadata"]["name"]) == (namespace, name):
                return pod
        return None

    def reservation(self, name: str) -> Case | None:
        found = _objects(self.case, "Reservation")
        return next((each for each in found if each["metadata"]["name"] == name), None)

    whole_pod, latest_reservation = pod, reservation

    def limited(self, pod: Case) -> bool:
        return self.limiter is not None and self.limiter.exceeded(pod, self.now)


@dataclass
class _Api:
    """Takes all writes; evictions fail as the case says."""

    case: Case
    deleted: list[str] = field(default_factory=list)

    def evict(self, _: object) -> None:
        message = (self.case.get("input") or {}).get("evictorError")
        if message:
            raise RuntimeError(message)

    def delete_reservation(self, name: str) -> None:
        self.deleted.append(name)

    def update_job(self, job: Case) -> Case:
        return job

    update_job_status = update_job

    def create_reservation(self, reservation: Case) -> None:
        message = (self.case.get("input") or {}).get("createError")
        if message:
            raise RuntimeError(message)

    def update_reservation(self, reservation: Case) -> None:
        pass

    def record(self, event: object) -> None:
        pass


def _reconcile_step(case: Case) -> Found:
    step = re.sub("[jJ]ob|With|Do", "", case["step"][:1].upper() + case["step"][1:])
    if step == "Evict":
        return _evict(case)
    if "cavenge" in step:
        kept = [jobs.name_of(job) for job in _objects(case, jobs.KIND) if not is_stale(job, _now(case))]
        return {"remaining": _like(kept, case["expect"].get("remaining")) if isinstance(
            case["expect"].get("remaining"), list) else len(kept)}
    job = _objects(case, jobs.KIND)[0]
    migration = Migration(job, _World(case, _now(case)), _plugin(case).settings)
    name = jobs.reservation_ref(job)
    reservation = next((each for each in _objects(case, "Reservation")
                        if not name or each["metadata"]["name"] == name), None)
    found = _call(migration, step, reservation)
    api = _Api(case)
    applied = apply(migration.step(), api)  # type: ignore[arg-type]
    shown = _shown(migration, case)
    error = migration.error or applied.error
    return {**shown, **found, **({"error": error} if error else {}), "deletedReservations": api.deleted}


def _call(migration: Migration, step: str, reservation: Any) -> Found:
    steps: Mapping[str, tuple[str, Callable[[], Any]]] = {
        "AbortIfTimeout": ("aborted", migration.abort_if_timeout),
        "EvictPod": ("done", lambda: migration.evict_pod(reservation)),
        "PreparePending": ("prepared", migration.prepare),
        "WaitForPodBindReservation": ("bound", lambda: migration.wait_for_bound_pod(reservation or {})),
        "WaitForPendingPodScheduled": ("scheduled", lambda: migration.wait_for_pending_pod(reservation)),
        "PrepareReservationScheduleSuccess": ("noted", lambda: migration.note_node(reservation)),
        "PrepareReservationScheduleFailed": ("noted", lambda: migration.copy_unschedulable(reservation)),
        "AbortIfReserveOnSameNode": ("aborted", lambda: migration.abort_on_same_node(reservation)),
        "AbortIfReservationExpired": ("aborted", lambda: migration.reservation_expired(reservation)),
        "CreateReservation": ("created", migration.reserve),
        "WaitForBoundPodReady": ("ready", lambda: migration.wait_for_ready_pod(reservation or {})),
    }
    if step not in steps:
        migration.run()
        return {}
    key, call = steps[step]
    return {key: call()}


def _shown(migration: Migration, case: Case | None = None) -> Found:
    status = migration.job.get("status") or {}
    found: Found = {key: status[key] for key in ("phase", "reason", "status", "nodeName", "podRef") if key in status}
    after = migration.requeue_after
    found["requeueAfter"] = f"{after // 1_000_000}ms" if after else None
    found["job"] = migration.job
    wanted = ((case or {}).get("expect") or {}).get("condition")
    if wanted:
        found["condition"] = jobs.condition(migration.job, wanted["type"])
    return found


def _evict(case: Case) -> Found:
    plugin, snapshot, given = _plugin(case), _snapshot(case), case.get("input") or {}
    pod = PodInfo.of(_target(case) if "target" in case else _whole(case["pods"][0]))
    if plugin.request_refusal(pod, snapshot) is not None:
        return {"evicted": False, "jobsCreated": 0}
    if plugin.settings.dry_run:
        return {"evicted": True, "jobsCreated": 0}
    context = given.get("jobContext") or {}
    ttl = (context.get("ttl") or context.get("timeout"))
    job = plugin.new_job(
        pod, "job", given.get("reason", ""), given.get("pluginName", ""), labels=context.get("labels"),
        annotations=context.get("annotations"), mode=context.get("mode") or "",
        ttl=parse_duration(ttl) if ttl else None,
    )
    ref = {key: value for key, value in job["spec"]["podRef"].items() if value}
    return {"evicted": True, "jobsCreated": 1, "podRef": ref, "job": job}


RUNNERS: Mapping[tuple[str, str], Callable[[Case], Found]] = {
    ("MigrationController", point): runner for point, runner in {
        "filter": _filter, "max_unavailable": _max_unavailable, "object_limiter": _object_limiter,
        "config_validate": _validate, "sort_jobs": _sort_jobs, "sort_pods": _sort_pods,
        "arbitrate_decision": _decision, "arbitrate": _arbitrate, "reconcile_step": _reconcile_step,
    }.items()
}
