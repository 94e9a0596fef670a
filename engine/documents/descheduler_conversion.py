"""Conversion of DeschedulerPlugin documents."""

from __future__ import annotations

from typing import Final

from koordpolicy.engine.framework.points import Proof

from .document_fields import DocumentFields
from .plugin_conversion import criterion, plugin_fields, sort_key
from .specs import (
    Anomaly,
    DeschedulerSpec,
    DeschedulerType,
    EvictionExpressions,
    EvictionLimits,
    NodeRoles,
    RoomExpressions,
    SortScope,
)

_MEANINGLESS: Final = {
    DeschedulerType.DESCHEDULE: ("nodes", "until", "eviction"),
    DeschedulerType.BALANCE: ("sortScope", "eviction"),
    DeschedulerType.EVICTION_FILTER: ("nodes", "sort", "sortScope", "until", "limits", "proof"),
}
_NEEDED: Final = {
    DeschedulerType.DESCHEDULE: "criteria",
    DeschedulerType.BALANCE: "nodes",
    DeschedulerType.EVICTION_FILTER: "criteria",
}


def descheduler_spec(fields: DocumentFields) -> DeschedulerSpec:
    """Return the spec of a DeschedulerPlugin."""
    kind = DeschedulerType(fields.value("type"))
    for name in _MEANINGLESS[kind]:
        if name in fields.node.fields:
            fields.problem(f"`{name}` means nothing for the type `{kind.value}`", fields.place(name), "remove it")
    if _NEEDED[kind] not in fields.node.fields and "eviction" not in fields.node.fields:
        fields.problem(
            f"missing field `{_NEEDED[kind]}` for the type `{kind.value}`", fields.place("type"), "add it",
            "missing-field",
        )
    nodes, limits, eviction = fields.sub("nodes"), fields.sub("limits"), fields.sub("eviction")
    return DeschedulerSpec(
        **plugin_fields(fields),
        type=kind,
        nodes=_node_roles(nodes) if nodes else NodeRoles(),
        criteria=fields.each("criteria", criterion),
        sort=fields.each("sort", sort_key),
        sort_scope=SortScope(fields.value("sortScope")),
        until=fields.expression("until"),
        limits=EvictionLimits(
            limits.whole("perNode"), limits.whole("perNamespace"), limits.share("perWorkload"),
            limits.share("perOwner"), limits.whole("total"),
        ) if limits else EvictionLimits(),
        proof=Proof(fields.text("proof") or (Proof.ENFORCE if kind is DeschedulerType.BALANCE else Proof.OFF).value),
        eviction=EvictionExpressions(
            eviction.expression("mode"), eviction.expression("gracePeriodSeconds"),
        ) if eviction else EvictionExpressions(),
    )


def _node_roles(nodes: DocumentFields) -> NodeRoles:
    for name in ("fit", "room"):
        if name in nodes.node.fields and "target" not in nodes.node.fields:
            nodes.problem(
                f"`{name}` is about targets, and there is no `target`", nodes.place(name),
                "add `target`, which says what nodes may take pods", "missing-field",
            )
    anomaly, room = nodes.sub("anomaly"), nodes.sub("room")
    return NodeRoles(
        nodes.expression("source"), nodes.expression("target"),
        Anomaly(anomaly.whole("consecutive"), anomaly.duration("timeout")) if anomaly is not None else None,
        nodes.expression("fit"),
        RoomExpressions(room.required("ofTarget"), room.required("ofPod")) if room is not None else None,
        nodes.each("sort", sort_key),
    )
