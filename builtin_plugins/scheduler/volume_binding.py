"""VolumeBinding, as far as it filters: a pod runs where its volumes can be reached.

It binds nothing. A claim that waits for its first consumer stays unbound, and the pod waits with a reason that says so,
unless another scheduler has chosen a node for the claim already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.frame import Rows
from koordpolicy.engine.cluster.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.selectors import Json, matches_node
from koordpolicy.engine.plugins import SKIP, CycleState, Event, Handle, Skip
from koordpolicy.engine.points import Answer, Code, Refusal
from koordpolicy.engine.scheduler.distinct import DistinctAnswers

from .hints import is_of, node_came_or_changed
from .node_selection import paths_of, pod_that_requires
from .strict_args import integer, listed, nested, read_args
from .volumes import (
    CLAIM,
    STORAGE_CLASS,
    VOLUME,
    Claim,
    claim_object,
    claims_of,
    class_of,
    is_bound,
    is_owned_by,
    selected_node,
)

_CONFLICT: Final = "node(s) had volume node affinity conflict"
_NO_VOLUME: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
_NOT_AVAILABLE: Final = "node(s) didn't find available persistent volumes to bind"
_UNBOUND: Final = "pod has unbound immediate PersistentVolumeClaims"
_REASONS: Final = (_CONFLICT, _NOT_AVAILABLE, _NO_VOLUME)
_WAITS: Final = "WaitForFirstConsumer"

_Booleans = NDArray[np.bool_]


@dataclass(slots=True)
class _Claims:
    """What has been found out about a pod's claims."""

    volumes: list[Json] = field(default_factory=list)
    """Those that bound claims name and that exist."""
    missing: bool = False
    """Whether a bound claim names a volume that does not exist."""
    nodes: list[str] = field(default_factory=list)
    """The nodes that others chose for claims that are not bound yet."""


class VolumeBinding:
    """PreFilter and filter (kube-scheduler's plugin of that name, without binding and scoring).

    Arguments: `bindTimeoutSeconds` and `shape` are read and mean nothing here.
    """

    name = "VolumeBinding"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:  # noqa: ARG002 - every plugin is made like this
        self._reachable = DistinctAnswers(np.bool_)

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return v1 arguments with their defaults; raises ValueError for what is wrong, with the field's path."""
        given = read_args(args, "VolumeBindingArgs", {
            "bindTimeoutSeconds": integer, "shape": listed(nested({"utilization": integer, "score": integer})),
        })
        checked = {"bindTimeoutSeconds": 600, **given}
        if checked["bindTimeoutSeconds"] < 0:
            raise ValueError(f"`bindTimeoutSeconds` is {checked['bindTimeoutSeconds']}: it must not be negative")
        return checked

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | Skip | None:
        """Skip pods without claims; refuse those whose claims are missing, lost, or not bound though they should be."""
        claims = tuple(claims_of(pod))
        if not claims:
            return SKIP
        found = self._look_at(pod, claims, snapshot)
        if isinstance(found, Refusal):
            return found
        state[VolumeBinding] = found
        return None

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:  # noqa: ARG002
        """Refuse nodes from which one of the volumes cannot be reached."""
        found = state.get(VolumeBinding)
        if found is None:
            claims = tuple(claims_of(pod))
            found = self._look_at(pod, claims, snapshot) if claims else _Claims()
        if isinstance(found, Refusal):
            refusal = found
            return Answer(np.zeros(snapshot.size, np.bool_), lambda _: refusal)
        conflict: _Booleans = np.zeros(snapshot.size, np.bool_)
        for volume in found.volumes:
            reachable = self._reachable_from(volume, snapshot)
            if reachable is not None:
                conflict |= ~reachable
        elsewhere: _Booleans = np.zeros(snapshot.size, np.bool_)
        for node in found.nodes:
            there = np.zeros(snapshot.size, np.bool_)
            if node in snapshot.index:
                there[snapshot.index[node]] = True
            elsewhere |= ~there
        failed = (conflict, elsewhere, np.full(snapshot.size, found.missing))

        def explain(row: int) -> Refusal:
            texts = [reason for reason, each in zip(_REASONS, failed, strict=True) if each[row]]
            return Refusal("volumes", ", ".join(texts), Code.UNRESOLVABLE)

        def reasons(refused: Rows) -> dict[str, Rows]:
            groups = ((reason, refused[each[refused]]) for reason, each in zip(_REASONS, failed, strict=True))
            return {reason: some for reason, some in groups if len(some)}

        return Answer(~(failed[0] | failed[1] | failed[2]), explain, reasons=reasons,
                      codes=lambda refused: {Code.UNRESOLVABLE: refused})

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether a node, or something of the pod's storage, came or changed."""
        if event.kind == CLAIM:
            name = event.key.rpartition("/")[2]
            return event.key.partition("/")[0] == pod.namespace and any(each.name == name for each in claims_of(pod))
        return node_came_or_changed(event) or event.kind in (VOLUME, STORAGE_CLASS) or is_of(event, pod)

    def _look_at(self, pod: PodInfo, claims: tuple[Claim, ...], snapshot: Snapshot) -> _Claims | Refusal:
        items: list[Json] = []
        for claim in claims:
            item = claim_object(snapshot, pod.namespace, claim)
            fault = _fault(pod, claim, item)
            if fault:
                return Refusal("claims", fault, Code.UNRESOLVABLE)
            assert item is not None
            items.append(item)
        found = _Claims()
        waiting: list[str] = []
        immediate = False
        for item in items:
            if is_bound(item):
                volume = snapshot.object(VOLUME, str(item["spec"]["volumeName"]))
                if volume is None:
                    found.missing = True
                else:
                    found.volumes.append(volume)
                continue
            waits = _waits_for_consumer(item, snapshot)
            if isinstance(waits, Refusal):
                return waits
            # A claim that names its volume before it is bound to it is for the volume controller to bind.
            if not waits or (item.get("spec") or {}).get("volumeName"):
                immediate = True
            elif selected_node(item):
                found.nodes.append(selected_node(item))
            else:
                waiting.append(str(item["metadata"]["name"]))
        if immediate:
            return Refusal("claims", _UNBOUND, Code.UNRESOLVABLE)
        if waiting:
            names = ", ".join(f'"{name}"' for name in waiting)
            text = f"persistentvolumeclaim {names} waits for first consumer, and this scheduler binds no volumes"
            return Refusal("claims", text, Code.UNRESOLVABLE)
        return found

    def _reachable_from(self, volume: Json, snapshot: Snapshot) -> _Booleans | None:
        """Return from which nodes a volume can be reached, None for all."""
        required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required")
        if required is None:
            return None
        terms = required.get("nodeSelectorTerms") or ()
        probe = pod_that_requires(terms)
        return self._reachable.answer(
            snapshot, frozenset(path for term in terms for path in paths_of(term)), json.dumps(terms, sort_keys=True),
            lambda row: matches_node(probe, snapshot.node(row)),
        )


def _fault(pod: PodInfo, claim: Claim, item: Json | None) -> str:
    """Return what is wrong with a claim, in kube-scheduler's words, or an empty text."""
    if item is None:
        if claim.ephemeral:
            return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{claim.name}"'
        return f'persistentvolumeclaim "{claim.name}" not found'
    if (item.get("status") or {}).get("phase") == "Lost":
        volume = (item.get("spec") or {}).get("volumeName") or ""
        return f'persistentvolumeclaim "{claim.name}" bound to non-existent persistentvolume "{volume}"'
    if item["metadata"].get("deletionTimestamp"):
        return f'persistentvolumeclaim "{claim.name}" is being deleted'
    if claim.ephemeral and not is_owned_by(item, pod):
        return f"PVC {pod.namespace}/{claim.name} was not created for pod {pod.key} (pod is not owner)"
    return ""


def _waits_for_consumer(claim: Json, snapshot: Snapshot) -> bool | Refusal:
    name = class_of(claim)
    if not name:
        return False
    item = snapshot.object(STORAGE_CLASS, name)
    if item is None:
        return Refusal("claims", f'storageclass.storage.k8s.io "{name}" not found', Code.UNRESOLVABLE)
    return item.get("volumeBindingMode") == _WAITS
