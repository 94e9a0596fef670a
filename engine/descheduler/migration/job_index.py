"""The migration jobs in flight, by pod, node and namespace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from koordpolicy.engine.cluster.snapshot import Snapshot

from . import jobs
from .workloads import controller_of

Json = Mapping[str, Any]


class JobIndex:
    """The jobs that have not ended, and their pods.

    A job whose pod is not in the snapshot counts globally and for its namespace, but for no node and no workload.
    """

    def __init__(self, of: Iterable[Json], snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._jobs: dict[str, Json] = {}
        self._by_uid: dict[str, set[str]] = {}
        self._by_key: dict[str, set[str]] = {}
        self._by_node: dict[str, set[str]] = {}
        self._by_controller: dict[str, set[str]] = {}
        self._by_namespace: dict[str, set[str]] = {}
        for job in of:
            self.put(job)

    @classmethod
    def of(cls, snapshot: Snapshot) -> JobIndex:
        """Return the jobs of a snapshot."""
        return cls(snapshot.objects(jobs.KIND).values(), snapshot)

    def put(self, job: Json) -> None:
        """Add a job, or replace it by its newer state."""
        name = jobs.name_of(job)
        self.remove(name)
        if jobs.phase_of(job) in jobs.TERMINAL:
            return
        self._jobs[name] = job
        for table, key in self._places(job):
            table.setdefault(key, set()).add(name)

    def remove(self, name: str) -> None:
        """Forget a job."""
        job = self._jobs.pop(name, None)
        for table, key in self._places(job) if job is not None else ():
            table.get(key, set()).discard(name)

    def _places(self, job: Json) -> list[tuple[dict[str, set[str]], str]]:
        ref, key = jobs.pod_ref(job), jobs.pod_key(job)
        places = [
            (self._by_uid, str(ref.get("uid") or "")), (self._by_key, key),
            (self._by_namespace, str(ref.get("namespace") or "")),
        ]
        pod = self._snapshot.object("Pod", key)
        if pod is not None:
            places.append((self._by_node, str((pod.get("spec") or {}).get("nodeName") or "")))
            owner = controller_of(pod)
            if owner is not None:
                places.append((self._by_controller, str(owner.get("uid") or "")))
        return places

    def has_job(self, pod: Json) -> bool:
        """Return whether a job migrates this pod."""
        uid = jobs.uid_of(pod)
        return bool((uid and self._by_uid.get(uid)) or self._by_key.get(_key(pod)))

    def others(self, pod: Json, *, passed_only: bool) -> int:
        """Return the number of jobs of other pods; with `passed_only`, without those that wait for arbitration."""
        if not passed_only:
            return len(self._jobs) - len(self._by_uid.get(jobs.uid_of(pod), ()))
        return len(self._counted(self._jobs, pod, passed_only=True))

    def others_of_namespace(self, pod: Json, *, passed_only: bool) -> int:
        """Return the number of jobs of other pods of the pod's namespace."""
        names = self._by_namespace.get(_key(pod).partition("/")[0], ())
        return len(self._counted(names, pod, passed_only=passed_only))

    def others_of_node(self, pod: Json, node: str, *, passed_only: bool) -> int:
        """Return the number of other pods on the node that migrate."""
        return len(self._pods(self._by_node.get(node, ()), pod, passed_only=passed_only))

    def others_of_workload(self, pod: Json, controller: str, *, passed_only: bool) -> set[str]:
        """Return the keys of other pods of a controller, by its UID, in the pod's namespace that migrate."""
        namespace = _key(pod).partition("/")[0]
        found = self._pods(self._by_controller.get(controller, ()), pod, passed_only=passed_only)
        return {key for key in found if key.partition("/")[0] == namespace}

    def migrating_of(self, controller: str) -> int:
        """Return the number of jobs of a controller's pods that run or passed arbitration."""
        return sum(jobs.is_migrating(self._jobs[name]) for name in self._by_controller.get(controller, ()))

    def _counted(self, names: Iterable[str], pod: Json, *, passed_only: bool) -> list[Json]:
        uid = jobs.uid_of(pod)
        return [
            job for job in map(self._jobs.__getitem__, names)
            if (jobs.pod_ref(job).get("uid") or "") != uid and (not passed_only or jobs.is_migrating(job))
        ]

    def _pods(self, names: Iterable[str], pod: Json, *, passed_only: bool) -> set[str]:
        own = _key(pod)
        return {jobs.pod_key(job) for job in self._counted(names, pod, passed_only=passed_only)} - {own}


def _key(pod: Json) -> str:
    metadata = jobs.metadata_of(pod)
    return f"{metadata.get('namespace') or 'default'}/{metadata.get('name') or ''}"
