"""NodeResourcesFit: a pod's requests must be free on the node, and its number of pods below the limit.

It also scores nodes by their utilization with the pod, by one of three strategies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.edits import Edit, allocatable_edits, eviction_edits, request_edits
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, CacheKey, Code, Point, Refusal, Scores
from koordpolicy.plugin import CycleState, Event, Handle

from ..allocation.requeue_hints import is_of, node_came_or_changed, pod_left
from ..allocation.resource_scoring import (
    LEAST,
    NATIVE,
    RATIO,
    WeightedResource,
    allocations,
    read_strategy,
    score_of,
    with_defaults,
)
from ..allocation.strict_args import read_args, texts

_PODS: Final = "pods"
_TOO_MANY_PODS: Final = "Too many pods"
_NATIVE_ORDER: Final = ("cpu", "memory", "ephemeral-storage")
_PATHS: Final = frozenset({("allocatable",), ("requested",)})


class NodeResourcesFit:
    """Filter and scorer (kube-scheduler's plugin of that name).

    Arguments: `ignoredResources` and `ignoredResourceGroups` name extended resources that the filter ignores;
    `scoringStrategy` is `{type, resources, requestedToCapacityRatio}`, LeastAllocated over cpu and memory by default.
    """

    name = "NodeResourcesFit"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._ignored = frozenset(args.get("ignoredResources", ()))
        self._ignored_groups = frozenset(args.get("ignoredResourceGroups", ()))
        strategy = with_defaults(args.get("scoringStrategy"))
        self._resources = tuple(WeightedResource(each["name"], each["weight"]) for each in strategy["resources"])
        self._score = score_of(strategy)

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return v1 arguments with their defaults; raises `ValueError` with the fault and the field's path."""
        given = read_args(args, "NodeResourcesFitArgs", {
            "ignoredResources": texts, "ignoredResourceGroups": texts, "scoringStrategy": read_strategy,
        })
        for index, group in enumerate(given.get("ignoredResourceGroups", ())):
            if "/" in group:
                raise ValueError(f"`ignoredResourceGroups[{index}]` is `{group}`: resource group name can't contain "
                                 "'/'")
        return {**given, "scoringStrategy": with_defaults(given.get("scoringStrategy"))}

    @staticmethod
    def ignored_args(args: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the valid v1 arguments without effect, with the reasons."""
        kind = (args.get("scoringStrategy") or {}).get("type") or LEAST
        return {} if kind == RATIO else {
            "scoringStrategy.requestedToCapacityRatio": f"`scoringStrategy.type` is `{kind}`, not `{RATIO}`",
        }

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes on which a request exceeds the free amount (allocatable less the requests of the pods there)."""
        required = self._requests(pod)

        def explain(row: int) -> Refusal:
            return _explain(required, snapshot, row)

        def reasons(refused: Rows) -> dict[str, Rows]:
            return _reasons(required, snapshot, refused)

        def codes(refused: Rows) -> dict[Code, Rows]:
            # Not even an empty node of that size would do.
            never = np.zeros(len(refused), np.bool_)
            for name, amount in required:
                never |= snapshot.allocatable(name)[refused] < amount
            return {Code.UNSCHEDULABLE: refused[~never], Code.UNRESOLVABLE: refused[never]}

        return Answer(_fits(required, snapshot, rows), explain, reasons=reasons, codes=codes)

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Score the nodes by their utilization with the pod; containers without requests count default amounts."""
        return Scores(self._scores(self._counted(pod), snapshot, rows))

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey:
        """Return the dependencies: the pod's requests, and the node's allocatable and requested resources."""
        if point is Point.FILTER:
            required = self._requests(pod)
            return CacheKey(tuple(required), _PATHS, vectorized=partial(_fits, required), stable_for_shape=True,
                            reasons=partial(_reasons, required))
        counted = self._counted(pod)
        return CacheKey(counted, _PATHS, vectorized=partial(self._scores, counted), stable_for_shape=True)

    def counterfactuals(self, pod: PodInfo, snapshot: Snapshot, row: int) -> Iterator[Edit]:
        """Yield, for each short resource: a smaller request, fewer pods on the node, a larger node."""
        held = snapshot.row(row)
        free_of = {name: held.allocatable[name] - held.requested[name] for name, _ in self._requests(pod)}
        free_of[_PODS] = held.allocatable[_PODS] - len(held.pods)
        for name, amount in ((_PODS, 1), *self._requests(pod)):
            free = free_of[name]
            if free >= amount:
                continue
            if free > 0:
                yield from request_edits(pod, name, free)
            yield from eviction_edits(held, name, amount - free)
            yield from allocatable_edits(held, name, held.allocatable[name] + amount - free)

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether a pod left a node, or a node came or changed."""
        return pod_left(event) or node_came_or_changed(event) or is_of(event, pod)

    def _counted(self, pod: PodInfo) -> tuple[int, ...]:
        """Return the pod's amount of each resource in scores."""
        requests = pod.container_requests()
        return tuple(requests.get(each.name, 0) for each in self._resources)

    def _scores(self, counted: Sequence[int], snapshot: Snapshot, rows: Rows) -> NDArray[np.int64]:
        used, capacity, weights = allocations(snapshot, rows, self._resources, counted, Snapshot.nonzero_requested)
        return self._score(used, capacity, weights) if used else np.zeros(len(rows), np.int64)

    def _requests(self, pod: PodInfo) -> list[tuple[str, int]]:
        required = [(name, amount) for name, amount in pod.requests.items() if amount > 0 and not self._ignores(name)]
        return sorted(required, key=_place)

    def _ignores(self, name: str) -> bool:
        if name == _PODS:
            return True  # the pods that a node takes are counted, not requested
        if name in NATIVE:
            return False
        return name in self._ignored or name.partition("/")[0] in self._ignored_groups


def _fits(required: list[tuple[str, int]], snapshot: Snapshot, rows: Rows) -> NDArray[np.bool_]:
    everywhere, at = len(rows) == snapshot.size, snapshot.gathered
    used, capacity = snapshot.pod_count, snapshot.allocatable(_PODS)
    fits: NDArray[np.bool_] = used < capacity if everywhere else at(used, rows) < at(capacity, rows)
    for name, amount in required:
        used, capacity = snapshot.requested(name), snapshot.allocatable(name)
        fits &= (capacity - used if everywhere else at(capacity, rows) - at(used, rows)) >= amount
    return fits


def _place(required: tuple[str, int]) -> tuple[int, str]:
    """Return the sort key of reasons: cpu, memory, ephemeral-storage, then the others by name."""
    name = required[0]
    return (_NATIVE_ORDER.index(name) if name in _NATIVE_ORDER else len(_NATIVE_ORDER)), name


def _reasons(required: list[tuple[str, int]], snapshot: Snapshot, refused: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    at = snapshot.gathered
    full = at(snapshot.pod_count, refused) >= at(snapshot.allocatable(_PODS), refused)
    if full.any():
        found[_TOO_MANY_PODS] = refused[full]
    for name, amount in required:
        short = at(snapshot.allocatable(name), refused) - at(snapshot.requested(name), refused) < amount
        if short.any():
            found[f"Insufficient {name}"] = refused[short]
    return found


def _explain(required: list[tuple[str, int]], snapshot: Snapshot, row: int) -> Refusal:
    reasons: list[str] = []
    values: list[tuple[str, object]] = []
    code = Code.UNSCHEDULABLE
    pods, most = int(snapshot.pod_count[row]), int(snapshot.allocatable(_PODS)[row])
    if pods >= most:
        reasons.append(_TOO_MANY_PODS)
        values.append((_PODS, {"requested": 1, "used": pods, "capacity": most}))
    for name, amount in required:
        used, capacity = int(snapshot.requested(name)[row]), int(snapshot.allocatable(name)[row])
        if capacity - used < amount:
            reasons.append(f"Insufficient {name}")
            values.append((name, {"requested": amount, "used": used, "capacity": capacity}))
            if amount > capacity:
                code = Code.UNRESOLVABLE  # not even an empty node of that size would do
    return Refusal("resources", ", ".join(reasons), code, values=tuple(values))
