"""Placements of pods that are scheduled one after the other, in a cluster that is left as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.verdict.verdict import Verdict

from .evictions import PredictedEviction
from .failures import Faults

_PREEMPTION: Final = "preemption"

_Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Placement:
    """The node of a pod when the pods are scheduled one after the other; `node` is None if none fits.

    `score` is the weighted total of that node and `scores` are its parts by plugin, unweighted; both are empty if only
    one node passed. If no node was found, `reasons` are the reasons of refusals with their numbers of nodes.
    """

    pod: str
    node: str | None
    passed: int
    score: int | None = None
    scores: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)


class Onlooker:
    """A client that writes nothing and records evictions (implements `Client`)."""

    simulated = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.evictions: list[PredictedEviction] = []

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any]) -> None:
        """Do nothing."""

    def bind(self, pod: PodInfo, node: str) -> None:
        """Do nothing: the pod is already assumed on the node."""

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Remember the pod, which stays."""
        node = known.node_name if (known := self._cluster.pod(pod.key)) is not None else pod.node_name
        self.evictions.append(PredictedEviction(pod.key, node, Framework.SCHEDULER.value, _PREEMPTION, "", reason))

    def preempt(self, pod: PodInfo, preemptor: PodInfo, node: str) -> None:
        """Remember the pod, which stays."""
        self.evict(pod, f"preempted by {preemptor.key} on {node}")


def place_all(
    pods: Sequence[PodInfo], scheduler: Scheduler, placements: dict[str, Placement], faults: Faults,
    progress: _Progress,
) -> None:
    """Record the nodes of the pods, placed one after the other; they are removed again.

    The scheduler reports the final verdicts of pods that waited for a permit.
    """
    try:
        for number, pod in enumerate(pods, start=1):
            verdict = scheduler.schedule(pod)
            if verdict.waiting or pod.key not in placements:
                placements[pod.key] = placement_of(verdict, faults)
            progress(number / len(pods))
        scheduler.process_bindings()
    finally:
        for pod in reversed(pods):
            scheduler.cluster.forget(pod.key)


@contextmanager
def on_their_nodes(
    cluster: Cluster, pods: Sequence[PodInfo], placements: Mapping[str, Placement],
) -> Iterator[None]:
    """Keep the pods on their nodes while the block runs."""
    placed = [(pod, node) for pod in pods if (node := placements[pod.key].node) is not None]
    try:
        for pod, node in placed:
            cluster.assume(pod, node)
        yield
    finally:
        for pod, _ in reversed(placed):
            cluster.forget(pod.key)


def placement_of(verdict: Verdict, faults: Faults) -> Placement:
    """Return the placement of a verdict, whose failures are counted."""
    faults.add_verdict(verdict)
    passed = len(verdict.passed)
    if verdict.waiting:
        return Placement(verdict.pod.key, None, passed, reasons={"a permit holds it back": verdict.size})
    if verdict.node is None:
        return Placement(verdict.pod.key, None, passed, reasons=verdict.reasons())
    if verdict.totals is None:
        return Placement(verdict.pod.key, verdict.node, passed)
    row = int(np.searchsorted(verdict.passed, verdict.row))
    scores = {step.plugin: int(step.scores.values[verdict.row]) for step in verdict.scores}
    return Placement(verdict.pod.key, verdict.node, passed, int(verdict.totals[row]), scores)
