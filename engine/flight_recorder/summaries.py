"""Short facts of verdicts, cheap enough to be computed for every decision."""

from __future__ import annotations

import numpy as np

from koordpolicy.engine.framework.points import Enforcement
from koordpolicy.engine.scheduler.verdict.verdict import Verdict
from koordpolicy.engine.texts import first_of

_MOST_REASONS = 10


def total_of(verdict: Verdict) -> int | None:
    """Return the weighted total of the chosen node; None if there is none, or nothing was scored."""
    if verdict.row < 0 or verdict.totals is None or verdict.node is None:
        return None
    place = int(np.searchsorted(verdict.passed, verdict.row))
    return int(verdict.totals[place]) if place < len(verdict.totals) else None


def next_best(verdict: Verdict) -> tuple[str, int] | None:
    """Return the second-best node with its total; None unless two nodes were scored."""
    if verdict.row < 0 or verdict.totals is None or verdict.node is None or len(verdict.totals) < 2:
        return None
    others = verdict.totals.copy()
    others[int(np.searchsorted(verdict.passed, verdict.row))] = np.iinfo(np.int64).min
    place = int(others.argmax())
    return verdict.names[int(verdict.passed[place])], int(others[place])


def reasons_in(verdict: Verdict) -> tuple[list[tuple[str, str, str, int]], int]:
    """Return plugin, rule, reason and number of nodes for each reason of a pod without a node, commonest first.

    Ten of them are returned at most, and the number of the others. The verdict must be explained, see
    `Verdict.explained`.
    """
    if verdict.refusal is not None:
        plugin, _, refusal = verdict.refusal
        return [(plugin, refusal.rule, refusal.message, verdict.size)], 0
    found = [(each.plugin, each.rule, each.reason, len(each.nodes)) for each in verdict.refusals()
             if each.enforcement is Enforcement.ENFORCE]
    shown, left_out = first_of(sorted(found, key=lambda each: (-each[3], each[:3])), _MOST_REASONS)
    return list(shown), left_out
