"""NodeResourcesBalancedAllocation: prefers nodes whose resources would be used evenly."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, CacheKey, Point, Scores
from koordpolicy.engine.kubernetes.release import BehaviourChange
from koordpolicy.plugin import SKIP_SHAPE, CycleState, Handle, Skip

from ..allocation.resource_scoring import DEFAULT_RESOURCES, WeightedResource, allocations, counts, read_resources
from ..allocation.strict_args import read_args

_HALF: Final = HIGHEST_SCORE // 2
_PATHS: Final = frozenset({("allocatable",), ("requested",)})

# Arrays, since for a few rows numpy takes twice as long with a Python number.
_HALF_SCORE: Final = np.array(_HALF, np.int64)
_ONE: Final = np.array(1.0)
_TWO: Final = np.array(2.0)
_HIGHEST: Final = np.array(float(HIGHEST_SCORE))
_SHIFT: Final = np.array(1, np.int64)
_ZERO: Final = np.array(0, np.int64)


class NodeResourcesBalancedAllocation:
    """The scorer (kube-scheduler's plugin of that name); pods that request none of the resources are skipped.

    Since Kubernetes 1.36 the score is how much the pod changes the balance of the node; in older releases it is the
    balance with the pod.

    Arguments: `resources` are `[{name, weight: 1}]`, cpu and memory by default.
    """

    name = "NodeResourcesBalancedAllocation"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._relative = BehaviourChange.BALANCE_DIFFERENCE.is_in(handle.kubernetes)
        self._resources = tuple(
            WeightedResource(each["name"], each["weight"]) for each in args.get("resources") or DEFAULT_RESOURCES
        )

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return v1 arguments with their defaults; raises `ValueError` with the fault and the field's path."""
        given = read_args(args, "NodeResourcesBalancedAllocationArgs", {"resources": read_resources})
        resources = list(given.get("resources") or DEFAULT_RESOURCES)
        seen: set[str] = set()
        for index, each in enumerate(resources):
            if each["weight"] != 1:
                raise ValueError(f"`resources[{index}].weight` is {each['weight']}: resource weight of {each['name']} "
                                 "must be 1")
            if each["name"] in seen:
                raise ValueError(f"`resources[{index}].name`: `{each['name']}` is named twice")
            seen.add(each["name"])
        return {"resources": resources}

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Skip | None:
        """Skip pods that request none of the resources: they would all go to one node."""
        return None if any(self._requests(pod)) else SKIP_SHAPE

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Score the nodes: the less the shares of the resources differ, the higher.

        The balance is 100 minus the standard deviation of the shares in percent, truncated to an integer. The score is
        the balance with the pod; since Kubernetes 1.36 it is 50 + (50 + balance with the pod - balance without it) / 2,
        in integers.
        """
        return Scores(self._scores(self._requests(pod), snapshot, rows))

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey:
        """Return the dependencies: the pod's requests, and the nodes' allocatable and requested amounts."""
        requests = self._requests(pod)
        return CacheKey(requests, _PATHS, vectorized=partial(self._scores, requests), stable_for_shape=True)

    def _requests(self, pod: PodInfo) -> tuple[int, ...]:
        return tuple(pod.requests[each.name] for each in self._resources)

    def _scores(self, requests: tuple[int, ...], snapshot: Snapshot, rows: Rows) -> NDArray[np.int64]:
        if not any(requests):
            return np.zeros(len(rows), np.int64)
        used, capacity, _ = allocations(snapshot, rows, self._resources, requests, Snapshot.requested)
        if not self._relative:
            return _balance(used, capacity)
        # Both balances at once: the cost of a numpy operation hardly depends on the number of rows.
        both = [each - less for each, less in zip(used, _with_and_without(self._resources, requests), strict=True)]
        after, before = _balance(both, capacity)
        found: NDArray[np.int64] = _HALF_SCORE + ((_HALF_SCORE + after - before) >> _SHIFT)  # in whole numbers
        return found


@lru_cache(maxsize=1024)
def _with_and_without(
    resources: tuple[WeightedResource, ...], requests: tuple[int, ...],
) -> tuple[NDArray[np.int64], ...]:
    """Return per counted resource a column [0, amount] to subtract from the amounts with the pod.

    The result of the subtraction has two rows: with and without the pod. Both count the same resources.
    """
    counted = (amount for each, amount in zip(resources, requests, strict=True) if counts(each, amount))
    return tuple(np.array([[0], [amount]], np.int64) for amount in counted)


def _balance(used: list[NDArray[np.int64]], capacity: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return 100 minus the standard deviation of the shares in percent, over the resources that a node has.

    The amounts in `used` have one or several rows; the result has the same shape.
    """
    if len(used) == 2 and np.count_nonzero(np.minimum(*capacity) > _ZERO) == len(capacity[0]):
        shares = [np.minimum(amount / size, _ONE) for amount, size in zip(used, capacity, strict=True)]
        return _score(np.abs((shares[0] - shares[1]) / _TWO))
    there = [each != 0 for each in capacity]
    shares = [np.minimum(amount / np.maximum(size, 1), 1.0) for amount, size in zip(used, capacity, strict=True)]
    if len(used) == 2:
        deviation = np.abs((shares[0] - shares[1]) / 2) * (there[0] & there[1])
    elif len(used) > 2:
        deviation = _deviation(np.array(shares), np.array([np.broadcast_to(each, used[0].shape) for each in there]))
    else:
        deviation = np.zeros(used[0].shape)
    return _score(deviation)


def _score(deviation: NDArray[np.float64]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = ((_ONE - deviation) * _HIGHEST).astype(np.int64)
    return found


def _deviation(shares: NDArray[np.float64], there: NDArray[np.bool_]) -> NDArray[np.float64]:
    shares[~there] = 0
    count = there.sum(axis=0)
    mean = shares.sum(axis=0) / np.maximum(count, 1)
    squares = np.where(there, (shares - mean) ** 2, 0).sum(axis=0)
    deviation: NDArray[np.float64] = np.sqrt(squares / np.maximum(count, 1))
    # With two resources kube-scheduler takes half of the difference, which rounds differently.
    two = count == 2
    if two.any():
        highest = np.where(there, shares, -1).max(axis=0)
        lowest = np.where(there, shares, 2).min(axis=0)
        deviation = np.where(two, np.abs((highest - lowest) / 2), deviation)
    deviation[count < 2] = 0
    return deviation
