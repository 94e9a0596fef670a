"""Limits of evictions per workload and per owner, which count the pods that are terminating already.

An owner is the controller of a pod; the workload is the Deployment of an owning ReplicaSet, else the owner. A
percentage is of the replicas that it should have, rounded down, but at least one pod unless it is 0 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.explanation import counted

from .row_facts import facts_by_row

IntOrPercent: TypeAlias = int | str

_NO_OBJECT: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class WorkloadLimits:
    """The most pods of one workload and of one owner that may leave at the same time; None means no limit."""

    per_workload: IntOrPercent | None = None
    per_owner: IntOrPercent | None = None


@dataclass(frozen=True, slots=True)
class PodOwner:
    """The controller of pods, or the one above it."""

    namespace: str
    kind: str
    name: str
    uid: str


class PodOwners:
    """The owners and workloads of the pods of a snapshot. Valid as long as it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._workloads: dict[PodOwner, PodOwner] = {}
        self._counts: tuple[Counter[PodOwner], Counter[PodOwner]] | None = None

    def owner(self, pod: PodInfo) -> PodOwner | None:
        """Return the controller of a pod, or None."""
        return _controller(pod.object)

    def workload(self, owner: PodOwner) -> PodOwner:
        """Return the controller of a ReplicaSet; any other owner itself."""
        if owner.kind != "ReplicaSet":
            return owner
        if owner not in self._workloads:
            self._workloads[owner] = _controller(self._object(owner)) or owner
        return self._workloads[owner]

    def replicas(self, owner: PodOwner) -> int:
        """Return the replicas that an owner or workload should have; where that is unknown, the pods that it has."""
        spec = self._object(owner).get("spec") or {}
        replicas = spec.get("replicas", spec.get("parallelism"))
        return replicas if isinstance(replicas, int) else self._counted()[0][owner]

    def terminating(self, owner: PodOwner) -> int:
        """Return how many pods of an owner or workload are terminating."""
        return self._counted()[1][owner]

    def _object(self, owner: PodOwner) -> Mapping[str, Any]:
        found = self._snapshot.object(owner.kind, f"{owner.namespace}/{owner.name}")
        return found if found is not None and (found["metadata"].get("uid") or "") == owner.uid else _NO_OBJECT

    def _counted(self) -> tuple[Counter[PodOwner], Counter[PodOwner]]:
        """Return the numbers of active and of terminating pods of all owners and workloads."""
        if self._counts is None:
            active: Counter[PodOwner] = Counter()
            terminating: Counter[PodOwner] = Counter()
            for of_row in facts_by_row(self._snapshot, "pods by owner", _by_owner):
                for (owner, is_terminating), count in of_row.items():
                    for each in {owner, self.workload(owner)}:
                        active[each] += count
                        if is_terminating:
                            terminating[each] += count
            self._counts = active, terminating
        return self._counts


class WorkloadBudget:
    """Counts evictions against limits per workload and per owner."""

    def __init__(self, limits: WorkloadLimits, owners: PodOwners) -> None:
        self._limits = limits
        self.is_unlimited: Final = limits == WorkloadLimits()
        self._owners = owners
        self._evicted: Counter[PodOwner] = Counter()

    def refusal(self, pod: PodInfo) -> str:
        """Return the limit that one more eviction would exceed, or an empty string."""
        if self.is_unlimited:
            return ""
        limits, owner = self._limits, self._owners.owner(pod)
        if owner is None:
            return ""
        return self._over(limits.per_workload, self._owners.workload(owner)) or self._over(limits.per_owner, owner)

    def done(self, pod: PodInfo) -> None:
        """Count an eviction."""
        owner = None if self.is_unlimited else self._owners.owner(pod)
        if owner is not None:
            self._evicted.update({owner, self._owners.workload(owner)})

    def _over(self, limit: IntOrPercent | None, owner: PodOwner) -> str:
        if limit is None:
            return ""
        most = limit if isinstance(limit, int) else _share(limit, self._owners.replicas(owner))
        terminating = self._owners.terminating(owner)
        if self._evicted[owner] + terminating < most:
            return ""
        also = f", {terminating} of which terminate already" if terminating else ""
        return f"at most {counted(most, 'pod')} of {owner.kind} {owner.namespace}/{owner.name} at the same time{also}"


def _share(percentage: str, replicas: int) -> int:
    percent = int(percentage.removesuffix("%"))
    return max(replicas * percent // 100, 1) if percent else 0


def _controller(item: Mapping[str, Any]) -> PodOwner | None:
    metadata = item.get("metadata") or {}
    for each in metadata.get("ownerReferences") or ():
        if each.get("controller"):
            return PodOwner(
                metadata.get("namespace") or "", each.get("kind") or "", each.get("name") or "", each.get("uid") or "",
            )
    return None


def _by_owner(pods: tuple[PodInfo, ...]) -> Counter[tuple[PodOwner, bool]]:
    found: Counter[tuple[PodOwner, bool]] = Counter()
    for pod in pods:
        owner = _controller(pod.object)
        if owner is not None:
            found[owner, bool(pod.object["metadata"].get("deletionTimestamp"))] += 1
    return found
