"""Edits: changes of a pod or a node that people could make, with their texts and the resulting pod and node.

An edit is made for one pod and one node of a snapshot, and is tried on an overlay; it changes nothing itself. Fields
that people cannot change (a node's name, its zone, the kubelet's reports) have no edit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.explain.clauses import ABSENT, ClauseChange
from koordpolicy.engine.cel.vector.encoding import value_at
from koordpolicy.engine.explanation import listed, shown
from koordpolicy.engine.kubernetes.vocabulary import (
    DEFAULT_PRIORITIES,
    PRIORITY_BANDS,
    PRIORITY_CLASS_LABEL,
    QOS_CLASS_LABEL,
    QOS_CLASSES,
)

from .objects.metrics import STATISTICS
from .objects.node_rows import REGION, ZONE, NodeRow
from .objects.pods import PodInfo, canonical_amount
from .overlay import NodeChange
from .snapshot import Snapshot

Json = Mapping[str, Any]

_FIXED_PREFIXES: Final = ("kubernetes.io/", "beta.kubernetes.io/", "topology.kubernetes.io/", "node.kubernetes.io/",
                          "failure-domain.beta.kubernetes.io/")
_FIXED_POD: Final = frozenset((
    ("metadata", "name"), ("metadata", "namespace"), ("metadata", "uid"), ("metadata", "creationTimestamp"),
    ("spec", "nodeName"),
))
_CRITICAL: Final = ("system-node-critical", "system-cluster-critical")
_CLASS_SIZE: Final = 0.8
"""The size of a change of the QoS class: large, as it changes the pod's guarantees."""
_MOST_PODS: Final = 5
"""The maximum number of pods that an edit removes from a node."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change, with a text that follows `it would run if the pod ...` or `... node n1 ...`.

    `size` orders edits, the smallest change first.

    Of `pod` (another pod object) and `node` one is set. `facts` are the path, its value, and its new value.
    """

    text: str
    size: float
    pod: Json | None = None
    node: NodeChange | None = None
    facts: Mapping[str, Any] | None = None

    def apply(self, pod: PodInfo, snapshot: Snapshot, name: str) -> tuple[PodInfo, Snapshot]:
        """Return the pod and the snapshot after the change, which applies to that node if it is of a node.

        Raises:
            ValueError: the result is not a valid pod or node.
        """
        if self.pod is not None:
            pod = PodInfo.of(self.pod)
        if self.node is not None:
            snapshot = snapshot.overlay({name: self.node})
        return pod, snapshot


def edits_of(change: ClauseChange, pod: PodInfo, snapshot: Snapshot, row: int | None) -> Iterator[Edit]:
    """Yield the edits that lead to a change of the value at a path; none if nobody can change it.

    `row` is that of the node, None for the pod alone.
    """
    match change.path:
        case ("requests", resource) | ("podInfo", "requests", resource):
            yield from request_edits(pod, resource, change.after)
        case ("limits", resource) | ("podInfo", "limits", resource):
            yield from request_edits(pod, resource, change.after, which="limits")
        case ("podInfo", "qosClass") if change.after in QOS_CLASSES:
            yield qos_edit(pod, str(change.after))
        case ("podInfo", "priorityBand") if change.after in PRIORITY_BANDS:
            yield band_edit(pod, str(change.after))
        case ("podInfo", "priority") if isinstance(change.after, int):
            yield _pod_field(pod, ("spec", "priority"), change)
        case ("pod", *rest) if tuple(rest[:2]) not in _FIXED_POD and rest[0] in ("metadata", "spec"):
            yield _pod_field(pod, tuple(rest), change)
        case _ if row is not None:
            yield from _node_edits(change, snapshot.row(row))
        case _:
            return


def may_vary(path: Path) -> bool:
    """Return whether there may be edits of the value at a path."""
    match path:
        case ("requests" | "limits", _) | ("podInfo", "requests" | "limits", _) | ("usage" | "allocatable", _):
            return True
        case ("podInfo", "qosClass" | "priorityBand" | "priority") | ("requested", _) | ("usage", _, _):
            return True
        case ("nodeInfo", "pods" | "unschedulable") | ("node", "spec", "unschedulable"):
            return True
        case ("pod", "metadata" | "spec", *_):
            return tuple(path[1:3]) not in _FIXED_POD and len(path) > 2
        case ("node", "metadata", "labels" | "annotations", key):
            return not key.startswith(_FIXED_PREFIXES) and key not in (ZONE, REGION)
        case _:
            return False


def _node_edits(change: ClauseChange, row: NodeRow) -> Iterator[Edit]:
    match change.path:
        case ("usage", resource):
            yield from usage_edits(row, resource, change.after)
        case ("usage", statistic, resource) if statistic in STATISTICS:
            yield from usage_edits(row, resource, change.after, statistic=statistic)
        case ("allocatable", resource):
            yield from allocatable_edits(row, resource, change.after)
        case ("requested", resource) if isinstance(change.after, int):
            yield from eviction_edits(row, resource, row.requested[resource] - change.after)
        case ("nodeInfo", "pods") if isinstance(change.after, int):
            yield from eviction_edits(row, "pods", len(row.pods) - change.after)
        case ("nodeInfo" | "node", *_, "unschedulable") if not change.after or change.after is ABSENT:
            yield uncordon_edit(row.node)
        case ("node", "metadata", "labels", key) if may_vary(change.path):
            yield label_edit(row.node, key, change.after)
        case ("node", "metadata", "annotations", key) if may_vary(change.path):
            yield _node_annotation(row.node, key, change.after)
        case _:
            return


def amount_unit(resource: str) -> str:
    """Return the unit of a resource's canonical amounts, as `explanation.shown` takes it."""
    name = resource.rpartition("/")[2]
    if name == "cpu" or name.endswith("-cpu"):
        return "milli-cores"
    return "bytes" if name in ("memory", "ephemeral-storage") or name.endswith("-memory") else ""


def quantity(resource: str, amount: int) -> str:
    """Return a canonical amount as the API takes it."""
    return f"{amount}m" if resource == "cpu" and amount % 1000 else str(amount // 1000 if resource == "cpu" else amount)


# Edits of the pod


def request_edits(pod: PodInfo, resource: str, after: object, *, which: str = "requests") -> Iterator[Edit]:
    """Yield the edit after which the total request (or limit) of the pod for a resource is this amount."""
    amounts = pod.requests if which == "requests" else pod.limits
    before = amounts[resource]
    if not isinstance(after, int) or isinstance(after, bool) or after < 0 or after == before:
        return
    changed = _with_amount(pod, resource, after - before, which)
    if changed is None:
        return
    verb = "requested" if which == "requests" else "were limited to"
    yield Edit(f"{verb} {_difference(resource, before, after)}", _relative(before, after), pod=changed,
               facts=_facts(f"{which}.{resource}", before, after))


def _difference(resource: str, before: int, after: int) -> str:
    """Return `2 cores less cpu (1 core instead of 3 cores)`."""
    unit, less = amount_unit(resource), "less" if after < before else "more"
    now, then = shown(before, unit), shown(after, unit)
    if now.partition(" ")[2].rstrip("s") == then.partition(" ")[2].rstrip("s"):
        then = then.partition(" ")[0]
    return f"{shown(abs(after - before), unit)} {less} {resource} ({then} instead of {now})"


def _with_amount(pod: PodInfo, resource: str, difference: int, which: str) -> Json | None:
    """Return the pod with another amount in one container: the one with the largest amount, or the first."""
    changed: Any = copy.deepcopy(dict(pod.object))
    holders = changed["spec"]["containers"]
    own = [_own_amount(each, resource, which) for each in holders]
    place = max(range(len(own)), key=own.__getitem__)
    if own[place] + difference < 0:
        return None
    resources = holders[place]["resources"] = holders[place].get("resources") or {}
    amount = {**(resources.get(which) or {}), resource: quantity(resource, own[place] + difference)}
    resources[which] = amount
    limit = (resources.get("limits") or {}).get(resource)
    if which == "requests" and limit is not None and difference > 0:
        resources["limits"] = {**resources["limits"], resource: amount[resource]}
    try:
        total = getattr(PodInfo.of(changed), which)[resource]
    except ValueError:
        return None
    expected = (pod.requests if which == "requests" else pod.limits)[resource] + difference
    return changed if total == expected else None


def _own_amount(container: Json, resource: str, which: str) -> int:
    amounts = (container.get("resources") or {}).get(which) or {}
    return canonical_amount(resource, amounts.get(resource, 0), resource)


def toleration_edit(pod: PodInfo, taint: Json) -> Edit:
    """Return the edit that makes the pod tolerate a taint."""
    toleration = {"key": taint.get("key", ""), "operator": "Equal" if taint.get("value") else "Exists",
                  **({"value": taint["value"]} if taint.get("value") else {}), "effect": taint.get("effect", "")}
    changed: Any = copy.deepcopy(dict(pod.object))
    changed["spec"]["tolerations"] = [*(changed["spec"].get("tolerations") or ()), toleration]
    return Edit(f"tolerated the taint {taint_text(taint)}", 0.2, pod=changed,
                facts={"path": "pod.spec.tolerations", "add": toleration})


def taint_text(taint: Json) -> str:
    """Return a taint as kubectl writes it."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key', '')}{value}:{taint.get('effect', '')}"


def label_edit(item: Json, key: str, value: object, *, of_pod: bool = False) -> Edit:
    """Return the edit that gives a node (or a pod) a label, or removes it (`ABSENT`)."""
    metadata = item.get("metadata") or {}
    labels = {name: each for name, each in (metadata.get("labels") or {}).items() if name != key}
    before = (metadata.get("labels") or {}).get(key)
    if value is not ABSENT:
        labels[key] = str(value)
    changed = {**item, "metadata": {**metadata, "labels": labels}}
    text = f"had no label {key}" if value is ABSENT else f"had the label {key}={value}"
    facts = _facts(f"{'pod' if of_pod else 'node'}.metadata.labels[{key}]", before, None if value is ABSENT else value)
    if of_pod:
        return Edit(text, 0.3, pod=changed, facts=facts)
    return Edit(text, 0.4, node=NodeChange(node=changed), facts=facts)


def qos_edit(pod: PodInfo, name: str) -> Edit:
    """Return the edit that gives the pod another QoS class."""
    return replace(label_edit(pod.object, QOS_CLASS_LABEL, name, of_pod=True), size=_CLASS_SIZE)


def band_edit(pod: PodInfo, band: str) -> Edit:
    """Return the edit that moves the pod to another priority band: by its label if it has one, else by its class."""
    labels = (pod.object.get("metadata") or {}).get("labels") or {}
    if PRIORITY_CLASS_LABEL in labels:
        return replace(label_edit(pod.object, PRIORITY_CLASS_LABEL, band, of_pod=True), size=_CLASS_SIZE)
    spec = {**pod.object["spec"], "priorityClassName": band, "priority": DEFAULT_PRIORITIES[band]}
    return Edit(f"were of the priority class {band}", _CLASS_SIZE, pod={**pod.object, "spec": spec},
                facts=_facts("podInfo.priorityBand", pod.priority_band, band))


def _pod_field(pod: PodInfo, path: Path, change: ClauseChange) -> Edit:
    changed = _written(pod.object, path, change.after)
    name = _dotted(path)
    before = None if change.before is ABSENT else change.before
    if change.after is ABSENT:
        text = f"had no {name}"
    elif before is None:
        text = f"had {name}: {shown(change.after)}"
    else:
        text = f"had {name}: {shown(change.after)} instead of {shown(before)}"
    after = None if change.after is ABSENT else change.after
    return Edit(text, 0.5, pod=changed, facts=_facts(f"pod.{name}", before, after))


def without_selection_edit(pod: PodInfo, path: Path, what: str) -> Edit:
    """Return the edit that removes a restriction of the pod's nodes from its spec; `what` names it."""
    return Edit(f"had no {what}", 0.6, pod=_written(pod.object, path, ABSENT),
                facts={"path": f"pod.{_dotted(path)}"})


def without_annotation_edit(pod: PodInfo, key: str) -> Edit:
    """Return the edit that removes an annotation of the pod."""
    path = ("metadata", "annotations", key)
    return _pod_field(pod, path, ClauseChange(("pod", *path), value_at(pod.object, path), ABSENT))


# Edits of the node


def usage_edits(row: NodeRow, resource: str, after: object, *, statistic: str = "") -> Iterator[Edit]:
    """Yield the edit after which the node uses this amount of a resource; less only.

    All amounts of the resource in its NodeMetric shrink in proportion: statistics, and usage of pods.
    """
    metric = row.metric
    if metric is None or not isinstance(after, int) or after < 0:
        return
    holder = metric.usage.get(statistic) if statistic else metric.usage
    before = dict(holder).get(resource)
    if not isinstance(before, int) or after >= before:
        return
    of = f", as {statistic}" if statistic else ""
    yield Edit(f"used {_difference(resource, before, after)}{of}", 0.5 + _relative(before, after),
               node=NodeChange(metric=_scaled(metric.object, resource, after, before)),
               facts=_facts(f"usage.{statistic}{'.' if statistic else ''}{resource}", before, after))


def _scaled(item: Any, resource: str, after: int, before: int) -> Any:
    """Return a NodeMetric in which all amounts of a resource are reduced in proportion."""
    if isinstance(item, Mapping):
        return {
            key: {name: _less(name, amount, after, before) if name == resource else amount
                  for name, amount in value.items()}
            if key == "resources" and isinstance(value, Mapping) else _scaled(value, resource, after, before)
            for key, value in item.items()
        }
    return [_scaled(each, resource, after, before) for each in item] if isinstance(item, list) else item


def _less(name: str, amount: object, after: int, before: int) -> str:
    return quantity(name, canonical_amount(name, amount, name) * after // before)


def allocatable_edits(row: NodeRow, resource: str, after: object) -> Iterator[Edit]:
    """Yield the edit after which this amount of a resource is allocatable on the node; more only."""
    before = row.allocatable[resource]
    if not isinstance(after, int) or after <= before:
        return
    status = row.node["status"]
    changed = {**row.node, "status": {**status, "allocatable": {**status["allocatable"],
                                                               resource: quantity(resource, after)}}}
    yield Edit(f"had {_difference(resource, before, after)}", 2 + _relative(before, after),
               node=NodeChange(node=changed), facts=_facts(f"allocatable.{resource}", before, after))


def eviction_edits(row: NodeRow, resource: str, amount: int) -> Iterator[Edit]:
    """Yield the edit that removes pods of the node that together request this amount of a resource (`pods`: a number).

    The fewest pods, and of these the ones with the smallest requests.
    """
    if amount <= 0:
        return
    held = {pod.key: 1 if resource == "pods" else pod.requests[resource] for pod in row.pods.values() if _can_go(pod)}
    chosen = _fewest(held, amount)
    if not chosen:
        return
    freed = sum(held[key] for key in chosen)
    text = f"gave up {listed(chosen, _MOST_PODS)}"
    if resource != "pods":
        each = "which requests" if len(chosen) == 1 else "which together request"
        text += f", {each} {shown(freed, amount_unit(resource))} {resource}"
    yield Edit(text, 1 + 0.2 * len(chosen) + 0.1 * _relative(amount, freed), node=NodeChange(remove=chosen),
               facts={"path": f"requested.{resource}", "remove": list(chosen), "needed": amount, "freed": freed})


def _can_go(pod: PodInfo) -> bool:
    """Return whether a pod would not be recreated at once, and is not essential to the node."""
    owners = (pod.object.get("metadata") or {}).get("ownerReferences") or ()
    if any(owner.get("kind") in ("DaemonSet", "Node") for owner in owners):
        return False
    return (pod.object.get("spec") or {}).get("priorityClassName") not in _CRITICAL


def removal_edit(row: NodeRow, keys: Sequence[str]) -> Edit:
    """Return the edit that removes pods of the node."""
    return Edit(f"gave up {listed(keys, _MOST_PODS)}", 1 + 0.2 * len(keys), node=NodeChange(remove=tuple(keys)),
                facts={"path": f"pods on {row.name}", "remove": list(keys)})


def _fewest(held: Mapping[str, int], amount: int) -> tuple[str, ...]:
    """Return the keys of the fewest pods with this amount together, the last one as small as possible."""
    chosen: list[str] = []
    left = amount
    rest = sorted((key for key, value in held.items() if value > 0), key=lambda key: (held[key], key))
    while left > 0 and rest and len(chosen) < _MOST_PODS:
        enough = next((key for key in rest if held[key] >= left), None)
        taken = rest[-1] if enough is None else enough
        rest.remove(taken)
        chosen.append(taken)
        left -= held[taken]
    return tuple(chosen) if left <= 0 else ()


def uncordon_edit(node: Json) -> Edit:
    """Return the edit that uncordons a node: it removes `unschedulable` and its taint."""
    spec = node.get("spec") or {}
    taints = [each for each in spec.get("taints") or () if each.get("key") != "node.kubernetes.io/unschedulable"]
    changed = {**node, "spec": {**{key: value for key, value in spec.items() if key not in ("unschedulable", "taints")},
                                **({"taints": taints} if taints else {})}}
    return Edit("were not cordoned", 0.3, node=NodeChange(node=changed),
                facts=_facts("node.spec.unschedulable", before=True, after=None))


def untaint_edit(node: Json, taint: Json) -> Edit:
    """Return the edit that removes a taint of the node."""
    spec = node.get("spec") or {}
    taints = [each for each in spec.get("taints") or () if each != taint]
    changed = {**node, "spec": {**spec, "taints": taints}}
    return Edit(f"had no taint {taint_text(taint)}", 0.4, node=NodeChange(node=changed),
                facts={"path": "node.spec.taints", "remove": dict(taint)})


def _node_annotation(node: Json, key: str, value: object) -> Edit:
    metadata = node.get("metadata") or {}
    annotations = {name: each for name, each in (metadata.get("annotations") or {}).items() if name != key}
    if value is not ABSENT:
        annotations[key] = str(value)
    text = f"had no annotation {key}" if value is ABSENT else f"had the annotation {key}={value}"
    changed = {**node, "metadata": {**metadata, "annotations": annotations}}
    return Edit(text, 0.5, node=NodeChange(node=changed), facts={"path": f"node.metadata.annotations[{key}]"})


def _written(item: Json, path: Sequence[str], value: object) -> Any:
    changed: dict[str, Any] = dict(item)
    key, rest = path[0], path[1:]
    if rest:
        below = changed.get(key)
        changed[key] = _written(below if isinstance(below, Mapping) else {}, rest, value)
    elif value is ABSENT:
        changed.pop(key, None)
    else:
        changed[key] = value
    return changed


def _dotted(path: Iterable[str]) -> str:
    text = ""
    for step in path:
        text += (f".{step}" if text else step) if step.isidentifier() else f"[{step}]"
    return text


def _relative(before: int, after: int) -> float:
    """Return the size of a change of an amount: 0 to 1 for a decrease, larger for an increase."""
    return min(abs(after - before) / max(abs(before), 1), 10.0)


def _facts(path: str, before: object, after: object) -> dict[str, Any]:
    return {"path": path, "before": before, "after": after}
