"""The reasons of cached refusals, which a plugin is called for when they are read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, CacheKey, Code, Errors, Refusal
from koordpolicy.engine.framework.scheduler import CycleState

from ..profiles.profile import Active
from ..verdict.verdict import Filtered
from .columns import Booleans

_Group = TypeVar("_Group", bound=Hashable)


def recomputed(
    active: Active, cache_key: CacheKey, state: CycleState, pod: PodInfo, snapshot: Snapshot, *, refused: Rows,
) -> Answer:
    """Return a filter's answer with the `refused` nodes; the filter is called for reasons when they are read.

    The `refusal` of the cache key, if it has one, is that of all of them.
    """
    known: list[Answer] = []

    def real() -> Answer:
        if not known:
            # The pod's own cycle state may be of another version of the cluster.
            answer = active.instance.filter(CycleState(state), pod, snapshot, refused)
            known.append(answer.spread(refused, snapshot.size))
        return known[0]

    def explain(row: int) -> Refusal:
        answer = real()
        if answer.passed[row]:
            if snapshot.version == snapshot.cluster.version:
                return Refusal("", "refused by a cached result, and not by the plugin now: its `cache_key` does not "
                               "name all that its results depend on, or its `vectorized` result differs")
            return Refusal("", "refused at the time of the decision; the cluster has changed since")
        return answer.explain(row)

    def worded(row: int) -> str:
        refusal = explain(row)
        return refusal.message or refusal.rule

    def still(rows: Rows) -> bool:
        return not real().passed[rows].any()

    def reasons(rows: Rows) -> Mapping[str, Rows]:
        if cache_key.reasons is not None and snapshot.version == snapshot.cluster.version:
            return cache_key.reasons(snapshot, rows)
        answer = real()
        if answer.reasons is not None and still(rows):
            return answer.reasons(rows)
        return _by(rows, worded)

    def codes(rows: Rows) -> Mapping[Code, Rows]:
        answer = real()
        if answer.codes is not None and still(rows):
            return answer.codes(rows)
        return _by(rows, lambda row: explain(row).code)

    def rules(rows: Rows) -> frozenset[str]:
        answer = real()
        if answer.rules is not None and still(rows):
            return answer.rules(rows)
        return frozenset(_by(rows, lambda row: explain(row).rule))

    def brief(rows: Rows) -> Mapping[str, Rows]:
        if cache_key.reasons is not None:
            return reasons(rows)
        answer = real()
        return answer.brief(rows) if answer.brief is not None and still(rows) else reasons(rows)

    passed: Booleans = np.ones(snapshot.size, np.bool_)
    passed[refused] = False
    same = cache_key.refusal
    if same is not None:
        return Answer(passed, explain, {}, lambda rows: {same.message: rows} if len(rows) else {},
                      lambda rows: {same.code: rows} if len(rows) else {},
                      lambda rows: frozenset({same.rule} if len(rows) else ()))
    return Answer(passed, explain, {}, reasons, codes, rules, brief)


def _by(rows: Rows, group: Callable[[int], _Group]) -> dict[_Group, Rows]:
    found: dict[_Group, list[int]] = {}
    for row in rows.tolist():
        found.setdefault(group(row), []).append(row)
    return {name: np.array(each, np.intp) for name, each in found.items()}


def step_of(active: Active, answer: Answer, errors: Errors, tested: Rows, refused: Rows) -> Filtered:
    """Return one filter's step of the verdict, with its errors."""
    plugin = active.plugin
    if answer.errors != errors:
        answer = replace(answer, errors=errors)
    return Filtered(plugin.name, plugin.origin, answer, tested, refused, plugin.enforcement)
