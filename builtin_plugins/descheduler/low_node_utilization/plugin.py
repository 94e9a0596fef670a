"""LowNodeUtilization: pods leave nodes of which much is requested, while others are almost empty.

Kubernetes' descheduler (nodeutilization). Utilization is that of requests, unless `metricsUtilization` names a
source of measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.descheduler import Evictor

from ..node_utilization.args import check_low_args as check_args
from ..node_utilization.evicting import Relief
from ..node_utilization.nodes import Utilization, around_average, utilizations
from ..node_utilization.usage import Query, reads_of, source_of

__all__ = ["LowNodeUtilization", "check_args", "make", "reads_of"]


class LowNodeUtilization:
    """The plugin, with valid arguments; `query` runs queries of Prometheus in place of the server that they name."""

    name = "LowNodeUtilization"

    def __init__(self, args: Mapping[str, Any], query: Query | None = None) -> None:
        self._low: Mapping[str, float] = args["thresholds"]
        self._high: Mapping[str, float] = args["targetThresholds"]
        self._deviation = bool(args.get("useDeviationThresholds"))
        self._number_of_nodes = int(args.get("numberOfNodes") or 0)
        self._excluded = frozenset((args.get("evictableNamespaces") or {}).get("exclude") or ())
        self._per_node: int | None = (args.get("evictionLimits") or {}).get("node")
        self._usage = source_of(args, tuple(self._low), query)

    def balance(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict pods of overutilized nodes until they are not, or until the underutilized ones have no room.

        Raises:
            ValueError: the usage of a node is not known.
        """
        order = [int(row) for row in rows]
        nodes = utilizations(snapshot, order, self._usage.of_nodes(snapshot, order, evictor))
        low, high = around_average(nodes, self._low, self._high) if self._deviation else (self._low, self._high)
        under, over = classify(nodes, low, high)
        for node in over:
            evictor.observe(node.name, "source", node.text())
        for node in under:
            evictor.observe(node.name, "target", node.text())
        if not under or len(under) <= self._number_of_nodes or len(under) == len(nodes) or not over:
            return
        caps = {node.row: node.caps(high, self._usage.names) for node in over}

        def is_enough(node: Utilization) -> bool:
            usage = node.usage
            for name, cap in caps[node.row].items():  # noqa: SIM110 - called for each pod: twice as fast as a generator
                if usage[name] > cap:
                    return False
            return True

        relief = Relief(
            snapshot, evictor, self._usage, self._excluded, rule="targetThresholds", per_node=self._per_node,
        )
        relief.drain(sorted(over, key=lambda node: -node.sum), under, high, is_enough)


def classify(
    nodes: list[Utilization], low: Mapping[str, float], high: Mapping[str, float],
) -> tuple[list[Utilization], list[Utilization]]:
    """Return the underutilized nodes, cordoned ones left out, and the overutilized ones."""
    under, over = [], []
    for node in nodes:
        if not node.is_cordoned and node.is_below(low):
            under.append(node)
        elif node.is_above(high):
            over.append(node)
    return under, over


def make(args: Mapping[str, Any], handle: object) -> LowNodeUtilization:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile, of valid arguments."""
    return LowNodeUtilization(args)
