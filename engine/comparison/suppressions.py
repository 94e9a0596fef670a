"""Limits, writes and evictions of QoS plugins over the rounds of all nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.qos import UNSUPPORTED
from koordpolicy.engine.kubernetes.vocabulary import BE

from .evictions import PredictedEviction
from .failures import Faults
from .qos_round import NodeRound


@dataclass(frozen=True, slots=True)
class Suppression:
    """A limit or write of a QoS plugin on a node, other than an eviction; one for each subject.

    `values` are the limits (`target` in milli-cores of cpu); `best_effort` is the number of such pods on the node.
    """

    node: str
    plugin: str
    item: str
    kind: str
    subject: str
    values: Mapping[str, object]
    reason: str
    best_effort: int

    @property
    def felt(self) -> bool:
        """Return whether it has an effect: a limit of best-effort pods has none on a node without such pods."""
        return self.kind != "suppressCPU" or self.best_effort > 0


@dataclass(slots=True)
class QoSUse:
    """The rounds of a QoS plugin and their results, over all nodes."""

    rounds: int = 0
    true: Counter[str] = field(default_factory=Counter)
    """The number of rounds in which the expression of a threshold was true."""
    held: Counter[str] = field(default_factory=Counter)
    """The number of rounds in which a threshold held."""
    acted: Counter[str] = field(default_factory=Counter)
    """The number of adjustments of each action."""


def sum_up(
    rounds: Iterable[NodeRound], snapshot: Snapshot, faults: Faults,
) -> tuple[list[PredictedEviction], tuple[Suppression, ...], dict[str, QoSUse]]:
    """Return the evictions, the limits and writes, and the use of each plugin; failures are counted."""
    use: dict[str, QoSUse] = {}
    evictions: dict[str, PredictedEviction] = {}
    found: dict[tuple[str, str, str, str], Suppression] = {}
    for each in rounds:
        of = use.setdefault(each.plugin, QoSUse())
        of.rounds += 1
        of.true.update(threshold.name for threshold in each.report.thresholds if threshold.true)
        of.held.update(threshold.name for threshold in each.report.thresholds if threshold.holds)
        of.acted.update(adjustment.item for adjustment in each.report.adjustments)
        for error in each.report.errors:
            if error.reason != UNSUPPORTED:
                faults.add((each.plugin, Framework.QOS.value, error.item, error.message), error.subject)
        if not each.enforced:
            continue
        for adjustment in each.report.adjustments:
            if adjustment.kind == "evict":
                evictions.setdefault(adjustment.subject, PredictedEviction(
                    adjustment.subject, each.node, Framework.QOS.value, each.plugin, adjustment.item, adjustment.reason,
                ))
            elif not adjustment.recovers:
                waiting = sum(pod.qos_class == BE for pod in snapshot.pods(snapshot.index[each.node]))
                key = (each.node, each.plugin, adjustment.item, adjustment.subject)
                found[key] = Suppression(
                    each.node, each.plugin, adjustment.item, adjustment.kind, adjustment.subject,
                    dict(adjustment.values), adjustment.reason, waiting,
                )
    return list(evictions.values()), tuple(found.values()), use
