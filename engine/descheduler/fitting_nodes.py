"""Nodes that take a pod by Koordinator's NodeFit, among many: found by columns first, then node by node."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot

from .pods import NodeFit, placement_key


class FittingNodes:
    """Finds the nodes of some rows that take a pod (`NodeFit.fits`). Valid as long as its snapshot.

    Answers are cached, so that pods with equal requests and constraints are checked once.
    """

    def __init__(self, snapshot: Snapshot, rows: Sequence[int]) -> None:
        self._snapshot = snapshot
        self._fit = NodeFit(snapshot)
        self._rows = np.array(rows, dtype=np.intp)
        self._free: dict[str, NDArray[np.int64]] = {}
        self._first: dict[Hashable, tuple[int, ...]] = {}

    def any(self, pod: PodInfo) -> bool:
        """Return whether one of the nodes takes the pod."""
        return bool(self._first_two(pod))

    def any_other(self, pod: PodInfo) -> bool:
        """Return whether one of the nodes takes the pod, not counting its current node."""
        home = self._snapshot.index.get(pod.node_name, -1)
        return any(row != home for row in self._first_two(pod))

    def places(self, pod: PodInfo, among: NDArray[np.bool_] | None = None) -> Iterator[int]:
        """Return the places in `rows` of nodes that take the pod, in order; `among` restricts them by place."""
        with_room = np.ones(len(self._rows), dtype=np.bool_) if among is None else among.copy()
        for name, amount in pod.requests.items():
            with_room &= self.free(name) >= amount
        with_room &= self._fit.admitted(pod)[self._rows]
        return iter(np.flatnonzero(with_room).tolist())

    def free(self, resource: str) -> NDArray[np.int64]:
        """Return the free amounts by place: allocatable less the requests of active pods. Read-only."""
        found = self._free.get(resource)
        if found is None:
            snapshot = self._snapshot
            found = (snapshot.allocatable(resource) - snapshot.requested(resource))[self._rows]
            self._free[resource] = found
        return found

    def _first_two(self, pod: PodInfo) -> tuple[int, ...]:
        key = tuple(pod.requests.items()), placement_key(pod)
        found = self._first.get(key)
        if found is None:
            # One of them may be the current node of a pod with the same needs.
            found = self._first[key] = tuple(int(self._rows[place]) for place in islice(self.places(pod), 2))
        return found
