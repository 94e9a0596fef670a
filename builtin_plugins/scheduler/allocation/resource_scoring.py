"""The scoring strategies of kube-scheduler and Koordinator: scores by a node's utilization with the pod.

`resources` in arguments are `[{name, weight}]`; amounts are canonical, scores 0..100.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import ResourceList
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE

from .strict_args import Read, integer, listed, nested, text

NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
LEAST: Final = "LeastAllocated"
MOST: Final = "MostAllocated"
RATIO: Final = "RequestedToCapacityRatio"
STRATEGIES: Final = (LEAST, MOST, RATIO)
DEFAULT_RESOURCES: Final[tuple[Mapping[str, Any], ...]] = (
    {"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1},
)

_HIGHEST_SHAPE_SCORE: Final = 10

_Integers = NDArray[np.int64]

# For a few rows, an operation with a Python number takes twice as long as one with an array.
_ZERO: Final[_Integers] = np.array(0, np.int64)
_ONE: Final[_Integers] = np.array(1, np.int64)
_HIGHEST: Final[_Integers] = np.array(HIGHEST_SCORE, np.int64)


@dataclass(frozen=True, slots=True)
class WeightedResource:
    """A resource in a score, with its weight."""

    name: str
    weight: int


def read_resource(value: Any, path: str) -> dict[str, Any]:
    """Read `{name, weight}`; a missing weight or 0 means 1."""
    given = nested({"name": text, "weight": integer})(value, path)
    if not given.get("name"):
        raise ValueError(f"`{path}.name` is missing")
    return {"name": given["name"], "weight": given.get("weight") or 1}


def check_weights(resources: Sequence[Mapping[str, Any]], path: str) -> None:
    """Raise ValueError for a weight outside 1..100."""
    for index, each in enumerate(resources):
        if not 1 <= each["weight"] <= HIGHEST_SCORE:
            raise ValueError(f"`{path}[{index}].weight` is {each['weight']}: resource weight of {each['name']} not in "
                             "valid range [1, 100]")


read_resources: Final[Read] = listed(read_resource)
_read_shape: Final[Read] = listed(nested({"utilization": integer, "score": integer}))
read_strategy: Final[Read] = nested({
    "type": text, "resources": read_resources,
    "requestedToCapacityRatio": nested({"shape": _read_shape}),
})
read_allocation_strategy: Final[Read] = nested({
    "type": text, "resources": listed(nested({"name": text, "weight": integer})),
})
"""Reads `{type, resources[{name, weight}]}`, for plugins with LeastAllocated and MostAllocated and without default
weights."""


def with_defaults(strategy: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a scoring strategy with its defaults, checked.

    Raises:
        ValueError: the strategy does not exist, or a weight or a point of the shape is out of range.
    """
    given = dict(strategy or {})
    kind = given.get("type") or LEAST
    if kind not in STRATEGIES:
        raise ValueError(f"`scoringStrategy.type` is `{kind}`: choose one of {', '.join(STRATEGIES)}")
    resources = list(given.get("resources") or DEFAULT_RESOURCES)
    check_weights(resources, "scoringStrategy.resources")
    checked: dict[str, Any] = {"type": kind, "resources": resources}
    ratio = given.get("requestedToCapacityRatio")
    if kind == RATIO:
        shape = [{"utilization": point.get("utilization", 0), "score": point.get("score", 0)}
                 for point in (ratio or {}).get("shape") or ()]
        check_shape(shape, "scoringStrategy.requestedToCapacityRatio.shape")
        checked["requestedToCapacityRatio"] = {"shape": shape}
    elif ratio is not None:
        checked["requestedToCapacityRatio"] = ratio
    return checked


def check_shape(shape: Sequence[Mapping[str, int]], path: str) -> None:
    """Raise `ValueError` if a shape has no points, or their utilizations do not ascend within 0..100."""
    if not shape:
        raise ValueError(f"`{path}` must hold at least one point")
    before = -1
    for index, point in enumerate(shape):
        if not 0 <= point["utilization"] <= HIGHEST_SCORE:
            raise ValueError(f"`{path}[{index}].utilization` is {point['utilization']}: not in valid range [0, 100]")
        if point["utilization"] <= before:
            raise ValueError(f"`{path}[{index}].utilization` is {point['utilization']}: utilization values must be "
                             "sorted in increasing order")
        if not 0 <= point["score"] <= _HIGHEST_SHAPE_SCORE:
            raise ValueError(f"`{path}[{index}].score` is {point['score']}: not in valid range [0, 10]")
        before = point["utilization"]


def shape_table(shape: Sequence[Mapping[str, int]]) -> _Integers:
    """Return the score 0..100 for each utilization 0..100: straight lines between the points, level outside."""
    points = [(point["utilization"], point["score"] * (HIGHEST_SCORE // _HIGHEST_SHAPE_SCORE)) for point in shape]
    table = [points[-1][1]] * (HIGHEST_SCORE + 1)
    for at in range(HIGHEST_SCORE + 1):
        for index, (utilization, score) in enumerate(points):
            if at <= utilization:
                table[at] = score if index == 0 else _between(points[index - 1], (utilization, score), at)
                break
    return np.array(table, np.int64)


def _between(left: tuple[int, int], right: tuple[int, int], at: int) -> int:
    rise, run = (right[1] - left[1]) * (at - left[0]), right[0] - left[0]
    # Go divides towards zero.
    return left[1] + (rise // run if rise >= 0 else -(-rise // run))


Score = Callable[[Sequence[_Integers], Sequence[_Integers], Sequence[int]], _Integers]
"""Returns the scores of nodes for requested amounts, capacities and weights per resource."""


def score_of(strategy: Mapping[str, Any]) -> Score:
    """Return the scoring function of a strategy with its defaults."""
    match strategy["type"]:
        case "MostAllocated":
            return lambda used, capacity, weights: _weighted(used, capacity, weights, most_allocated)
        case "RequestedToCapacityRatio":
            table = shape_table(strategy["requestedToCapacityRatio"]["shape"])
            return lambda used, capacity, weights: _by_ratio(used, capacity, weights, table)
        case _:
            return lambda used, capacity, weights: _weighted(used, capacity, weights, least_allocated)


def least_allocated(used: _Integers, capacity: _Integers) -> _Integers:
    """Return the free share in percent; 0 if the usage exceeds the capacity, or that is 0."""
    free = np.maximum(capacity - used, _ZERO)
    scores: _Integers = free * _HIGHEST // np.maximum(capacity, _ONE)
    return scores


def most_allocated(used: _Integers, capacity: _Integers) -> _Integers:
    """Return the used share in percent; 100 if the usage exceeds the capacity, 0 if that is 0."""
    scores: _Integers = np.minimum(used, capacity) * _HIGHEST // np.maximum(capacity, _ONE)
    return scores


def _weighted(
    used: Sequence[_Integers], capacity: Sequence[_Integers], weights: Sequence[int],
    score: Callable[[_Integers, _Integers], _Integers],
) -> _Integers:
    total: Any = 0
    everywhere = 0
    sum_of_weights: Any = None
    for requested, allocatable, weight in zip(used, capacity, weights, strict=True):
        scores = score(requested, allocatable)
        total += scores if weight == 1 else scores * weight
        # The common case: all nodes have the resource, and its weight is one number.
        if np.count_nonzero(allocatable) == len(allocatable):
            everywhere += weight
        else:
            there = (allocatable != 0) * weight
            sum_of_weights = there if sum_of_weights is None else sum_of_weights + there
    whole = np.array(max(everywhere, 1)) if sum_of_weights is None else np.maximum(sum_of_weights + everywhere, 1)
    found: _Integers = total // whole
    return found


def _by_ratio(
    used: Sequence[_Integers], capacity: Sequence[_Integers], weights: Sequence[int], table: _Integers,
) -> _Integers:
    total, sum_of_weights = np.zeros_like(used[0]), np.zeros_like(used[0])
    for requested, allocatable, weight in zip(used, capacity, weights, strict=True):
        full = requested > allocatable
        utilization = np.where(full, HIGHEST_SCORE, requested * HIGHEST_SCORE // np.maximum(allocatable, 1))
        scores = np.where(allocatable != 0, table[np.clip(utilization, 0, HIGHEST_SCORE)], 0)
        total += scores * weight
        # Resources that score 0 do not count (as in kube-scheduler).
        sum_of_weights += (scores > 0) * weight
    # Half is rounded up: scores are not negative.
    found: _Integers = (2 * total + sum_of_weights) // np.maximum(2 * sum_of_weights, 1)
    return found


def counts(resource: WeightedResource, amount: int) -> bool:
    """Return whether a resource counts for a pod with this request: extended ones only if it is above 0."""
    return amount != 0 or resource.name in NATIVE


def allocations(
    snapshot: Snapshot, rows: Rows, resources: Sequence[WeightedResource], requests: Sequence[int],
    used: Callable[[Snapshot, str], _Integers],
) -> tuple[list[_Integers], list[_Integers], list[int]]:
    """Return the requested amounts with the pod on the nodes, the capacities, and the weights, per resource.

    `requests` are the pod's amounts, one for each resource. An extended resource counts only if the pod requests it.
    """
    pod_requests: list[_Integers] = []
    capacity: list[_Integers] = []
    weights: list[int] = []
    for resource, amount in zip(resources, requests, strict=True):
        if not counts(resource, amount):
            continue
        pod_requests.append(snapshot.gathered(used(snapshot, resource.name), rows) + amount)
        capacity.append(snapshot.gathered(snapshot.allocatable(resource.name), rows))
        weights.append(resource.weight)
    return pod_requests, capacity, weights


@dataclass(frozen=True, slots=True)
class AllocationScorer:
    """LeastAllocated or MostAllocated with the weights of its resources; a score is within 0..100.

    Koordinator's plugins score NUMA nodes and devices by it too, one by one. Resources without capacity have no weight.
    """

    kind: str
    weights: Mapping[str, int]

    @staticmethod
    def of(given: Mapping[str, Any], kind: str = "") -> AllocationScorer:
        """Return the scorer of a strategy argument; `kind` names another strategy for its resources."""
        resources = given.get("resources") or ()
        weights = {each.get("name", ""): each.get("weight", 0) for each in resources}
        return AllocationScorer(kind or given.get("type", ""), weights)

    def share(self, requested: int, capacity: int) -> int:
        """Return the score of one resource; a capacity of 0 scores 0."""
        if capacity == 0:
            return 0
        if self.kind == MOST:
            return min(requested, capacity) * HIGHEST_SCORE // capacity
        return 0 if requested > capacity else (capacity - requested) * HIGHEST_SCORE // capacity

    def score(self, requested: Mapping[str, int], capacity: Mapping[str, int], pod_requests: Mapping[str, int]) -> int:
        """Return the weighted mean over the resources of the node, with `pod_requests` added to the requested amounts.

        Extended resources that the pod does not request do not count.
        """
        total = weights = 0
        for name, weight in self.weights.items():
            size = capacity.get(name, 0)
            if size and (name in NATIVE or pod_requests.get(name, 0)):
                total += self.share(requested.get(name, 0) + pod_requests.get(name, 0), size) * weight
                weights += weight
        return total // weights if weights else 0

    def score_as_is(self, requested: Mapping[str, int], capacity: Mapping[str, int]) -> int:
        """Return the weighted mean over the existing resources."""
        total = weights = 0
        for name, weight in self.weights.items():
            size = capacity.get(name, 0)
            if size:
                total += self.share(requested.get(name, 0), size) * weight
                weights += weight
        return total // weights if weights else 0

    def scores(
        self, requested: Mapping[str, _Integers], capacity: Mapping[str, _Integers],
        pod_requests: Mapping[str, _Integers],
    ) -> _Integers | None:
        """Return `score` of many at once, resource by resource in columns; None if no resource counts."""
        total: _Integers | None = None
        weights: _Integers | None = None
        for name, weight in self.weights.items():
            if name not in pod_requests:
                continue
            size, with_pod = capacity[name], requested[name] + pod_requests[name]
            share = most_allocated(with_pod, size) if self.kind == MOST else least_allocated(with_pod, size)
            counted = (size != 0) * weight
            total = share * counted if total is None else total + share * counted
            weights = counted if weights is None else weights + counted
        if total is None or weights is None:
            return None
        return total // np.maximum(weights, 1)

    def counts(self, name: str, pod_requests: Mapping[str, int]) -> bool:
        """Return whether a resource is scored for a pod with these requests."""
        return name in NATIVE or bool(pod_requests.get(name, 0))


def allocation_faults(given: Any, path: str) -> Iterator[str]:
    """Yield the faults of a result of `read_allocation_strategy`, each with the field's path."""
    if given is None:
        yield f"`{path}` is missing"
        return
    kind = given.get("type", "")
    if kind not in (LEAST, MOST):
        yield f"`{path}.type` is `{kind}`: write `{LEAST}` or `{MOST}`"
    for index, each in enumerate(given.get("resources") or ()):
        weight = each.get("weight", 0)
        if not each.get("name"):
            yield f"`{path}.resources[{index}].name` is missing"
        if not 1 <= weight <= HIGHEST_SCORE:
            yield f"`{path}.resources[{index}].weight` is {weight}: it must lie within 1 and {HIGHEST_SCORE}"


def sum_of_amounts(lists: Iterable[Mapping[str, int]]) -> ResourceList:
    """Return the sum of amounts by resource."""
    total = ResourceList()
    for amounts in lists:
        for name, amount in amounts.items():
            total[name] += amount
    return total
