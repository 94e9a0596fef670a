"""Coscheduling: gangs of pods run together or not at all.

The behaviour is Koordinator's (pkg/scheduler/plugins/coscheduling). One pod represents a group of gangs in the queue.
Once it is tried, the others follow one by one, ahead of the queue, until enough of them have a node and are allowed
together, or one of them is unschedulable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.explanation import Finding, Mark
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Code, Refusal, Scores
from koordpolicy.engine.scheduler.extensions.reservations import reserve_pod_of
from koordpolicy.plugin import (
    SKIP,
    Changed,
    CycleState,
    Event,
    Handle,
    Nomination,
    OnlyNodes,
    Plan,
    Refused,
    Simulated,
    Skip,
    Wait,
)

from ..allocation.annotations import annotations_of
from .args import ONCE_SATISFIED, check_args, convert, default_args, ignored_args
from .controller import PodGroupStatus, unschedulable
from .gangs import STRICT, Gang, GangGroup, Gangs, gang_of, summary
from .network_topology import by_closeness, network_spec, plan, topology_of
from .preemption import JobPreemption, fit_error

_GROUP_ID: Final = "bind-gang-group-id"
_MEMBERS: Final = "bind-gang-member-count"
_INTERNAL: Final = "internal.scheduling.koordinator.sh/"
_DEPRECATED: Final = "scheduling.koordinator.sh/"
_OF_BINDING: Final = frozenset(domain + name for domain in (_INTERNAL, _DEPRECATED) for name in (_GROUP_ID, _MEMBERS))
"""The annotations of pods that are bound together."""
_PATCH_PENDING: Final = "GangPendingPodsConditionPatch"
REJECTED_BY_JOB: Final = "JobRejectPlugin"
"""The name under which the waiting pods of a group are rejected after a failure; their nominations stay."""


@dataclass(slots=True)
class GangCycle:
    """One attempt for a whole group, from its first pod to the last; a scheduler has one at a time."""

    group: tuple[str, ...]
    first: str
    attempted: dict[str, None] = field(default_factory=dict)
    offered: dict[str, None] = field(default_factory=dict)
    """The members that were returned as the next pod."""
    failure: str = ""
    """The reason why a member was unschedulable; empty as long as all members had a node."""
    root_cause: str = ""
    plan: Mapping[str, str] | None = None
    """Node names by pod key, if the whole group was planned."""
    preemption: str = ""
    """The result of a preemption attempt for the whole group; empty before it."""


class RootCause:
    """The key of the cycle state for a bool: False if another pod of the gang caused the failure."""


class NetworkOrder:
    """The key of the cycle state for the rows by closeness to the other members, the closest first."""


class Coscheduling:
    """Gangs. For the arguments see docs/plugins/coscheduling.md."""

    name = "Coscheduling"
    check_args = staticmethod(check_args)
    ignored_args = staticmethod(ignored_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._args = convert(default_args(args))
        self._handle = handle
        self.gangs = Gangs(self._args)
        self.cycle: GangCycle | None = None
        self._network = self._args.network
        self._preemption = JobPreemption(handle) if self._args.preempts else None
        handle.events.on(("PodGroup", "Pod"), self._on_event)

    # The queue

    def pre_enqueue(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Admit one pod of a group with enough members to the queue, as the representative of the others."""
        found = self._to_try(pod)
        if not isinstance(found, tuple):
            return found
        gang, group = found
        cycle = self.cycle
        if cycle is not None and cycle.group == group.ids and pod.key not in cycle.attempted:
            return _refuse(f"gangGroup {group.id} is scheduling and this pod has not been attempted")
        if pod.key not in gang.pending:
            return _refuse(f"pod {pod.key} is not exists in gangCache")
        if not group.representative:
            group.representative = pod.key
        if group.representative != pod.key:
            return _refuse(f"representative pod {group.representative} of gangGroupID {group.id} already exists")
        return None

    def next_pod(self) -> str | None:
        """Return the next pod of the current group; None if all were tried, or there is none."""
        cycle = self.cycle
        if cycle is None:
            return None
        for gang_id in cycle.group:
            gang = self.gangs.get(gang_id)
            if gang is None:
                self._finish(cycle, f"gang `{gang_id}` was deleted")
                return None
            if not cycle.failure:
                for key, pod in gang.pending.items():
                    # Offered once: a pod that is not in this queue must not block the others.
                    if key not in cycle.offered and key not in cycle.attempted and _may_be_tried(pod):
                        cycle.offered[key] = None
                        return key
        self._finish(cycle, "all pending pods is already been attempted")
        return None

    def depends_on(self, rules: frozenset[str]) -> frozenset[Path]:
        """Return no paths: changes of the cluster do not help a pod that this plugin refused.

        It is activated by a new member, or by another one of its group that is tried again (see `_activate`).
        """
        return frozenset()

    # The scheduling cycle

    def before_pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Changed | Refusal | None:
        """Check the group again, and begin its cycle with its first pod."""
        found = self._to_try(pod)
        if not isinstance(found, tuple):
            return found
        _, group = found
        cycle = self.cycle
        # A pod that returns after a failure starts a new cycle, even before the next pod is taken.
        if cycle is None or cycle.group != group.ids or (cycle.failure and pod.key in cycle.attempted):
            cycle = self.cycle = GangCycle(group.ids, pod.key)
            group.representative = ""
            if self._network and network_spec(self.gangs, group) is not None and topology_of(snapshot) is None:
                return _refuse("no cluster network topology")
        cycle.attempted[pod.key] = None
        if cycle.failure:
            state[RootCause] = False
            return _refuse(cycle.failure)
        return None

    def pre_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot,
    ) -> Refusal | OnlyNodes | Skip | None:
        """Limit the pod to its planned node, if the whole group was planned."""
        cycle = self._cycle_of(pod)
        if cycle is None or cycle.plan is None:
            return SKIP
        node = cycle.plan.get(pod.key)
        return OnlyNodes(frozenset((node,))) if node else Refusal("plan", "no planned pods", Code.ERROR)

    def find_one_node(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
    ) -> Plan | Refusal | Skip:
        """Plan the whole group with its first pod, if the gang requires a network topology."""
        cycle = self._cycle_of(pod)
        if not self._network or cycle is None or cycle.plan is not None or cycle.first != pod.key:
            return SKIP
        group = self._group_of(cycle)
        spec, topology = network_spec(self.gangs, group), topology_of(snapshot)
        if spec is None or topology is None:
            return SKIP
        members = [each for gang in self.gangs.members(group) for each in gang.pending.values()]
        placed = [each for gang in self.gangs.members(group) for each in (*gang.waiting.values(), *gang.bound.values())]
        found = plan(topology, spec, snapshot, rows, members, placed)
        if isinstance(found, Plan):
            cycle.plan = found.nodes
        return found

    def post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, refused: Refused,
    ) -> Nomination | Refusal | None:
        """Preempt for the whole group, if enabled, once per cycle."""
        cycle = self._cycle_of(pod)
        if cycle is None:
            return None
        if self._preemption is not None and state.get(RootCause, True):
            if cycle.preemption:
                message = f"preemption already attempted by {cycle.root_cause} with message {cycle.preemption}"
                return Refusal("preemption", message)
            cycle.root_cause = pod.key
            found = self._preemption.make_room(self.gangs, self._group_of(cycle), pod, snapshot, refused)
            cycle.preemption = found.message
            return found
        if cycle.preemption and not state.get(RootCause, True):
            return Refusal("preemption", cycle.preemption)
        return None

    def after_post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, refused: Refused,
        nomination: Nomination | None,
    ) -> None:
        """Reject the group of an unschedulable pod, if it is strict."""
        if gang_of(pod):
            self.give_up(pod, lambda: fit_error(snapshot, refused))

    def give_up(self, pod: PodInfo, reason: Callable[[], str]) -> Refusal:
        """Reject all waiting pods of a pod's group in strict mode; return the message.

        `reason` returns why the pod is unschedulable; it is called once per cycle of the group.
        """
        gang_id = gang_of(pod)
        if not gang_id:
            return Refusal("gang", "")
        gang = self.gangs.get(gang_id)
        if gang is None:
            return Refusal("gang", f'Pod "{pod.name}" cannot find Gang "{gang_id.partition("/")[2]}"')
        group = self.gangs.group(gang)
        if _is_done(gang, group):
            return Refusal("gang", "")
        cycle = self.cycle
        if cycle is None or cycle.group != group.ids:
            cycle = GangCycle(group.ids, pod.key, {pod.key: None})
        if not cycle.failure:
            waiting = sum(len(each.waiting) for each in self.gangs.members(group))
            cycle.root_cause = pod.key
            cycle.failure = (
                f'GangGroup "{group.id}" gets rejected due to member Pod "{pod.key}" is unschedulable with reason'
                f' "{reason()}", alreadyWaitForBound: {waiting}'
            )
            if _PATCH_PENDING in self._handle.feature_gates and not isinstance(self._handle.client, Simulated):
                self._report_pending(group, cycle)
        if gang.spec is not None and gang.spec.mode == STRICT:
            self._reject(group, cycle.failure)
            return Refusal("gang", f'Gang "{gang_id}" gets rejected due to pod is unschedulable')
        return Refusal("gang", "")

    def pre_score(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
    ) -> Refusal | Skip | None:
        """Sort the nodes by distance to the other members, if the gang requires a network topology."""
        gang = self.gangs.get(gang_of(pod)) if self._network and gang_of(pod) else None
        topology = topology_of(snapshot) if gang is not None else None
        if gang is None or topology is None or network_spec(self.gangs, self.gangs.group(gang)) is None:
            return SKIP
        members = self.gangs.members(self.gangs.group(gang))
        placed = [each for gang in members for each in (*gang.waiting.values(), *gang.bound.values())]
        state[NetworkOrder] = by_closeness(topology, snapshot, rows, placed)
        return None

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer nodes by their closeness to the other members: the closest has 100, the last one 0."""
        values = np.zeros(snapshot.size, np.int64)
        order: list[int] = state.get(NetworkOrder, [])
        for place, row in enumerate(order):
            values[row] = HIGHEST_SCORE - HIGHEST_SCORE * place // max(1, len(order) - 1)
        return Scores(values)

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Do nothing."""

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Record that a member lost its node; if the gang is strict, reject all waiting members."""
        gang = self.gangs.get(gang_of(pod))
        if gang is None or pod.key not in gang.waiting:
            return
        self.gangs.unhold(gang, pod)
        group = self.gangs.group(gang)
        if gang.spec is not None and gang.spec.mode == STRICT and not _is_done(gang, group):
            message = f'Gang "{gang.id}" gets rejected due to Pod "{pod.name}" in Unreserve'
            self._reject(group, message)

    def permit(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int,
    ) -> Refusal | Wait | None:
        """Hold the pod until all gangs of its group have enough members with a node."""
        gang_id = gang_of(pod)
        if not gang_id:
            return None
        gang = self.gangs.get(gang_id)
        if gang is None:
            return Refusal("gang", "Gang not found")
        self.gangs.hold(gang, pod)
        group = self.gangs.group(gang)
        if not self.gangs.is_valid(group):
            return Wait(gang.spec.wait if gang.spec is not None else 0)
        for key in self.gangs.release(group):
            if key != pod.key:
                self._handle.waiting.allow(key, self.name)
        if self.cycle is not None and self.cycle.group == group.ids:
            self.cycle = None
        self._activate(group)
        return None

    def pre_bind_pre_flight(self, state: CycleState, pod: PodInfo, node: str) -> bool:
        """Return whether the pod has a gang, or annotations of a former attempt."""
        return bool(gang_of(pod)) or not _OF_BINDING.isdisjoint(annotations_of(pod.object))

    def pre_bind(
        self, state: CycleState, pod: PodInfo, draft: dict[str, Any], node: str,
    ) -> None:
        """Annotate the number of members that are bound together with the pod."""
        self._mark(pod, draft)

    def pre_bind_reservation(
        self, state: CycleState, reservation: dict[str, Any], node: str,
    ) -> Refusal | None:
        """Annotate the number of members that become available together with the Reservation."""
        pod = reserve_pod_of(reservation)
        if pod is not None:
            self._mark(pod, reservation)
        return None

    def post_bind(self, state: CycleState, pod: PodInfo, node: str) -> None:
        """Take note that a member is bound."""
        gang = self.gangs.get(gang_of(pod))
        if gang is not None:
            self.gangs.bind(gang, pod.on(node))

    # Lifecycle of gangs

    def _on_event(self, event: Event) -> None:
        if event.kind == "PodGroup":
            if event.new is not None:
                self._activate(self.gangs.group(self.gangs.set_pod_group(event.key, event.new)))
            else:
                self._deleted(event.key)
        elif event.new_pod is not None:
            if event.old_pod is not None and gang_of(event.old_pod) not in ("", gang_of(event.new_pod)):
                self._removed(event.old_pod)
            if not event.assumed:
                # A waiting pod has its node in this snapshot, but is not bound until its object shows it.
                bound = bool((event.new_pod.object.get("spec") or {}).get("nodeName"))
                self._added(event.new_pod, bound=bound)
        elif event.new is not None:
            self._ended(PodInfo.of(event.new))
        elif event.old_pod is not None:
            self._removed(event.old_pod)
        elif event.old is not None:
            self.gangs.forget_ended(PodInfo.of(event.old))

    def _added(self, pod: PodInfo, *, bound: bool) -> None:
        gang = self.gangs.add(pod, bound=bound)
        if gang is not None and not bound:
            self._activate(self.gangs.group(gang))

    def _removed(self, pod: PodInfo) -> None:
        known = self.gangs.get(gang_of(pod))
        if known is None:
            return
        stood_for_all = self.gangs.group(known).representative == pod.key
        gang = self.gangs.remove(pod)
        if gang is None:
            self._deleted(known.id)
        elif stood_for_all:
            self._activate(self.gangs.group(gang))

    def _ended(self, pod: PodInfo) -> None:
        """Take note that a pod has succeeded or failed: no member any more, it counts in the PodGroup's status."""
        if gang_of(pod):
            self._removed(pod)
            self.gangs.note_ended(pod)

    def _deleted(self, gang_id: str) -> None:
        group = self.gangs.remove_pod_group(gang_id)
        if self.cycle is not None and gang_id in self.cycle.group:
            self._finish(self.cycle, f"gang `{gang_id}` was deleted")
        elif group is not None and any(gang.waiting for gang in self.gangs.members(group)):
            self._reject(group, f"gang `{gang_id}` was deleted")

    def _activate(self, group: GangGroup) -> None:
        """Activate one pod of a group that has enough members; all pods if the group was satisfied once."""
        members = list(self.gangs.members(group))
        if not all(gang.has_enough_children for gang in members) or len(members) < len(group.ids):
            return
        if self.cycle is not None and self.cycle.group == group.ids:
            return
        keys = [key for gang in members if _is_done(gang, group) for key in gang.pending]
        if not keys:
            first = group.representative or next((key for gang in members for key in gang.pending), "")
            keys = [first] if first else []
        if keys:
            self._handle.queue.activate(keys)

    # Checks

    def _gang_of(self, pod: PodInfo) -> tuple[Gang | None, Refusal | None]:
        gang_id = gang_of(pod)
        if not gang_id:
            return None, None
        gang = self.gangs.get(gang_id)
        if gang is None:
            return None, _refuse(f"can't find gang, gangName: {gang_id}, podName: {pod.key}")
        if gang.spec is None:
            return None, _refuse(f"gang has not init, gangName: {gang_id}, podName: {pod.key}")
        return gang, None

    def _to_try(self, pod: PodInfo) -> tuple[Gang, GangGroup] | Refusal | None:
        """Return the pod's gang and group if the group may be tried; None if there is nothing to wait for."""
        gang, refusal = self._gang_of(pod)
        if gang is None:
            return refusal
        group = self.gangs.group(gang)
        if _is_done(gang, group):
            return None
        message = self._checked(gang, group, pod)
        if message is None:
            return gang, group
        if group.representative == pod.key:
            group.representative = ""
        return _refuse(message)

    def _checked(self, gang: Gang, group: GangGroup, pod: PodInfo) -> str | None:
        """Return why the group may not be tried; None if it may."""
        found = {each: self.gangs.get(each) for each in group.ids}
        missing = [each for each, member in found.items() if member is None]
        unknown = [each for each, member in found.items() if member is not None and member.spec is None]
        parts = []
        if missing:
            parts.append(f"memberGangs [{' '.join(missing)}] doesn't exists")
        if unknown:
            parts.append(f"memberGangs [{' '.join(unknown)}] has not init")
        if any(member is not None and member.spec is not None and not member.has_enough_children
               for member in found.values()):
            # As in Koordinator the whole group is named, not the incomplete gangs.
            parts.append(f"memberGangs {group} child pod not collect enough")
        if not parts:
            return None
        return f"gangGroup {group} basic check: {', '.join(parts)}, current gang: {gang.id}, podName: {pod.key}"

    def _cycle_of(self, pod: PodInfo) -> GangCycle | None:
        gang = self.gangs.get(gang_of(pod)) if gang_of(pod) else None
        if gang is None or self.cycle is None or self.cycle.group != self.gangs.group(gang).ids:
            return None
        return self.cycle

    def _group_of(self, cycle: GangCycle) -> GangGroup:
        gang = next(gang for gang_id in cycle.group if (gang := self.gangs.get(gang_id)) is not None)
        return self.gangs.group(gang)

    # Rejection and release of groups

    def _finish(self, cycle: GangCycle, message: str) -> None:
        self.cycle = None
        group = next((self.gangs.group(gang) for each in cycle.group if (gang := self.gangs.get(each))), None)
        if group is None:
            return
        strict = any(gang.spec is not None and gang.spec.mode == STRICT for gang in self.gangs.members(group))
        # A group that is not strict continues to wait for unschedulable members.
        if strict and group.held and not self.gangs.is_valid(group):
            self._reject(group, cycle.failure or message)

    def _reject(self, group: GangGroup, message: str) -> None:
        """Reject all waiting members of the group's gangs; they become pending."""
        for gang in self.gangs.members(group):
            for pod in list(gang.waiting.values()):
                if pod.key in group.held:
                    self.gangs.unhold(gang, pod)
                    self._handle.waiting.reject(pod.key, REJECTED_BY_JOB, message)

    def _report_pending(self, group: GangGroup, cycle: GangCycle) -> None:
        """Write the reason to the conditions of the members that were not tried, once per cycle."""
        size = self._handle.snapshot().size
        message = f"0/{size} nodes are available: {cycle.failure}.{f' {cycle.preemption}' if cycle.preemption else ''}"
        for gang in self.gangs.members(group):
            for key, pod in gang.pending.items():
                modified = None if key in cycle.attempted else unschedulable(pod.object, message, self._handle.now())
                if modified is None:
                    continue
                try:
                    self._handle.client.patch(pod.object, modified)
                except OSError as error:
                    self._handle.log.warning("the condition of pod `%s` was not written: %s", key, error)

    def _mark(self, pod: PodInfo, draft: dict[str, Any]) -> None:
        gang = self.gangs.get(gang_of(pod)) if gang_of(pod) else None
        group = self.gangs.group(gang) if gang is not None else None
        annotations = dict((draft.get("metadata") or {}).get("annotations") or {})
        for name in _OF_BINDING:
            annotations.pop(name, None)
        for domain in (_INTERNAL, _DEPRECATED):
            if group is not None and pod.key in group.binding and len(group.binding) > 1:
                annotations[domain + _GROUP_ID] = group.id
                annotations[domain + _MEMBERS] = str(len(group.binding))
        if annotations or (draft.get("metadata") or {}).get("annotations"):
            draft.setdefault("metadata", {})["annotations"] = annotations

    # Controllers and endpoints

    def controllers(self) -> tuple[PodGroupStatus, ...]:
        """Return the controller that writes PodGroups' statuses."""
        return (PodGroupStatus(self._handle, self.gangs),)

    # Explanations

    def explain_waiting(self, pod: PodInfo) -> Sequence[Finding]:
        """Return the state of the pod's gang, and why the group may not be tried."""
        gang_id = gang_of(pod)
        if not gang_id:
            return ()
        gang, refusal = self._gang_of(pod)
        if gang is None or gang.spec is None:
            message = refusal.message if refusal is not None else ""
            return (Finding("gang", f"gang {gang_id}: {message}", Mark.PLAIN, {"name": gang_id, "reason": message}),)
        group = self.gangs.group(gang)
        check = None if _is_done(gang, group) else self._checked(gang, group, pod)
        members = len(gang.children)
        states = {"bound": len(gang.bound), "waiting for the others": len(gang.waiting), "pending": len(gang.pending)}
        text = ", ".join(f"{number} {state}" for state, number in states.items() if number)
        others = [each for each in group.ids if each != gang.id]
        parts = [Finding("reason", check)] if check is not None else []
        if others:
            parts.append(Finding("group", f"it runs together with {', '.join(others)}", facts={"gangs": others}))
        return (Finding(
            "gang", f"gang {gang.id}: {members} of at least {gang.spec.minimum} members ({text})", Mark.PLAIN,
            {"name": gang.id, "minimum": gang.spec.minimum, "members": members, "bound": len(gang.bound),
             "waiting": len(gang.waiting), "pending": len(gang.pending), "satisfiedOnce": group.once_satisfied},
            tuple(parts)),)

    def endpoints(self) -> Mapping[str, Any]:
        """Return the endpoints of all gangs (`gangs`), and of one (`gang/{namespace}/{name}`)."""
        return {
            "gangs": lambda: {gang.id: summary(self.gangs, gang) for gang in self.gangs.all()},
            "gang/{namespace}/{name}": self._summary,
        }

    def _summary(self, namespace: str, name: str) -> dict[str, Any] | None:
        gang = self.gangs.get(f"{namespace}/{name}")
        return None if gang is None else summary(self.gangs, gang)


def _is_done(gang: Gang, group: GangGroup) -> bool:
    """Return whether a gang has no requirements any more: its group was satisfied once, which is sufficient for it."""
    return gang.spec is not None and gang.spec.match_policy == ONCE_SATISFIED and group.once_satisfied


def _may_be_tried(pod: PodInfo) -> bool:
    spec, metadata = pod.object.get("spec") or {}, pod.object["metadata"]
    return not spec.get("schedulingGates") and not metadata.get("deletionTimestamp")


def _refuse(message: str) -> Refusal:
    return Refusal("gang", message, Code.UNRESOLVABLE)
