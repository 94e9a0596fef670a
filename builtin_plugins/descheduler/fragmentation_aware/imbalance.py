"""The imbalance of nodes: how unevenly their resources are allocated (Koordinator's fragmentationaware/scoring.go).

It is the population standard deviation of the shares of the resources. A share is the sum of requests divided by the
allocatable amount; of `pods`, the number of pods divided by it. Resources that a node does not have are left out.
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
    """Return the sums of the pods' requests, in the order of `resources`."""
    found = [0] * len(resources)
    for pod in pods:
        for place, name in enumerate(resources):
            found[place] += request_of(pod, name)
    return found


def request_of(pod: PodInfo, resource: str) -> int:
    """Return a pod's request; it counts as one of `pods`."""
    return 1 if resource == _PODS else pod.requests[resource]


def imbalance(requests: Sequence[int], allocatable: Mapping[str, int], resources: Sequence[str]) -> float:
    """Return the imbalance for requests in the order of `resources`; 0 if the node has fewer than two of them."""
    shares = [
        float(amount) / float(limit)
        for amount, name in zip(requests, resources, strict=True) if (limit := allocatable.get(name, 0))
    ]
    if not shares:
        return 0.0
    total = 0.0
    for share in shares:  # one by one, as in `imbalances`: `sum` of newer Pythons compensates for rounding
        total += share
    mean = total / len(shares)
    squares = 0.0
    for share in shares:
        difference = share - mean
        squares += difference * difference
    return math.sqrt(squares / len(shares))


def imbalances(snapshot: Snapshot, rows: Rows, resources: Sequence[str]) -> NDArray[np.float64]:
    """Return the imbalance of many nodes for all their active pods, float64[rows]."""
    shares, presences = [], []
    for name in resources:
        limit = snapshot.allocatable(name)[rows]
        amount = (snapshot.pod_count if name == _PODS else snapshot.requested(name))[rows]
        present = limit != 0
        shares.append(np.where(present, amount / np.where(present, limit, 1), 0.0))
        presences.append(present)
    count = np.zeros(len(rows)) + sum(presences)
    divisor = np.maximum(count, 1.0)
    total = np.zeros(len(rows))
    for share in shares:
        total += share
    mean = total / divisor
    squares = np.zeros(len(rows))
    for share, present in zip(shares, presences, strict=True):
        difference = np.where(present, share - mean, 0.0)
        squares += difference * difference
    deviations: NDArray[np.float64] = np.sqrt(squares / divisor)
    return deviations
