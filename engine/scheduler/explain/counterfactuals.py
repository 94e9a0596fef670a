"""Counterfactuals: the changes under which a node would take a pod, each verified by a simulation.

Each plugin that refuses proposes changes that would satisfy it: for documents they follow from the clauses
that fail, for Python plugins from their `counterfactuals`. They are tried on an overlay, under the whole profile, until
no plugin refuses the node; the fewest and smallest changes come first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.explain.clauses import alternatives, changes_of
from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.cluster.edits import Edit, band_edit, edits_of, may_vary, qos_edit
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.compile import Rule
from koordpolicy.engine.documents import PodMatch
from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.explain import Counterfactuals
from koordpolicy.engine.framework.points import Point
from koordpolicy.engine.framework.scheduler import CycleState
from koordpolicy.engine.kubernetes.vocabulary import BE, LS, LSE, LSR, PRIORITY_BANDS
from koordpolicy.engine.scheduler.documents.plugin import DocumentScheduler

from ..cycle.schedule_one import filter_only
from ..profiles.profile import Active, Profile
from ..verdict.verdict import Verdict

MOST_TRIALS: Final = 60
"""The number of changed pods or nodes that are tried for one node."""
_MOST_EDITS: Final = 4
_MOST_PER_PLUGIN: Final = 8
_STEP: Final = 0.25
"""The cost of each further change, added to its size."""


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Verified changes that together let a node take a pod; `pod` and `snapshot` are the changed ones.

    `node` is the node that was tried; a counterfactual that changes only the pod (`of_pod`) may work on others, too.
    """

    node: str
    edits: tuple[Edit, ...]
    pod: PodInfo = field(repr=False)
    snapshot: Snapshot = field(repr=False)

    @property
    def of_pod(self) -> bool:
        """True if only the pod would change."""
        return all(edit.node is None for edit in self.edits)

    @property
    def size(self) -> float:
        """The sort key of counterfactuals, the smallest first: the size of the changes, and their number."""
        return sum(edit.size + _STEP for edit in self.edits)


@dataclass(order=True, slots=True)
class _Trial:
    cost: float
    number: int
    edits: tuple[Edit, ...] = field(compare=False)
    pod: PodInfo = field(compare=False)
    snapshot: Snapshot = field(compare=False)
    verdict: Verdict = field(compare=False)


def counterfactuals(
    profile: Profile, pod: PodInfo, snapshot: Snapshot, node: str = "", *, most: int = 3, trials: int = MOST_TRIALS,
) -> tuple[Counterfactual, ...]:
    """Return the changes that would let a node take a pod that it refuses, smallest first; empty if none is found.

    Without `node` only the pod is changed, until any node takes it. Counterfactuals that contain all changes of another
    one are dropped. The cluster is not changed. If the deadline passes, those found before it are returned.
    """
    row = snapshot.index[node] if node else None
    found: list[Counterfactual] = []
    numbers = itertools.count()
    seen: set[frozenset[str]] = {frozenset()}
    queue = [_Trial(0.0, next(numbers), (), pod, snapshot, _filter(profile, pod, snapshot, row))]
    deadline = Deadline.current() or Deadline()
    # Results computed after the deadline may be wrong, so they are ignored.
    while queue and len(found) < most and not deadline.passed:
        tried = heapq.heappop(queue)
        if len(tried.verdict.passed):
            texts = {edit.text for edit in tried.edits}
            if tried.edits and not any({edit.text for edit in each.edits} <= texts for each in found):
                found.append(Counterfactual(node, tried.edits, tried.pod, tried.snapshot))
            continue
        if len(tried.edits) == _MOST_EDITS:
            continue
        for edit in _edits(profile, tried, row):
            key = frozenset((*(each.text for each in tried.edits), edit.text))
            if key in seen or trials <= 0 or deadline.passed:
                continue
            seen.add(key)
            trials -= 1
            try:
                changed, view = edit.apply(tried.pod, tried.snapshot, node)
            except ValueError:
                continue
            verdict = _filter(profile, changed, view, row)
            heapq.heappush(queue, _Trial(
                tried.cost + edit.size + _STEP, next(numbers), (*tried.edits, edit), changed, view, verdict,
            ))
    return tuple(found)


def passing(profile: Profile, counterfactual: Counterfactual, snapshot: Snapshot) -> tuple[str, ...]:
    """Return all nodes that would take the pod with these changes; of the cluster as it is, if only the pod changes."""
    verdict = filter_only(profile, counterfactual.pod, snapshot if counterfactual.of_pod else counterfactual.snapshot)
    return tuple(verdict.names[int(row)] for row in verdict.passed)


def _filter(profile: Profile, pod: PodInfo, snapshot: Snapshot, row: int | None) -> Verdict:
    return filter_only(profile, pod, snapshot, among=None if row is None else np.array([row], np.intp))


def _edits(profile: Profile, tried: _Trial, row: int | None) -> Iterator[Edit]:
    """Yield the changes that the first refusing plugin proposes."""
    verdict = tried.verdict
    if verdict.refusal is not None:
        name, point, refusal = verdict.refusal
        active = _named(profile, name)
        if active is not None and point in (Point.PRE_FILTER, Point.FILTER):
            yield from _proposed_changes(active, point, refusal.rule, tried, row)
    if verdict.refusal is not None or row is None:
        return
    for step in verdict.filters:
        active = _named(profile, step.plugin)
        if active is not None and active.enforced and len(step.refused):
            try:
                rule = step.answer.explain(row).rule
            except BaseException as error:  # the border between framework and plugin
                must_be_survived(error)
                rule = ""
            yield from _proposed_changes(active, Point.FILTER, rule, tried, row)
            return


def _named(profile: Profile, name: str) -> Active | None:
    """Return a plugin that may refuse nodes: a filter, or a preFilter that limits the nodes."""
    return next((each for each in (*profile.filters, *profile.pre_filters) if each.name == name), None)


def _proposed_changes(active: Active, point: Point, rule: str, tried: _Trial, row: int | None) -> Iterator[Edit]:
    plugin: Any = getattr(active.instance, "plugin", active.instance)
    if isinstance(plugin, DocumentScheduler):
        at = row if point is Point.FILTER else None
        found = document_edits(Failing(plugin, point, rule, at), tried.pod, tried.snapshot)
        yield from itertools.islice(sorted(found, key=lambda edit: edit.size), _MOST_PER_PLUGIN)
    elif isinstance(plugin, Counterfactuals) and row is not None:
        try:
            offered = sorted(plugin.counterfactuals(tried.pod, tried.snapshot, row), key=lambda edit: edit.size)
        except BaseException as error:  # the border: an explanation is valid without suggestions
            must_be_survived(error)
            return
        yield from offered[:_MOST_PER_PLUGIN]


@dataclass(frozen=True, slots=True)
class Failing:
    """A rule of a document that refuses at a point; `row` is the node's, None if it refuses the pod as a whole."""

    plugin: DocumentScheduler
    point: Point
    rule: str
    row: int | None


def rule_of(plugin: DocumentScheduler, point: Point, name: str) -> Rule | None:
    """Return a document's rule by the name in its refusal; None for conditions, which are not rules."""
    compiled = plugin.compiled
    rules = compiled.filter if point is Point.FILTER else (*compiled.pre_enqueue, *compiled.pre_filter)
    return next((rule for rule in rules if rule.name == name), None)


def document_edits(failing: Failing, pod: PodInfo, snapshot: Snapshot) -> Iterator[Edit]:
    """Yield the edits of pod or node that make a failing clause of a document's rule pass."""
    rule = rule_of(failing.plugin, failing.point, failing.rule)
    if rule is None:
        return
    row = failing.row
    bindings = failing.plugin.inputs(CycleState(), pod, snapshot, rule.program, row)
    seen: set[tuple[int, bool]] = set()
    for alternative in alternatives(rule.program.checked, bindings):
        for clause in alternative:
            key = id(clause.node), clause.expected
            if key in seen:
                continue
            seen.add(key)
            for change in changes_of(clause, bindings, may_vary):
                yield from edits_of(change, pod, snapshot, row)
    yield from _out_of_its_match(failing.plugin.compiled.spec.match.pods, pod)


def _out_of_its_match(match: PodMatch | None, pod: PodInfo) -> Iterator[Edit]:
    """Yield edits to the next lower class, QoS or priority, that the document does not match."""
    if match is None:
        return
    if match.priority_classes is not None:
        band = _next_lower(tuple(PRIORITY_BANDS), pod.priority_band, match.priority_classes)
        if band is not None:
            yield band_edit(pod, band)
    if match.qos_classes is not None:
        name = _next_lower((LSE, LSR, LS, BE), pod.qos_class, match.qos_classes)
        if name is not None:
            yield qos_edit(pod, name)


def _next_lower(order: tuple[str, ...], name: str, taken: Container[str]) -> str | None:
    lower = order[order.index(name) + 1:] if name in order else ()
    return next((each for each in lower if each not in taken), None)
