"""A decision with its reasons.

A verdict stores the plugins' results by row, and computes explanations only on request: most decisions are never read.
An explanation is computed from the snapshot of the decision, so it must be requested before the cluster changes;
`Verdict.explained` returns a verdict that stays valid.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.explanation import plain_or_cut
from koordpolicy.engine.framework.points import Answer, Code, Enforcement, Errors, Point, Refusal, Scores
from koordpolicy.engine.framework.scheduler import Nomination
from koordpolicy.engine.records import fast_init, replaced

from .messages import NO_NODES, refused_whole, unavailable, with_post_filters

NOWHERE = np.zeros(0, dtype=np.intp)
_MOST_REASONS = 10

PodRejection: TypeAlias = tuple[str, Point, Refusal]
"""The plugin that rejected a pod as a whole, the point, and the reason."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A plugin that raised an exception or broke the contract of its point, or an expression of it that failed.

    `origin` is the file or distribution of the plugin.
    """

    plugin: str
    origin: str
    point: Point
    message: str
    nodes: tuple[str, ...] = ()
    """The nodes concerned; empty for all."""
    rule: str = ""
    """The rule whose expression failed; empty for the plugin as a whole."""

    def to_json(self) -> dict[str, object]:
        """Return plain data without the nodes, which differ between decisions."""
        return {"plugin": self.plugin, "origin": self.origin, "point": self.point.value, "rule": self.rule,
                "message": self.message}


@fast_init
@dataclass(frozen=True, slots=True)
class Filtered:
    """The result of one filter: it was run on `rows` and refused `refused` (both ascending).

    A rejection by a preFilter that is not enforced is recorded as a refusal of every node.
    """

    plugin: str
    origin: str
    answer: Answer
    rows: Rows
    refused: Rows
    enforcement: Enforcement = Enforcement.ENFORCE


@fast_init
@dataclass(frozen=True, slots=True)
class Scored:
    """The result of one scorer, and its weight in the profile."""

    plugin: str
    origin: str
    weight: int
    scores: Scores
    enforcement: Enforcement = Enforcement.ENFORCE


@fast_init
@dataclass(frozen=True, slots=True)
class Tie:
    """The tie-break among the best nodes: the rule, its seed, and the number of nodes with the best score."""

    rule: str
    among: int
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class RefusedNodes:
    """Nodes that one plugin refused for one reason."""

    plugin: str
    rule: str
    reason: str
    code: Code
    nodes: tuple[str, ...]
    values: tuple[tuple[str, object], ...] = ()
    """The values of the first of the nodes."""
    enforcement: Enforcement = Enforcement.ENFORCE

    def to_json(self) -> dict[str, object]:
        """Return plain data; `truncated` is set if the values have too many parts to be written out."""
        result: dict[str, object] = {
            "plugin": self.plugin, "rule": self.rule, "reason": self.reason, "code": self.code.value,
            "nodes": list(self.nodes),
        }
        if self.values:
            result["values"], cut = plain_or_cut(dict(self.values))
            if cut:
                result["truncated"] = True
        if self.enforcement is not Enforcement.ENFORCE:
            result["enforcement"] = self.enforcement.value
        return result


_Step = TypeVar("_Step")


class DeferredSteps(Sequence[_Step]):
    """The results of filters or scorers, computed when they are read: those of most decisions never are.

    The refused nodes are fixed; the reasons are computed later, so they are valid as long as the snapshot.
    """

    def __init__(self, compute: Callable[[], Iterable[_Step]], *, failed: bool) -> None:
        """`failed` is true if any result has errors."""
        self.failed = failed
        self._compute: Callable[[], Iterable[_Step]] | None = compute
        self._steps: tuple[_Step, ...] = ()

    def _all(self) -> tuple[_Step, ...]:
        if self._compute is not None:
            self._steps = tuple(self._compute())
            self._compute = None
        return self._steps

    def __len__(self) -> int:
        """The number of steps."""
        return len(self._all())

    def __getitem__(self, index: Any) -> Any:
        """Return a step."""
        return self._all()[index]

    def __iter__(self) -> Iterator[_Step]:
        """Iterate over the steps."""
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        """Return whether the steps are the same."""
        return self._all() == (other._all() if isinstance(other, DeferredSteps) else other)

    __hash__ = None  # type: ignore[assignment]


@fast_init
@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision about a pod with its reasons."""

    pod: PodInfo
    profile: str
    generation: int
    names: Sequence[str] = field(repr=False)
    """The nodes' names by row, sorted."""
    node: str | None = None
    row: int = -1
    devices: tuple[int, ...] = ()
    """The minor numbers of the devices that were allocated on the node."""
    filters: Sequence[Filtered] = ()
    passed: Rows = field(default_factory=lambda: NOWHERE, repr=False)
    scores: Sequence[Scored] = ()
    """The results of the scorers; empty if only one node passed."""
    totals: NDArray[np.int64] | None = field(default=None, repr=False)
    """The weighted sum of the scores for each of `passed`."""
    tie: Tie | None = None
    considered: int = -1
    """The number of nodes considered; -1 for all."""
    refusal: PodRejection | None = None
    """The rejection of the pod as a whole: before the filters, or after a node was selected."""
    nomination: Nomination | None = None
    """The pod's nominated node, and the victims to evict there; None if preemption does not help."""
    post_filter_refusals: tuple[tuple[str, Refusal], ...] = ()
    """The refusals of postFilters that found no node for preemption, by plugin."""
    waiting: bool = False
    """True if the pod has its node and waits for a permit."""
    binding: bool = False
    """True if the pod has its node and its binding cycle runs while further pods are decided."""
    failures: tuple[Failure, ...] = ()
    warnings: tuple[tuple[str, Refusal], ...] = ()
    """The refusals of the selected node by filters that only warn, by plugin; for pods that were reserved there."""
    reported: tuple[RefusedNodes, ...] | None = None
    """The explanations, once they were computed; see `explained`."""
    written: str | None = None
    """The message, once it was computed; see `explained`."""

    @property
    def scheduled(self) -> bool:
        """True if a node was found."""
        return self.node is not None

    @property
    def size(self) -> int:
        """The number of nodes considered."""
        return len(self.names) if self.considered < 0 else self.considered

    def refusals(self) -> tuple[RefusedNodes, ...]:
        """Return the refused nodes by plugin and reason, in the order of the filters, commonest reason first.

        If a filter's messages differ from node to node, the ten commonest are returned as they are; the other nodes are
        grouped under the rules' fixed words.
        """
        if self.reported is not None:
            return self.reported
        return tuple(refused for step in self.filters for refused in _grouped(step, self.names))

    def reasons(self) -> dict[str, int]:
        """Return the number of nodes by reason, commonest first; a node may have several reasons.

        A rule whose message differs from node to node counts under its fixed words: ten nodes that exceed one threshold
        by different amounts have one reason. A pod that was rejected as a whole has that one reason, with all nodes.
        """
        if self.refusal is not None:
            return {self.refusal[2].message: self.size}
        counts: dict[str, int] = {}
        for step in self.filters:
            if step.enforcement is Enforcement.ENFORCE:
                for reason, rows in in_fixed_words(step, step.refused).items():
                    counts[reason] = counts.get(reason, 0) + len(rows)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def why_not(self, node: str) -> tuple[tuple[str, Refusal], ...]:
        """Return the plugins that refused a node, each with its explanation; empty if none did.

        Raises:
            KeyError: there was no such node.
        """
        row = self._row(node)
        return tuple(
            (step.plugin, step.answer.explain(row)) for step in self.filters
            if step.enforcement is Enforcement.ENFORCE and _holds(step.refused, row)
        )

    def warned(self) -> Verdict:
        """Return this verdict with the refusals of the selected node by filters that only warn."""
        if self.node is None:
            return self
        found = tuple(
            (step.plugin, step.answer.explain(self.row)) for step in self.filters
            if step.enforcement is Enforcement.WARN and _holds(step.refused, self.row)
        )
        return replaced(self, warnings=found) if found else self

    def score_of(self, node: str) -> dict[str, int]:
        """Return a node's score per plugin, unweighted; empty if it did not pass or no plugin scored.

        Raises:
            KeyError: there was no such node.
        """
        row = self._row(node)
        if not _holds(self.passed, row):
            return {}
        return {step.plugin: int(step.scores.values[row]) for step in self.scores}

    def errors(self) -> tuple[Failure, ...]:
        """Return all failures of the decision: plugins, and expressions by rule and message."""
        found = list(self.failures)
        steps: list[tuple[str, str, Point, Errors]] = []
        if _may_have_failed(self.filters):
            steps += ((step.plugin, step.origin, Point.FILTER, step.answer.errors) for step in self.filters)
        if _may_have_failed(self.scores):
            steps += ((step.plugin, step.origin, Point.SCORE, step.scores.errors) for step in self.scores)
        for plugin, origin, point, by_rule in steps:
            for rule, errors in by_rule.items():
                groups: dict[str, list[str]] = {}
                for row, error in sorted(errors.items()):
                    groups.setdefault(error.message, []).append(self.names[row])
                found += (Failure(plugin, origin, point, text, tuple(nodes), rule) for text, nodes in groups.items())
        return tuple(found)

    def summary(self) -> str:
        """Return the decision in one line; for an unschedulable pod in kube-scheduler's words."""
        if self.node is not None:
            return f"{self.pod.key} is placed on {self.node}"
        if self.refusal is not None:
            plugin, _, refusal = self.refusal
            return f"{self.pod.key} is refused by `{plugin}`: {refusal.message}"
        return f"{self.pod.key} cannot be placed: {self.message()}"

    def message(self) -> str:
        """Return the message that kube-scheduler writes into the condition `PodScheduled`; empty for a pod that has a
        node. A node counts under the reasons of the first filter that refused it, even if further filters ran on it.
        """
        if self.node is not None:
            return ""
        if self.written is not None:
            return self.written
        whole = self.refusal
        if not self.size and (whole is None or whole[1] is not Point.PRE_ENQUEUE):
            return NO_NODES
        text = unavailable(self.size, self._first_reasons()) if whole is None else refused_whole(self.size, *whole)
        refusals = () if self.nomination is not None else [refusal for _, refusal in self.post_filter_refusals]
        return with_post_filters(text, refusals)

    def explained(self) -> Verdict:
        """Return this verdict with its explanations computed, so that it stays valid when the cluster changes.

        `why_not` still needs the snapshot.
        """
        return replaced(self, reported=self.refusals(), written=self.message(), names=tuple(self.names))

    def to_json(self, *, nodes: int | None = None) -> dict[str, Any]:
        """Return plain data; `nodes` limits the break-down of scores to the best ones.

        `scoresLeftOut` is the number of the others. Lists of names are complete.
        """
        result: dict[str, Any] = {
            "pod": self.pod.key, "node": self.node, "profile": self.profile, "generation": self.generation,
            "nodes": self.size, "passed": len(self.passed),
        }
        if self.node is None:
            result["message"] = self.message()
        if self.devices:
            result["devices"] = list(self.devices)
        if self.tie is not None:
            result["tieBreak"] = {"rule": self.tie.rule, "among": self.tie.among}
            if self.tie.seed is not None:
                result["tieBreak"]["seed"] = self.tie.seed
        if self.refusal is not None:
            plugin, point, refusal = self.refusal
            result["refusal"] = {
                "plugin": plugin, "point": point.value, "rule": refusal.rule, "reason": refusal.message,
                "code": refusal.code.value,
            }
        if self.nomination is not None:
            victims = [victim.key for victim in self.nomination.victims]
            result["nomination"] = {"node": self.nomination.node, "victims": victims}
        if self.post_filter_refusals:
            result["noRoom"] = [
                {"plugin": plugin, "reason": refusal.message} for plugin, refusal in self.post_filter_refusals
            ]
        if self.waiting:
            result["waiting"] = True
        if self.binding:
            result["binding"] = True
        result["refusals"] = [refused.to_json() | {"count": len(refused.nodes)} for refused in self.refusals()]
        result["scores"] = self._score_table(nodes)
        if self.scores and nodes is not None and len(self.passed) > nodes:
            result["scoresLeftOut"] = len(self.passed) - nodes
        result["weights"] = {step.plugin: step.weight for step in self.scores}
        result["errors"] = [
            failure.to_json() | {"count": len(failure.nodes), "nodes": list(failure.nodes)} for failure in self.errors()
        ]
        return result

    def best(self, count: int | None = None) -> list[tuple[str, int]]:
        """Return the nodes that passed with their weighted totals, best first, then by name."""
        totals = np.zeros(len(self.passed), np.int64) if self.totals is None else self.totals
        pairs = [(self.names[int(row)], int(total)) for row, total in zip(self.passed, totals, strict=True)]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:count]

    def _first_reasons(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        refused = np.zeros(len(self.names), np.bool_)
        for step in self.filters:
            if step.enforcement is not Enforcement.ENFORCE:
                continue
            first = step.refused[~refused[step.refused]]
            refused[first] = True
            for reason, rows in in_fixed_words(step, first).items():
                counts[reason] = counts.get(reason, 0) + len(rows)
        return counts

    def _score_table(self, count: int | None) -> list[dict[str, Any]]:
        if not self.scores:
            return []
        return [{"node": name, "total": total, "plugins": self.score_of(name)} for name, total in self.best(count)]

    def _row(self, node: str) -> int:
        row = bisect.bisect_left(self.names, node)
        if row == len(self.names) or self.names[row] != node:
            raise KeyError(node)
        return row


def _may_have_failed(steps: Sequence[Any]) -> bool:
    return steps.failed if isinstance(steps, DeferredSteps) else bool(steps)


def _holds(rows: Rows, row: int) -> bool:
    place = int(np.searchsorted(rows, row))
    return place < len(rows) and int(rows[place]) == row


def _by_reason(step: Filtered, rows: Rows) -> Mapping[str, Rows]:
    if not len(rows):
        return {}
    if step.answer.reasons is not None:
        return step.answer.reasons(rows)
    groups: dict[str, list[int]] = {}
    for row in rows.tolist():
        refusal = step.answer.explain(row)
        groups.setdefault(refusal.message or refusal.rule, []).append(row)
    return {reason: np.array(each, dtype=np.intp) for reason, each in groups.items()}


def in_fixed_words(step: Filtered, rows: Rows) -> Mapping[str, Rows]:
    """Return the rows that a filter refused by reason in fixed words: without values of single nodes."""
    if len(rows) and step.answer.brief is not None:
        return step.answer.brief(rows)
    return _by_reason(step, rows)


def _grouped(step: Filtered, names: Sequence[str]) -> list[RefusedNodes]:
    groups = _commonest_first(_by_reason(step, step.refused))
    if len(groups) > _MOST_REASONS and step.answer.brief is not None:
        rest = np.unique(np.concatenate([rows for _, rows in groups[_MOST_REASONS:]]))
        groups[_MOST_REASONS:] = _commonest_first(step.answer.brief(rest))
    found = []
    for reason, rows in groups:
        first = step.answer.explain(int(rows[0]))
        found.append(RefusedNodes(step.plugin, first.rule, reason, first.code, tuple(names[int(row)] for row in rows),
                             first.values, step.enforcement))
    return found


def _commonest_first(groups: Mapping[str, Rows]) -> list[tuple[str, Rows]]:
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
