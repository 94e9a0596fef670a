"""ScaleDownBinPack: ranks target pods so that a scale-down empties whole nodes, by deletion costs or by evictions.

The behaviour is Koordinator's (pkg/descheduler/framework/plugins/scaledownbinpack).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.framework import select_rows
from koordpolicy.engine.descheduler.pods import annotations_of
from koordpolicy.engine.descheduler.templates import DELETION_COST_ANNOTATION
from koordpolicy.engine.explanation import counted
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.plugin import Evictor

from .args import ScaleDownBinPackArgs, check_args, read_args
from .ranking import BinPackNode, RankedPod, rank_pods

__all__ = ["ScaleDownBinPack", "check_args", "make"]

_LAST: Final = 2**31 - 1
"""The deletion cost of targets that may not be evicted: controllers delete them last."""


class ScaleDownBinPack:
    """The plugin."""

    name = "ScaleDownBinPack"

    def __init__(self, args: ScaleDownBinPackArgs) -> None:
        self._args = args
        self.ranked: tuple[RankedPod, ...] = ()
        """The pods of the last cycle in the order in which they should go."""

    def balance(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Rank the target pods, then set their deletion costs or evict them.

        Raises:
            RuntimeError: deletion costs could not be set.
        """
        self.ranked = ()
        if self._args.paused:
            return
        nodes = tuple(self._nodes(snapshot, select_rows(snapshot, rows, self._args.node_selector), evictor))
        self.ranked = rank_pods(nodes, self._args.weights)
        if self._args.evicts:
            evict_ranked(self.ranked, self._args.most_evictions, evictor)
        else:
            set_deletion_costs(self.ranked, (pod for node in nodes for pod in node.skipped), evictor)

    def _nodes(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> Iterator[BinPackNode]:
        """Yield the nodes with pods that may be evicted."""
        targets = self._args.targets
        for row in map(int, rows):
            eligible: list[PodInfo] = []
            skipped: list[PodInfo] = []
            others: list[PodInfo] = []
            for pod in snapshot.pods(row):
                selected = targets.selects(pod)
                if selected and targets.has_namespace(pod) and evictor.filter(pod) is None:
                    eligible.append(pod)
                else:
                    (skipped if selected or targets.has_open_selector else others).append(pod)
            if eligible:
                limits = snapshot.row(row).allocatable
                yield BinPackNode(snapshot.names[row], limits, tuple(eligible), tuple(skipped), tuple(others))


def set_deletion_costs(ranked: tuple[RankedPod, ...], skipped: Iterator[PodInfo], evictor: Evictor) -> None:
    """Set the deletion costs of ranked pods to their ranks, and those of skipped ones to the largest; equal ones stay.

    Raises:
        RuntimeError: some could not be set; the others are.
    """
    costs = [(each.pod, str(each.rank)) for each in ranked]
    costs += [(pod, str(_LAST)) for pod in skipped]
    failed = 0
    for pod, cost in costs:
        annotations = annotations_of(pod)
        if annotations.get(DELETION_COST_ANNOTATION) == cost:
            continue
        metadata = {**pod.object["metadata"], "annotations": {**annotations, DELETION_COST_ANNOTATION: cost}}
        if not evictor.patch(pod.object, {**pod.object, "metadata": metadata}, f"deletion cost {cost}"):
            failed += 1
    if failed:
        raise RuntimeError(f"failed to patch {failed} pods")


def evict_ranked(ranked: tuple[RankedPod, ...], most: int | None, evictor: Evictor) -> None:
    """Evict pods in the order of their ranks until `most` evictions succeeded; None for all."""
    evicted = 0
    for each in ranked:
        if most is not None and evicted >= most:
            refusal = Refusal("maxPodsToEvict", f"at most {counted(most, 'pod')} per cycle")
            evictor.keep(each.pod, refusal, rule="EvictDirectly")
        elif evictor.pre_eviction_filter(each.pod) is None and evictor.evict(
                each.pod, "scale-down binpack", rule="EvictDirectly"):
            evicted += 1


def make(args: Mapping[str, Any], handle: object) -> ScaleDownBinPack:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile, of arguments in internal form."""
    return ScaleDownBinPack(read_args(args))
