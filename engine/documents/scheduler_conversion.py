"""Conversion of SchedulerPlugin documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .document_fields import DocumentFields
from .plugin_conversion import check, plugin_fields
from .specs import (
    Normalize,
    SchedulerSpec,
    ScoreItem,
)

_SCHEDULER_POINTS: Final = ("preEnqueue", "preFilter", "filter", "score")
_RESERVATION_POINTS: Final = ("reservationFilter", "reservationScore")


def scheduler_spec(fields: DocumentFields) -> SchedulerSpec:
    """Return the spec of a SchedulerPlugin."""
    _refuse_unavailable(fields, _RESERVATION_POINTS)
    if not any(name in fields.node.fields for name in (*_SCHEDULER_POINTS, *_RESERVATION_POINTS)):
        listed = ", ".join(f"`{name}`" for name in _SCHEDULER_POINTS)
        fields.problem("the plugin does nothing", fields.node.place, f"give it one of {listed}", "missing-field")
    return SchedulerSpec(
        **plugin_fields(fields),
        weight=fields.whole("weight"),
        pre_enqueue=fields.each("preEnqueue", check),
        pre_filter=fields.each("preFilter", check),
        filter=fields.each("filter", check),
        score=fields.each("score", _score),
    )


def _score(item: DocumentFields) -> ScoreItem:
    return ScoreItem(
        item.text("name"), item.required("expression"), item.whole("weight"), Normalize(item.value("normalize")),
        item.node.fields["name"].span,
    )


def _refuse_unavailable(fields: DocumentFields, names: Iterable[str]) -> None:
    for name in names:
        node = fields.node.fields.get(name)
        if node is not None:
            fields.problem(f"`{name}` is not available yet", node.place, "remove it", code="not-available")
