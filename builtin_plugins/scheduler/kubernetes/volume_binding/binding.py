"""Binding of claims: what is written for their volumes, and the wait until the volume controller has bound them.

(kube-scheduler's `BindPodVolumes`.) A claim gets an existing volume by the volume's `claimRef`, a new one by the
annotation with the node that was chosen for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.kubernetes.selectors import Json
from koordpolicy.plugin import AwaitObjects, Deferred, Handle

from ..volumes import CLAIM, SELECTED_NODE, VOLUME, is_bound, key_of, refers_to, selected_node
from .matching import Reach

_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ChosenVolumes:
    """The volumes of a pod's unbound claims on its node."""

    node: str
    existing: tuple[tuple[Json, Json], ...]
    """Claims, each with its volume."""
    provisioned: tuple[Json, ...]
    """Claims whose volumes are provisioned for the node."""


def bind_volumes(
    chosen: ChosenVolumes, handle: Handle, reach: Reach, timeout: int, bound: Callable[[], None],
) -> Deferred:
    """Return the writes for the volumes; the binding cycle goes on when all claims are bound, and `bound` is called.

    That takes `timeout` nanoseconds at most. What is written stays if the binding fails, as in kube-scheduler.
    """
    client, node, until = handle.client, chosen.node, handle.now() + timeout
    writes: list[tuple[str, Json, Json, Callable[[Json], bool]]] = [
        (VOLUME, volume, bound_volume(volume, claim), partial(_is_of, claim)) for claim, volume in chosen.existing]
    writes += [
        (CLAIM, claim, with_selected_node(claim, node), lambda item: selected_node(item) == node)
        for claim in chosen.provisioned]
    keys = tuple(key_of(claim) for claim in (*(each for each, _ in chosen.existing), *chosen.provisioned))
    message = f"binding volumes: {_claims(keys)} not bound after {timeout / _SECOND:g} s"

    def write() -> Refusal | AwaitObjects:
        written: dict[tuple[str, str], _Written] = {}
        for kind, before, after, is_in in writes:
            if before == after:
                continue  # an earlier attempt has written it
            try:
                answer = client.patch(_exact(before) if kind == VOLUME else before, after)
            except OSError as error:
                return _failed(str(error))
            written[kind, key_of(before)] = _Written(answer, is_in)
        wait = _Wait(chosen, written, handle.snapshot, reach, handle.now, until, message, bound)
        return wait.of({(CLAIM, key) for key in keys} | written.keys())

    return Deferred(write)


def bound_volume(volume: Json, claim: Json) -> dict[str, Any]:
    """Return a volume that refers to the claim; one that a user has reserved for the claim gets only its UID."""
    metadata, spec = claim["metadata"], volume.get("spec") or {}
    reference = {
        "apiVersion": "v1", "kind": CLAIM, "namespace": metadata.get("namespace") or "default",
        "name": metadata["name"], "uid": metadata.get("uid") or "",
    }
    if metadata.get("resourceVersion"):
        reference["resourceVersion"] = metadata["resourceVersion"]
    known = spec.get("claimRef")
    if known is not None and refers_to(known, metadata):
        reference = {**known, "uid": reference["uid"]}
        return {**volume, "spec": {**spec, "claimRef": reference}}
    annotations = {**(volume["metadata"].get("annotations") or {}), _BY_CONTROLLER: "yes"}
    return {**volume, "metadata": {**volume["metadata"], "annotations": annotations},
            "spec": {**spec, "claimRef": reference}}


def with_selected_node(claim: Json, node: str) -> dict[str, Any]:
    """Return a claim with the node for which its volume is provisioned."""
    annotations = {**(claim["metadata"].get("annotations") or {}), SELECTED_NODE: node}
    return {**claim, "metadata": {**claim["metadata"], "annotations": annotations}}


def _exact(volume: Json) -> Json:
    """Return a volume without its version, which the patch then sends: another claim's volume is not taken."""
    metadata = {key: value for key, value in volume["metadata"].items() if key != "resourceVersion"}
    return {**volume, "metadata": metadata}


@dataclass(slots=True)
class _Written:
    """A write of an object: what the API server returned, if that is known, and whether the cluster has shown it."""

    answer: Mapping[str, Any] | None
    is_in: Callable[[Json], bool]
    """Returns whether the object has what was written."""
    shown: bool = False

    def is_shown_by(self, item: Json) -> bool:
        """Return whether the cluster's object is at least as new as the write."""
        expected, known = _version(self.answer), _version(item)
        if expected is not None and known is not None:
            return known >= expected
        self.shown = self.shown or self.is_in(item)
        return self.shown


@dataclass(slots=True, eq=False)
class _Wait:
    """The condition for the end of a wait: all claims are bound."""

    chosen: ChosenVolumes
    written: Mapping[tuple[str, str], _Written]
    snapshot: Callable[[], Snapshot]
    reach: Reach
    now: Callable[[], int]
    until: int
    message: str
    bound: Callable[[], None]
    objects: set[tuple[str, str]] = field(default_factory=set)

    def of(self, objects: set[tuple[str, str]]) -> AwaitObjects:
        """Return the wait for these objects, until the time at which all waits of the pod end."""
        self.objects.update(objects)
        return AwaitObjects(self, frozenset(self.objects), max(0, self.until - self.now()), self.message)

    def __call__(self) -> Refusal | AwaitObjects | bool:
        """Return whether all claims are bound, what else to wait for, or why they will not be bound."""
        snapshot = self.snapshot()
        done = True
        for claim, volume in self.chosen.existing:
            found = self._existing(claim, volume, snapshot)
            if isinstance(found, Refusal):
                return found
            done = done and found
        for claim in self.chosen.provisioned:
            provisioned = self._provisioned(claim, snapshot)
            if isinstance(provisioned, Refusal | AwaitObjects):
                return provisioned
            done = done and provisioned
        if done:
            self.bound()
        return done

    def _existing(self, claim: Json, volume: Json, snapshot: Snapshot) -> Refusal | bool:
        name = str(volume["metadata"]["name"])
        now = snapshot.object(VOLUME, name)
        if now is not None and not self._is_shown(VOLUME, now):
            return False
        if now is None or not _is_of(claim, now):
            return _failed(f'ClaimRef got reset for pv "{name}"')
        current = self._claim(claim, snapshot)
        return current if isinstance(current, Refusal) else is_bound(current)

    def _provisioned(self, claim: Json, snapshot: Snapshot) -> Refusal | AwaitObjects | bool:
        current = self._claim(claim, snapshot)
        if isinstance(current, Refusal):
            return current
        if not self._is_shown(CLAIM, current):
            return False
        name = current["metadata"]["name"]
        if not current["metadata"].get("annotations"):
            return _failed(f'selectedNode annotation reset for PVC "{name}"')
        if selected_node(current) != self.chosen.node:
            return _failed(f'provisioning failed for PVC "{name}"')
        volume_name = str((current.get("spec") or {}).get("volumeName") or "")
        if not volume_name:
            return False
        volume = snapshot.object(VOLUME, volume_name)
        if volume is None:
            return self.of({(VOLUME, volume_name)})  # it may be reported after its claim
        reached = self.reach.of_volume(volume, snapshot)
        row = snapshot.index.get(self.chosen.node)
        if reached is not None and row is not None and not reached[row]:
            return _failed(f'pv "{volume_name}" node affinity doesn\'t match node "{self.chosen.node}"')
        return is_bound(current)

    def _claim(self, claim: Json, snapshot: Snapshot) -> Json | Refusal:
        """Return the claim as it is now, unless it was deleted."""
        current = snapshot.object(CLAIM, key_of(claim))
        uid = claim["metadata"].get("uid")
        if current is None or (uid and current["metadata"].get("uid") not in (None, "", uid)):
            return _failed(f'persistentvolumeclaim "{claim["metadata"]["name"]}" does not exist any more')
        return current

    def _is_shown(self, kind: str, item: Json) -> bool:
        written = self.written.get((kind, key_of(item)))
        return written is None or written.is_shown_by(item)


def _is_of(claim: Json, volume: Json) -> bool:
    """Return whether a volume refers to the claim, and not only to its name."""
    reference = (volume.get("spec") or {}).get("claimRef")
    return reference is not None and bool(reference.get("uid")) and refers_to(reference, claim["metadata"])


def _version(item: Mapping[str, Any] | None) -> int | None:
    """Return the version of an object, which grows with each change (Kubernetes compares them since 1.35)."""
    text = ((item or {}).get("metadata") or {}).get("resourceVersion")
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else None


def _failed(message: str) -> Refusal:
    return Refusal("volumes", f"binding volumes: {message}", Code.ERROR)


def _claims(keys: tuple[str, ...]) -> str:
    names = ", ".join(f'"{key.rpartition("/")[2]}"' for key in sorted(keys))
    return f"PVC {names} is" if len(keys) == 1 else f"PVCs {names} are"
