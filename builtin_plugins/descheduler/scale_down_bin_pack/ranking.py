"""Ranks target pods so that a scale-down empties whole nodes (Koordinator's scaledownbinpack/ranker.go)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler.pods import created

_EVEN: Final[Mapping[str, float]] = {"cpu": 1.0, "memory": 1.0}


@dataclass(frozen=True, slots=True)
class BinPackNode:
    """A node with its active pods by their part in a scale-down."""

    name: str
    allocatable: Mapping[str, int]
    eligible: tuple[PodInfo, ...]
    """Targets that may be evicted."""
    skipped: tuple[PodInfo, ...] = ()
    """Targets that may not."""
    others: tuple[PodInfo, ...] = ()
    """Pods that are no targets."""


@dataclass(frozen=True, slots=True)
class RankedPod:
    """A target pod with its rank: 0 for the first to go."""

    pod: PodInfo
    rank: int
    score: float
    """The score of its node, see `evacuation_score`."""


def evacuation_score(node: BinPackNode, weights: Mapping[str, float]) -> float:
    """Return the requests that stay on the node by those that a scale-down removes, as weighted shares.

    Infinity if nothing with requests is removed and something stays, 0 if nothing stays.
    """
    stays = goes = 0.0
    for name, weight in weights.items():
        limit = node.allocatable.get(name, 0)
        if limit > 0:
            goes += weight * (sum(pod.requests[name] for pod in node.eligible) / limit)
            staying = sum(pod.requests[name] for pod in node.others) + sum(pod.requests[name] for pod in node.skipped)
            stays += weight * (staying / limit)
    if goes > 0:
        return stays / goes
    return math.inf if stays > 0 else 0.0


def rank_pods(nodes: Iterable[BinPackNode], weights: Mapping[str, float]) -> tuple[RankedPod, ...]:
    """Return the eligible pods in the order in which they should go.

    First the nodes with the lowest score, fewer eligible pods and the lower name; on a node, the largest pods first,
    then the newest, then by namespace and name.
    """
    weights = weights or _EVEN
    scored = sorted(
        ((evacuation_score(node, weights), node) for node in nodes if node.eligible),
        key=lambda each: (each[0], len(each[1].eligible), each[1].name),
    )
    found: list[RankedPod] = []
    for score, node in scored:
        limits = [(name, weight, node.allocatable.get(name, 0)) for name, weight in weights.items()]

        def order(pod: PodInfo, limits: list[tuple[str, float, int]] = limits) -> tuple[float, int, str, str]:
            size = 0.0
            for name, weight, limit in limits:
                if limit > 0:
                    size += weight * (pod.requests[name] / limit)
            return -size, -created(pod), pod.namespace, pod.name

        for pod in sorted(node.eligible, key=order):
            found.append(RankedPod(pod, len(found), score))
    return tuple(found)
