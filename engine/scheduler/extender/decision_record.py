"""Records of the decisions of an extender, for status and metrics."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Enforcement, Point

from ..verdict.verdict import Verdict

LONGEST_MESSAGE: Final = 1024
REASONS_SHOWN: Final = 20
_BEST: Final = 10


class Verb(enum.Enum):
    """The kind of a call."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"


@dataclass(frozen=True, slots=True)
class ShownRefusal:
    """Nodes that one plugin refused for one reason; `nodes` are the first of them."""

    plugin: str
    reason: str
    count: int
    nodes: tuple[str, ...]
    enforcement: Enforcement


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A record of a decision, for status and metrics.

    `result` is `ok`, `refused` (a filter that left no node) or `error`. `errors` counts failures by plugin, point
    and rule; for a plugin that raised, once, without a rule. `best` are the best nodes with their exact totals,
    priorities and scores per plugin; `totals` are those of all nodes, in the order of `rows`.
    """

    verb: Verb
    pod: str
    uid: str
    result: str
    at: int
    """Nanoseconds since the epoch, by the clock of decisions."""
    generation: int = 0
    profile: str = ""
    pinned: bool = False
    """True if the generation is still that of the pod's first call."""
    considered: int = 0
    passed: int = 0
    unknown: int = 0
    refusals: tuple[ShownRefusal, ...] = ()
    refused_by: Mapping[str, int] = field(default_factory=dict)
    """The number of nodes that each plugin refused, enforced refusals only."""
    unenforced: tuple[tuple[str, Enforcement, int], ...] = ()
    """Plugins that only warn or audit, and how many nodes they would have refused."""
    errors: Mapping[tuple[str, Point, str], int] = field(default_factory=dict)
    failures: tuple[tuple[str, str], ...] = ()
    """Plugin and message of what failed."""
    best: tuple[tuple[str, int, int, Mapping[str, int]], ...] = ()
    names: Sequence[str] = field(default=(), repr=False)
    rows: Rows = field(default_factory=lambda: np.zeros(0, np.intp), repr=False)
    totals: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    refusals_left_out: int = 0
    """The number of further reasons beside `refusals`."""
    failures_left_out: int = 0
    """The number of further failures beside `failures`."""

    def to_json(self, *, every: bool = False) -> dict[str, Any]:
        """Return plain data; `every` adds the exact totals of all nodes."""
        result: dict[str, Any] = {
            "verb": self.verb.value, "pod": self.pod, "uid": self.uid, "result": self.result, "at": self.at / 1e9,
            "generation": self.generation, "profile": self.profile, "pinned": self.pinned, "nodes": self.considered,
            "unknownNodes": self.unknown,
        }
        if self.verb is Verb.FILTER:
            result["passed"] = self.passed
            result["refusals"] = [
                {"plugin": each.plugin, "reason": each.reason, "count": each.count, "nodes": list(each.nodes),
                 **({"nodesLeftOut": each.count - len(each.nodes)} if each.count > len(each.nodes) else {}),
                 "enforcement": each.enforcement.value} for each in self.refusals
            ]
            if self.refusals_left_out:
                result["refusalsLeftOut"] = self.refusals_left_out
        else:
            result["best"] = [
                {"node": name, "total": total, "priority": priority, "plugins": dict(scores)}
                for name, total, priority, scores in self.best
            ]
            if len(self.totals) > len(self.best):
                result["bestLeftOut"] = len(self.totals) - len(self.best)
            if every:
                pairs = zip(self.rows.tolist(), self.totals.tolist(), strict=True)
                result["totals"] = {self.names[row]: total for row, total in pairs}
        result["errors"] = [{"plugin": plugin, "message": message} for plugin, message in self.failures]
        if self.failures_left_out:
            result["errorsLeftOut"] = self.failures_left_out
        return result


def record_of(
    verb: Verb, pod: PodInfo, verdict: Verdict, *, at: int, considered: int, unknown: int, result: str,
    refusals: tuple[ShownRefusal, ...] = (), refusals_left_out: int = 0, pinned: bool = False,
    priorities: NDArray[np.int64] | None = None,
) -> DecisionRecord:
    """Return the record of a decision about `considered` nodes, of which `unknown` could not be used."""
    errors = _errors(verdict)
    failures = tuple((each.plugin, each.message[:LONGEST_MESSAGE]) for each in verdict.errors()) if errors else ()
    refused_by: dict[str, int] = {}
    if verdict.refusal is not None:
        refused_by[verdict.refusal[0]] = considered - unknown
    for step in verdict.filters:
        if step.enforcement is Enforcement.ENFORCE and len(step.refused):
            refused_by[step.plugin] = len(step.refused)
    record = DecisionRecord(
        verb, pod.key, pod.uid, result, at, verdict.generation, verdict.profile,
        pinned, considered, len(verdict.passed), unknown, refusals, refused_by,
        tuple((step.plugin, step.enforcement, len(step.refused)) for step in verdict.filters
              if step.enforcement is not Enforcement.ENFORCE and len(step.refused)),
        errors, failures[:REASONS_SHOWN], refusals_left_out=refusals_left_out,
        failures_left_out=len(failures[REASONS_SHOWN:]),
    )
    if priorities is None or verdict.totals is None:
        return record
    return replace(record, best=_best(verdict, verdict.totals, priorities), names=verdict.names,
                   rows=verdict.passed, totals=verdict.totals)


def _errors(verdict: Verdict) -> Counter[tuple[str, Point, str]]:
    found = Counter((failure.plugin, failure.point, failure.rule) for failure in verdict.failures)
    for step in verdict.filters:
        for rule, failed in step.answer.errors.items():
            found[step.plugin, Point.FILTER, rule] += len(failed)
    for scored in verdict.scores:
        for rule, failed in scored.scores.errors.items():
            found[scored.plugin, Point.SCORE, rule] += len(failed)
    return +found


def _best(
    verdict: Verdict, totals: NDArray[np.int64], priorities: NDArray[np.int64],
) -> tuple[tuple[str, int, int, Mapping[str, int]], ...]:
    rows, most = verdict.passed, len(totals) - _BEST
    # Only those that may be among the best are sorted.
    among = np.flatnonzero(totals >= np.partition(totals, most)[most]) if most > 0 else np.arange(len(totals))
    # Rows are sorted by name, and a stable sort preserves that order among equals.
    first = among[np.argsort(-totals[among], kind="stable")[:_BEST]]
    return tuple(
        (verdict.names[int(rows[place])], int(totals[place]), int(priorities[place]),
         {step.plugin: int(step.scores.values[rows[place]]) for step in verdict.scores})
        for place in first
    )
