"""The nominated nodes of pods that wait for their victims to terminate."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot


def nominated_node(pod: PodInfo) -> str:
    """Return the nominated node of a pod's status, or an empty string."""
    return str((pod.object.get("status") or {}).get("nominatedNodeName") or "")


class Nominations:
    """The nominated pods of one scheduler (implements `framework.handle.Nominator`); for the deciding thread."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[PodInfo, str]] = {}
        self._by_node: dict[str, dict[str, PodInfo]] = {}

    def nominated(self, node: str) -> tuple[PodInfo, ...]:
        """Return the pods that are nominated for the node."""
        return tuple(self._by_node.get(node, {}).values())

    def node_of(self, pod: PodInfo) -> str | None:
        """Return the pod's nominated node: as recorded here, else that of its status."""
        known = self._pods.get(pod.key)
        return (known[1] if known is not None else nominated_node(pod)) or None

    def recorded_node_of(self, pod: PodInfo) -> str | None:
        """Return the nominated node that is recorded here, or None."""
        known = self._pods.get(pod.key)
        return None if known is None else known[1] or None

    def nominate(self, pod: PodInfo, node: str) -> None:
        """Nominate the pod for the node; replaces an earlier nomination."""
        self.withdraw(pod)
        self._pods[pod.key] = (pod, node)
        if node:
            self._by_node.setdefault(node, {})[pod.key] = pod

    def clear(self, pod: PodInfo) -> None:
        """Record that the pod has no nominated node, until its status changes."""
        self.nominate(pod, "")

    def withdraw(self, pod: PodInfo) -> None:
        """Drop the pod's nomination, if there is one."""
        known = self._pods.pop(pod.key, None)
        if known is not None and known[1]:
            pods = self._by_node[known[1]]
            del pods[pod.key]
            if not pods:
                del self._by_node[known[1]]

    def update(self, before: PodInfo, pod: PodInfo) -> None:
        """Apply the nomination of a pending pod's status, if it has changed.

        An update without a node must not undo a nomination that has not reached the API server yet.
        """
        known = self._pods.get(pod.key)
        named = nominated_node(pod)
        if known is not None and named == nominated_node(before):
            self.nominate(pod, known[1])
        elif named:
            self.nominate(pod, named)
        else:
            self.withdraw(before)

    def rivals(
        self, pod: PodInfo, snapshot: Snapshot, ignored: Collection[str] = frozenset(),
    ) -> Mapping[str, NodeChange]:
        """Return, by node, the nominated pods of equal or higher priority, which must fit together with this one.

        `ignored` holds the UIDs of pods that are placed together with this one.
        """
        found: dict[str, NodeChange] = {}
        for node, pods in self._by_node.items():
            if node not in snapshot.index:
                continue
            there = snapshot.row(snapshot.index[node]).pods
            ahead = [
                each for each in pods.values()
                if each.priority >= pod.priority and each.key not in (pod.key, *there) and each.uid not in ignored
            ]
            if ahead:
                found[node] = NodeChange(add=ahead)
        return found
