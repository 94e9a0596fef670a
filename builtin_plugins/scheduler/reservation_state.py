"""What the Reservation plugin knows of one pod's decision, and the view of the cluster that it shows the pod."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from koordpolicy.engine.cluster.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.rows import NodeRow
from koordpolicy.engine.cluster.snapshot import NodeChange, Snapshot
from koordpolicy.engine.scheduler.reservations import ReservationInfo

from .reservation_fit import NodeView
from .reservation_matching import Counts, Wanted


@dataclass(frozen=True, slots=True)
class NodeReservations:
    """The reservations of one node, as they are to a pod, and the pods that were taken off the node for it."""

    matched: tuple[ReservationInfo, ...] = ()
    unmatched: tuple[ReservationInfo, ...] = ()
    candidates: tuple[PodInfo, ...] = ()
    """For a reservation that takes over running pods: those that it may take over."""
    hidden: tuple[PodInfo, ...] = ()


@dataclass(slots=True)
class ReservationState:
    """What is known of one pod; after it was transformed, only what has been computed already is written down."""

    wanted: Wanted
    nodes: Mapping[str, NodeReservations] = field(default_factory=dict)
    counts: Mapping[str, Counts] = field(default_factory=dict)
    shown: Snapshot | None = None
    """The view that the pod was shown."""
    reservation: ReservationInfo | None = None
    """What a reserve pod stands for."""
    views: dict[int, NodeView] = field(default_factory=dict)
    """Nodes by row, as they were looked at last."""
    judged: dict[str, tuple[NodeRow, tuple[list[str], list[str]]]] = field(default_factory=dict)
    """By reservation, the row that it was judged on last, and what that came to."""

    def of(self, snapshot: Snapshot, row: int) -> NodeReservations:
        """Return what is known of the node at a row."""
        return self.nodes.get(snapshot.names[row], _NOTHING)

    def view(self, snapshot: Snapshot, row: int, ignores: Callable[[str], bool]) -> NodeView:
        """Return the node at a row, as the pod sees it."""
        at, known = snapshot.row(row), self.views.get(row)
        if known is None or known.row is not at:
            here = self.of(snapshot, row)
            known = self.views[row] = NodeView.of(at, here.matched, here.hidden, ignores)
        return known

    def is_freed(self, snapshot: Snapshot, row: int) -> bool:
        """Return whether pods are gone from a node that the pod was shown there: a what-if of a preemption."""
        if self.shown is None:
            return False
        before, now = self.shown.row(row), snapshot.row(row)
        return before is not now and any(key not in now.pods for key in before.pods)


_NOTHING = NodeReservations()


def restored(snapshot: Snapshot, nodes: Mapping[str, NodeReservations]) -> tuple[
    Snapshot | None, Mapping[str, NodeReservations],
]:
    """Return the view in which matched reservations are free, or None where nothing differs, and who was hidden for it.

    The pods that hold matched reservations, and candidates, are taken off their nodes. One that holds an unmatched
    reservation keeps only what its consumers do not use: they are on the node themselves.
    """
    changes: dict[str, NodeChange] = {}
    found: dict[str, NodeReservations] = {}
    for node, here in nodes.items():
        row = snapshot.row(snapshot.index[node])
        hidden = tuple(pod for pod in (*(info.pod for info in here.matched), *here.candidates) if pod.key in row.pods)
        hidden = tuple(row.pods[pod.key] for pod in hidden)
        shrunk = tuple(shrunken(row.pods[info.pod.key], info, row)
                       for info in here.unmatched if info.pod.key in row.pods)
        found[node] = replace(here, hidden=hidden)
        if hidden or shrunk:
            changes[node] = NodeChange(remove=[pod.key for pod in hidden], add=shrunk)
    return snapshot.overlay(changes) if changes else None, found


def shrunken(pod: PodInfo, info: ReservationInfo, row: NodeRow) -> PodInfo:
    """Return the pod that holds a reservation, with what its consumers leave of it."""
    allocated = info.allocated(row)
    requests = ResourceList({name: max(0, amount - allocated[name]) for name, amount in pod.requests.items()})
    gpu = pod.gpu
    for consumer in info.consumers_on(row):
        if gpu is not None and consumer.gpu is not None:
            left = gpu.total - consumer.gpu.total
            # Whole devices that are left, where there are any: which ones is known to the device plugins only.
            gpu = replace(gpu, count=left // gpu.share) if left >= gpu.share else None
    return replace(pod, requests=requests, gpu=gpu)


def involved(
    matched: Iterable[ReservationInfo], shared: Iterable[ReservationInfo], snapshot: Snapshot,
) -> dict[str, NodeReservations]:
    """Return, by node, what a pod may use there, and what others use of the rest."""
    by_node: dict[str, tuple[list[ReservationInfo], list[ReservationInfo]]] = {}
    usable = {}
    for info in matched:
        usable[info.uid] = info
        by_node.setdefault(info.node, ([], []))[0].append(info)
    for info in shared:
        if info.uid not in usable:
            by_node.setdefault(info.node, ([], []))[1].append(info)
    return {
        node: NodeReservations(tuple(mine), tuple(others)) for node, (mine, others) in sorted(by_node.items())
        if node in snapshot.index
    }
