"""The recorded cluster at a time, as the steps of a recording change it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from .records import Changed, Concluded, Decided, Existing, Header, Idle, Policies, Touched


@dataclass(frozen=True, slots=True)
class Resync:
    """All objects at one time: at the start of a recording, or after a gap."""

    time: int
    header: Header
    objects: Sequence[Existing]


Step: TypeAlias = Resync | Policies | Changed | Touched | Decided | Concluded | Idle


class RecordedState:
    """The objects of the recorded cluster at a time, and the last decision about each pod."""

    def __init__(self, step: Resync) -> None:
        self.header = step.header
        self.time = self.started = step.time
        self.policies: Policies | None = None
        self.objects: dict[tuple[str, str], Mapping[str, Any]] = {}
        """By kind and key."""
        self.bound: dict[str, str] = {}
        """The nodes of pods that are bound, and whose objects do not show it yet."""
        self.decided: dict[str, Decided] = {}
        """The last recorded decision about each pod, by key."""
        self._resync(step)

    def copy(self) -> RecordedState:
        """Return an independent state; the two share the objects."""
        twin = copy.copy(self)
        twin.objects, twin.bound, twin.decided = dict(self.objects), dict(self.bound), dict(self.decided)
        return twin

    def apply(self, step: Step) -> None:
        """Apply a step."""
        self.time = max(self.time, step.time)
        match step:
            case Resync():
                self._resync(step)
            case Policies():
                self.policies = step
            case Changed():
                self._change(step)
            case Decided():
                self.decided[step.pod] = step
                if step.node is not None:
                    self._bind(step.pod, step.node)
            case Concluded():
                if step.node is None:
                    self.bound.pop(step.pod, None)
            case _:
                pass

    def node_of(self, key: str) -> str:
        """Return the node of a pod; empty for none."""
        return self.bound.get(key) or node_named_by(self.objects.get(("Pod", key), {}))

    def steps(self, time: int) -> Iterator[Step]:
        """Yield the steps that begin a recording with this state, at a time."""
        yield Resync(time, self.header, [
            Existing(item, self.bound.get(key, "") if kind == "Pod" else "")
            for (kind, key), item in self.objects.items()])
        if self.policies is not None:
            yield msgspec.structs.replace(self.policies, time=time)

    def _resync(self, step: Resync) -> None:
        self.header, self.time, self.started = step.header, step.time, step.time
        self.objects.clear()
        self.bound.clear()
        for each in step.objects:
            if isinstance(each.object, dict) and (key := key_of(each.object)):
                kind = str(each.object.get("kind"))
                self.objects[kind, key] = each.object
                if each.node and kind == "Pod":
                    self._bind(key, each.node)

    def _change(self, step: Changed) -> None:
        place = step.kind, step.key
        if step.object is None:
            self.objects.pop(place, None)
        elif isinstance(step.object, dict) and (step.object.get("kind"), key_of(step.object)) == place:
            before = self.objects.get(place)
            if step.kind == "Pod" and before is not None and uid_of(before) != uid_of(step.object):
                self.bound.pop(step.key, None)  # another pod of that name
            self.objects[place] = step.object
        if step.kind == "Pod" and (step.object is None or node_named_by(step.object)):
            self.bound.pop(step.key, None)

    def _bind(self, key: str, node: str) -> None:
        item = self.objects.get(("Pod", key))
        if item is not None and not node_named_by(item):
            self.bound[key] = node


def key_of(item: Mapping[str, Any]) -> str:
    """Return `namespace/name` or `name` of a recorded object; empty for one without a name."""
    metadata = item.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        return ""
    namespace = metadata.get("namespace") or ("default" if item.get("kind") == "Pod" else "")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def uid_of(item: Mapping[str, Any]) -> str:
    """Return the UID of a recorded object; empty without one."""
    metadata = item.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    return uid if isinstance(uid, str) else ""


def node_named_by(item: object) -> str:
    """Return the node that a recorded pod's spec names; empty for none."""
    spec = item.get("spec") if isinstance(item, dict) else None
    node = spec.get("nodeName") if isinstance(spec, dict) else None
    return node if isinstance(node, str) else ""


def disruption_of(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the condition `DisruptionTarget` of a recorded pod if it is true, else None."""
    status = item.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for each in conditions if isinstance(conditions, list | tuple) else ():
        if isinstance(each, dict) and each.get("type") == "DisruptionTarget" and each.get("status") == "True":
            return each
    return None
