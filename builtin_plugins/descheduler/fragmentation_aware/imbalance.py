"""The imbalance of nodes: how unevenly their resources are allocated (Koordinator's fragmentationaware/scoring.go).

It is the population standard deviation of the allocated shares of the resources: the sum of requests by allocatable, in
which the resource `pods` counts pods. A resource that a node does not have is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot

_PODS = "pods"


def requests_of(pods: Iterable[PodInfo], resources: Sequence[str]) -> list[int]:
    """Return the sums of the pods' requests, by place in `resources`."""
    found = [0] * len(resources)
    for pod in pods:
        for place, name in enumerate(resources):
            found[place] += request_of(pod, name)
    return found


def request_of(pod: PodInfo, resource: str) -> int:
    """Return a pod's request; it counts as one of `pods`."""
    return 1 if resource == _PODS else pod.requests[resource]


def imbalance(requests: Sequence[int], allocatable: Mapping[str, int], resources: Sequence[str]) -> float:
    """Return the imbalance for requests in the order of `resources`; 0 if fewer than two of them are there."""
    shares = [
        float(amount) / float(limit)
        for amount, name in zip(requests, resources, strict=True) if (limit := allocatable.get(name, 0))
    ]
    if not shares:
        return 0.0
    total = 0.0
    for share in shares:  # in order, as by columns: `sum` of newer Pythons rounds otherwise
        total += share
    mean = total / len(shares)
    squares = 0.0
    for share in shares:
        difference = share - mean
        squares += difference * difference
    return math.sqrt(squares / len(shares))


def imbalances(snapshot: Snapshot, rows: Rows, resources: Sequence[str]) -> NDArray[np.float64]:
    """Return the imbalance of many nodes for all their active pods, float64[rows]."""
    shares, has = [], []
    for name in resources:
        limit = snapshot.allocatable(name)[rows]
        amount = (snapshot.pod_count if name == _PODS else snapshot.requested(name))[rows]
        there = limit != 0
        shares.append(np.where(there, amount / np.where(there, limit, 1), 0.0))
        has.append(there)
    count = np.zeros(len(rows)) + sum(has)
    known = np.maximum(count, 1.0)
    total = np.zeros(len(rows))
    for share in shares:
        total += share
    mean = total / known
    squares = np.zeros(len(rows))
    for share, there in zip(shares, has, strict=True):
        difference = np.where(there, share - mean, 0.0)
        squares += difference * difference
    found: NDArray[np.float64] = np.sqrt(squares / known)
    return found
