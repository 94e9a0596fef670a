"""The cycle state of the Reservation plugin for one pod, and the snapshot that is transformed for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from koordpolicy.engine.cluster.objects.node_rows import NodeRow
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.scheduler.extensions.reservations import ReservationInfo

from .fit import NodeView
from .matching import Counts, ReservationRequirement


@dataclass(frozen=True, slots=True)
class NodeReservations:
    """The reservations of one node for a pod, and the pods that were removed from the node for it.

    The reserve pods request all of their reservation here, whatever consumers use.
    """

    matched: tuple[ReservationInfo, ...] = ()
    unmatched: tuple[ReservationInfo, ...] = ()
    candidates: tuple[PodInfo, ...] = ()
    """For a reservation that takes over running pods: those that it may take over."""
    hidden: tuple[PodInfo, ...] = ()


@dataclass(slots=True)
class ReservationState:
    """The cycle state of one pod; results are stored as they are computed."""

    requirement: ReservationRequirement
    nodes: Mapping[str, NodeReservations] = field(default_factory=dict)
    counts: Mapping[str, Counts] = field(default_factory=dict)
    shown: Snapshot | None = None
    """The view that the pod was shown."""
    reservation: ReservationInfo | None = None
    """The reservation of a reserve pod."""
    views: dict[int, NodeView] = field(default_factory=dict)
    """Nodes by row, as they were looked at last."""
    fits: dict[str, tuple[NodeRow, tuple[list[str], list[str]]]] = field(default_factory=dict)
    """By reservation, the row that it was last evaluated on, and the result."""

    usable: Mapping[str, NodeReservations] = field(default_factory=dict)
    """Of `nodes`, those with something for this pod."""

    def of(self, snapshot: Snapshot, row: int) -> NodeReservations:
        """Return the state of the node at a row."""
        return self.nodes.get(snapshot.names[row], _NOTHING)

    def view(self, snapshot: Snapshot, row: int, ignores: Callable[[str], bool]) -> NodeView:
        """Return the node at a row, as the pod sees it."""
        at, known = snapshot.row(row), self.views.get(row)
        if known is None or known.row is not at:
            here = self.of(snapshot, row)
            known = self.views[row] = NodeView.of(at, here.matched, here.hidden, ignores)
        return known

    def is_freed(self, snapshot: Snapshot, row: int) -> bool:
        """Return whether pods of the pod's snapshot are missing on a node: a simulated preemption."""
        if self.shown is None:
            return False
        before, now = self.shown.row(row), snapshot.row(row)
        return before is not now and any(key not in now.pods for key in before.pods)


_NOTHING = NodeReservations()


def restored(
    snapshot: Snapshot, nodes: Mapping[str, NodeReservations], unsettled: Mapping[str, Collection[str]],
) -> tuple[Snapshot | None, Mapping[str, NodeReservations]]:
    """Return the snapshot in which matched reservations are free, None where nothing differs, and the removed pods.

    The reserve pods of matched reservations, and candidates, are removed from their nodes. The reserve pod of an
    unmatched reservation requests only its unused rest, since the consumers are on the node themselves. That is so
    already except for those that are `unsettled`: uids by node.
    """
    changes: dict[str, NodeChange] = {}
    found = dict(nodes)
    for node, here in nodes.items():
        if not here.matched and not here.candidates and node not in unsettled:
            continue
        row = snapshot.row(snapshot.index[node])
        hidden = tuple(
            pod for pod in (*(info.pod for info in here.matched), *here.candidates) if pod.key in row.pods)
        shrunk = [info.remaining(row) for info in here.unmatched
                  if info.uid in unsettled.get(node, ()) and info.pod.key in row.pods]
        found[node] = replace(here, hidden=hidden)
        if hidden or shrunk:
            changes[node] = NodeChange(remove=[pod.key for pod in hidden], add=shrunk)
    return snapshot.overlay(changes) if changes else None, found


def involved(
    matched: Iterable[ReservationInfo], shared: Mapping[str, NodeReservations], snapshot: Snapshot,
) -> dict[str, NodeReservations]:
    """Return, by node, what a pod may use there, and what others use of the rest (`shared`: of all of them)."""
    by_node: dict[str, dict[str, ReservationInfo]] = {}
    for info in matched:
        by_node.setdefault(info.node, {})[info.uid] = info
    found = {node: here for node, here in shared.items() if node in snapshot.index}
    for node, by_uid in sorted(by_node.items()):
        if node in snapshot.index:
            others = shared[node].unmatched if node in shared else ()
            found[node] = NodeReservations(
                tuple(by_uid.values()), tuple(info for info in others if info.uid not in by_uid))
    return found
