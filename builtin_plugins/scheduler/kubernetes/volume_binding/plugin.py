"""VolumeBinding: refuses nodes that cannot reach the pod's volumes, or on which its claims cannot be bound.

Chosen volumes are assumed for later pods. In a live cluster they are then written, and the pod is bound when the
volume controller has bound its claims; in a simulation nobody would, so nothing is written there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Code, Refusal
from koordpolicy.engine.kubernetes.selectors import Json
from koordpolicy.plugin import SKIP_SHAPE, CycleState, Deferred, Event, Handle, Simulated, Skip

from ...allocation.requeue_hints import is_of, node_came_or_changed
from ...allocation.strict_args import integer, listed, nested, read_args
from ..volumes import (
    CLAIM,
    CSI_DRIVER,
    CSI_NODE,
    CSI_STORAGE_CAPACITY,
    STORAGE_CLASS,
    VOLUME,
    VolumeClaim,
    claim_object,
    claims_of,
    class_of,
    is_bound,
    is_owned_by,
    key_of,
    selected_node,
    waits_for_consumer,
)
from .binding import ChosenVolumes, bind_volumes
from .matching import Matched, Reach, VolumeMatcher

_CONFLICT: Final = "node(s) didn't match PersistentVolume's node affinity"
_NOT_AVAILABLE: Final = "node(s) didn't find available persistent volumes to bind"
_NO_SPACE: Final = "node(s) did not have enough free storage"
_NO_VOLUME: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
_UNBOUND: Final = "pod has unbound immediate PersistentVolumeClaims"
_REASONS: Final = (_CONFLICT, _NOT_AVAILABLE, _NO_SPACE, _NO_VOLUME)
_KINDS: Final = frozenset((VOLUME, STORAGE_CLASS, CSI_NODE, CSI_DRIVER, CSI_STORAGE_CAPACITY))

_Booleans = NDArray[np.bool_]


@dataclass(slots=True)
class _Claims:
    """A pod's claims, and the filter's matches for unbound ones."""

    volumes: list[Json | None] = field(default_factory=list)
    """The volumes of bound claims, in the order of the claims; None where one does not exist."""
    waiting: list[Json] = field(default_factory=list)
    """The claims that are bound when the pod has a node."""
    matched: Matched | None = None
    chosen: ChosenVolumes | None = None
    """The choice of `reserve` for the waiting claims."""
    assumed: set[str] = field(default_factory=set)
    """The keys of the claims that were assumed for this pod, not for another one before."""
    binding: bool = False
    """True from the first write for the claims until all are bound."""

    def end_binding(self) -> None:
        """Note that all claims are bound."""
        self.binding = False


@dataclass(slots=True)
class _Assumed:
    """The volumes assumed for placed pods, until the claims' objects show them."""

    volumes: dict[str, tuple[Json, str]] = field(default_factory=dict)
    """By volume: its object at that time, and the key of its claim."""
    nodes: dict[str, tuple[Json, str]] = field(default_factory=dict)
    """By claim: its object at that time, and the node for which it is provisioned."""

    def taken(self, snapshot: Snapshot) -> dict[str, str]:
        """Return the claims by assigned volume; entries that have changed since are dropped."""
        self.volumes = {
            name: known for name, known in self.volumes.items() if snapshot.object(VOLUME, name) is known[0]
        }
        return {name: claim for name, (_, claim) in self.volumes.items()}

    def node_of(self, claim: Json, snapshot: Snapshot) -> str:
        """Return the node that was selected for a claim, here or in its object, or an empty string."""
        known = self.nodes.get(key_of(claim))
        if known is not None and snapshot.object(CLAIM, key_of(claim)) is not known[0]:
            del self.nodes[key_of(claim)]
            known = None
        return selected_node(claim) or (known[1] if known is not None else "")

    def forget(self, claims: set[str]) -> None:
        """Drop the volumes assigned to claims (keys)."""
        self.volumes = {name: known for name, known in self.volumes.items() if known[1] not in claims}
        self.nodes = {key: known for key, known in self.nodes.items() if key not in claims}


_TIMEOUT: Final = 600
_SECOND: Final = 1_000_000_000
_STAGE_ERRORS: Final = "scheduler_volume_scheduling_stage_error_total"


class VolumeBinding:
    """PreFilter, filter, reserve and preBind (kube-scheduler's plugin of that name).

    Arguments: `bindTimeoutSeconds` is the time for which a pod waits for its claims to be bound; `shape` has no effect.
    """

    name = "VolumeBinding"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._handle = handle
        self._timeout = args.get("bindTimeoutSeconds", _TIMEOUT) * _SECOND
        self._reach = Reach()
        self._matcher = VolumeMatcher(self._reach)
        self._assumed = _Assumed()

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return v1 arguments with their defaults; raises `ValueError` with the fault and the field's path."""
        given = read_args(args, "VolumeBindingArgs", {
            "bindTimeoutSeconds": integer, "shape": listed(nested({"utilization": integer, "score": integer})),
        })
        checked = {"bindTimeoutSeconds": _TIMEOUT, **given}
        if checked["bindTimeoutSeconds"] < 0:
            raise ValueError(f"`bindTimeoutSeconds` is {checked['bindTimeoutSeconds']}: it must not be negative")
        return checked

    @staticmethod
    def ignored_args(args: Mapping[str, Any]) -> Mapping[str, str]:  # noqa: ARG004 - the same for all
        """Return the valid v1 arguments without effect, with the reasons."""
        return {"shape": "nodes are not scored by the capacity of their volumes"}

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | Skip | None:
        """Skip pods without claims; refuse those with missing, lost, or unexpectedly unbound claims."""
        if not pod.object["spec"].get("volumes"):
            return SKIP_SHAPE
        claims = tuple(claims_of(pod))
        if not claims:
            return SKIP_SHAPE
        found = _look_at(pod, claims, snapshot)
        if isinstance(found, Refusal):
            return found
        state[VolumeBinding] = found
        return None

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes that cannot reach a volume, or on which a claim would get none."""
        found = state.get(VolumeBinding)
        if found is None:
            claims = tuple(claims_of(pod))
            found = _look_at(pod, claims, snapshot) if claims else _Claims()
        if isinstance(found, Refusal):
            refusal = found
            return Answer(np.zeros(snapshot.size, np.bool_), lambda _: refusal)
        with self._errors_counted("predicate"):
            conflict, missing = self._bound(found.volumes, snapshot)
            nothing: _Booleans = np.zeros(snapshot.size, np.bool_)
            unbound = short = nothing
            if found.waiting:
                found.matched = self._matched(found.waiting, snapshot)
                unbound, short = found.matched.unbound, found.matched.short
        failed = (conflict, unbound, short, missing)

        def explain(row: int) -> Refusal:
            texts = [reason for reason, each in zip(_REASONS, failed, strict=True) if each[row]]
            return Refusal("volumes", ", ".join(texts), Code.UNRESOLVABLE)

        def reasons(refused: Rows) -> dict[str, Rows]:
            groups = ((reason, refused[each[refused]]) for reason, each in zip(_REASONS, failed, strict=True))
            return {reason: some for reason, some in groups if len(some)}

        return Answer(~(conflict | unbound | short | missing), explain, reasons=reasons,
                      codes=lambda refused: {Code.UNRESOLVABLE: refused})

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Record the volumes of the pod's claims on its node, and those to provision there."""
        found = state.get(VolumeBinding)
        if not isinstance(found, _Claims) or found.matched is None:
            return None
        with self._errors_counted("assume"):
            self._assume(found, found.matched, snapshot, row)
        return None

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Drop the records of the pod's claims; what was written stays, and the next attempt goes on from there."""
        found = state.get(VolumeBinding)
        if isinstance(found, _Claims):
            self._assumed.forget(found.assumed)
            found.assumed = set()
            if found.binding:
                self._handle.count(_STAGE_ERRORS, operation="bind")
                found.end_binding()

    def pre_bind_pre_flight(self, state: CycleState, pod: PodInfo, node: str) -> bool:
        """Return whether the pod has claims to bind."""
        found = state.get(VolumeBinding)
        return isinstance(found, _Claims) and found.chosen is not None and not isinstance(
            self._handle.client, Simulated)

    def pre_bind(
        self, state: CycleState, pod: PodInfo, draft: dict[str, Any], node: str,
    ) -> Deferred | None:
        """Write the volumes of the pod's claims, and wait until the volume controller has bound them."""
        found = state.get(VolumeBinding)
        if not self.pre_bind_pre_flight(state, pod, node) or found is None:
            return None
        found.binding = True
        return bind_volumes(found.chosen, self._handle, self._reach, self._timeout, found.end_binding)

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether a node, or one of the pod's storage objects, was added or changed."""
        if event.kind == CLAIM:
            name = event.key.rpartition("/")[2]
            return event.key.partition("/")[0] == pod.namespace and any(each.name == name for each in claims_of(pod))
        return node_came_or_changed(event) or event.kind in _KINDS or is_of(event, pod)

    def _assume(self, found: _Claims, matched: Matched, snapshot: Snapshot, row: int) -> None:
        existing = tuple((claim, volume) for claim, volume, where in matched.bindings if where[row])
        bound = {key_of(claim) for claim, _ in existing}
        provisioned = tuple(each for each in found.waiting if key_of(each) not in bound)
        found.chosen = ChosenVolumes(snapshot.names[row], existing, provisioned)
        for claim, volume in existing:
            self._assumed.volumes[key_of(volume)] = volume, key_of(claim)
        new = [each for each in provisioned if not self._assumed.node_of(each, snapshot)]
        for claim in new:
            self._assumed.nodes[key_of(claim)] = claim, snapshot.names[row]
        found.assumed = bound.union(map(key_of, new))

    @contextmanager
    def _errors_counted(self, stage: str) -> Iterator[None]:
        """Count the exception that ends a stage, which is an error of the attempt."""
        try:
            yield
        except Exception:
            self._handle.count(_STAGE_ERRORS, operation=stage)
            raise

    def _bound(self, volumes: list[Json | None], snapshot: Snapshot) -> tuple[_Booleans, _Booleans]:
        """Return the nodes that cannot reach a volume, and those with a missing one; the first failure counts."""
        conflict: _Booleans = np.zeros(snapshot.size, np.bool_)
        for volume in volumes:
            if volume is None:
                return conflict, ~conflict
            reached = self._reach.of_volume(volume, snapshot)
            if reached is not None:
                conflict |= ~reached
        return conflict, np.zeros(snapshot.size, np.bool_)

    def _matched(self, claims: list[Json], snapshot: Snapshot) -> Matched:
        selected: list[tuple[Json, str]] = []
        others: list[Json] = []
        for claim in claims:
            node = self._assumed.node_of(claim, snapshot)
            if node:
                selected.append((claim, node))
            else:
                others.append(claim)
        return self._matcher.match(selected, others, snapshot, self._assumed.taken(snapshot))


def _look_at(pod: PodInfo, claims: tuple[VolumeClaim, ...], snapshot: Snapshot) -> _Claims | Refusal:
    items: list[Json] = []
    for claim in claims:
        item = claim_object(snapshot, pod.namespace, claim)
        fault = _fault(pod, claim, item)
        if fault:
            return Refusal("claims", fault, Code.UNRESOLVABLE)
        assert item is not None
        items.append(item)
    found = _Claims()
    for item in items:
        spec = item.get("spec") or {}
        if is_bound(item):
            found.volumes.append(snapshot.object(VOLUME, str(spec["volumeName"])))
            continue
        storage_class = snapshot.object(STORAGE_CLASS, class_of(item)) if class_of(item) else None
        # A claim that names its volume before it is bound to it is for the volume controller to bind, and so is one of
        # a class that does not exist.
        if spec.get("volumeName") or storage_class is None or not waits_for_consumer(storage_class):
            return Refusal("claims", _UNBOUND, Code.UNRESOLVABLE)
        found.waiting.append(item)
    return found


def _fault(pod: PodInfo, claim: VolumeClaim, item: Json | None) -> str:
    """Return the fault of a claim, in kube-scheduler's words, or an empty string."""
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
