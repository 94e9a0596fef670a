"""Gangs: pods that run together or not at all, and the groups of gangs that wait for each other.

(Koordinator's coscheduling/core/gang.go, gang_cache.go.) Operations per pod cost the number of gangs in its group,
which is one for most.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.documents import parse_duration
from koordpolicy.engine.kubernetes.vocabulary import POD_GROUP_LABEL

from ..allocation.annotations import annotations_of, labels_of
from .args import MATCH_POLICIES, ONCE_SATISFIED, ONLY_WAITING, WAITING_AND_RUNNING, CoschedulingArgs

STRICT: Final = "Strict"
NON_STRICT: Final = "NonStrict"

_DOMAIN: Final = "gang.scheduling.koordinator.sh/"
_DEPRECATED_LABEL: Final = POD_GROUP_LABEL + "/name"
_NAME: Final = _DOMAIN + "name"
_MIN_LABEL: Final = POD_GROUP_LABEL + "/min-available"
_MIN: Final = _DOMAIN + "min-available"
_TOTAL: Final = _DOMAIN + "total-number"
_MODE: Final = _DOMAIN + "mode"
_MATCH: Final = _DOMAIN + "match-policy"
_MATCH_SIG: Final = POD_GROUP_LABEL + "/match-policy"
_WAIT: Final = _DOMAIN + "waiting-time"
_GROUPS: Final = _DOMAIN + "groups"
NETWORK: Final = _DOMAIN + "network-topology-spec"

_SECOND: Final = 1_000_000_000


def gang_of(pod: PodInfo) -> str:
    """Return the id (`namespace/name`) of the gang that a pod belongs to; empty for none."""
    labels = labels_of(pod.object)
    name = labels.get(POD_GROUP_LABEL) or labels.get(_DEPRECATED_LABEL) or annotations_of(pod.object).get(_NAME)
    return f"{pod.namespace}/{name}" if name else ""


@dataclass(frozen=True, slots=True)
class GangSpec:
    """The specification of a gang; `wait` in nanoseconds, `group` holds the ids of all its gangs, sorted."""

    minimum: int
    total: int
    mode: str = STRICT
    match_policy: str = ONCE_SATISFIED
    wait: int = 0
    group: tuple[str, ...] = ()
    network: str = ""
    """The annotated network topology requirement; empty for none."""

    @staticmethod
    def of_pod(gang: str, pod: PodInfo, args: CoschedulingArgs) -> GangSpec | None:
        """Read the gang specification of a pod; None if it has no minimum number of members."""
        annotations = annotations_of(pod.object)
        minimum = _number(labels_of(pod.object).get(_MIN_LABEL) or annotations.get(_MIN))
        if minimum is None:
            return None
        wait = args.timeout
        # A missing, negative or malformed wait means the default one.
        with contextlib.suppress(KeyError, ValueError, TypeError):
            wait = parse_duration(annotations[_WAIT])
        return _spec(gang, annotations, minimum, wait, args)

    @staticmethod
    def of_pod_group(gang: str, item: Mapping[str, Any], args: CoschedulingArgs) -> GangSpec:
        """Read a PodGroup."""
        spec = item.get("spec") or {}
        seconds = spec.get("scheduleTimeoutSeconds")
        wait = seconds * _SECOND if isinstance(seconds, int) and seconds > 0 else args.timeout
        minimum = spec.get("minMember")
        return _spec(gang, annotations_of(item), minimum if isinstance(minimum, int) else 0, wait, args)


def _spec(gang: str, annotations: Mapping[str, Any], minimum: int, wait: int, args: CoschedulingArgs) -> GangSpec:
    mode = annotations.get(_MODE)
    policy = annotations.get(_MATCH) or annotations.get(_MATCH_SIG)
    total = _number(annotations.get(_TOTAL))
    return GangSpec(
        minimum=minimum,
        total=max(minimum, minimum if total is None else total),
        mode=mode if mode in (STRICT, NON_STRICT) else STRICT,
        match_policy=policy if policy in MATCH_POLICIES else args.match_policy,
        wait=wait,
        group=_group(gang, annotations.get(_GROUPS)),
        network=str(annotations.get(NETWORK) or ""),
    )


def _number(text: Any) -> int | None:
    try:
        return int(text)
    except (TypeError, ValueError):
        return None


def _group(gang: str, text: Any) -> tuple[str, ...]:
    try:
        ids = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        ids = None
    if not isinstance(ids, list) or not ids or not all(isinstance(each, str) for each in ids):
        return (gang,)
    return tuple(sorted(set(ids)))


@dataclass(slots=True, eq=False)
class Gang:
    """A gang: its specification (None until known), and the state of its members; all by pod key."""

    id: str
    spec: GangSpec | None = None
    from_pod_group: bool = False
    created: str = ""
    children: dict[str, PodInfo] = field(default_factory=dict)
    pending: dict[str, PodInfo] = field(default_factory=dict)
    """Members without a node."""
    waiting: dict[str, PodInfo] = field(default_factory=dict)
    """Members that have a node and wait for the others, or are being bound."""
    bound: dict[str, PodInfo] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    """The phases of former members that have succeeded or failed, and still exist."""

    @property
    def has_enough_children(self) -> bool:
        """Return whether there are enough members to schedule."""
        return self.spec is not None and len(self.children) >= self.spec.minimum

    def is_valid(self, once_satisfied: bool) -> bool:
        """Return whether enough members have a node."""
        if self.spec is None:
            return False
        match self.spec.match_policy:
            case policy if policy == ONLY_WAITING:
                return len(self.waiting) >= self.spec.minimum
            case policy if policy == WAITING_AND_RUNNING:
                return len(self.waiting) + len(self.bound) >= self.spec.minimum
            case _:
                return once_satisfied or len(self.waiting) >= self.spec.minimum


@dataclass(slots=True, eq=False)
class GangGroup:
    """The shared state of gangs that wait for each other."""

    ids: tuple[str, ...]
    once_satisfied: bool = False
    """True if every gang had enough members once; never reset."""
    representative: str = ""
    """The pod that represents all others in the queue; empty for none."""
    binding: dict[str, None] = field(default_factory=dict)
    """The released members that are not bound yet."""
    held: dict[str, None] = field(default_factory=dict)
    """The members that currently wait for the permit."""

    @property
    def id(self) -> str:
        """The ids of its gangs, sorted, with commas between them."""
        return ",".join(self.ids)

    def __str__(self) -> str:
        return f"[{' '.join(self.ids)}]"


class Gangs:
    """All gangs of a cluster, and their groups."""

    def __init__(self, args: CoschedulingArgs) -> None:
        self._args = args
        self._gangs: dict[str, Gang] = {}
        self._groups: dict[tuple[str, ...], GangGroup] = {}
        self._changed: dict[str, None] = {}
        """The ids of gangs that have changed since the last `take_changed`."""

    def get(self, gang: str) -> Gang | None:
        """Return a gang by id, or None."""
        return self._gangs.get(gang)

    def all(self) -> tuple[Gang, ...]:
        """Return all gangs, by id."""
        return tuple(self._gangs[gang] for gang in sorted(self._gangs))

    def group(self, gang: Gang) -> GangGroup:
        """Return the group of a gang."""
        ids = gang.spec.group if gang.spec is not None else (gang.id,)
        found = self._groups.get(ids)
        if found is None:
            found = self._groups[ids] = GangGroup(ids)
        return found

    def members(self, group: GangGroup) -> Iterable[Gang]:
        """Return the known gangs of a group."""
        return [self._gangs[each] for each in group.ids if each in self._gangs]

    def note_changed(self, gang: Gang) -> None:
        """Let `take_changed` return the gang."""
        self._changed[gang.id] = None

    def take_changed(self) -> list[str]:
        """Return the ids of the gangs that have changed since the last call."""
        changed, self._changed = list(self._changed), {}
        return changed

    def is_valid(self, group: GangGroup) -> bool:
        """Return whether all gangs of a group have enough members with a node."""
        return all(
            each in self._gangs and self._gangs[each].is_valid(group.once_satisfied) for each in group.ids
        )

    # Events

    def set_pod_group(self, gang_id: str, item: Mapping[str, Any]) -> Gang:
        """Apply a PodGroup; it takes precedence over the annotations of pods."""
        gang = self._gangs.setdefault(gang_id, Gang(gang_id))
        self.note_changed(gang)
        before = self.group(gang)
        gang.spec = GangSpec.of_pod_group(gang_id, item, self._args)
        gang.from_pod_group = True
        gang.created = str(item["metadata"].get("creationTimestamp") or "")
        group = self.group(gang)
        if gang.bound:
            group.once_satisfied = True
        if group is not before:
            self._drop_unused(before)
        return gang

    def remove_pod_group(self, gang_id: str) -> GangGroup | None:
        """Remove a gang that was made by a PodGroup; return its group."""
        gang = self._gangs.get(gang_id)
        return self._remove(gang) if gang is not None and gang.from_pod_group else None

    def add(self, pod: PodInfo, *, bound: bool) -> Gang | None:
        """Add a pod, or a new version of it; return its gang, or None for a pod without one."""
        gang_id = gang_of(pod)
        if not gang_id:
            return None
        gang = self._gangs.get(gang_id)
        if gang is None:
            gang = self._gangs[gang_id] = Gang(gang_id)
        if gang.spec is None and not gang.from_pod_group and POD_GROUP_LABEL not in labels_of(pod.object):
            before = self.group(gang)
            gang.spec = GangSpec.of_pod(gang_id, pod, self._args)
            if self.group(gang) is not before:
                self._drop_unused(before)
        self.note_changed(gang)
        gang.children[pod.key] = pod
        gang.ended.pop(pod.key, None)
        if bound:
            self.bind(gang, pod)
        elif pod.key in gang.waiting:
            gang.waiting[pod.key] = pod
        elif pod.key not in gang.bound:
            gang.pending[pod.key] = pod
        return gang

    def remove(self, pod: PodInfo) -> Gang | None:
        """Remove a pod; return its gang if that still exists."""
        gang = self._gangs.get(gang_of(pod))
        if gang is None:
            return None
        self.note_changed(gang)
        for members in (gang.children, gang.pending, gang.waiting, gang.bound):
            members.pop(pod.key, None)
        group = self.group(gang)
        group.held.pop(pod.key, None)
        group.binding.pop(pod.key, None)
        if group.representative == pod.key:
            group.representative = ""
        if not gang.children and not gang.from_pod_group:
            self._remove(gang)
            return None
        return gang

    def note_ended(self, pod: PodInfo) -> None:
        """Record the phase of a former member of an existing gang, until its object is deleted."""
        gang = self._gangs.get(gang_of(pod))
        if gang is not None:
            self.note_changed(gang)
            gang.ended[pod.key] = str((pod.object.get("status") or {}).get("phase") or "")

    def forget_ended(self, pod: PodInfo) -> None:
        """Forget a former member."""
        gang = self._gangs.get(gang_of(pod))
        if gang is not None:
            self.note_changed(gang)
            gang.ended.pop(pod.key, None)

    def hold(self, gang: Gang, pod: PodInfo) -> None:
        """Record that a member has a node, and waits."""
        self.note_changed(gang)
        gang.pending.pop(pod.key, None)
        gang.waiting[pod.key] = gang.children.setdefault(pod.key, pod)
        self.group(gang).held[pod.key] = None

    def release(self, group: GangGroup) -> tuple[str, ...]:
        """Release all held members, and return their keys: they are bound together."""
        keys = tuple(group.held)
        group.binding.update(group.held)
        group.held.clear()
        group.once_satisfied = True
        return keys

    def unhold(self, gang: Gang, pod: PodInfo) -> None:
        """Record that a member lost its node."""
        self.note_changed(gang)
        group = self.group(gang)
        group.held.pop(pod.key, None)
        group.binding.pop(pod.key, None)
        waited = gang.waiting.pop(pod.key, None)
        if waited is not None and pod.key not in gang.bound:
            gang.pending[pod.key] = waited

    def bind(self, gang: Gang, pod: PodInfo) -> None:
        """Record that a member is bound."""
        self.note_changed(gang)
        gang.pending.pop(pod.key, None)
        gang.waiting.pop(pod.key, None)
        gang.children[pod.key] = gang.bound[pod.key] = pod
        group = self.group(gang)
        group.once_satisfied = True
        group.held.pop(pod.key, None)
        if group.representative == pod.key:
            group.representative = ""
        if not any(each.waiting for each in self.members(group)):
            group.binding.clear()

    def _remove(self, gang: Gang) -> GangGroup:
        group = self.group(gang)
        del self._gangs[gang.id]
        self._drop_unused(group)
        return group

    def _drop_unused(self, group: GangGroup) -> None:
        if not any((gang.spec is not None and gang.spec.group == group.ids) or (gang.spec is None and
                   group.ids == (gang.id,)) for gang in self.members(group)):
            self._groups.pop(group.ids, None)


def summary(gangs: Gangs, gang: Gang) -> dict[str, Any]:
    """Return a summary of a gang as plain data."""
    group = gangs.group(gang)
    spec = gang.spec or replace(GangSpec(0, 0), group=(gang.id,))
    return {
        "name": gang.id, "waitTime": spec.wait // _SECOND, "createTime": gang.created, "mode": spec.mode,
        "gangMatchPolicy": spec.match_policy, "minRequiredNumber": spec.minimum, "totalChildrenNum": spec.total,
        "gangGroup": list(spec.group), "children": sorted(gang.children),
        "pendingChildren": sorted(gang.pending), "waitingForBindChildren": sorted(gang.waiting),
        "boundChildren": sorted(gang.bound), "onceResourceSatisfied": group.once_satisfied,
        "gangGroupInfo": {
            "gangGroupId": group.id, "representativePod": group.representative, "bindingMembers": sorted(group.binding),
            "waitingGangs": sorted(each.id for each in gangs.members(group) if each.waiting),
        },
        "gangFrom": "GangFromPodGroupCrd" if gang.from_pod_group else "GangFromPodAnnotation",
        "hasGangInit": gang.spec is not None,
    }
