"""Preemption for all pending members of a gang group at once (Koordinator's job preemption).

In a what-if, all potential victims are removed from all nodes, the members are placed one after the other, and then as
many victims as possible are restored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.kubernetes.vocabulary import PREEMPTIBLE_LABEL
from koordpolicy.engine.scheduler.extensions.reservations import is_reserve_pod
from koordpolicy.engine.scheduler.verdict.messages import unavailable
from koordpolicy.plugin import Handle, Nomination, Refused

from ..allocation.annotations import labels_of
from ..kubernetes.default_preemption import ineligible
from .gangs import GangGroup, Gangs, gang_of

_DISABLED: Final = "scheduling.koordinator.sh/disable-preemptible"


def fit_error(snapshot: Snapshot, refused: Refused) -> str:
    """Return why no node takes a pod, in Kubernetes' words: the reasons with their numbers of nodes."""
    found: Counter[str] = Counter()
    first: Refusal | None = None
    whole = snapshot.size > 1
    for row in range(snapshot.size):
        try:
            reason = refused.reason(row)
        except KeyError:
            whole = False
            continue
        first = first or reason
        whole = whole and reason is first
        found[reason.message] += 1
    if whole and first is not None:  # the pod was rejected as a whole, not by single nodes
        return f"{unavailable(snapshot.size, {})} {first.message}."
    return unavailable(snapshot.size, found)


@dataclass(slots=True)
class _Node:
    """The simulated state of one node."""

    row: int
    victims: list[PodInfo]
    placed: list[PodInfo] = field(default_factory=list)

    def changed(self, snapshot: Snapshot, victims: list[PodInfo], placed: list[PodInfo]) -> Snapshot:
        """Return the snapshot without the evicted pods and with the placed ones."""
        change = NodeChange(remove=[each.key for each in victims], add=placed)
        return snapshot.overlay({snapshot.names[self.row]: change})


class JobPreemption:
    """Preempts for a whole gang group."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def make_room(
        self, gangs: Gangs, group: GangGroup, pod: PodInfo, snapshot: Snapshot, refused: Refused,
    ) -> Nomination | Refusal:
        """Nominate all pending members of the group, and return the pod's own nomination, with all victims.

        If preemption does not help, all nominations of the group are withdrawn.
        """
        members = [member for gang in gangs.members(group) for member in gang.pending.values()]
        waiting = sum(len(gang.waiting) for gang in gangs.members(group))
        total = sum(len(gang.children) for gang in gangs.members(group))
        found = self._find(members, pod, snapshot, refused)
        if isinstance(found, str):
            for member in members:
                self._handle.nominator.withdraw(member)
            return Refusal("preemption", found)
        nodes, victims = found
        for member in members:
            if member.key != pod.key:
                self._handle.nominator.nominate(member, nodes[member.key])
        message = f"preempt success, alreadyWaitingForBound: {waiting}/{total}"
        return Nomination(nodes[pod.key], tuple(victims), message)

    def _find(
        self, members: list[PodInfo], pod: PodInfo, snapshot: Snapshot, refused: Refused,
    ) -> tuple[dict[str, str], list[PodInfo]] | str:
        """Return node names by pod key and all victims, or why there are none."""
        if all(member.key != pod.key for member in members):
            return "no pending pods"
        for member in members:
            if why := ineligible(member, snapshot, refused):
                return why.replace("due to a ", "due to ")  # upstream's words here
        rows = refused.resolvable()
        if not len(rows):
            return "no nodes available"
        least = min(member.priority for member in members)
        nodes = [_Node(row, [each for each in snapshot.pods(row) if _may_take(each, least, pod)])
                 for row in rows.tolist()]
        if not any(node.victims for node in nodes):
            return "no potential victims"
        # Nodes with the least important victims come first.
        nodes.sort(key=lambda node: (max((each.priority for each in node.victims), default=-(2**31)),
                                     len(node.victims), node.row))
        left = [pod, *(member for member in members if member.key != pod.key)]
        for node in nodes:
            while left and self._takes(snapshot, refused, node, node.victims, [*node.placed, left[0]]):
                node.placed.append(left.pop(0))
            if not left:
                break
        if left:
            return "preemption not helpful"
        victims: list[PodInfo] = []
        for node in nodes:
            if node.placed:
                victims += self._needed(snapshot, refused, node)
        return {member.key: snapshot.names[node.row] for node in nodes for member in node.placed}, victims

    def _needed(self, snapshot: Snapshot, refused: Refused, node: _Node) -> list[PodInfo]:
        """Return the victims that cannot be restored; the most important ones are tried first."""
        victims = sorted(node.victims, key=lambda each: (each.priority, each.key))
        for victim in reversed(tuple(victims)):
            without = [each for each in victims if each is not victim]
            if self._takes(snapshot, refused, node, without, node.placed):
                victims = without
        return victims

    @staticmethod
    def _takes(
        snapshot: Snapshot, refused: Refused, node: _Node, victims: list[PodInfo], placed: list[PodInfo],
    ) -> bool:
        """Return whether the last of these pods fits together with the others.

        Filters run only for the pod whose cycle it is: for a member with other requests, its resources are compared
        in addition.
        """
        *others, last = (replace(each, node_name="") for each in placed)
        changed = node.changed(snapshot, victims, others)
        if not len(refused.passes(changed, np.array([node.row], np.intp))):
            return False
        row = changed.row(node.row)
        return all(row.requested[name] + amount <= row.allocatable[name] for name, amount in last.requests.items())


def _may_take(victim: PodInfo, least: int, pod: PodInfo) -> bool:
    labels = labels_of(victim.object)
    return (
        victim.priority < least and labels.get(PREEMPTIBLE_LABEL) != "false" and labels.get(_DISABLED) != "true"
        and not is_reserve_pod(victim) and (not gang_of(victim) or gang_of(victim) != gang_of(pod))
    )
