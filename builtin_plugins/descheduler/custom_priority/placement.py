"""The room on target nodes for the pods of drained nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList, resource_list
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.fitting_nodes import FittingNodes

_TRACKED: Final = ("cpu", "memory", "pods")
_UNLIMITED: Final = np.iinfo(np.int64).max // 2


def container_requests(pod: PodInfo) -> ResourceList:
    """Return the sums of the requests of a pod's containers: no init containers, no overhead (as in Koordinator)."""
    containers = pod.object["spec"]["containers"]
    if len(containers) == 1:
        return resource_list(containers[0].get("resources") or {}, "requests", "spec.containers[0].resources")
    found = ResourceList()
    for index, container in enumerate(containers):
        path = f"spec.containers[{index}].resources"
        for name, amount in resource_list(container.get("resources") or {}, "requests", path).items():
            found[name] += amount
    return found


class TargetRoom:
    """The free cpu, memory and number of pods of target nodes, by place in their list."""

    def __init__(self, free: Mapping[str, NDArray[np.int64]]) -> None:
        self._free = free

    @staticmethod
    def of(snapshot: Snapshot, rows: Sequence[int]) -> TargetRoom:
        """Return the room that the active pods of the nodes leave; a node that states no number of pods takes any."""
        at = np.array(rows, dtype=np.intp)
        most = snapshot.allocatable("pods")[at]
        free = {name: (snapshot.allocatable(name) - snapshot.requested(name))[at] for name in ("cpu", "memory")}
        return TargetRoom({**free, "pods": np.where(most > 0, most - snapshot.pod_count[at], _UNLIMITED)})

    def copy(self) -> TargetRoom:
        """Return an independent copy."""
        return TargetRoom({name: amounts.copy() for name, amounts in self._free.items()})

    def at(self, place: int) -> dict[str, int]:
        """Return the free amounts of one node."""
        return {name: int(amounts[place]) for name, amounts in self._free.items()}

    def places(self, needs: Mapping[str, int]) -> NDArray[np.bool_]:
        """Return by place whether there is room for the needs."""
        found = self._free["pods"] > 0
        for name in ("cpu", "memory"):
            if name in needs:
                found &= self._free[name] >= needs[name]
        return found

    def take(self, place: int, needs: Mapping[str, int]) -> None:
        """Subtract a pod from the room of a node."""
        for name in _TRACKED:
            self._free[name][place] -= 1 if name == "pods" else needs.get(name, 0)


def place_all(
    pods: Sequence[PodInfo], room: TargetRoom, fitting: FittingNodes, *, node_fit: bool,
) -> list[int] | PodInfo:
    """Return for each pod the place of the first target that takes it beside the ones before, or the first misfit."""
    left, found = room.copy(), []
    for pod in pods:
        needs = container_requests(pod)
        with_room = left.places(needs)
        places = fitting.places(pod, with_room) if node_fit else iter(np.flatnonzero(with_room).tolist())
        place = next(places, None)
        if place is None:
            return pod
        left.take(place, needs)
        found.append(place)
    return found
