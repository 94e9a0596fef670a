"""Load of the nodes, and the spread of requests and usage over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from koordpolicy.engine.cluster.snapshot import Snapshot

from .evictions import PredictedEviction

_SPREAD: Final = ("cpu", "memory")
GPU_SPREAD: Final = "gpu"
"""The name of GPUs among the requested resources: allocated devices, out of those of all nodes."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Percent of the allocatable over all nodes that have any: mean, and standard deviation in percentage points."""

    mean: float
    deviation: float


def loads(
    snapshot: Snapshot, evictions: Iterable[PredictedEviction], hot_percent: int,
) -> tuple[int, int, dict[str, Spread], dict[str, Spread]]:
    """Return the numbers of hot and of measured nodes, and the spreads of requests and usage."""
    leaving_pods: dict[str, list[str]] = {}
    for each in evictions:
        leaving_pods.setdefault(each.node, []).append(each.pod)
    requested: dict[str, list[float]] = {name: [] for name in _SPREAD}
    usage: dict[str, list[float]] = {name: [] for name in _SPREAD}
    hot = measured = 0
    for number in range(snapshot.size):
        row = snapshot.row(number)
        leaving = [row.pods[key] for key in dict.fromkeys(leaving_pods.get(row.name, ())) if key in row.pods]
        if (devices := sum(row.total)) > 0:
            requested.setdefault(GPU_SPREAD, []).append(100 * (devices - sum(row.free)) / devices)
        fresh = row.metric is not None and snapshot.is_fresh(number)
        measured += fresh
        expected: Mapping[str, int] = row.estimated() if fresh else {}
        for name in _SPREAD:
            allocatable = row.allocatable[name]
            if not allocatable:
                continue
            amount = row.requested[name] - sum(pod.requests[name] for pod in leaving)
            requested[name].append(100 * amount / allocatable)
            if fresh and name in expected:
                assert row.metric is not None
                of_pods = row.metric.pods
                used = expected[name] - sum(of_pods[pod.key][name] for pod in leaving if pod.key in of_pods)
                usage[name].append(100 * max(0, used) / allocatable)
                hot += name == "cpu" and usage[name][-1] > hot_percent
    return (hot, measured, {name: _spread(values) for name, values in requested.items() if values},
            {name: _spread(values) for name, values in usage.items() if values})


def _spread(percents: Sequence[float]) -> Spread:
    return Spread(float(np.mean(percents)), float(np.std(percents)))
