"""Evictions in background: another component moves a pod whose eviction was requested, and then removes it.

A pod opts in by the annotation `request-evict-only`. The API server answers the request with 429 and
`BACKGROUND_MESSAGE`; while the pod moves, its component sets `eviction-in-progress`. Such a pod counts against the
limits of a cycle, and is not evicted again. (Kubernetes descheduler, feature gate EvictionsInBackground; KEP 1397.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot

from .own_facts import REQUEST_ONLY, own_facts_of
from .pods import annotations_of
from .row_facts import facts_by_row

BACKGROUND_MESSAGE: Final = "Eviction triggered evacuation"
"""The text in a refusal of the API server that means: the pod is being moved."""
ASSUMED_S: Final = 600
"""Seconds for which a requested eviction counts although the pod is not marked as in progress."""

_SECOND: Final = 1_000_000_000
_ROW_FACT: Final = "pods with an eviction in progress"


def may_move_in_background(pod: PodInfo) -> bool:
    """Return whether a refusal of the pod's eviction may mean that another component moves it."""
    return REQUEST_ONLY in annotations_of(pod)


class BackgroundEvictions:
    """The pods whose eviction was requested; outlives cycles, for requests whose pod is not marked yet."""

    def __init__(self) -> None:
        self._requested: dict[str, int] = {}

    def request(self, pod: PodInfo, now: int) -> None:
        """Remember a requested eviction; `now` in nanoseconds."""
        self._requested[_identity(pod)] = now

    def pods(self, snapshot: Snapshot) -> tuple[PodInfo, ...]:
        """Return the pods of a snapshot that are being moved; forgets requests that had no effect in time."""
        marked = {pod.key: pod for of_row in facts_by_row(snapshot, _ROW_FACT, _marked) for pod in of_row}
        if not self._requested:
            return tuple(marked.values())
        expired = snapshot.now - ASSUMED_S * _SECOND
        for key, requested in list(self._requested.items()):
            item = snapshot.objects("Pod").get(key.partition("#")[0])
            pod = None if item is None else PodInfo.of(item)
            if pod is None or _identity(pod) != key or requested <= expired:
                del self._requested[key]
            else:
                marked.setdefault(pod.key, pod)
        return tuple(marked.values())


def _marked(pods: Iterable[PodInfo]) -> tuple[PodInfo, ...]:
    return tuple(pod for pod in pods if own_facts_of(pod).moves_in_background)


def _identity(pod: PodInfo) -> str:
    return f"{pod.key}#{pod.uid}"
