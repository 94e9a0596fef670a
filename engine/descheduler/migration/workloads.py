"""The workloads that pods belong to: how many replicas they should have, and which pods they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from koordpolicy.engine.cluster.snapshot import Snapshot

from .settings import IntOrPercent

Json = Mapping[str, Any]

WORKLOAD_KINDS: Final = ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "CloneSet")
_WITHOUT_SCALE: Final = frozenset({"Job", "CronJob", "DaemonSet", "Node"})


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """The replicas that a controller should have, and its pods; no controller was found if there are none."""

    replicas: int = 0
    pods: tuple[Json, ...] = ()


class WorkloadFinder(Protocol):
    """Finds the workloads of pods."""

    def find(self, owner: Json, namespace: str) -> WorkloadState | None:
        """Return the workload of a controlling owner reference; an empty one if there is no such controller.

        None if that is unknown, as the source of the cluster does not contain controllers of this kind.
        """
        ...


def controller_of(item: Json) -> Json | None:
    """Return the owner reference of the object's controller, or None."""
    owners = (item.get("metadata") or {}).get("ownerReferences") or ()
    return next((each for each in owners if each.get("controller")), None)


class SnapshotWorkloads:
    """Finds workloads in a snapshot; valid as long as it (implements `WorkloadFinder`)."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._found: dict[tuple[str, str, str, str], WorkloadState | None] = {}
        self._owned: dict[str, list[Json]] | None = None
        self._sets: dict[str, list[str]] | None = None

    def find(self, owner: Json, namespace: str) -> WorkloadState | None:
        """Return the workload of a controlling owner reference, or None if the source lacks its kind."""
        kind, name, uid = (str(owner.get(key) or "") for key in ("kind", "name", "uid"))
        key = (kind, namespace, name, uid)
        if key not in self._found:
            self._found[key] = self._find(kind, namespace, name, uid)
        return self._found[key]

    def _find(self, kind: str, namespace: str, name: str, uid: str) -> WorkloadState | None:
        if kind in _WITHOUT_SCALE:
            return WorkloadState()
        if self._snapshot.cluster.lacks(kind):
            return None
        found = self._snapshot.object(kind, f"{namespace}/{name}")
        if found is None or (found["metadata"].get("uid") or "") != uid:
            return WorkloadState()
        if kind == "ReplicaSet":
            above = controller_of(found)
            if above is not None and above.get("kind") == "Deployment" and not self._snapshot.cluster.lacks(
                "Deployment",
            ):
                return self.find(above, namespace)
        replicas = (found.get("spec") or {}).get("replicas")
        if replicas is None:
            replicas = 1 if kind in WORKLOAD_KINDS else 0
        uids = (uid, *self._sets_of(uid)) if kind == "Deployment" else (uid,)
        return WorkloadState(int(replicas), tuple(pod for each in uids for pod in self._pods_of(each)))

    def _pods_of(self, uid: str) -> tuple[Json, ...]:
        if self._owned is None:
            self._owned = {}
            for pod in self._snapshot.objects("Pod").values():
                for owner in pod["metadata"].get("ownerReferences") or ():
                    self._owned.setdefault(str(owner.get("uid") or ""), []).append(pod)
        return tuple(self._owned.get(uid, ()))

    def _sets_of(self, deployment: str) -> tuple[str, ...]:
        if self._sets is None:
            self._sets = {}
            for item in self._snapshot.objects("ReplicaSet").values():
                above = controller_of(item)
                if above is not None:
                    self._sets.setdefault(str(above.get("uid") or ""), []).append(
                        str(item["metadata"].get("uid") or ""))
        return tuple(self._sets.get(deployment, ()))


def scaled(value: IntOrPercent, replicas: int) -> int:
    """Return a number as it is, and a percentage of the replicas, rounded down.

    Raises:
        ValueError: for any other text.
    """
    if isinstance(value, int):
        return value
    digits = value.removesuffix("%")
    if digits == value or not digits.removeprefix("-").isdigit():
        raise ValueError(f"`{value}` is neither a number nor a percentage")
    return replicas * int(digits) // 100


def workload_limit(replicas: int, value: IntOrPercent | None) -> int:
    """Return how many pods of a workload may migrate, or be unavailable, at once; never more than its replicas.

    Without a value: a tenth of more than ten replicas, two of four to ten, else one. (Koordinator's GetMaxMigrating
    and GetMaxUnavailable.)
    """
    if value is not None:
        limit = scaled(value, replicas) or 1
    elif replicas > 10:
        limit = replicas * 10 // 100
    else:
        limit = 2 if replicas >= 4 else 1
    return min(limit, replicas)
