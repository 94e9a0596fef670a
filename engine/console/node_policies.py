"""The results of each policy for one node: for pending pods, and in a dry cycle of descheduling and QoS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from koordpolicy.engine.comparison.qos_round import explain_node
from koordpolicy.engine.explanation import shortened
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.scheduler.verdict.verdict import Verdict

from .evictions import dry_cycle, planned
from .models.map import NodePolicies, NodePolicy
from .state import ConsoleState

_SCHEDULING: Final = frozenset((Point.FILTER, Point.PRE_FILTER, Point.SCORE))


def node_policies(state: ConsoleState, name: str) -> NodePolicies:
    """Return the results of each policy for a node; policies that refuse pods there come first.

    Raises:
        UnknownNameError: there is no such node.
        PolicyError: the plugins of the descheduler's configuration cannot be made.
        OverdueError: the deadline of the thread passed.
    """
    row, verdicts = state.row(name), state.pending()
    registry = state.policies.registry
    found = [_of_scheduling(plugin, verdicts, row) for plugin in registry.of_framework(Framework.SCHEDULER)
             if not _SCHEDULING.isdisjoint(plugin.points) and _decides(plugin, verdicts)]
    cycle = dry_cycle(state)
    active = {running.name for profile in cycle.profiles for running in (*profile.deschedule, *profile.balance)}
    notes = {note.plugin: note for note in cycle.result.node_notes if note.node == name}
    for plugin in registry.of_framework(Framework.DESCHEDULER):
        if plugin.name in active:
            note = notes.get(plugin.name)
            found.append(_policy(plugin, role=note.role if note else "", reason=note.message if note else ""))
    found.sort(key=lambda each: (not each.refused, not each.role, not each.document, each.framework, each.policy))
    try:
        qos = explain_node(registry, state.snapshot, name).to_json()
    except KeyError:  # without a metric no QoS plugin does anything
        qos = None
    evicted = [planned(each) for each in cycle.result.evicted if each.node == name]
    return NodePolicies(node=name, policies=found, evicted=evicted, qos=qos)


@dataclass(slots=True)
class _Results:
    refused: int = 0
    pods: int = 0
    total: float = 0.0
    scored: int = 0
    reason: str = ""


def _decides(plugin: Plugin, verdicts: tuple[Verdict, ...]) -> bool:
    """Return whether a plugin has a part in any decision; a plugin that skips every pod has none."""
    return any(
        (verdict.refusal is not None and verdict.refusal[0] == plugin.name)
        or any(step.plugin == plugin.name for step in verdict.filters)
        or any(step.plugin == plugin.name for step in verdict.scores) for verdict in verdicts)


def _of_scheduling(plugin: Plugin, verdicts: tuple[Verdict, ...], row: int) -> NodePolicy:
    found = _Results()
    for verdict in verdicts:
        found.pods += 1
        if verdict.refusal is not None and verdict.refusal[0] == plugin.name:
            found.refused += 1
            found.reason = found.reason or verdict.refusal[2].message
        for step in verdict.filters:
            if step.plugin == plugin.name and (step.refused == row).any():
                found.refused += 1
                found.reason = found.reason or step.answer.explain(row).message
        if (verdict.passed == row).any():
            for scored in verdict.scores:
                if scored.plugin == plugin.name:
                    found.scored += 1
                    found.total += float(np.asarray(scored.scores.values)[row])
    return _policy(plugin, refused=found.refused, pods=found.pods, reason=found.reason,
                   score=found.total / found.scored if found.scored else None)


def _policy(plugin: Plugin, *, refused: int = 0, pods: int = 0, score: float | None = None, role: str = "",
            reason: str = "") -> NodePolicy:
    return NodePolicy(policy=plugin.name, framework=plugin.framework.value, enforcement=plugin.enforcement.value,
                      document=plugin.span is not None, refused=refused, pods=pods, score=score, role=role,
                      reason=shortened(reason))
