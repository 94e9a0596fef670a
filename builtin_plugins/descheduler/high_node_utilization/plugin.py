"""HighNodeUtilization: pods leave nodes of which little is requested, so that fewer nodes are needed.

Kubernetes' descheduler (nodeutilization); meant for a scheduler that packs pods, and for an autoscaler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.descheduler import Evictor

from ..node_utilization.args import ONLY_THRESHOLDING
from ..node_utilization.args import check_high_args as check_args
from ..node_utilization.evicting import Relief
from ..node_utilization.nodes import utilizations
from ..node_utilization.usage import BASIC, Requested

__all__ = ["HighNodeUtilization", "check_args", "make"]


class HighNodeUtilization:
    """The plugin, with valid arguments."""

    name = "HighNodeUtilization"

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._thresholds: Mapping[str, float] = args["thresholds"]
        self._number_of_nodes = int(args.get("numberOfNodes") or 0)
        self._excluded = frozenset((args.get("evictableNamespaces") or {}).get("exclude") or ())
        self._only_thresholding = ONLY_THRESHOLDING in (args.get("evictionModes") or ())
        self._usage = Requested(tuple(dict.fromkeys((*self._thresholds, *BASIC))))

    def balance(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict pods of underutilized nodes while all other schedulable nodes together have room."""
        order = [int(row) for row in rows]
        nodes = utilizations(snapshot, order, self._usage.of_nodes(snapshot, order, evictor))
        under = [node for node in nodes if node.is_below(self._thresholds)]
        others = [node for node in nodes if not node.is_below(self._thresholds) and not node.is_cordoned]
        for node in under:
            evictor.observe(node.name, "source", node.text())
        for node in others:
            evictor.observe(node.name, "target", node.text())
        if not under or len(under) <= self._number_of_nodes or len(under) == len(nodes) or not others:
            return
        relief = Relief(
            snapshot, evictor, self._usage, self._excluded, rule="thresholds", is_removable=self._is_removable,
        )
        relief.drain(
            sorted(under, key=lambda node: node.sum), others, dict.fromkeys(self._thresholds, 100.0), lambda _: False,
        )

    def _is_removable(self, pod: PodInfo) -> bool:
        """Return whether the eviction mode takes the pod: it names a resource of the thresholds in its requests."""
        if not self._only_thresholding:
            return True
        spec = pod.object["spec"]
        containers = (*spec["containers"], *(spec.get("initContainers") or ()))
        named = [((each.get("resources") or {}).get("requests") or {}) for each in containers]
        return any(name in requests for requests in named for name in self._thresholds)


def make(args: Mapping[str, Any], handle: object) -> HighNodeUtilization:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile, of valid arguments."""
    return HighNodeUtilization(args)
