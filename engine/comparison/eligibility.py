"""Kinds of pods that the policies cannot distinguish, and their results on every node of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Enforcement
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, filter_only, score_only
from koordpolicy.engine.scheduler.verdict.verdict import Filtered, Verdict, in_fixed_words

from .failures import Faults
from .shapes import FieldReads, shapes_of

ELIGIBLE: Final = -1
_MOST_CAUSES: Final = 30_000
"""The number of causes that a column of 16 bits can hold, less some for plugins whose reasons did not fit."""
_OTHERWISE: Final = "for one of too many reasons to tell them apart"

_Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a refusal: the plugin, its rule, and the fixed text of the rule's reason.

    `rule` is empty if the plugin has no rules, or failed as a whole.
    """

    plugin: str
    rule: str
    reason: str

    def to_json(self) -> dict[str, str]:
        """Return plain data."""
        return {"plugin": self.plugin, "rule": self.rule, "reason": self.reason}


@dataclass(frozen=True, slots=True, eq=False)
class PodShape:
    """Pods that the policies cannot distinguish, and their results on every node of the current cluster.

    The node of a running pod is evaluated without that pod, as if it were pending; scores are those of the unchanged
    nodes.
    """

    name: str
    """The key of the first of them."""
    pods: tuple[str, ...]
    profile: str
    running: bool
    refused_by: NDArray[np.int16]
    """By node: the index in `Outcome.causes` of its first refusal, or `ELIGIBLE`."""
    totals: NDArray[np.int64]
    """By node: the weighted sum of the scores; -1 if the node is refused."""
    best: str | None
    """The node with the highest sum, the first by name among equals; None if none is eligible."""
    watched: Mapping[int, int] = field(default_factory=dict)
    """The number of nodes that plugins with Warn or Audit would refuse, by index of the cause."""

    @property
    def eligible(self) -> int:
        """The number of nodes that the pods may run on."""
        return int(np.count_nonzero(self.refused_by == ELIGIBLE))


@dataclass(frozen=True, slots=True)
class Misfit:
    """A pod that runs on a node which would refuse it now."""

    pod: str
    node: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class Scorer:
    """The scores of a plugin over all shapes and the nodes that they may run on, unweighted (0..100).

    `shapes` is the number of kinds of pods with more than one scored node, `constant` the number of those with equal
    scores for all nodes.
    """

    plugin: str
    weight: int
    enforcement: Enforcement
    mean: float
    low: int
    high: int
    shapes: int
    constant: int


@dataclass(slots=True)
class _ScoreSums:
    """The scores of a plugin so far."""

    weight: int
    enforcement: Enforcement
    sum: int = 0
    count: int = 0
    low: int = 0
    high: int = 0
    shapes: int = 0
    constant: int = 0


class Causes:
    """Causes by number, as columns store them.

    A plugin may have a different reason for every pod. Beyond `most` causes, new ones are recorded without the reason.
    """

    def __init__(self, most: int = _MOST_CAUSES) -> None:
        self._most = most
        self._numbers: dict[Cause, int] = {}
        self.found: list[Cause] = []
        """The causes, each at its number."""

    def number(self, cause: Cause) -> int:
        """Return the number of a cause."""
        if cause not in self._numbers and len(self.found) >= self._most:
            cause = Cause(cause.plugin, cause.rule, _OTHERWISE)
        if cause not in self._numbers:
            self._numbers[cause] = len(self.found)
            self.found.append(cause)
        return self._numbers[cause]


@dataclass(slots=True)
class ShapeEvaluation:
    """Evaluates every kind of pod on every node."""

    scheduler: Scheduler
    snapshot: Snapshot
    reading: FieldReads
    faults: Faults
    causes: Causes = field(default_factory=Causes)
    _sums: dict[str, _ScoreSums] = field(default_factory=dict)
    _columns: dict[bytes, NDArray[Any]] = field(default_factory=dict)

    def at(self, pods: Sequence[PodInfo], progress: _Progress) -> tuple[tuple[PodShape, ...], tuple[Misfit, ...]]:
        """Return the kinds of pending and of running pods, and the running pods whose node would refuse them."""
        running = [pod for row in range(self.snapshot.size) for pod in self.snapshot.pods(row)]
        groups = shapes_of((*pods, *running), self.reading)
        shapes: list[PodShape] = []
        misfits: list[Misfit] = []
        for number, group in enumerate(groups, start=1):
            shape = self._shape(group)
            shapes.append(shape)
            if shape.running:
                misfits += self._misfits(group, shape)
            progress(number / len(groups))
        return tuple(shapes), tuple(misfits)

    def _shape(self, group: tuple[PodInfo, ...]) -> PodShape:
        first, pod = group[0], group[0].unbound()
        profile = self.scheduler.profile_of(pod)
        verdict = filter_only(profile, pod, self.snapshot)
        self.faults.add_verdict(verdict)
        refused_by = self._refused_by(verdict)
        if first.node_name:
            # One of the replicas on each node: removing any of them gives the same node.
            there = {pod.node_name: pod for pod in reversed(group)}
            alone = [there] if self.reading.asks_alone(pod, self.snapshot) else [
                {node: other} for node, other in there.items()
            ]
            for each in alone:
                self._ask_without(each, pod, refused_by)
        passed = np.flatnonzero(refused_by == ELIGIBLE)
        totals = np.full(self.snapshot.size, -1, np.int64)
        if len(passed):
            totals[passed] = self._totals(pod, passed)
        best = self.snapshot.names[int(totals.argmax())] if len(passed) else None
        watched: dict[int, int] = {}
        for step in verdict.filters:
            if step.enforcement is not Enforcement.ENFORCE:
                for cause, rows in self._by_cause(step):
                    watched[cause] = watched.get(cause, 0) + len(rows)
        refused_by, totals = self._shared(refused_by), self._shared(totals)
        keys = tuple(pod.key for pod in group)
        return PodShape(first.key, keys, profile.name, bool(first.node_name), refused_by, totals, best, watched)

    def _shared(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return the first stored column with this content.

        If a policy distinguishes every pod, there are as many kinds as pods, and most of their columns are equal.
        """
        return self._columns.setdefault(blake2b(column.tobytes(), digest_size=16).digest(), column)

    def _ask_without(self, pods: Mapping[str, PodInfo], pod: PodInfo, refused_by: NDArray[np.int16]) -> None:
        """Evaluate the nodes of these pods, without these pods."""
        snapshot = self.snapshot.overlay({node: NodeChange(remove=[other.key]) for node, other in pods.items()})
        rows = np.array(sorted(self.snapshot.index[node] for node in pods), np.intp)
        verdict = filter_only(self.scheduler.profile_of(pod), pod, snapshot, among=rows)
        refused_by[rows] = self._refused_by(verdict)[rows]

    def _totals(self, pod: PodInfo, passed: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the weighted sums of the scores of the nodes that passed."""
        verdict = score_only(self.scheduler.profile_of(pod), pod, self.snapshot, among=passed)
        self.faults.add_verdict(verdict)
        for step in verdict.scores:
            values = step.scores.values[passed].astype(np.int64)
            sums = self._sums.setdefault(step.plugin, _ScoreSums(step.weight, step.enforcement, low=HIGHEST_SCORE))
            low, high = int(values.min()), int(values.max())
            sums.sum += int(values.sum())
            sums.count += len(values)
            sums.low, sums.high = min(sums.low, low), max(sums.high, high)
            if len(values) > 1:
                sums.shapes += 1
                sums.constant += low == high
        assert verdict.totals is not None
        return verdict.totals

    def _refused_by(self, verdict: Verdict) -> NDArray[np.int16]:
        refused_by = np.full(self.snapshot.size, ELIGIBLE, np.int16)
        if verdict.refusal is not None:
            plugin, _, refusal = verdict.refusal
            refused_by[:] = self.causes.number(Cause(plugin, refusal.rule, refusal.brief or refusal.message))
            return refused_by
        for step in reversed(verdict.filters):  # reversed, so that the first refusal is written last
            if step.enforcement is Enforcement.ENFORCE:
                for cause, refused in self._by_cause(step):
                    refused_by[refused] = cause
        return refused_by

    def _by_cause(self, step: Filtered) -> Iterable[tuple[int, NDArray[np.intp]]]:
        for reason, rows in in_fixed_words(step, step.refused).items():
            rule = step.answer.explain(int(rows[0])).rule
            yield self.causes.number(Cause(step.plugin, rule, reason)), rows

    def _misfits(self, group: tuple[PodInfo, ...], shape: PodShape) -> Iterable[Misfit]:
        for pod in group:
            number = int(shape.refused_by[self.snapshot.index[pod.node_name]])
            if number != ELIGIBLE:
                yield Misfit(pod.key, pod.node_name, self.causes.found[number])

    def scorers(self) -> tuple[Scorer, ...]:
        """Return the scores of the scorers, in their order."""
        return tuple(
            Scorer(name, sums.weight, sums.enforcement, sums.sum / sums.count, sums.low, sums.high, sums.shapes,
                   sums.constant)
            for name, sums in self._sums.items()
        )
