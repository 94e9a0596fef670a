"""The views of nodes: the map, and one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.cluster.edits import amount_unit
from koordpolicy.engine.cluster.objects.metrics import NANOSECONDS
from koordpolicy.engine.cluster.objects.node_rows import REGION, ZONE, NodeRow
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.explanation import shortened
from koordpolicy.engine.framework.points import Enforcement
from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.scheduler.verdict.verdict import Verdict
from koordpolicy.engine.texts import first_of

from .colours import COLOURINGS
from .models.map import Amount, DeviceLine, Group, MapView, NodeCondition, NodeDetails, Opinion, PodLine, Taint
from .state import ConsoleState, UnknownNameError

_MOST_GROUPS: Final = 64
"""The maximum number of values of a label that nodes are grouped by."""
_MOST_GROUPINGS: Final = 40
_MOST_OPINIONS: Final = 50
_MOST_LABEL: Final = 256
_NONE: Final = "none"
_NAMED: Final = {"zone": ZONE, "region": REGION}
_FIRST: Final = ("cpu", "memory", "pods", "ephemeral-storage")


def cluster_map(state: ConsoleState, grouping: str = "zone") -> MapView:
    """Return the nodes in groups: by `zone`, `region`, a label's key, or `none`.

    Raises:
        UnknownNameError: no node has a label of that key, or it has too many values.
    """
    rows = state.cluster.rows
    values: dict[str, Counter[str]] = {}
    for row in rows:
        for key, value in _labels(row).items():
            values.setdefault(key, Counter())[value] += 1
    usable = [key for key, counts in sorted(values.items())
              if 1 < len(counts) <= _MOST_GROUPS and key not in _NAMED.values()]
    offered, groupings_left_out = first_of(usable, _MOST_GROUPINGS)
    key = _NAMED.get(grouping, grouping)
    if grouping not in (*_NAMED, _NONE) and not 0 < len(values.get(key, ())) <= _MOST_GROUPS:
        raise UnknownNameError(f"nodes cannot be grouped by `{shortened(grouping, _MOST_LABEL)}`: name a label with at "
                               f"most {_MOST_GROUPS} values")
    names = ["" if grouping == _NONE else _labels(row).get(key, "") for row in rows]
    counts = Counter(names)
    order = {name: place for place, name in enumerate(sorted(counts, key=lambda each: (not each, each)))}
    return MapView(
        now=rfc3339(state.now), layout=state.layout, nodes=list(state.cluster.names), grouping=grouping,
        groupings=["zone", "region", _NONE, *offered], groupings_left_out=groupings_left_out,
        groups=[Group(name=name, nodes=counts[name]) for name in order], group_of=[order[name] for name in names],
        colourings=list(COLOURINGS),
    )


def node_view(state: ConsoleState, name: str) -> NodeDetails:
    """Return one node with its pods, its amounts, and what plugins say of it for pending pods.

    Raises:
        UnknownNameError: there is no such node.
    """
    number, snapshot = state.row(name), state.snapshot
    row = snapshot.row(number)
    fresh = snapshot.is_fresh(number)
    updated = row.metric.updated if row.metric is not None else None
    opinions = [opinion_of(verdict, number) for verdict in state.pending()]
    labels = _labels(row)
    spec, status = _mapping(row.node.get("spec")), _mapping(row.node.get("status"))
    return NodeDetails(
        name=name, zone=labels.get(ZONE, ""), region=labels.get(REGION, ""),
        unschedulable=bool(spec.get("unschedulable")), measured=fresh,
        metric_age=None if updated is None else (state.now - updated) / NANOSECONDS, labels=labels,
        taints=[Taint(key=str(each.get("key", "")), value=str(each.get("value") or ""),
                      effect=str(each.get("effect", ""))) for each in _mappings(spec.get("taints"))],
        conditions=[NodeCondition(type=str(each.get("type", "")), status=str(each.get("status", "")),
                              reason=str(each.get("reason") or "")) for each in _mappings(status.get("conditions"))],
        amounts=_amounts(row, fresh=fresh), device_model=shortened(row.model, _MOST_LABEL),
        devices=_devices(row, state.cluster.object("Device", name)), pods=[pod_line(pod) for pod in row.pods.values()],
        opinions=opinions[:_MOST_OPINIONS], opinions_left_out=len(state.cluster.pending) - min(
            len(opinions), _MOST_OPINIONS),
    )


def _devices(row: NodeRow, device: Mapping[str, Any] | None) -> list[DeviceLine]:
    """Return the GPUs of a node with their pods, and the other devices of its Device object."""
    holders: dict[int, list[str]] = {}
    for key, minors in sorted(row.taken.items()):
        for minor in minors:
            holders.setdefault(minor, []).append(key)
    found = [DeviceLine(type="gpu", minor=minor, healthy=total > 0, free=free / 10, pods=holders.get(minor, []))
             for minor, (total, free) in enumerate(zip(row.total, row.free, strict=True))]
    for each in _mappings(_mapping((device or {}).get("spec")).get("devices")):
        number, kind = each.get("minor"), str(each.get("type", ""))
        if kind != "gpu" and isinstance(number, int):
            found.append(DeviceLine(type=kind, minor=number, healthy=each.get("health") is True, free=None, pods=[]))
    return found


def pod_line(pod: PodInfo) -> PodLine:
    """Return a pod as a line of a list."""
    return PodLine(key=pod.key, node=pod.node_name, qos_class=pod.qos_class or pod.kubernetes_qos,
                   priority_band=pod.priority_band, requests={name: pod.requests[name] for name in ("cpu", "memory")})


def opinion_of(verdict: Verdict, row: int) -> Opinion:
    """Return the result of the plugins about a pod on a node."""
    if verdict.refusal is not None:
        plugin, _, refusal = verdict.refusal
        return Opinion(pod=verdict.pod.key, passed=False, plugin=plugin, rule=refusal.rule,
                       reason=shortened(refusal.message))
    for step in verdict.filters:
        if step.enforcement is Enforcement.ENFORCE and (step.refused == row).any():
            refusal = step.answer.explain(row)
            return Opinion(pod=verdict.pod.key, passed=False, plugin=step.plugin, rule=refusal.rule,
                           reason=shortened(refusal.message))
    return Opinion(pod=verdict.pod.key, passed=True)


def _amounts(row: NodeRow, *, fresh: bool) -> list[Amount]:
    usage = row.metric.usage if row.metric is not None and fresh else None
    names = {**row.allocatable, **row.requested}
    ordered = sorted(names, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
    found: list[Amount] = []
    for name in ordered:
        used = None
        if usage is not None and name in usage:
            value: Any = usage[name]
            used = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        if name == "pods":
            found.append(Amount(resource=name, unit="pods", allocatable=row.allocatable[name],
                                requested=len(row.pods)))
        elif row.allocatable[name] or row.requested[name]:
            found.append(Amount(resource=name, unit=amount_unit(name), allocatable=row.allocatable[name],
                                requested=row.requested[name], used=used))
    return found


def _labels(row: NodeRow) -> dict[str, str]:
    found = _mapping(_mapping(row.node.get("metadata")).get("labels"))
    return {str(key): str(value) for key, value in found.items()}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
