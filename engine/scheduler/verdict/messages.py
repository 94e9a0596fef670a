"""Messages of pods without a node: the text that kube-scheduler writes into the condition `PodScheduled` and the event.

The texts are those of kube-scheduler's `FitError` and of the errors that its framework wraps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from koordpolicy.engine.framework.points import Code, Point, Refusal

NO_NODES: Final = "no nodes available to schedule pods"
_POINTS: Final[Mapping[Point, str]] = {
    Point.PRE_FILTER: "running PreFilter plugin",
    Point.FILTER: "running Filter plugin",
    Point.POST_FILTER: "running PostFilter plugin",
    Point.PRE_SCORE: "running PreScore plugin",
    Point.SCORE: "running Score plugin",
    Point.RESERVE: "running Reserve plugin",
    Point.PERMIT: "running Permit plugin",
    Point.PRE_BIND: "running PreBind plugin",
    Point.BIND: "running Bind plugin",
}
_BEFORE_NODES: Final = frozenset((Point.PRE_FILTER, Point.FILTER))
"""Points at which a refusal of the whole pod applies to all nodes; at later points it applies to the chosen node."""


def unavailable(nodes: int, reasons: Mapping[str, int]) -> str:
    """Return `0/3 nodes are available: 1 Insufficient cpu, 2 Too many pods.`; `reasons` counts nodes by reason.

    The parts are sorted as strings, numbers included. A node may count under several reasons.
    """
    parts = sorted(f"{count} {reason}" for reason, count in reasons.items())
    return f"0/{nodes} nodes are available: {', '.join(parts)}." if parts else f"0/{nodes} nodes are available:"


def refused_whole(nodes: int, plugin: str, point: Point, refusal: Refusal) -> str:
    """Return the message for a pod that one plugin rejected as a whole, before or after the filters."""
    if point is Point.PRE_ENQUEUE:
        return refusal.brief or refusal.message
    if refusal.code is Code.ERROR:
        return f'{_POINTS[point]} "{plugin}": {refusal.message}' if point in _POINTS else refusal.message
    if point in _BEFORE_NODES:
        return f"0/{nodes} nodes are available: {refusal.message}."
    return unavailable(1, {refusal.message: 1})


def with_post_filters(message: str, refusals: Sequence[Refusal]) -> str:
    """Return a message extended by the refusals of the postFilters.

    An error or an unresolvable refusal ended the postFilters, and is the only one added.
    """
    reasons: list[str] = []
    for refusal in refusals:
        if refusal.code is not Code.UNSCHEDULABLE:
            reasons = [refusal.message]
            break
        reasons.append(refusal.message)
    text = ", ".join(each for each in reasons if each)
    return f"{message} {text}" if text else message
