"""VolumeZone: a pod runs in the zones and regions that the labels of its bound volumes name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.node_selection import label_path
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Code, Refusal
from koordpolicy.engine.kubernetes.selectors import Json
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import SKIP, SKIP_SHAPE, CycleState, Event, Handle, Skip

from ..allocation.requeue_hints import is_of, node_came_or_changed
from .volumes import CLAIM, STORAGE_CLASS, VOLUME, VolumeClaim, claim_object, claims_of, class_of, waits_for_consumer

_REASON: Final = "node(s) had no available volume zone"
_NEWER: Final[Mapping[str, str]] = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
_LABELS: Final = (*_NEWER, *_NEWER.values())
_PATHS: Final = frozenset(map(label_path, _LABELS))
_SEPARATOR: Final = "__"
"""The separator of the zones of a volume in several zones."""

_Topology = tuple[str, frozenset[str]]
"""The key of a label, and the values that a node may have."""


class VolumeZone:
    """PreFilter and filter (kube-scheduler's plugin of that name)."""

    name = "VolumeZone"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._refusal = Refusal("zones", _REASON, Code.UNRESOLVABLE)
        self._inside = Derived(_PATHS, np.bool_, distinct=True)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | Skip | None:
        """Skip pods whose volumes name no zone; refuse those with a missing claim or volume."""
        if not pod.object["spec"].get("volumes"):
            return SKIP_SHAPE
        found = _topologies(pod, snapshot)
        if isinstance(found, Refusal):
            return found
        if not found:
            return SKIP
        state[VolumeZone] = found
        return None

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes with another zone or region than a volume; a node without these labels is in all of them."""
        found = state.get(VolumeZone)
        if found is None:
            found = _topologies(pod, snapshot)
        if isinstance(found, Refusal):
            refusal = found
            return Answer(np.zeros(snapshot.size, np.bool_), lambda _: refusal)
        topologies: tuple[_Topology, ...] = found
        passed = self._inside.of(snapshot, topologies, lambda view, row: _holds(topologies, view.node(row)))
        return Answer(passed, lambda _: self._refusal, reasons=lambda refused: {_REASON: refused},
                      codes=lambda refused: {Code.UNRESOLVABLE: refused})

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether a node, or one of the pod's storage objects, was added or changed."""
        if event.kind == CLAIM:
            return event.key in {f"{pod.namespace}/{each.name}" for each in claims_of(pod) if not each.ephemeral}
        return node_came_or_changed(event) or event.kind in (VOLUME, STORAGE_CLASS) or is_of(event, pod)


def _topologies(pod: PodInfo, snapshot: Snapshot) -> tuple[_Topology, ...] | Refusal:
    found: list[_Topology] = []
    for claim in claims_of(pod):
        if claim.ephemeral:
            continue
        volume = _volume(pod, claim, snapshot)
        if isinstance(volume, Refusal):
            return volume
        if volume is None:
            continue
        labels = volume["metadata"].get("labels") or {}
        for key in _LABELS:
            zones = frozenset(each.strip() for each in str(labels.get(key, "")).split(_SEPARATOR))
            if "" not in zones:  # a malformed label has no zones
                found.append((key, zones))
    return tuple(found)


def _volume(pod: PodInfo, claim: VolumeClaim, snapshot: Snapshot) -> Json | Refusal | None:
    """Return the volume of a claim, None if it waits for its first consumer, or the fault."""
    if not claim.name:
        return _fault("PersistentVolumeClaim had no name")
    item = claim_object(snapshot, pod.namespace, claim)
    if item is None:
        return _fault(f'persistentvolumeclaim "{claim.name}" not found')
    name = (item.get("spec") or {}).get("volumeName")
    if name:
        return snapshot.object(VOLUME, str(name)) or _fault(f'persistentvolume "{name}" not found')
    class_name = class_of(item)
    if not class_name:
        return _fault("PersistentVolumeClaim had no pv name and storageClass name")
    storage_class = snapshot.object(STORAGE_CLASS, class_name)
    if storage_class is None:
        return _fault(f'storageclass.storage.k8s.io "{class_name}" not found')
    return None if waits_for_consumer(storage_class) else _fault("PersistentVolume had no name")


def _fault(message: str) -> Refusal:
    return Refusal("claims", message, Code.UNRESOLVABLE)


def _holds(topologies: tuple[_Topology, ...], node: Json) -> bool:
    labels = node["metadata"].get("labels") or {}
    if not any(key in labels for key in _LABELS):
        return True
    return all(labels.get(key, labels.get(_NEWER.get(key, key))) in values for key, values in topologies)
