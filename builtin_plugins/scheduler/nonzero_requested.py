"""What pods count for in scores: containers that name no cpu or memory count a little of both, as in Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.pods import PodInfo
from koordpolicy.engine.cluster.rows import NodeRow
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.scheduler.kept import KeptColumns

UNREQUESTED: Final[Mapping[str, int]] = {"cpu": 100, "memory": 200 * 1024 * 1024}
"""What a container counts for that does not say: milli-cores, bytes (Kubernetes' defaults for scoring)."""

_NAMES: Final = tuple(UNREQUESTED)
_PODS: Final = frozenset({("nodeInfo", "pods")})


@lru_cache(maxsize=64)
def nonzero_requests(pod: PodInfo) -> tuple[int, int]:
    """Return a pod's effective cpu and memory requests with the defaults for containers that name none.

    (Kubernetes' `NonZeroRequested` of a node is the sum of these.)
    """
    spec = pod.object.get("spec") or {}
    kinds = [kind for kind in ("containers", "initContainers") if spec.get(kind)]
    if all(not _missing(container) for kind in kinds for container in spec[kind]):
        return pod.requests["cpu"], pod.requests["memory"]
    filled = {**spec, **{kind: [_filled(container) for container in spec[kind]] for kind in kinds}}
    requests = PodInfo.of({**pod.object, "spec": filled}).requests
    return requests["cpu"], requests["memory"]


class NonZeroRequested:
    """Kubernetes' `NonZeroRequested` of all nodes as columns, for one plugin."""

    def __init__(self) -> None:
        self._of_pods: dict[str, dict[str, tuple[PodInfo, int, int]]] = {}
        self._seen: tuple[Snapshot, int, list[NDArray[np.int64]]] | None = None
        self._columns = KeptColumns(_PODS, len(_NAMES), self._sum)

    def of(self, snapshot: Snapshot, name: str) -> NDArray[np.int64]:
        """Return what the pods on each node count of a resource: plain requests of all but cpu and memory."""
        if name not in UNREQUESTED:
            return snapshot.requested(name)
        seen = self._seen
        if seen is None or seen[0] is not snapshot or seen[1] != snapshot.cluster.version:
            if len(self._of_pods) > snapshot.size:
                self._of_pods = {name: pods for name, pods in self._of_pods.items() if name in snapshot.index}
            seen = self._seen = (snapshot, snapshot.cluster.version, list(self._columns.of(snapshot).T))
        return seen[2][_NAMES.index(name)]

    def _sum(self, row: NodeRow, now: int, kept: bool) -> Sequence[int]:  # noqa: ARG002 - the clock plays no part
        known = self._of_pods.get(row.name, {})
        found: dict[str, tuple[PodInfo, int, int]] = {}
        for key, pod in row.pods.items():
            entry = known.get(key)
            found[key] = entry if entry is not None and entry[0] is pod else (pod, *nonzero_requests(pod))
        if kept:
            self._of_pods[row.name] = found
        return [sum(entry[1] for entry in found.values()), sum(entry[2] for entry in found.values())]


def _requests(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return (container.get("resources") or {}).get("requests") or {}


def _missing(container: Mapping[str, Any]) -> list[str]:
    requests = _requests(container)
    return [name for name in UNREQUESTED if name not in requests]


def _filled(container: Mapping[str, Any]) -> Mapping[str, Any]:
    missing = {name: f"{UNREQUESTED[name]}{'m' if name == 'cpu' else ''}" for name in _missing(container)}
    resources = {**(container.get("resources") or {}), "requests": {**_requests(container), **missing}}
    return {**container, "resources": resources}
