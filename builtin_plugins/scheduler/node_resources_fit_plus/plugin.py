"""NodeResourcesFitPlus: each resource is packed or spread by a strategy and a weight of its own.

The behaviour is Koordinator's (pkg/scheduler/plugins/noderesourcefitplus).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import NONZERO, PodInfo, canonical_amount
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Scores
from koordpolicy.engine.scheduler.profiles.args import check_fields
from koordpolicy.plugin import CycleState, Handle

_MOST: Final = "MostAllocated"
_LEAST: Final = "LeastAllocated"


@dataclass(frozen=True, slots=True)
class ResourceStrategy:
    """The strategy of one resource: `type` is MostAllocated or LeastAllocated; any other scores 0."""

    type: str
    weight: int


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments; raises ValueError for those that cannot be read, with the field's path."""
    fields = {name: value for name, value in args.items() if name != "resources"}
    resources = args.get("resources")
    if resources is not None and not isinstance(resources, Mapping):
        raise ValueError("`resources` must be an object of strategies by resource")
    checked: dict[str, Any] = dict(check_fields(fields, {"resources": list}))
    for name, strategy in (resources or {}).items():
        path = f"resources[{name}]"
        if not isinstance(strategy, Mapping):
            raise ValueError(f"`{path}` must be an object with `type` and `weight`")  # noqa: TRY004 - one complaint
        try:
            given = {key: value for key, value in strategy.items() if value is not None}
            check_fields(given, {"type": str, "weight": int})
        except ValueError as error:
            raise ValueError(f"`{path}`: {error}") from None
        if (strategy.get("weight") or 0) < 0:
            raise ValueError(f"`{path}.weight` must not be negative")
    return {**checked, "resources": dict(resources or {})}


def pod_request(pod: Mapping[str, Any], resource: str) -> int:
    """Return the requests of a pod for scoring, in milli-cores for cpu and base units for all else.

    This is not the effective request: a container without cpu or memory counts 100 milli-cores or 200 MiB (an
    explicit 0 stays 0), init containers raise the sum in their order, and overhead is omitted.
    """
    spec = pod.get("spec") or {}
    total = sum(_container_request(container, resource) for container in spec.get("containers") or ())
    for container in spec.get("initContainers") or ():
        amount = _container_request(container, resource)
        total = total + amount if container.get("restartPolicy") == "Always" else max(total, amount)
    return total


class NodeResourcesFitPlus:
    """The scorer.

    Arguments: `resources` holds a strategy by resource, `{type: MostAllocated | LeastAllocated, weight}`. Only
    resources that the pod requests count; a pod that requests none of them scores 100 everywhere.
    """

    name = "NodeResourcesFitPlus"
    check_args = staticmethod(check_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._strategies = {
            name: ResourceStrategy(each.get("type") or "", each.get("weight") or 0)
            for name, each in (args.get("resources") or {}).items()
        }

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Score the nodes by the weighted mean over the resources that are requested and have a strategy."""
        total: NDArray[np.int64] = np.zeros(snapshot.size, np.int64)
        weights = 0
        for name, amount in pod.requests.items():
            strategy = self._strategies.get(name)
            if strategy is None or amount <= 0:
                continue
            total += self._of_resource(name, strategy.type, pod, snapshot) * strategy.weight
            weights += strategy.weight
        return Scores(total // weights if weights else np.full(snapshot.size, HIGHEST_SCORE, np.int64))

    def _of_resource(self, name: str, kind: str, pod: PodInfo, snapshot: Snapshot) -> NDArray[np.int64]:
        capacity = snapshot.allocatable(name)
        used = snapshot.nonzero_requested(name) + pod_request(pod.object, name)
        divisor = np.maximum(capacity, 1)
        if kind == _MOST:
            scores = np.minimum(used, capacity) * HIGHEST_SCORE // divisor
        elif kind == _LEAST:
            scores = np.where(used > capacity, 0, (capacity - used) * HIGHEST_SCORE // divisor)
        else:
            scores = np.zeros(snapshot.size, np.int64)
        return np.where(capacity > 0, scores, 0)


def _requests(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return (container.get("resources") or {}).get("requests") or {}


def _container_request(container: Mapping[str, Any], resource: str) -> int:
    requests = _requests(container)
    if resource not in requests:
        return NONZERO.get(resource, 0)
    return canonical_amount(resource, requests[resource], f"spec.containers[*].resources.requests.{resource}")
