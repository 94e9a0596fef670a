"""Whole nodes of requests (`nodeCacheCapable: false`), and the snapshot with them.

The nodes of a request belong to that request. Where the cluster's state has a source, the nodes that differ from it
are overlaid for one decision. Where it has none, the cluster consists of the nodes of requests, each with its last
content; the nodes of the current request are exact.

Objects are decoded once per content: the JSON of the last one of each name is compared byte by byte, since a
resourceVersion cannot be trusted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.source import PolicyError

from .bodies import ExcessiveError, MalformedBody, SentNode, weight_of

NODE_SECONDS: Final = 3600.0
"""The time for which a node is cached after the last request that named it."""
MOST_BYTES: Final = 224 * 1024 * 1024
"""The maximum memory of cached nodes, with their JSON: 5,000 ordinary nodes take half of it."""

_LONGEST_MESSAGE: Final = 1024
_NODE_BYTES: Final = 700
"""The memory of a cached node beside its content."""


class NodesOfRequests(Protocol):
    """Makes a view of the cluster in which nodes are as a request brought them."""

    def view(self, nodes: Sequence[SentNode], now: int) -> tuple[Snapshot, Mapping[str, str]]:
        """Return the snapshot of a decision at `now` (ns since the epoch), and the faults of unusable nodes by name.

        Raises:
            ExcessiveError: the nodes exceed the memory bound.
        """
        ...


@dataclass(slots=True)
class _Remembered:
    """The last content of a node's name; `node` is None where it is malformed, and `fault` is the reason."""

    raw: msgspec.Raw
    weight: int
    node: Mapping[str, Any] | None
    fault: str
    seen: float

    def refuse(self, name: str, fault: str) -> None:
        """Record why the node cannot be used."""
        self.node, self.fault = None, f"koord-policy: Node `{name[:256]}`: {fault}"[:_LONGEST_MESSAGE]

    def check(self, name: str, snapshot: Snapshot) -> None:
        """Try the node in place of the snapshot's node of that name; record a fault."""
        if self.node is not None:
            try:
                snapshot.overlay({name: NodeChange(node=self.node)})
            except ValueError as error:
                self.refuse(name, str(error))


class _Memory:
    """A cache of the last decoded content of each name, in least recently sent order, bounded by weight."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._known: OrderedDict[str, _Remembered] = OrderedDict()

    def find(self, node: SentNode, now: float) -> _Remembered | None:
        """Return the entry of exactly this content, or None."""
        known = self._known.get(node.name)
        if known is None or known.raw != node.raw:
            return None
        known.seen = now
        self._known.move_to_end(node.name)
        return known

    def add_all(self, fresh: Mapping[str, SentNode], beside: int, now: float) -> Mapping[str, _Remembered]:
        """Decode nodes and cache them in place of earlier contents; the request's others weigh `beside` bytes.

        Raises: ExcessiveError: the nodes of the request exceed the bound; nothing was decoded.
        """
        weights = {name: _NODE_BYTES + weight_of(bytes(node.raw)) for name, node in fresh.items()}
        weight = beside + sum(weights.values())
        if weight > self._most:
            raise ExcessiveError(
                f"the nodes take up to {weight} bytes of memory, at most {self._most} are taken: set "
                "`nodeCacheCapable: true` in kube-scheduler, and names travel instead")
        added: dict[str, _Remembered] = {}
        for name, node in fresh.items():
            self.forget(name)
            made = added[name] = self._known[name] = _Remembered(node.raw.copy(), weights[name], None, "", now)
            try:
                made.node = node.decoded()
            except MalformedBody as error:
                made.refuse(name, str(error))
            self._weight += weights[name]
        return added

    def forget(self, name: str) -> None:
        """Drop the entry of a name."""
        known = self._known.pop(name, None)
        if known is not None:
            self._weight -= known.weight

    def superfluous(self, since: float) -> Iterator[str]:
        """Drop and yield the names that were last sent at or before `since`, then the oldest beyond the bound."""
        while self._known:
            name, oldest = next(iter(self._known.items()))
            if oldest.seen > since and self._weight <= self._most:
                return
            self.forget(name)
            yield name


class OverlaidNodes:
    """For a cluster with a source: nodes that differ override it in an overlay, for one decision."""

    def __init__(self, cluster: Cluster, *, most_bytes: int = MOST_BYTES) -> None:
        self._cluster = cluster
        self._memory = _Memory(most_bytes)
        self._turn = 0.0

    def view(self, nodes: Sequence[SentNode], now: int) -> tuple[Snapshot, Mapping[str, str]]:
        """Return the view; see `NodesOfRequests`."""
        self._turn += 1
        index, rows = self._cluster.index, self._cluster.rows
        sent: dict[str, _Remembered] = {}
        fresh: dict[str, SentNode] = {}
        for node in nodes:
            row = index.get(node.name)
            if row is not None and node.version:
                metadata = rows[row].node["metadata"]
                if node.version == metadata.get("resourceVersion") and node.uid == metadata.get("uid"):
                    continue  # unchanged since the API server's version
            known = self._memory.find(node, self._turn)
            if known is None:
                fresh[node.name] = node
            else:
                sent[node.name] = known
        if fresh:
            sent |= self._memory.add_all(fresh, sum(known.weight for known in sent.values()), self._turn)
        cluster = self._cluster
        unknown = [known.node for name, known in sent.items() if name not in index and known.node is not None]
        if unknown:
            cluster, faults = cluster.with_nodes(unknown)
            for name, fault in faults.items():
                sent[name].refuse(name, fault)
        snapshot = cluster.snapshot(now)
        for name in fresh.keys() & index.keys():
            sent[name].check(name, snapshot)
        changes = {
            name: NodeChange(node=known.node) for name, known in sent.items()
            if name in index and not known.fault and not _is_same(known.node, rows[index[name]].node)}
        for _ in self._memory.superfluous(0.0):
            pass
        faults = {name: known.fault for name, known in sent.items() if known.fault}
        return snapshot.overlay(changes) if changes else snapshot, faults


class AdoptedNodes:
    """The cluster's nodes without a source: those of requests, with their last content.

    Nodes are removed `seconds` after they were last sent, by `timer`, a monotonic clock in seconds.
    """

    def __init__(
        self, cluster: Cluster, timer: Callable[[], float], *, seconds: float = NODE_SECONDS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._cluster = cluster
        self._timer = timer
        self._seconds = seconds
        self._memory = _Memory(most_bytes)

    def view(self, nodes: Sequence[SentNode], now: int) -> tuple[Snapshot, Mapping[str, str]]:
        """Return the view; see `NodesOfRequests`."""
        at, cluster = self._timer(), self._cluster
        faults: dict[str, str] = {}
        fresh: dict[str, SentNode] = {}
        beside = 0
        for node in nodes:
            known = self._memory.find(node, at)
            if known is None:
                fresh[node.name] = node
                continue
            beside += known.weight
            if known.fault:
                faults[node.name] = known.fault
        if fresh:
            added = self._memory.add_all(fresh, beside, at)
            # All new nodes are added at once: each single addition would sort all rows again.
            cluster.upsert_all(known.node for known in added.values() if known.node is not None)
            for name, known in added.items():
                if known.node is not None and cluster.object("Node", name) is not known.node:
                    try:
                        cluster.upsert(known.node)
                    except PolicyError as error:
                        fault = "; ".join(problem.message for problem in error.problems)
                        known.fault = f"koord-policy: {fault}"[:_LONGEST_MESSAGE]
                if known.fault:
                    faults[name] = known.fault
        cluster.delete_nodes(self._memory.superfluous(at - self._seconds))
        return cluster.snapshot(now), faults


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two objects of a node are equal except for their version and the times of heartbeats."""
    if one.keys() != other.keys():
        return False
    return all(_essence(key, one[key]) == _essence(key, other[key]) for key in one)


def _essence(section: str, value: Any) -> Any:
    if section == "metadata":
        return {key: each for key, each in value.items() if key not in ("resourceVersion", "managedFields")}
    if section == "status" and isinstance(value.get("conditions"), list):
        return {**value, "conditions": [
            {key: each for key, each in condition.items() if key != "lastHeartbeatTime"}
            if isinstance(condition, dict) else condition for condition in value["conditions"]]}
    return value
