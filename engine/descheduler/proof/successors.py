"""Successors of evicted pods, and overlays on which pods have moved: with their requests and their measured usage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from koordpolicy.engine.cel.values.values import Timestamp
from koordpolicy.engine.cluster.objects.metrics import NodeMetric
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList, resource_list
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot

from ..migration.reservations import RESULT_ANNOTATIONS
from ..migration.workloads import controller_of

_SUFFIX: Final = "-successor"
_LONGEST_NAME: Final = 253


def owner_of(pod: PodInfo) -> Mapping[str, Any] | None:
    """Return the owner reference that will replace the pod: its controller, else its first owner; None if none will."""
    controller = controller_of(pod.object)
    if controller is not None:
        return controller
    owners = pod.object["metadata"].get("ownerReferences") or ()
    return owners[0] if owners else None


def workload_of(pod: PodInfo) -> str:
    """Return the workload of a pod as `namespace/kind/name`; empty if it has no owner."""
    owner = owner_of(pod)
    return "" if owner is None else f"{pod.namespace}/{owner.get('kind') or ''}/{owner.get('name') or ''}"


def successor_of(pod: PodInfo, now: int) -> PodInfo:
    """Return the pod that its controller creates after its eviction: pending, new, without results of scheduling.

    It has another name: plugins that count assigned pods by name must not take it for its predecessor.
    """
    metadata = dict(pod.object["metadata"])
    metadata["name"] = f"{pod.name[:_LONGEST_NAME - len(_SUFFIX)]}{_SUFFIX}"
    metadata["uid"] = f"{pod.uid}{_SUFFIX}"
    metadata["creationTimestamp"] = str(Timestamp(now))
    annotations = metadata.get("annotations")
    if annotations:
        metadata["annotations"] = {key: value for key, value in annotations.items() if key not in RESULT_ANNOTATIONS}
    spec = {key: value for key, value in pod.object["spec"].items() if key != "nodeName"}
    return PodInfo.of({**pod.object, "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})


def without_pods(snapshot: Snapshot, pods: Iterable[PodInfo]) -> Snapshot:
    """Return an overlay without these pods of its nodes, as it would be measured then.

    Pods that take no room are left out: finished ones, and those of unknown nodes.
    """
    leaving: dict[str, list[PodInfo]] = {}
    for pod in pods:
        row = snapshot.index.get(pod.node_name)
        if row is not None and pod.key in snapshot.row(row).pods:
            leaving.setdefault(pod.node_name, []).append(pod)
    return snapshot.overlay({
        node: NodeChange(
            remove=[pod.key for pod in of_node], metric=_less(snapshot.row(snapshot.index[node]).metric, of_node),
        ) for node, of_node in leaving.items()
    })


def with_successor(snapshot: Snapshot, pod: PodInfo, node: str, entry: Mapping[str, Any] | None) -> Snapshot:
    """Return an overlay with a successor on a node; `entry` is its predecessor's part of a NodeMetric, if there is
    one.
    """
    metric = snapshot.row(snapshot.index[node]).metric
    return snapshot.overlay({node: NodeChange(add=[pod], metric=_more(metric, pod, entry))})


def metric_entry(snapshot: Snapshot, pod: PodInfo) -> Mapping[str, Any] | None:
    """Return the part of its node's NodeMetric about a pod; None without a recent metric, or if it lacks the pod."""
    row = snapshot.index[pod.node_name]
    metric = snapshot.row(row).metric
    if metric is None or not snapshot.is_fresh(row):
        return None
    entries = (metric.object.get("status") or {}).get("podsMetric") or ()
    return next((each for each in entries if _key(each) == pod.key), None)


def _key(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('namespace', '')}/{entry.get('name', '')}"


def _less(metric: NodeMetric | None, pods: Iterable[PodInfo]) -> Mapping[str, Any] | None:
    if metric is None:
        return None
    removed_usage = {pod.key: metric.pods[pod.key] for pod in pods if pod.key in metric.pods}
    if not removed_usage:
        return None
    entries = [each for each in metric.object["status"].get("podsMetric") or () if _key(each) not in removed_usage]
    return _changed(metric, entries, removed_usage.values(), -1)


def _more(metric: NodeMetric | None, pod: PodInfo, entry: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if metric is None or metric.updated is None or entry is None:
        return None
    usage = resource_list(entry.get("podUsage") or {}, "resources", "status.podsMetric[].podUsage")
    entries = [*(metric.object["status"].get("podsMetric") or ()),
               {**entry, "namespace": pod.namespace, "name": pod.name}]
    return _changed(metric, entries, [usage], 1)


def _changed(
    metric: NodeMetric, entries: list[Mapping[str, Any]], usages: Iterable[ResourceList], sign: int,
) -> dict[str, Any]:
    """Return a NodeMetric object with the usage of pods added (`sign` 1) or subtracted (-1), in all its statistics."""
    change: dict[str, int] = {}
    for usage in usages:
        for name, amount in usage.items():
            change[name] = change.get(name, 0) + sign * amount
    status = dict(metric.object["status"])
    node = dict(status.get("nodeMetric") or {})
    if node.get("nodeUsage"):
        node["nodeUsage"] = _moved(node["nodeUsage"], change)
    aggregated = node.get("aggregatedNodeUsages")
    if aggregated:
        node["aggregatedNodeUsages"] = [
            {**each, "usage": {name: _moved(usage, change) for name, usage in (each.get("usage") or {}).items()}}
            for each in aggregated
        ]
    status |= {"nodeMetric": node, "podsMetric": entries}
    return {**metric.object, "status": status}


def _moved(usage: Mapping[str, Any], change: Mapping[str, int]) -> dict[str, Any]:
    amounts = resource_list(usage, "resources", "usage")
    moved = {name: max(0, amount + change.get(name, 0)) for name, amount in amounts.items()}
    return {**usage, "resources": {
        name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in moved.items()
    }}
