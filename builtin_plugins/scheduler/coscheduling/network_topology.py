"""Network topology of gangs: placement of all members below as few switches as possible.

The layers come from the ClusterNetworkTopology and the labels of nodes. A gang names the layers in which all its
members must share one switch (`MustGather`). (Koordinator's frameworkext/networktopology.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.kubernetes.selectors import matches_node, tolerates, untolerated
from koordpolicy.plugin import Plan

from ..allocation.annotations import labels_of
from .gangs import GangGroup, Gangs

KIND: Final = "ClusterNetworkTopology"
MUST_GATHER: Final = "MustGather"
_CORDONED: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the network, from the top: its name, and the labels that name a node's place in it."""

    name: str
    label_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """The network requirement of a gang: the layers that its members must share, and the multiples of its subgroups."""

    must_gather: frozenset[str]
    multiples: Mapping[str, int] = field(default_factory=dict)


def network_spec(gangs: Gangs, group: GangGroup) -> NetworkSpec | None:
    """Return the network requirement of the gangs of a group; None if none has a valid one."""
    gather: set[str] = set()
    multiples: dict[str, int] = {}
    found = False
    for gang in gangs.members(group):
        text = gang.spec.network if gang.spec is not None else ""
        try:
            rules = json.loads(text).get("gatherStrategy") or () if text else None
        except (ValueError, AttributeError):
            continue
        for rule in rules or ():
            found = True
            layer = str(rule.get("layer") or "")
            if rule.get("strategy") == MUST_GATHER:
                gather.add(layer)
            multiple = rule.get("podCountMultiple")
            if isinstance(multiple, int) and multiple > 1:
                multiples[layer] = multiple
    return NetworkSpec(frozenset(gather), multiples) if found else None


def topology_of(snapshot: Snapshot) -> tuple[Layer, ...] | None:
    """Return the layers of the cluster's network from the top; None if it is not described."""
    items = snapshot.objects(KIND)
    if not items:
        return None
    given = (items[min(items)].get("spec") or {}).get("networkTopologySpec") or ()
    below = {str(each.get("parentTopologyLayer") or ""): each for each in given}
    layers: list[Layer] = []
    parent = ""
    while parent in below and len(layers) <= len(below):
        each = below[parent]
        keys = each.get("labelKey") or ()
        parent = str(each.get("topologyLayer") or "")
        layers.append(Layer(parent, tuple(keys)))
    return tuple(layers)


@dataclass(slots=True, eq=False)
class _Place:
    """A node of the topology's tree; a leaf is a node of the cluster."""

    layer: str
    name: str
    children: dict[str, _Place] = field(default_factory=dict)
    row: int = -1
    slots: int = 0
    """The number of members for which there are free resources below it."""
    placed: int = 0
    """The number of members that run below it already."""

    def all(self) -> Iterator[_Place]:
        yield self
        for child in self.children.values():
            yield from child.all()


def plan(  # noqa: PLR0917 - a group, and where it may go
    layers: Sequence[Layer], spec: NetworkSpec, snapshot: Snapshot, rows: Rows, members: Iterable[PodInfo],
    placed: Iterable[PodInfo],
) -> Plan | Refusal:
    """Return the node of each member, or why there is no placement.

    Only resources are compared, on nodes whose labels, taints and cordon admit the members; other filters may still
    refuse the chosen nodes when the members are scheduled.
    """
    members = sorted(members, key=lambda pod: (pod.name, pod.key))
    if not members:
        return Refusal("network", "no pending pods")
    there: dict[str, int] = {}
    for pod in placed:
        there[pod.node_name] = there.get(pod.node_name, 0) + 1
    root = _tree(layers, snapshot, rows, members, there)
    _sum_up(root, spec)
    candidates = _candidates(root, layers, spec, len(members))
    if not candidates:
        listed = ", ".join(f"{each.layer}/{each.name}: {each.slots}" for each in list(root.children.values())[:10])
        message = ("no candidate topology nodes can accommodate job, desiredOfferSlot: "
                   f"{len(members)}, {listed or 'no topology nodes'}, 0/{snapshot.size} nodes are available")
        return Refusal("network", message)
    chosen = min(candidates, key=lambda each: (-each.placed, each.slots, each.name))
    nodes = _fill(chosen, len(members), spec)
    return Plan({pod.key: snapshot.names[row] for pod, row in zip(members, nodes, strict=True)})


def _tree(
    layers: Sequence[Layer], snapshot: Snapshot, rows: Rows, members: Sequence[PodInfo], there: Mapping[str, int],
) -> _Place:
    root = _Place("", "")
    for row in map(int, rows.tolist()):
        labels = labels_of(snapshot.node(row))
        place, known = root, True
        for layer in layers:
            if not layer.label_keys:
                continue  # the nodes themselves
            name = next((str(labels[key]) for key in layer.label_keys if labels.get(key)), "")
            if not name:
                known = False  # a node without a known place is in no domain
                break
            place = place.children.setdefault(name, _Place(layer.name, name))
        if known:
            node = snapshot.names[row]
            leaf = _Place("", node, row=row, slots=_room(snapshot, row, members), placed=there.get(node, 0))
            place.children[f"\0{node}"] = leaf
    return root


def _room(snapshot: Snapshot, row: int, members: Sequence[PodInfo]) -> int:
    """Return the number of members that fit on a node, in the order in which they are placed."""
    at = snapshot.row(row)
    free_pods = at.allocatable["pods"] - len(at.pods)
    free = ResourceList({name: amount - at.requested[name] for name, amount in at.allocatable.items()})
    judged: dict[int, bool] = {}
    count = 0
    for pod in members:
        key = id(pod.object.get("spec"))
        if key not in judged:
            judged[key] = _lets_in(pod, at.node)
        if not judged[key] or count >= free_pods:
            break
        if any(free[name] < amount for name, amount in pod.requests.items() if amount):
            break
        for name, amount in pod.requests.items():
            free[name] -= amount
        count += 1
    return count


def _lets_in(pod: PodInfo, node: Mapping[str, Any]) -> bool:
    if (node.get("spec") or {}).get("unschedulable"):
        tolerations = (pod.object.get("spec") or {}).get("tolerations") or ()
        if not any(tolerates(each, _CORDONED) for each in tolerations):
            return False
    return untolerated(pod.object, node) is None and matches_node(pod.object, node)


def _sum_up(place: _Place, spec: NetworkSpec) -> None:
    for child in place.children.values():
        _sum_up(child, spec)
        place.slots += child.slots
        place.placed += child.placed
    multiple = spec.multiples.get(place.layer, 1)
    place.slots -= place.slots % multiple


def _candidates(root: _Place, layers: Sequence[Layer], spec: NetworkSpec, pod_count: int) -> list[_Place]:
    """Return the places of the lowest layer that hold all pods, within the required layer."""
    depth = {"": 0} | {layer.name: index for index, layer in enumerate(layers, start=1)}
    least = max((depth[name] for name in spec.must_gather if name in depth), default=0)
    fitting = [each for each in root.all() if each.row < 0 and each.slots >= pod_count and depth[each.layer] >= least]
    if any(each.row >= 0 and each.slots >= pod_count for each in root.all()):
        return [each for each in root.all() if each.row >= 0 and each.slots >= pod_count]
    deepest = max((depth[each.layer] for each in fitting), default=-1)
    return [each for each in fitting if depth[each.layer] == deepest]


def _fill(place: _Place, pod_count: int, spec: NetworkSpec) -> list[int]:
    """Return a row per pod: children are filled one after the other, the largest first."""
    if place.row >= 0:
        return [place.row] * pod_count
    rows: list[int] = []
    for child in sorted(place.children.values(), key=lambda each: (-each.slots, each.name)):
        many = min(child.slots, pod_count - len(rows))
        if many > 0:
            rows += _fill(child, many, spec)
    return rows


def by_closeness(
    layers: Sequence[Layer], snapshot: Snapshot, rows: Rows, placed: Iterable[PodInfo],
) -> list[int]:
    """Return rows in the order of preference for a late member: closest to the most other members first.

    Nodes are compared from the lowest layer up: how many members are on the node, below its switch, and so on.
    """
    counts: dict[tuple[str, ...], int] = {}
    for pod in placed:
        row = snapshot.index.get(pod.node_name)
        if row is not None:
            for place in _places(layers, snapshot, row):
                counts[place] = counts.get(place, 0) + 1

    def order(row: int) -> tuple[tuple[int, ...], int]:
        return tuple(-counts.get(place, 0) for place in reversed(_places(layers, snapshot, row))), row

    return sorted(rows.tolist(), key=order)


def _places(layers: Sequence[Layer], snapshot: Snapshot, row: int) -> list[tuple[str, ...]]:
    """Return the paths of a node's places from the top layer down to itself."""
    labels = labels_of(snapshot.node(row))
    path: tuple[str, ...] = ()
    found = []
    for layer in layers:
        if layer.label_keys:
            path = (*path, next((str(labels[key]) for key in layer.label_keys if labels.get(key)), ""))
            found.append(path)
    return [*found, (*path, snapshot.names[row])]
