"""Fit of a request to a node with a reservation counted as free, and to the reservation itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.cluster.objects.node_rows import NodeRow
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.scheduler.extensions.reservations import RESTRICTED, ReservationInfo

_PODS: Final = "pods"
_ALWAYS: Final = ("cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node in the pod's snapshot: without the reserve pods of matched reservations."""

    row: NodeRow
    matched: Sequence[ReservationInfo]
    held: Mapping[str, int]
    """The unused resources of the matched reservations."""
    ignores: Callable[[str], bool]
    """The extended resources that are ignored."""

    @staticmethod
    def of(
        row: NodeRow, matched: Sequence[ReservationInfo], hidden: Sequence[PodInfo], ignores: Callable[[str], bool],
    ) -> NodeView:
        """Return the view of a row from which the pods `hidden` were removed, so that their resources are free."""
        held = ResourceList()
        for pod in hidden:
            for name, amount in pod.requests.items():
                held[name] += amount
        for info in matched:
            if info.consumers:
                for name, amount in info.allocated(row).items():
                    held[name] -= amount
        return NodeView(row, matched, held, ignores)

    def requested(self, name: str) -> int:
        """Return the amount held by others: the pods there, and the unused rest of each matched reservation."""
        return self.row.requested[name] + self.held.get(name, 0)

    def short(self, requests: Mapping[str, int], extra: Mapping[str, int]) -> list[str]:
        """Return the resources in which the node has too little, if `extra` of what others hold is free."""
        found = []
        if len(self.row.pods) + 1 > self.row.allocatable[_PODS]:
            found.append(_PODS)
        if not any(requests.values()):
            return found
        scalars = (name for name in requests if name not in (*_ALWAYS, _PODS))
        for name in (*_ALWAYS, *scalars):
            if name not in _ALWAYS and (self.ignores(name) or not requests[name]):
                continue
            free = self.row.allocatable[name] - (self.requested(name) - extra.get(name, 0))
            if requests.get(name, 0) > free:
                found.append(name)
        return found

    def short_beside(self, requests: Mapping[str, int], info: ReservationInfo) -> list[str]:
        """Return the resources in which the node has too little, with what is left of a reservation."""
        return self.short(requests, info.left(self.row))


def short_of_reservation(
    requests: Mapping[str, int], info: ReservationInfo, row: NodeRow, ignores: Callable[[str], bool],
    *, amounts: bool = False,
) -> list[str]:
    """Return why a request does not fit a Restricted reservation; with `amounts`, how much is missing.

    Other policies bound nothing.
    """
    if info.policy != RESTRICTED:
        return []
    found = []
    consumers = info.consumers_on(row)
    if _PODS in info.allocatable and len(consumers) + 1 > info.allocatable[_PODS]:
        found.append(_reason("Too many pods", 1, len(consumers), info.allocatable[_PODS], amounts=amounts))
    allocated = info.allocated(row)
    for name in info.resource_names:
        request = requests.get(name, 0)
        if not request or name == _PODS or (name not in _ALWAYS and ignores(name)):
            continue
        capacity = info.allocatable[name] - info.reserved[name]
        used = max(0, allocated[name])
        if request > capacity - used:
            found.append(_reason(f"Insufficient {name}", request, used, capacity, amounts=amounts))
    return found


def _reason(text: str, requested: int, used: int, capacity: int, *, amounts: bool) -> str:
    return f"{text}, requested: {requested}, used: {used}, capacity: {capacity}" if amounts else text


def score(requests: Mapping[str, int], allocated: Mapping[str, int], allocatable: ResourceList) -> int:
    """Return the mean utilization of a reservation over its resources, 0 to 100; a resource that does not fit counts
    0.
    """
    names = [name for name, amount in allocatable.items() if amount]
    if not names:
        return 0
    total = 0
    for name in names:
        request = requests.get(name, 0) + allocated.get(name, 0)
        if request <= allocatable[name]:
            total += 100 * request // allocatable[name]
    return total // len(names)


def shares_names(requests: Mapping[str, int], names: Iterable[str]) -> bool:
    """Return whether a request names any of these resources."""
    return any(requests.get(name, 0) for name in names)
