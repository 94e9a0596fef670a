"""NodeVolumeLimits: the limits of a node's CSINode on volumes per CSI driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Code, Refusal
from koordpolicy.engine.kubernetes.selectors import Json
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import SKIP_SHAPE, CycleState, Event, Handle, Skip

from ..allocation.requeue_hints import is_of, node_came_or_changed, pod_left
from .volumes import CLAIM, CSI_NODE, STORAGE_CLASS, VOLUME, VolumeClaim, claim_object, claims_of, class_of, is_owned_by

_REASON: Final = "node(s) exceed max volume count"
_PODS: Final = frozenset({("nodeInfo", "pods")})
_KINDS: Final = (CLAIM, VOLUME, STORAGE_CLASS)

Volumes = Mapping[str, frozenset[str]]
"""The unique names of volumes that pods use, by CSI driver."""


class NodeVolumeLimits:
    """PreFilter and filter (kube-scheduler's plugin of that name)."""

    name = "NodeVolumeLimits"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._refusal = Refusal("volumes", _REASON)
        self._held = Derived(_PODS, np.object_, _volumes_on)
        self._limits: dict[str, NDArray[np.int64]] = {}
        self._limits_of: object = None

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | Skip | None:
        """Skip pods without claims."""
        if not pod.object["spec"].get("volumes") or not any(True for _ in claims_of(pod)):
            return SKIP_SHAPE
        return None

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes on which the volumes of a driver would exceed its limit."""
        fault = _fault(pod, snapshot)
        if fault is not None:
            return Answer(np.zeros(snapshot.size, np.bool_), lambda _: fault,
                          reasons=lambda refused: {fault.message: refused}, codes=lambda refused: {fault.code: refused})
        passed: NDArray[np.bool_] = np.ones(snapshot.size, np.bool_)
        requested = _volumes_of(pod, snapshot)
        for driver, names in requested.items():
            limits = self._limits_for(driver, snapshot)
            limited = rows[limits[rows] >= 0]
            if not len(limited):
                continue
            held = self._held_on(snapshot)
            for row in limited.tolist():
                there = held[row].get(driver, frozenset())
                added = len(names - there)
                if added and len(there) + added > limits[row]:
                    passed[row] = False
        return Answer(passed, lambda _: self._refusal, reasons=lambda refused: {_REASON: refused},
                      codes=lambda refused: {Code.UNSCHEDULABLE: refused})

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether a pod left its node, or a node or a storage object was added or changed."""
        return (pod_left(event) or node_came_or_changed(event) or event.kind in (CSI_NODE, *_KINDS)
                or is_of(event, pod))

    def _held_on(self, snapshot: Snapshot) -> Sequence[Volumes]:
        held: Any = self._held.of(snapshot, extra=tuple(snapshot.version_of(kind) for kind in _KINDS))
        found: Sequence[Volumes] = held
        return found

    def _limits_for(self, driver: str, snapshot: Snapshot) -> NDArray[np.int64]:
        """Return the limit per node, -1 for none."""
        stamp = (snapshot.cluster, snapshot.version_of(CSI_NODE), snapshot.version_of("Node"), snapshot.size)
        if stamp != self._limits_of:
            self._limits, self._limits_of = {}, stamp
        limits = self._limits.get(driver)
        if limits is None:
            limits = self._limits[driver] = np.full(snapshot.size, -1, np.int64)
            for name, item in snapshot.objects(CSI_NODE).items():
                row = snapshot.index.get(name)
                limit = _limit(item, driver)
                if row is not None and limit is not None:
                    limits[row] = limit
        return limits


def _volumes_on(snapshot: Snapshot, row: int) -> Volumes:
    return _together([_volumes_of(pod, snapshot) for pod in snapshot.pods(row)])


def _fault(pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
    """Return why a pod's volumes cannot be counted; VolumeBinding, where active, reports it first."""
    for claim in claims_of(pod):
        item = claim_object(snapshot, pod.namespace, claim)
        if item is None:
            return Refusal("claims", f'looking up PVC {pod.namespace}/{claim.name}: persistentvolumeclaim '
                           f'"{claim.name}" not found', Code.UNRESOLVABLE)
        if claim.ephemeral and not is_owned_by(item, pod):
            return Refusal("claims", f"PVC {pod.namespace}/{claim.name} was not created for pod {pod.key} "
                           "(pod is not owner)", Code.ERROR)
    return None


def _limit(csi_node: Json, driver: str) -> int | None:
    for each in (csi_node.get("spec") or {}).get("drivers") or ():
        if each.get("name") == driver:
            count = (each.get("allocatable") or {}).get("count")
            return count if isinstance(count, int) else None
    return None


def _together(all_of_them: list[Volumes]) -> Volumes:
    found: dict[str, frozenset[str]] = {}
    for volumes in all_of_them:
        for driver, names in volumes.items():
            found[driver] = found.get(driver, frozenset()) | names
    return found


def _volumes_of(pod: PodInfo, snapshot: Snapshot) -> Volumes:
    found: dict[str, frozenset[str]] = {}
    if not pod.object["spec"].get("volumes"):
        return found
    for claim in claims_of(pod):
        volume = _volume(pod, claim, snapshot)
        if volume is not None:
            driver, name = volume
            found[driver] = found.get(driver, frozenset()) | {name}
    return found


def _volume(pod: PodInfo, claim: VolumeClaim, snapshot: Snapshot) -> tuple[str, str] | None:
    """Return driver and name of a claim's volume; None if it is unknown or has no CSI driver."""
    item = claim_object(snapshot, pod.namespace, claim)
    if item is None or (claim.ephemeral and not is_owned_by(item, pod)):
        return None
    bound = (item.get("spec") or {}).get("volumeName")
    volume = snapshot.object(VOLUME, str(bound)) if bound else None
    if volume is not None:
        csi = (volume.get("spec") or {}).get("csi") or {}
        return (str(csi["driver"]), str(csi.get("volumeHandle", ""))) if csi.get("driver") else None
    # Not bound yet: the class names the provisioner, and the claim counts for the future volume.
    storage_class = snapshot.object(STORAGE_CLASS, class_of(item)) if class_of(item) else None
    if storage_class is None:
        return None
    return str(storage_class.get("provisioner", "")), f"{class_of(item)}-{pod.namespace}/{claim.name}"
