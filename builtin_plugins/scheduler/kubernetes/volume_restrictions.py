"""VolumeRestrictions: disks that only one pod may mount, and claims that only one pod may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Code, Refusal
from koordpolicy.engine.kubernetes.selectors import Json
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import SKIP, SKIP_SHAPE, CycleState, Event, Handle, Skip

from ..allocation.requeue_hints import is_of, node_came_or_changed, pod_left
from ..allocation.row_refusals import RowRefusals
from .volumes import CLAIM, claim_object, claims_of

_DISK: Final = "node(s) had no available disk"
_ONE_POD: Final = "ReadWriteOncePod"
_IN_USE: Final = (
    f"node(s) unavailable due to PersistentVolumeClaim with {_ONE_POD} access mode already in-use by another pod"
)
_PODS: Final = frozenset({("nodeInfo", "pods")})


def _both_read(mine: Json, other: Json) -> bool:
    return bool(mine.get("readOnly") and other.get("readOnly"))


def _same_image(mine: Json, other: Json) -> bool:
    return (mine.get("pool") or "rbd", mine.get("image")) == (other.get("pool") or "rbd", other.get("image")) and (
        not frozenset(mine.get("monitors") or ()).isdisjoint(other.get("monitors") or ()))


_CONFLICTS: Final[Mapping[str, Callable[[Json, Json], bool]]] = {
    "gcePersistentDisk": lambda mine, other: mine.get("pdName") == other.get("pdName") and not _both_read(mine, other),
    "awsElasticBlockStore": lambda mine, other: mine.get("volumeID") == other.get("volumeID"),
    "iscsi": lambda mine, other: mine.get("iqn") == other.get("iqn") and not _both_read(mine, other),
    "rbd": lambda mine, other: _same_image(mine, other) and not _both_read(mine, other),
}
"""Volume sources inside of a pod, and whether two pods on a node conflict over one."""


class VolumeRestrictions:
    """PreFilter and filter (kube-scheduler's plugin of that name)."""

    name = "VolumeRestrictions"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._in_use = Derived(_PODS, np.object_, _claims_on)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | Skip | None:
        """Skip pods without such disks and claims; refuse those with a missing claim."""
        if not pod.object["spec"].get("volumes"):
            return SKIP_SHAPE
        alone: list[str] = []
        for claim in claims_of(pod):
            if claim.ephemeral:
                continue
            item = claim_object(snapshot, pod.namespace, claim)
            if item is None:
                return Refusal("claims", f'persistentvolumeclaim "{claim.name}" not found', Code.UNRESOLVABLE)
            if _ONE_POD in ((item.get("spec") or {}).get("accessModes") or ()):
                alone.append(f"{pod.namespace}/{claim.name}")
        in_use = bool(alone) and self._is_in_use(alone, snapshot)
        if not in_use and not any(True for _ in _disks(pod)):
            return SKIP
        state[VolumeRestrictions] = in_use
        return None

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes on which a disk is already mounted, and all nodes if such a claim is in use."""
        found = RowRefusals(snapshot.size, rows)
        disks = tuple(_disks(pod))
        if disks:
            refusal = Refusal("disks", _DISK)
            for row in rows.tolist():
                if any(_conflicts(disks, other) for other in snapshot.pods(row)):
                    found.refuse_row(row, refusal)
        if state.get(VolumeRestrictions):
            found.refuse(np.ones(snapshot.size, np.bool_), Refusal("access", _IN_USE))
        return found.answer()

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether a pod left its node, or a node or one of the pod's claims was added."""
        if event.kind == CLAIM:
            return event.key in {f"{pod.namespace}/{each.name}" for each in claims_of(pod) if not each.ephemeral}
        return pod_left(event) or node_came_or_changed(event) or is_of(event, pod)

    def _is_in_use(self, keys: list[str], snapshot: Snapshot) -> bool:
        used = self._in_use.of(snapshot)
        return any(key in there for there in used.tolist() for key in keys)


def _claims_on(snapshot: Snapshot, row: int) -> frozenset[str]:
    return frozenset(
        f"{pod.namespace}/{claim.name}" for pod in snapshot.pods(row) for claim in claims_of(pod) if not claim.ephemeral
    )


def _disks(pod: PodInfo) -> Iterator[tuple[str, Json]]:
    for volume in (pod.object.get("spec") or {}).get("volumes") or ():
        for kind in _CONFLICTS:
            if volume.get(kind):
                yield kind, volume[kind]


def _conflicts(disks: tuple[tuple[str, Json], ...], other: PodInfo) -> bool:
    if not (other.object.get("spec") or {}).get("volumes"):
        return False
    return any(kind == there and _CONFLICTS[kind](mine, its) for there, its in _disks(other) for kind, mine in disks)
