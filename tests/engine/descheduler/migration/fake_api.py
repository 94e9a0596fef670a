"""A model of the API server as far as migrations see it: versions, UIDs, preconditions, evictions, owner references.

A process that is killed is a `Killed` out of a request, before or after the request took effect.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any

from koordpolicy.engine.descheduler.migration import jobs
from koordpolicy.engine.descheduler.migration.controller import AlreadyExists
from koordpolicy.engine.descheduler.migration.object_limiter import ObjectLimiter
from koordpolicy.engine.descheduler.migration.settings import SECOND, MigrationSettings
from koordpolicy.engine.descheduler.migration.writes import EvictPod, RecordEvent
from tests.killed import end_process

Json = Mapping[str, Any]

START = 1_800_000_000 * SECOND
OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "web-uid", "controller": True}


class Conflict(Exception):
    """The object was changed, or is another one of that name."""


def pod(name: str = "web-0", uid: str = "pod-1", node: str = "n1", **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": uid, "ownerReferences": [OWNER]},
        "spec": {"nodeName": node, "schedulerName": "koord-scheduler", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], **status},
    }


class FakeApi:
    """Implements `MigrationApi` and `ControllerView` over plain tables."""

    def __init__(self, settings: MigrationSettings | None = None) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.stored_jobs: dict[str, dict[str, Any]] = {}
        self.stored_reservations: dict[str, dict[str, Any]] = {}
        self.requested: Counter[str] = Counter()
        """Evictions that were accepted, by UID."""
        self.events: list[tuple[str, bool]] = []
        self.calls: list[str] = []
        self.blocked = False
        """True while a disruption budget refuses evictions."""
        self.kill_in: int | None = None
        self.kill_after = False
        self.now = START
        self.limiter = ObjectLimiter(settings or MigrationSettings())
        self._version = 0

    @property
    def ticks(self) -> int:
        return self.now

    # The requests

    def job(self, name: str) -> Json | None:
        return copy.deepcopy(self.stored_jobs.get(name))

    def create_job(self, job: Json) -> Json:
        return self._write("create job", lambda: self._put(self.stored_jobs, {
            **job, "metadata": {
                **job["metadata"], "uid": f"uid-of-{jobs.name_of(job)}",
                "creationTimestamp": jobs.rfc3339(self.now),
            },
        }))

    def update_job(self, job: Json) -> Json:
        return self._write("update job", lambda: self._replace(job, keep="status"))

    def update_job_status(self, job: Json) -> Json:
        return self._write("update job status", lambda: self._replace(job, keep="spec"))

    def delete_job(self, name: str, uid: str) -> None:
        def delete() -> None:
            if name in self.stored_jobs and jobs.uid_of(self.stored_jobs[name]) == uid:
                del self.stored_jobs[name]

        self._write("delete job", delete)

    def reservation(self, name: str) -> Json | None:
        return copy.deepcopy(self.stored_reservations.get(name))

    def create_reservation(self, reservation: Json) -> None:
        def create() -> None:
            if jobs.name_of(reservation) in self.stored_reservations:
                raise AlreadyExists(jobs.name_of(reservation))
            self._put(self.stored_reservations, reservation)

        self._write("create reservation", create)

    def update_reservation(self, reservation: Json) -> None:
        self._write("update reservation", lambda: self._put(self.stored_reservations, reservation))

    def delete_reservation(self, name: str) -> None:
        self._write("delete reservation", lambda: self.stored_reservations.pop(name, None))

    def evict(self, eviction: EvictPod) -> None:
        def evict() -> None:
            found = self.pods.get(f"{eviction.namespace}/{eviction.name}")
            if found is None or jobs.uid_of(found) != eviction.uid:
                raise Conflict(eviction.name)
            if self.blocked:
                raise RuntimeError("Cannot evict pod as it would violate the pod's disruption budget.")
            self.requested[eviction.uid] += 1
            found["metadata"]["deletionTimestamp"] = jobs.rfc3339(self.now)

        self._write("evict", evict)

    def record(self, event: RecordEvent) -> None:
        self.events.append((event.reason, event.warning))

    # The view

    def pod(self, namespace: str, name: str) -> Json | None:
        return copy.deepcopy(self.pods.get(f"{namespace}/{name}"))

    def whole_pod(self, namespace: str, name: str) -> Json | None:
        return self.pod(namespace, name)

    def latest_reservation(self, name: str) -> Json | None:
        return self.reservation(name)

    def limited(self, item: Json) -> bool:
        return self.limiter.exceeded(item, self.now)

    def jobs(self) -> list[Json]:
        return copy.deepcopy(list(self.stored_jobs.values()))

    def reservations(self) -> list[Json]:
        return copy.deepcopy(list(self.stored_reservations.values()))

    # What others do

    def add_pod(self, item: dict[str, Any]) -> None:
        self.pods[f"{item['metadata']['namespace']}/{item['metadata']['name']}"] = item

    def collect_garbage(self) -> None:
        alive = {jobs.uid_of(job) for job in self.stored_jobs.values()}
        for name, item in list(self.stored_reservations.items()):
            owners = {each["uid"] for each in item["metadata"].get("ownerReferences") or ()}
            if owners and not owners & alive:
                del self.stored_reservations[name]

    def _write(self, call: str, change: Any) -> Any:
        self.calls.append(call)
        if self.kill_in is not None:
            self.kill_in -= 1
        dies = self.kill_in == 0
        if dies:
            self.kill_in = None
            if not self.kill_after:
                end_process()
        result = change()
        if dies:
            end_process()
        return copy.deepcopy(result)

    def _put(self, table: dict[str, dict[str, Any]], item: Json) -> Json:
        self._version += 1
        stored = copy.deepcopy({**item, "metadata": {**item["metadata"], "resourceVersion": str(self._version)}})
        table[jobs.name_of(item)] = stored
        return stored

    def _replace(self, job: Json, *, keep: str) -> Json:
        known = self.stored_jobs.get(jobs.name_of(job))
        if known is None or known["metadata"]["resourceVersion"] != job["metadata"].get("resourceVersion"):
            raise Conflict(jobs.name_of(job))
        whole = {**known, "status": job.get("status") or {}} if keep == "spec" else {
            **job, "status": known.get("status") or {}}
        return self._put(self.stored_jobs, whole)
