"""DefaultPreemption: preempts pods of lower priority for an unschedulable pod, as few and as unimportant as
possible.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.kubernetes.selectors import Json, matches_labels
from koordpolicy.engine.scheduler.verdict.messages import unavailable
from koordpolicy.plugin import NO_CANDIDATE, CycleState, Handle, Nomination, Refused

from ..allocation.strict_args import integer, read_args

_BUDGET: Final = "PodDisruptionBudget"
_PERCENTAGE: Final = 10
_ABSOLUTE: Final = 100
_NEVER: Final = "not eligible due to preemptionPolicy=Never."
_LEAVING: Final = "not eligible due to a terminating pod on the nominated node."
_NO_VICTIMS: Final = "No preemption victims found for incoming pod"
_NO_HELP: Final = "Preemption is not helpful for scheduling"
_LOWEST_PRIORITY: Final = -(2**31)
_NOT_STARTED: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that would take the pod without the victims (most important first); some may violate budgets."""

    row: int
    victims: tuple[PodInfo, ...]
    violations: int


class DefaultPreemption:
    """PostFilter (kube-scheduler's plugin of that name).

    Arguments: at least `minCandidateNodesPercentage` (10) of the nodes and `minCandidateNodesAbsolute` (100) nodes are
    tried, from a random one on.
    """

    name = "DefaultPreemption"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._percentage = args.get("minCandidateNodesPercentage", _PERCENTAGE)
        self._absolute = args.get("minCandidateNodesAbsolute", _ABSOLUTE)
        self._random = random.Random(handle.seed)  # noqa: S311 - where the search begins needs no secrecy

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return v1 arguments with their defaults; raises `ValueError` with the fault and the field's path."""
        given = {"minCandidateNodesPercentage": _PERCENTAGE, "minCandidateNodesAbsolute": _ABSOLUTE, **read_args(
            args, "DefaultPreemptionArgs",
            {"minCandidateNodesPercentage": integer, "minCandidateNodesAbsolute": integer},
        )}
        percentage, absolute = given["minCandidateNodesPercentage"], given["minCandidateNodesAbsolute"]
        if not 0 <= percentage <= 100:
            raise ValueError(f"`minCandidateNodesPercentage` is {percentage}: not in valid range [0, 100]")
        if absolute < 0:
            raise ValueError(f"`minCandidateNodesAbsolute` is {absolute}: not in valid range [0, inf)")
        if percentage == absolute == 0:
            raise ValueError("`minCandidateNodesPercentage` cannot be zero at the same time as "
                             "minCandidateNodesAbsolute")
        return given

    def post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, refused: Refused,
    ) -> Nomination | Refusal:
        """Return the node with the fewest and least important victims, or why preemption does not help."""
        return make_room(
            pod, snapshot, refused, percentage=self._percentage, absolute=self._absolute,
            start=self._random.randrange(snapshot.size or 1),
        )


def make_room(
    pod: PodInfo, snapshot: Snapshot, refused: Refused, *, may_take: Callable[[PodInfo], bool] | None = None,
    percentage: int = _PERCENTAGE, absolute: int = _ABSOLUTE, start: int = 0,
) -> Nomination | Refusal:
    """Nominate the node with the fewest and least important victims, or return why preemption does not help on any.

    `may_take` selects the pods that may be victims; without it, those of lower priority. At least `percentage` of
    the nodes and `absolute` nodes are tried, from the row `start` on.
    """
    why = ineligible(pod, snapshot, refused)
    if why:
        return Refusal("eligible", f"preemption: {why}")
    rows = refused.resolvable().tolist()
    failures: Counter[str] = Counter()
    errors: list[str] = []
    budgets = [DisruptionBudget(item) for item in snapshot.objects(_BUDGET).values()]
    enough = min(max(len(rows) * percentage // 100, absolute), len(rows))
    start %= len(rows) or 1
    breaking: list[Candidate] = []
    clean: list[Candidate] = []
    for row in rows[start:] + rows[:start]:
        found = select_victims(pod, snapshot, refused, row, budgets, may_take)
        if not isinstance(found, Candidate):
            failures.update(found)
            continue
        if not found.victims:
            errors.append(f'expected at least one victim pod on node "{snapshot.names[row]}"')
            continue
        (breaking if found.violations else clean).append(found)
        # The search does not stop at candidates that violate budgets.
        if clean and len(clean) + len(breaking) >= enough:
            break
    if not clean and not breaking:
        if errors:
            text = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
            return Refusal("victims", f"preemption: {text}", Code.ERROR)
        if snapshot.size > len(rows):
            failures[_NO_HELP] += snapshot.size - len(rows)
        return Refusal(NO_CANDIDATE, f"preemption: {unavailable(snapshot.size, failures)}")
    best = pick(clean + breaking)
    return Nomination(snapshot.names[best.row], best.victims)


def select_victims(  # noqa: PLR0917 - a pod, a node, and who may go
    pod: PodInfo, snapshot: Snapshot, refused: Refused, row: int, budgets: Sequence[DisruptionBudget] = (),
    may_take: Callable[[PodInfo], bool] | None = None,
) -> Candidate | tuple[str, ...]:
    """Return the victims on a node so that the pod fits, or the reasons why preemption does not help.

    All pods that `may_take` allows (without it, those of lower priority) are removed; then as many as possible are
    restored, those that would violate their disruption budgets first, the more important before the others.
    """
    node = snapshot.names[row]
    possible = [
        each for each in snapshot.row(row).pods.values()
        if (each.priority < pod.priority if may_take is None else may_take(each))
    ]
    if not possible:
        return (_NO_VICTIMS,)
    possible.sort(key=importance)
    removed = {each.key for each in possible}

    def without_them() -> Snapshot:
        return snapshot.overlay({node: NodeChange(remove=tuple(sorted(removed)))})

    reasons = refused.why_not(without_them(), row)
    if reasons:
        return reasons
    violating, others = split_by_budgets(possible, budgets)
    violations = 0
    for group in (violating, others):
        for each in group:
            removed.discard(each.key)
            if not len(refused.passes(without_them(), np.array([row], np.intp))):
                removed.add(each.key)
                violations += group is violating
    return Candidate(row, tuple(each for each in possible if each.key in removed), violations)


def importance(pod: PodInfo) -> tuple[int, int, str]:
    """Return the sort key of pods, the most important first: by priority, then by the longest run time."""
    return -pod.priority, _started(pod), pod.key


def pick(candidates: Sequence[Candidate]) -> Candidate:
    """Return the best candidate by kube-scheduler's criteria; each decides among those that the former leave equal.

    1. the fewest violated budgets,
    2. the lowest priority of the most important victim,
    3. the smallest sum of the victims' priorities, counted from the lowest possible one,
    4. the fewest victims,
    5. the latest start of the victim that runs longest among those of the highest priority,
    6. the first candidate.
    """

    def order(candidate: Candidate) -> tuple[int, int, int, int, int]:
        highest = max((each.priority for each in candidate.victims), default=_LOWEST_PRIORITY)
        earliest = min((_started(each) for each in candidate.victims if each.priority == highest), default=0)
        total = sum(each.priority - _LOWEST_PRIORITY for each in candidate.victims)
        return candidate.violations, highest, total, len(candidate.victims), -earliest

    return min(candidates, key=order)


class DisruptionBudget:
    """The relevant fields of a PodDisruptionBudget."""

    def __init__(self, item: Json) -> None:
        status = item.get("status") or {}
        self.namespace = (item.get("metadata") or {}).get("namespace") or "default"
        self.selector: Json = (item.get("spec") or {}).get("selector") or {}
        self.allowed = int(status.get("disruptionsAllowed") or 0)
        self.processed = frozenset(status.get("disruptedPods") or ())

    def covers(self, pod: PodInfo) -> bool:
        """Return whether an eviction of the pod would count; an empty selector covers nothing."""
        labels = pod.object["metadata"].get("labels") or {}
        if not labels or pod.namespace != self.namespace or pod.name in self.processed:
            return False
        if not (self.selector.get("matchLabels") or self.selector.get("matchExpressions")):
            return False
        try:
            return matches_labels(self.selector, labels)
        except ValueError:
            return False  # it matches no pod


def split_by_budgets(
    pods: Sequence[PodInfo], budgets: Sequence[DisruptionBudget],
) -> tuple[list[PodInfo], list[PodInfo]]:
    """Return the pods whose evictions, one after the other, would violate a budget, and the others, in order."""
    left = [budget.allowed for budget in budgets]
    violating: list[PodInfo] = []
    others: list[PodInfo] = []
    for pod in pods:
        violated = False
        for place, budget in enumerate(budgets):
            if budget.covers(pod):
                left[place] -= 1
                violated = violated or left[place] < 0
        (violating if violated else others).append(pod)
    return violating, others


def ineligible(pod: PodInfo, snapshot: Snapshot, refused: Refused) -> str:
    """Return why the pod may not preempt others, or an empty string."""
    if (pod.object.get("spec") or {}).get("preemptionPolicy") == "Never":
        return _NEVER
    node = (pod.object.get("status") or {}).get("nominatedNodeName") or ""
    row = snapshot.index.get(node)
    if row is None:
        return ""
    try:
        if refused.code(row) is Code.UNRESOLVABLE:
            return ""  # the nominated node can no longer help, so another one may be nominated
    except KeyError:
        pass
    leaving = (each for each in snapshot.row(row).pods.values() if each.priority < pod.priority)
    return _LEAVING if any(_leaves_for_another(each) for each in leaving) else ""


def _leaves_for_another(pod: PodInfo) -> bool:
    if not pod.object["metadata"].get("deletionTimestamp"):
        return False
    for condition in (pod.object.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "DisruptionTarget":
            return (condition.get("status"), condition.get("reason")) == ("True", "PreemptionByScheduler")
    return False


def _started(pod: PodInfo) -> int:
    """Return when the pod started (ns); one that has not counts as started just now, after all others."""
    text = (pod.object.get("status") or {}).get("startTime")
    try:
        return nanoseconds(text, "status.startTime") if isinstance(text, str) else _NOT_STARTED
    except ValueError:
        return _NOT_STARTED
