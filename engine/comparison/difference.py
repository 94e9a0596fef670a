"""The difference of two outcomes: pods that change node, nodes that are lost or gained and by which rule, pending and
evicted pods, limits, and shifts of scores. Both outcomes are of the same cluster, pods, time and seed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from koordpolicy.engine.explanation import plain

from .eligibility import ELIGIBLE, Cause, Misfit, PodShape, Scorer
from .evictions import PredictedEviction
from .failures import FailureCount
from .outcome import Outcome
from .suppressions import Suppression

_OfPod = TypeVar("_OfPod", Misfit, PredictedEviction)
_BUDGET: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(%?)")


@dataclass(frozen=True, slots=True)
class Moved:
    """A pod that is placed under both, on different nodes.

    `cause` is the refusal of the old node under the new policies, in the current cluster; None if the new node only
    scores higher. The scores are the weighted totals of each node under its own set, None if only one node passed.
    """

    pod: str
    old: str
    new: str
    cause: Cause | None = None
    old_score: int | None = None
    new_score: int | None = None


@dataclass(frozen=True, slots=True)
class Stranded:
    """A pod that is placed under only one of the two, on `node`; `reasons` are those of the other one."""

    pod: str
    node: str
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Nodes that are refused to some pods for one cause under one of the two, and open to them under the other.

    `pods` and `nodes` are all affected ones, each once; `pairs` counts the pods of every node.
    """

    cause: Cause
    pods: tuple[str, ...]
    nodes: tuple[str, ...]
    pairs: int


@dataclass(frozen=True, slots=True)
class BoundChange:
    """A changed limit of a node; None if there is no limit."""

    node: str
    subject: str
    kind: str
    old: Suppression | None
    new: Suppression | None


@dataclass(frozen=True, slots=True)
class Ranked:
    """Pods of one kind for which another node of the current cluster is the best."""

    pod: str
    pods: int
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Rescored:
    """The scores of a plugin before and now; None if it does not exist."""

    plugin: str
    old: Scorer | None
    new: Scorer | None


@dataclass(frozen=True, slots=True)
class WatchedRefusals:
    """Refusals of plugins with Warn or Audit: pairs of a pod and a node, before and now."""

    cause: Cause
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Results that only one of the two sets of policies has; each tuple in order of name."""

    waiting: tuple[Stranded, ...] = ()
    """Pods without a node."""
    refused: tuple[Eligibility, ...] = ()
    """Nodes refused to pods, most pairs first."""
    misfits: tuple[Misfit, ...] = ()
    evicted: tuple[PredictedEviction, ...] = ()
    useless: tuple[PredictedEviction, ...] = ()
    """Evictions that are not made, since their proof says that they would not help."""
    suppressed: tuple[BoundChange, ...] = ()
    faults: tuple[FailureCount, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two outcomes."""

    old: Outcome
    new: Outcome
    moved: tuple[Moved, ...]
    added: Changes
    """Results of the new policies only."""
    removed: Changes
    """Results of the old policies only."""
    bounds: tuple[BoundChange, ...]
    """Limits under both, with different values."""
    ranked: tuple[Ranked, ...]
    """Kinds of pods with another best node, largest first."""
    rescored: tuple[Rescored, ...]
    """Scoring plugins whose scores or weights differ."""
    watched: tuple[WatchedRefusals, ...]
    """Plugins with Warn or Audit that would refuse more or less than before, most first."""
    totals_changed: int
    """The number of pairs of a kind of pod and a node that is eligible under both, with different weighted totals."""
    totals: int
    """The number of all such pairs."""
    mean_shift: float
    """The mean increase of the weighted totals of all such pairs; 0 if there are none."""

    @property
    def counts(self) -> dict[str, int]:
        """The differences in numbers, by name."""
        return {
            "moved": len(self.moved),
            "nowPending": len(self.added.waiting), "nowPlaced": len(self.removed.waiting),
            "nodesLost": len(_nodes(self.added.refused)), "nodesGained": len(_nodes(self.removed.refused)),
            "nowMisfits": len(self.added.misfits), "noMisfits": len(self.removed.misfits),
            "nowEvicted": len(self.added.evicted), "notEvicted": len(self.removed.evicted),
            "nowSuppressed": len({each.node for each in self.added.suppressed}),
            "notSuppressed": len({each.node for each in self.removed.suppressed}),
            "otherBounds": len(self.bounds), "otherBestNode": sum(each.pods for each in self.ranked),
            "totalsChanged": self.totals_changed,
            "newFaults": len(self.added.faults), "goneFaults": len(self.removed.faults),
        }

    @property
    def nothing(self) -> bool:
        """Return whether there is no difference."""
        return not any(self.counts.values()) and not self.rescored and not self.watched

    def to_json(self) -> dict[str, Any]:
        """Return plain data with all differences."""
        return {
            "old": self.old.summary.to_json(), "new": self.new.summary.to_json(), "counts": self.counts,
            "moved": [{"pod": each.pod, "old": each.old, "new": each.new, "oldScore": each.old_score,
                       "newScore": each.new_score,
                       **({"cause": each.cause.to_json()} if each.cause is not None else {})} for each in self.moved],
            "added": _changes_json(self.added), "gone": _changes_json(self.removed),
            "bounds": [_held_json(each) for each in self.bounds],
            "bestNodes": [{"pod": each.pod, "pods": each.pods, "old": each.old, "new": each.new}
                          for each in self.ranked],
            "watched": [{**each.cause.to_json(), "old": each.old, "new": each.new} for each in self.watched],
            "scores": {
                "totals": self.totals, "changed": self.totals_changed, "meanShift": round(self.mean_shift, 2),
                "plugins": [{"plugin": each.plugin, "old": _scorer_json(each.old), "new": _scorer_json(each.new)}
                            for each in self.rescored],
            },
        }


def difference(old: Outcome, new: Outcome) -> Difference:
    """Return the differences of `new` from `old`.

    Raises:
        ValueError: they are about different nodes or pods.
    """
    if old.nodes != new.nodes or old.placements.keys() != new.placements.keys():
        raise ValueError("outcomes of different clusters or pods cannot be compared")
    pairs = _pairs(old, new)
    lost, gained = _Refusals(new), _Refusals(old)
    ranked: list[Ranked] = []
    totals = changed = shift = 0
    for before, after, pods in pairs:
        open_before, open_after = before.refused_by == ELIGIBLE, after.refused_by == ELIGIBLE
        lost.add(after, pods, open_before & ~open_after)
        gained.add(before, pods, open_after & ~open_before)
        both = open_before & open_after
        moves = after.totals[both] - before.totals[both]
        totals, changed = totals + len(moves), changed + int(np.count_nonzero(moves))
        shift += int(moves.sum())
        if before.best is not None and after.best is not None and before.best != after.best:
            ranked.append(Ranked(pods[0], len(pods), before.best, after.best))
    waiting, placed, moved = _placements(old, new, pairs)
    held, freed, bounds = _bounds(old, new)
    return Difference(
        old, new, moved,
        Changes(waiting, lost.found(), _only(new.misfits, old.misfits), _only(new.evictions, old.evictions),
                _only(new.useless, old.useless), held, _only_faults(new.faults, old.faults)),
        Changes(placed, gained.found(), _only(old.misfits, new.misfits), _only(old.evictions, new.evictions),
                _only(old.useless, new.useless), freed, _only_faults(old.faults, new.faults)),
        bounds, tuple(sorted(ranked, key=lambda each: (-each.pods, each.pod))), _rescored(old, new), _watched(old, new),
        changed, totals, shift / totals if totals else 0.0,
    )


def _pairs(old: Outcome, new: Outcome) -> list[tuple[PodShape, PodShape, tuple[str, ...]]]:
    """Return the kinds of pods under both with the pods that they share: the kinds of the two sets may differ."""
    if old.shapes is new.shapes:
        return []  # reused results have no differences
    of_pod = {pod: number for number, shape in enumerate(new.shapes) for pod in shape.pods}
    found: list[tuple[PodShape, PodShape, tuple[str, ...]]] = []
    for before in old.shapes:
        shared: dict[int, list[str]] = {}
        for pod in before.pods:
            shared.setdefault(of_pod[pod], []).append(pod)
        found += ((before, new.shapes[number], tuple(pods)) for number, pods in shared.items())
    return found


class _Refusals:
    """Collects the nodes that only one of the two refuses, by cause."""

    def __init__(self, refusing: Outcome) -> None:
        self._refusing = refusing
        self._found: dict[int, tuple[list[str], set[int], int]] = {}

    def add(self, shape: PodShape, pods: Sequence[str], refused: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        if not refused.any():
            return
        rows = np.flatnonzero(refused)
        numbers = shape.refused_by[rows]
        for number in np.unique(numbers).tolist():
            mine = rows[numbers == number].tolist()
            keys, nodes, pairs = self._found.get(number, ([], set(), 0))
            keys.extend(pods)
            nodes.update(mine)
            self._found[number] = keys, nodes, pairs + len(mine) * len(pods)

    def found(self) -> tuple[Eligibility, ...]:
        names, causes = self._refusing.nodes, self._refusing.causes
        found = [
            Eligibility(causes[number], tuple(sorted(pods)), tuple(names[row] for row in sorted(nodes)), pairs)
            for number, (pods, nodes, pairs) in self._found.items()
        ]
        return tuple(sorted(found, key=lambda each: (-each.pairs, *each.cause.to_json().values())))


def _placements(
    old: Outcome, new: Outcome, pairs: Iterable[tuple[PodShape, PodShape, tuple[str, ...]]],
) -> tuple[tuple[Stranded, ...], tuple[Stranded, ...], tuple[Moved, ...]]:
    """Return the pods that are pending only now, those pending only before, and those with another node."""
    rows = {name: row for row, name in enumerate(new.nodes)}
    kinds = {pod: after for _, after, pods in pairs if not after.running for pod in pods}
    waiting, placed, moved = [], [], []
    for pod in sorted(old.placements):
        before, after = old.placements[pod], new.placements[pod]
        if before.node == after.node:
            continue
        if after.node is None:
            waiting.append(Stranded(pod, str(before.node), after.reasons))
        elif before.node is None:
            placed.append(Stranded(pod, after.node, before.reasons))
        else:
            number = int(kinds[pod].refused_by[rows[before.node]]) if pod in kinds else ELIGIBLE
            cause = None if number == ELIGIBLE else new.causes[number]
            moved.append(Moved(pod, before.node, after.node, cause, before.score, after.score))
    return tuple(waiting), tuple(placed), tuple(moved)


def _only(of: Iterable[_OfPod], other: Iterable[_OfPod]) -> tuple[_OfPod, ...]:
    """Return the pods without a counterpart in the other outcome, each once."""
    known = {each.pod for each in other}
    return tuple(sorted({each.pod: each for each in reversed(tuple(of)) if each.pod not in known}.values(),
                        key=lambda each: each.pod))


def _only_faults(of: Iterable[FailureCount], other: Iterable[FailureCount]) -> tuple[FailureCount, ...]:
    known = {_identity(each) for each in other}
    return tuple(sorted((each for each in of if _identity(each) not in known), key=_identity))


def _identity(fault: FailureCount) -> tuple[str, str, str, str]:
    return fault.plugin, fault.point, fault.rule, fault.message


def _bounds(
    old: Outcome, new: Outcome,
) -> tuple[tuple[BoundChange, ...], tuple[BoundChange, ...], tuple[BoundChange, ...]]:
    """Return the limits that exist only now, only before, and under both with different values."""
    before, after = _tightest(old), _tightest(new)
    held, freed, bounds = [], [], []
    for key in sorted(before.keys() | after.keys()):
        one, other = before.get(key), after.get(key)
        each = BoundChange(*key, one, other)
        if one is None:
            held.append(each)
        elif other is None:
            freed.append(each)
        elif one.values.get("target") != other.values.get("target"):
            bounds.append(each)
    return tuple(held), tuple(freed), tuple(bounds)


def _tightest(of: Outcome) -> dict[tuple[str, str, str], Suppression]:
    """Return by node, subject and kind the strictest bound that affects any pod."""
    found: dict[tuple[str, str, str], Suppression] = {}
    for each in of.suppressions:
        key = (each.node, each.subject, each.kind)
        if each.felt and (key not in found or _amount(each) < _amount(found[key])):
            found[key] = each
    return found


def _amount(each: Suppression) -> float:
    target = each.values.get("target")
    return target if isinstance(target, int | float) else math.inf


def _rescored(old: Outcome, new: Outcome) -> tuple[Rescored, ...]:
    before, after = ({each.plugin: each for each in of.scorers} for of in (old, new))
    return tuple(
        Rescored(name, before.get(name), after.get(name)) for name in {**before, **after}
        if _said(before.get(name)) != _said(after.get(name))
    )


def _watched(old: Outcome, new: Outcome) -> tuple[WatchedRefusals, ...]:
    before, after = _watched_pairs(old), _watched_pairs(new)
    causes = dict.fromkeys((*before, *after))
    found = [WatchedRefusals(cause, before.get(cause, 0), after.get(cause, 0)) for cause in causes]
    return tuple(sorted((each for each in found if each.old != each.new), key=lambda each: -each.new))


def _watched_pairs(of: Outcome) -> dict[Cause, int]:
    found: dict[Cause, int] = {}
    for shape in of.shapes:
        for number, nodes in shape.watched.items():
            cause = of.causes[number]
            found[cause] = found.get(cause, 0) + nodes * len(shape.pods)
    return found


def _said(scorer: Scorer | None) -> tuple[object, ...]:
    """Return how a scorer distinguishes nodes: the number of kinds of pods for which its scores differ."""
    return () if scorer is None else (scorer.weight, scorer.enforcement, scorer.mean, scorer.low, scorer.high)


def _nodes(found: Iterable[Eligibility]) -> set[str]:
    return {name for each in found for name in each.nodes}


# Plain data


def _changes_json(changes: Changes) -> dict[str, Any]:
    return {
        "pending": [{"pod": each.pod, "node": each.node, "reasons": dict(each.reasons)} for each in changes.waiting],
        "refused": [{**each.cause.to_json(), "pairs": each.pairs, "pods": list(each.pods), "nodes": list(each.nodes)}
                    for each in changes.refused],
        "misfits": [{"pod": each.pod, "node": each.node, **each.cause.to_json()} for each in changes.misfits],
        "evicted": [_eviction_json(each) for each in changes.evicted],
        "useless": [_eviction_json(each) for each in changes.useless],
        "suppressed": [_held_json(each) for each in changes.suppressed],
        "faults": [{"plugin": each.plugin, "point": each.point, "rule": each.rule, "message": each.message,
                    "times": each.times, "example": each.example} for each in changes.faults],
    }


def _eviction_json(of: PredictedEviction) -> dict[str, Any]:
    proof = {} if of.proof is None else {"proof": of.proof.to_json()}
    return {"pod": of.pod, "node": of.node, "framework": of.framework, "plugin": of.plugin, "rule": of.rule,
            "reason": of.reason, **proof}


def _held_json(held: BoundChange) -> dict[str, Any]:
    result: dict[str, Any] = {"node": held.node, "subject": held.subject, "kind": held.kind}
    for name, each in (("old", held.old), ("new", held.new)):
        result[name] = None if each is None else {
            "plugin": each.plugin, "item": each.item, "target": plain(each.values.get("target")), "reason": each.reason,
            "bestEffortPods": each.best_effort,
        }
    return result


def _scorer_json(scorer: Scorer | None) -> dict[str, Any] | None:
    if scorer is None:
        return None
    return {"weight": scorer.weight, "enforcement": scorer.enforcement.value, "mean": round(scorer.mean, 2),
            "low": scorer.low, "high": scorer.high}


# Budgets


@dataclass(frozen=True, slots=True)
class ChangeBudget:
    """A bound of a change: a number, or a percentage of a whole."""

    amount: float
    percent: bool

    @classmethod
    def parse(cls, text: str) -> ChangeBudget:
        """Read `5` or `0.5%`.

        Raises:
            ValueError: it is neither.
        """
        found = _BUDGET.fullmatch(text.strip()) if text.isascii() else None
        if found is None or (not found[2] and "." in found[1]):
            raise ValueError(f"`{text}` is not a budget: write a whole number, or a share such as `1%`")
        amount = float(found[1])
        if found[2] and amount > 100:
            raise ValueError(f"`{text}` is more than all: write at most `100%`")
        return cls(amount, bool(found[2]))

    def allows(self, count: int, whole: int) -> bool:
        """Return whether this number of a whole is within the budget."""
        return count <= (whole * self.amount / 100 if self.percent else self.amount)

    def __str__(self) -> str:
        return f"{self.amount:g}{'%' if self.percent else ''}"


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """A budget and what was spent of it."""

    name: str
    """The counted quantity, as text."""
    budget: ChangeBudget
    count: int
    whole: int

    @property
    def within(self) -> bool:
        """Return whether the budget holds."""
        return self.budget.allows(self.count, self.whole)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"name": self.name, "budget": str(self.budget), "count": self.count, "of": self.whole,
                "within": self.within}


BUDGETS: Final[Mapping[str, tuple[str, str]]] = {
    "moved": ("pods that change node", "to_place"),
    "pending": ("pods that find no node any more", "to_place"),
    "evicted": ("running pods that would be evicted now", "running"),
    "misfits": ("running pods whose node would refuse them now", "running"),
    "suppressed": ("nodes whose best-effort pods are held back now", "nodes"),
}
"""The quantities that have budgets, with the whole (a number of the summary) of their percentages."""

_COUNTED: Final = {
    "moved": "moved", "pending": "nowPending", "evicted": "nowEvicted", "misfits": "nowMisfits",
    "suppressed": "nowSuppressed",
}


def spend(found: Difference, budgets: Mapping[str, ChangeBudget]) -> tuple[BudgetSpent, ...]:
    """Return the spent part of budgets, by the names of `BUDGETS`; improvements are not deducted."""
    counts = found.counts
    return tuple(
        BudgetSpent(BUDGETS[name][0], budget, counts[_COUNTED[name]], getattr(found.new.summary, BUDGETS[name][1]))
        for name, budget in budgets.items()
    )
