"""FragmentationAware: evicts at most one pod per node, to even out how much of each resource is allocated.

The behaviour is Koordinator's (pkg/descheduler/framework/plugins/fragmentationaware).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.fitting_nodes import FittingNodes
from koordpolicy.engine.descheduler.framework import select_rows
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.plugin import Evictor

from .args import FragmentationAwareArgs, check_args, read_args
from .imbalance import imbalance, imbalances, request_of, requests_of

__all__ = ["FragmentationAware", "check_args", "make"]

_RULE: Final = "imbalanceThreshold"


class FragmentationAware:
    """The plugin; it has no state."""

    name = "FragmentationAware"

    def __init__(self, args: FragmentationAwareArgs) -> None:
        self._args = args

    def balance(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict from each imbalanced node the pod whose removal evens out its resources most."""
        args = self._args
        if args.paused:
            return
        rows = select_rows(snapshot, rows, args.node_selector)
        fitting = FittingNodes(snapshot, rows.tolist())
        for row in rows[imbalances(snapshot, rows, args.resources) > args.imbalance_threshold].tolist():
            self._relieve(snapshot, row, fitting, evictor)

    def explain_node(self, snapshot: Snapshot, rows: Rows, node: str) -> Iterator[Finding]:
        """Yield a node's imbalance with its threshold, and the best gain; changes nothing."""
        args = self._args
        if args.paused:
            yield Finding("state", "it is paused (`paused: true`)")
            return
        row = snapshot.index.get(node)
        if row is None or row not in select_rows(snapshot, rows, args.node_selector):
            yield Finding("state", f"`nodeSelector` does not take {node}")
            return
        pods = snapshot.pods(row)
        before = imbalance(requests_of(pods, args.resources), snapshot.row(row).allocatable, args.resources)
        over = before > args.imbalance_threshold
        yield Finding(
            "distance", f"its imbalance of {', '.join(args.resources)} is {before:.4f}, pods leave above "
                        f"{args.imbalance_threshold:g}: {'over' if over else 'short'} by "
                        f"{abs(before - args.imbalance_threshold):.4f}",
            facts={"what": "imbalance", "value": before, "relation": "above", "limit": args.imbalance_threshold,
                   "difference": abs(before - args.imbalance_threshold)},
        )
        if over and not self._gains(pods, before, snapshot.row(row).allocatable):
            yield Finding("state", f"no pod's removal reduces it by more than {args.min_improvement:g}")

    def _relieve(self, snapshot: Snapshot, row: int, fitting: FittingNodes, evictor: Evictor) -> None:
        args, allocatable = self._args, snapshot.row(row).allocatable
        leaving = evictor.leaving()
        pods = [pod for pod in snapshot.pods(row) if pod.key not in leaving] if leaving else snapshot.pods(row)
        before = imbalance(requests_of(pods, args.resources), allocatable, args.resources)
        if before <= args.imbalance_threshold:
            return
        evictor.observe(
            snapshot.names[row], "source", f"its imbalance {before:.4f} is above {args.imbalance_threshold:g}",
        )
        for gain, after, pod in self._gains(pods, before, allocatable):
            if not args.targets.candidate(pod, evictor):
                continue
            if args.node_fit and not fitting.any_other(pod):
                evictor.keep(pod, Refusal("nodeFit", "no other node takes it"), rule=_RULE)
                continue
            # There is no second choice, as in Koordinator.
            if evictor.pre_eviction_filter(pod) is None:
                self._evict(pod, f"stdBefore={before:.4f} stdAfter={after:.4f} gain={gain:.4f}", evictor)
            return

    def _evict(self, pod: PodInfo, numbers: str, evictor: Evictor) -> None:
        reason = f"fragmentation reduction: {numbers}"
        if self._args.dry_run:
            evictor.keep(pod, Refusal("dryRun", f"only noted: {reason}"), rule=_RULE)
        else:
            evictor.evict(pod, reason, rule=_RULE)

    def _gains(
        self, pods: Sequence[PodInfo], before: float, allocatable: Mapping[str, int],
    ) -> list[tuple[float, float, PodInfo]]:
        """Return gain, imbalance afterwards and pod of all pods that improve it enough, the best first."""
        resources = self._args.resources
        total = requests_of(pods, resources)
        known: dict[tuple[int, ...], float] = {}
        found = []
        for pod in pods:
            own = tuple([request_of(pod, name) for name in resources])
            after = known.get(own)
            if after is None:
                left = [amount - less for amount, less in zip(total, own, strict=True)]
                after = known[own] = imbalance(left, allocatable, resources)
            gain = before - after
            if gain > self._args.min_improvement:
                found.append((gain, after, pod))
        return sorted(found, key=lambda each: -each[0])


def make(args: Mapping[str, Any], handle: object) -> FragmentationAware:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile, of arguments in internal form."""
    return FragmentationAware(read_args(args))
