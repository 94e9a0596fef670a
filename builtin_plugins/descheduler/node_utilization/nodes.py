"""The utilization of nodes against thresholds: percentages, deviation from the average, caps in absolute amounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koordpolicy.engine.cluster.snapshot import Snapshot

from .args import METRIC_RESOURCE
from .usage import capacity_of


@dataclass(slots=True)
class Utilization:
    """A node with its usage; `usage` changes while pods are evicted."""

    row: int
    name: str
    node: Mapping[str, Any]
    usage: dict[str, int]
    capacity: Mapping[str, int]
    percent: Mapping[str, float]

    @property
    def is_cordoned(self) -> bool:
        """True if the node is unschedulable."""
        return bool((self.node.get("spec") or {}).get("unschedulable"))

    @property
    def sum(self) -> int:
        """The sum of all amounts, by which nodes are sorted; cpu in milli-cores, so that bytes dominate."""
        return sum(self.usage.values())

    def is_below(self, thresholds: Mapping[str, float]) -> bool:
        """Return whether no resource is above its threshold; a resource that the node lacks counts as 0 percent."""
        return all(self.percent.get(name, 0.0) <= limit for name, limit in thresholds.items())

    def is_above(self, thresholds: Mapping[str, float]) -> bool:
        """Return whether a resource is above its threshold."""
        return not self.is_below(thresholds)

    def caps(self, thresholds: Mapping[str, float], names: Iterable[str]) -> dict[str, int]:
        """Return the amount of each resource at its threshold: the capacity without a threshold, 0 if the node lacks
        the resource.
        """
        return {
            name: int(thresholds[name] * 0.01 * self.capacity.get(name, 0)) if name in thresholds
            else self.capacity.get(name, 0)
            for name in names
        }

    def text(self) -> str:
        """Return the percentages for people: `cpu 41 %, memory 113 %`."""
        return ", ".join(f"{name} {percent:.0f} %" for name, percent in sorted(self.percent.items()))


def utilizations(
    snapshot: Snapshot, rows: Sequence[int], usage: Mapping[int, dict[str, int]],
) -> list[Utilization]:
    """Return the nodes with their usage in percent of their capacity."""
    found = []
    for row in rows:
        used, capacity = usage[row], dict(capacity_of(snapshot, row))
        if METRIC_RESOURCE in used:
            capacity[METRIC_RESOURCE] = 100
        percent = {
            name: amount / capacity[name] * 100 if capacity[name] else 0.0
            for name, amount in used.items() if name in capacity
        }
        found.append(Utilization(row, snapshot.names[row], snapshot.node(row), used, capacity, percent))
    return found


def around_average(
    nodes: Iterable[Utilization], below: Mapping[str, float], above: Mapping[str, float],
) -> tuple[dict[str, float], dict[str, float]]:
    """Return low and high thresholds at these distances from the average of the nodes that have the resource, clamped
    to 0..100.
    """
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    for node in nodes:
        for name in below:
            if name in node.percent:
                totals[name] = totals.get(name, 0.0) + node.percent[name]
                counts[name] = counts.get(name, 0) + 1
    average = {name: total / counts[name] for name, total in totals.items()}
    low = {name: min(max(percent - below[name], 0.0), 100.0) for name, percent in average.items()}
    high = {name: min(max(percent + above[name], 0.0), 100.0) for name, percent in average.items()}
    return low, high
