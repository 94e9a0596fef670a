"""Reservation: pods use the resources reserved for them, which are in use for all others.

The behaviour is Koordinator's (pkg/scheduler/plugins/reservation). A pod that may use reservations is scheduled on a
snapshot in which these are free, so that all other plugins need no change; the reservation is nominated per node. A
pod that may use none costs a lookup of the distinct owners.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Answer, Code, Refusal, Scores
from koordpolicy.engine.kubernetes.selectors import matches_node
from koordpolicy.engine.kubernetes.vocabulary import (
    PREEMPTIBLE_LABEL,
    RESERVATION_AFFINITY_ANNOTATION,
    RESERVATION_ALLOCATED_ANNOTATION,
)
from koordpolicy.engine.scheduler.extensions.reservations import (
    RESERVATION_NODE,
    ReservationInfo,
    is_operating_pod,
    is_reserve_pod,
    problem_of,
    reservation_of,
    written,
)
from koordpolicy.plugin import (
    SKIP,
    Changed,
    CycleState,
    Deferred,
    Event,
    Handle,
    Nomination,
    OnlyNodes,
    Refused,
    ReservationFilter,
    ReservationRestore,
    ReservationScore,
    Skip,
)

from ..allocation.annotations import (
    SCHEDULING_HINT_ANNOTATIONS,
    annotations_of,
    json_object,
    labels_of,
    write_annotation,
)
from ..kubernetes.default_preemption import make_room
from .args import check_args, convert, default_args, ignored_args
from .cache import ReservationCache
from .controller import ReservationStatus
from .diagnosis import event_message, reasons
from .fit import score, shares_names, short_of_reservation
from .matching import Counts, ReservationRequirement, matches, named_nodes
from .pre_allocation import NO_MATCH, PreAllocation, PreAllocationChoice
from .state import NodeReservations, ReservationState, involved, restored
from .status import available, with_conditions

NO_AFFINITY: Final = "node(s) no reservations match reservation affinity"
OTHER_NODE: Final = "node(s) didn't match the nodeName specified by reservation"
POLICY_CONFLICT: Final = "node(s) reservation allocate policy conflict"
NOT_FREED: Final = "node(s) preemption failed due to insufficient resources"
NOTHING_FITS: Final = "node(s) no reservation(s) to meet the requirements"
TAKEN: Final = "reservation has allocateOnce enabled and has already been allocated"
_PREFERRED: Final = 1000


class Reservation:
    """Reservations. For the arguments see docs/plugins/reservation.md."""

    name = "Reservation"
    check_args = staticmethod(check_args)
    ignored_args = staticmethod(ignored_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._args = convert(default_args(args))
        self._handle = handle
        self.cache = ReservationCache()
        self._nominations: dict[str, dict[str, str]] = {}
        self._takeovers: dict[str, dict[str, PreAllocationChoice]] = {}
        self._node_labels = "OmitNodeLabelsForReservation" not in handle.feature_gates
        handle.events.on(("Reservation", "Pod"), self._on_event)

    def _on_event(self, event: Event) -> None:
        self.cache.on_event(event)
        if event.kind == "Pod" and event.new is None and event.old_pod is not None:
            self.forget_nomination(event.old_pod)

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether an event may let a refused pod find a place.

        That is a reservation, a node or the pod itself that changed, or another pod that left.
        """
        if event.kind == "Pod":
            return (event.key == pod.key and event.old != event.new) or _left(event)
        return event.kind in ("Reservation", "Node") and event.new is not None

    # Transformed snapshot

    def before_pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Changed | Refusal | None:
        """Show the pod what the reservations that it may use hold, as free."""
        if is_reserve_pod(pod):
            found = self._of_reserve_pod(pod, snapshot)
        else:
            try:
                wanted = ReservationRequirement.of(pod)
            except ValueError as error:
                return Refusal("affinity", str(error), Code.ERROR)
            if named_nodes(pod) == frozenset():
                return Refusal("node-affinity", "pod affinity terms conflict", Code.UNRESOLVABLE)
            found = self._of_pod(pod, wanted, snapshot)
        state[ReservationState] = found
        shown, found.nodes = restored(snapshot, found.nodes, self.cache.unsettled())
        found.usable = {node: here for node, here in found.nodes.items() if here.matched or here.candidates}
        found.shown = shown or snapshot
        if not found.nodes:
            return None
        for peer in self._handle.peers(ReservationRestore):  # type: ignore[type-abstract]
            refusal = peer.pre_restore(state, pod)
            for node, here in found.nodes.items() if refusal is None else ():
                refusal = refusal or peer.restore(state, pod, here.matched, here.unmatched, node)
            if refusal is not None:
                return refusal
        return Changed(snapshot=shown) if shown is not None else None

    def _of_reserve_pod(self, pod: PodInfo, snapshot: Snapshot) -> ReservationState:
        """Return the state of a reserve pod: nothing reserved is free for it, but it may pre-allocate running pods."""
        item = snapshot.object("Reservation", reservation_of(pod))
        info = ReservationInfo.of(item) if item is not None else None
        nodes = involved((), self.cache.shared(), snapshot)
        pre_allocation = PreAllocation.of(info) if info is not None else None
        if pre_allocation is not None and pre_allocation.problem(self._args) is None:
            candidates = pre_allocation.candidates(
                snapshot, self._args, lambda each: bool(self.cache.uses(each)), node_labels=self._node_labels)
            for node, pods in candidates.items():
                here = nodes.get(node, NodeReservations())
                nodes[node] = NodeReservations(here.matched, here.unmatched, pods)
        return ReservationState(ReservationRequirement(), nodes, reservation=info)

    def _of_pod(self, pod: PodInfo, wanted: ReservationRequirement, snapshot: Snapshot) -> ReservationState:
        counts: dict[str, Counts] = {}
        matched: list[ReservationInfo] = []
        if wanted.ignored:
            for name in self.cache.nodes():
                here = [info for info in self.cache.on_node(name) if info.is_matchable]
                counts[name] = Counts(ignored=len(here))
                matched += here
        else:
            only = self._only_nodes(pod, wanted)
            fits: dict[str, bool] = {}
            for info in self.cache.owned_by(pod):
                row = snapshot.index.get(info.node)
                if row is None or (only is not None and info.node not in only):
                    continue
                node = snapshot.node(row)
                if info.node not in fits:
                    fits[info.node] = matches_node(pod.object, node)
                if fits[info.node] and matches(
                    pod, wanted, info, node, counts.setdefault(info.node, Counts()), labels=self._node_labels,
                ):
                    matched.append(info)
        nodes = involved(matched, self.cache.shared(), snapshot)
        if wanted.affinity is not None:
            nodes = {node: here for node, here in nodes.items() if here.matched}
        return ReservationState(wanted, nodes, counts)

    def _only_nodes(self, pod: PodInfo, wanted: ReservationRequirement) -> frozenset[str] | None:
        """Return the only nodes whose reservations the pod may use: those of a hint, or of the one that it names."""
        for name in SCHEDULING_HINT_ANNOTATIONS:
            if annotations_of(pod.object).get(name):
                try:
                    names = json_object(annotations_of(pod.object), name).get("nodeNames")
                except ValueError:
                    continue  # reported by SchedulingHint
                if names:
                    return frozenset(names)
        if wanted.name:
            info = self.cache.named(wanted.name)
            # Others on that node are counted as those that have another name.
            return frozenset((info.node,)) if info is not None else None
        return None

    def pre_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot,
    ) -> Refusal | OnlyNodes | Skip | None:
        """Refuse invalid requests, and return the only nodes with reservations that the pod requires."""
        found = state.get(ReservationState)
        if found is None:
            return SKIP
        if is_reserve_pod(pod):
            return self._check_reserve_pod(found, pod, snapshot)
        if found.wanted.affinity is not None:
            if not found.nodes:
                return Refusal("affinity", NO_AFFINITY, Code.UNRESOLVABLE)
            return OnlyNodes(frozenset(found.nodes))
        return None if found.nodes else SKIP

    def _check_reserve_pod(
        self, found: ReservationState, pod: PodInfo, snapshot: Snapshot,
    ) -> Refusal | OnlyNodes | None:
        name = reservation_of(pod)
        item = snapshot.object("Reservation", name)
        if item is None:
            message = f'cannot get reservation, err: reservation.scheduling.koordinator.sh "{name}" not found'
            return Refusal("reservation", message, Code.ERROR)
        if problem := problem_of(item):
            return Refusal("reservation", problem, Code.ERROR)
        pre_allocation = PreAllocation.of(found.reservation) if found.reservation is not None else None
        if pre_allocation is None:
            return None
        refusal = pre_allocation.problem(self._args)
        if refusal is None and pre_allocation.required:
            nodes = frozenset(node for node, here in found.nodes.items() if here.candidates)
            return OnlyNodes(nodes) if nodes else Refusal("pre-allocation", NO_MATCH, Code.UNRESOLVABLE)
        return refusal

    # Filter

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes on which neither a reservation nor, where the pod does not need one, the node has room."""
        passed = np.ones(snapshot.size, np.bool_)
        found: ReservationState | None = state.get(ReservationState)
        if found is None:
            return Answer(passed)
        refusals: dict[int, Refusal] = {}
        others: Refusal | None = None
        if not is_reserve_pod(pod):
            if found.wanted.affinity is not None and not found.wanted.ignored:
                others = Refusal("affinity", NO_AFFINITY, Code.UNRESOLVABLE)
            self._filter_pod(state, found, pod, snapshot, rows, refusals)
        if is_reserve_pod(pod) or is_operating_pod(pod):
            others = self._filter_reserve_pod(found, pod, snapshot, rows, refusals) or others
        if others is not None:
            spared = {snapshot.index[node] for node, here in found.usable.items() if here.matched}
            if others.message == OTHER_NODE:
                spared = {snapshot.index.get(str(annotations_of(pod.object).get(RESERVATION_NODE)), -1)}
            for row in rows.tolist():
                if row not in spared:
                    refusals[row] = others
        passed[list(refusals)] = False
        return Answer(passed, refusals.__getitem__, reasons=lambda refused: _by_reason(refusals, refused),
                      codes=lambda refused: _by_code(refusals, refused))

    def _filter_reserve_pod(
        self, found: ReservationState, pod: PodInfo, snapshot: Snapshot, rows: Rows, refusals: dict[int, Refusal],
    ) -> Refusal | None:
        """Filter the nodes for a reserve pod; return why all but one node are refused, if so."""
        given = annotations_of(pod.object).get(RESERVATION_NODE)
        info = found.reservation if is_reserve_pod(pod) else ReservationInfo.of_operating_pod(pod)
        everywhere = None
        if info is None:
            everywhere = Refusal("reservation", "reservation not found", Code.ERROR)
        pre_allocation = PreAllocation.of(info) if info is not None and is_reserve_pod(pod) else None
        if pre_allocation is not None:
            everywhere = everywhere or pre_allocation.problem(self._args)
        asked = set(rows.tolist())
        nodes = set(self.cache.nodes()) if pre_allocation is None or not pre_allocation.required else snapshot.names
        for node in {*nodes, *found.nodes} if everywhere is None else snapshot.names:
            row = snapshot.index.get(node)
            if row is None or row not in asked:
                continue
            refusal = everywhere
            if info is not None and any(
                bool(each.policy) != bool(info.policy) for each in self.cache.on_node(node) if each.is_matchable
            ):
                refusal = Refusal("policy", POLICY_CONFLICT, Code.UNRESOLVABLE)
            elif pre_allocation is not None and everywhere is None:
                refusal = self._take_over(found, pre_allocation, snapshot, row)
            if refusal is not None:
                refusals[row] = refusal
        return Refusal("node", OTHER_NODE, Code.UNRESOLVABLE) if given else None

    def _take_over(
        self, found: ReservationState, pre_allocation: PreAllocation, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        choice = self._choice(found, pre_allocation, snapshot, row)
        return None if isinstance(choice, PreAllocationChoice) else _refused(choice)

    def _choice(
        self, found: ReservationState, pre_allocation: PreAllocation, snapshot: Snapshot, row: int,
    ) -> PreAllocationChoice | tuple[str, ...]:
        def allows(candidate: PodInfo) -> Refusal | None:
            return self._peers_refuse(CycleState(), candidate, pre_allocation.info, snapshot, row)

        here = found.of(snapshot, row)
        view = found.view(snapshot, row, self._args.ignores)
        return pre_allocation.choose(view, here.candidates, self._args, allows)

    def _filter_pod(  # noqa: PLR0917 - the filter's arguments, and what it finds
        self, state: CycleState, found: ReservationState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
        refusals: dict[int, Refusal],
    ) -> None:
        asked = {snapshot.index[node] for node, here in found.usable.items() if here.matched}
        asked |= set(snapshot.overridden) | set(found.shown.overridden if found.shown is not None else ())
        for row in sorted(asked & set(rows.tolist())):
            refusal = self._judge(state, found, pod, snapshot, row)
            if refusal is not None:
                refusals[row] = refusal

    def _judge(
        self, state: CycleState, found: ReservationState, pod: PodInfo, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        """Return why the pod finds no place on a node, with or without reservations."""
        view = found.view(snapshot, row, self._args.ignores)
        if found.wanted.ignored:
            return None  # NodeResourcesFit checks whether the node has room
        if not view.matched:
            if found.is_freed(snapshot, row) and view.short(pod.requests, {}):
                return _refused((NOT_FREED,))
            return None
        needed = found.wanted.affinity is not None
        of_node: dict[str, None] = {}
        of_reservations: list[str] = []
        for info in view.matched:
            if found.wanted.name and info.name != found.wanted.name:
                continue
            if not needed and not shares_names(pod.requests, info.resource_names):
                continue
            short, told = self._fits(state, found, pod, snapshot, row, info)
            if not short and not told:
                return None
            of_node |= dict.fromkeys(short)
            of_reservations += told
        names = tuple(f"Insufficient {name} by node" for name in sorted(of_node))
        if needed:
            return _refused((*names, *of_reservations) or (NOTHING_FITS,))
        if not names:
            names = tuple(f"Insufficient {name} by node" for name in sorted(view.short(pod.requests, {})))
        return _refused(names) if names else None

    def _fits(  # noqa: PLR0917 - a pod, a node and a reservation
        self, state: CycleState, found: ReservationState, pod: PodInfo, snapshot: Snapshot, row: int,
        info: ReservationInfo,
    ) -> tuple[list[str], list[str]]:
        """Return what the node has too little of beside a reservation, and what else speaks against using it."""
        view = found.view(snapshot, row, self._args.ignores)
        known = found.judged.get(info.uid)
        if known is not None and known[0] is view.row:
            return known[1]
        short: list[str] = []
        if not ("SkipReservationFitsNode" in self._handle.feature_gates and len(view.matched) == 1):
            short = view.short_beside(pod.requests, info)
        told = [
            f"Reservation(s) {reason}" for reason in short_of_reservation(
                pod.requests, info, view.row, self._args.ignores, amounts=bool(found.wanted.name))
        ]
        if not short and not told:
            refusal = self._peers_refuse(state, pod, info, snapshot, row)
            if refusal is not None:
                told.append(f"Reservation(s) {refusal.message}")
        found.judged[info.uid] = (view.row, (short, told))
        return short, told

    def _peers_refuse(
        self, state: CycleState, pod: PodInfo, info: ReservationInfo, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        for peer in self._handle.peers(ReservationFilter):  # type: ignore[type-abstract]
            refusal = peer.filter_reservation(state, pod, info, snapshot, row)
            if refusal is not None:
                return refusal
        return None

    # No node

    def post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, refused: Refused,
    ) -> Nomination | Refusal | None:
        """Preempt, where enabled; else report the reasons of the reservations."""
        if self._args.preempts:
            return make_room(
                pod, snapshot, refused, may_take=lambda victim: _may_take(pod, victim),
                percentage=self._args.candidates_percentage, absolute=self._args.candidates_absolute,
            )
        found: ReservationState | None = state.get(ReservationState)
        if found is None or is_reserve_pod(pod):
            return None
        told = self.post_filter_reasons(found.counts, _told(found, snapshot, refused), found.wanted)
        return _refused(told) if told else None

    @staticmethod
    def post_filter_reasons(
        counts: Mapping[str, Counts], node_reasons: Mapping[str, Iterable[str]], wanted: ReservationRequirement,
    ) -> tuple[str, ...]:
        """Return what was wrong with the reservations of all nodes."""
        return tuple(reasons(counts, node_reasons, has_affinity=wanted.affinity is not None))

    # Nomination

    def nominate_reservation(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Choose the reservation that the pod takes on the node; a pod that needs none may get none."""
        found: ReservationState | None = state.get(ReservationState)
        if found is None:
            return None
        if is_reserve_pod(pod):
            return self._nominate_pods(found, pod, snapshot, row)
        chosen = self.nominate(state, pod, snapshot, row)
        if isinstance(chosen, Refusal):
            return chosen
        names = self._nominations.setdefault(pod.key, {})
        if chosen is None:
            names.pop(snapshot.names[row], None)
        else:
            names[snapshot.names[row]] = chosen.uid
        return None

    def nominate(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int,
    ) -> ReservationInfo | Refusal | None:
        """Return the reservation that suits the pod best on a node, or None; a refusal is an error of a scorer."""
        found: ReservationState | None = state.get(ReservationState)
        if found is None or found.wanted.ignored:
            return None
        matched = found.of(snapshot, row).matched
        if not matched:
            return None
        if len(matched) == 1 and found.wanted.affinity is not None:
            return matched[0]
        # The reservation in use comes first: this is called after Reserve too.
        for known in (self.cache.uses(pod), self._nominations.get(pod.key, {}).get(snapshot.names[row])):
            for info in matched:
                if info.uid == known:
                    return info
        left = [info for info in matched if self.filter_nominated(state, pod, info, snapshot, row) is None]
        if len(left) < 2:
            return left[0] if left else None
        ordered = [info for info in left if info.order > 0]
        if ordered:
            return min(ordered, key=lambda info: info.order)
        totals: dict[str, int] = {}
        for info in left:
            for peer in self._handle.peers(ReservationScore):  # type: ignore[type-abstract]
                points = peer.score_reservation(state, pod, info, snapshot, row)
                if not 0 <= points <= HIGHEST_SCORE:
                    message = f"the score {points} of reservation `{info.name}` is outside 0..{HIGHEST_SCORE}"
                    return Refusal("score", message, Code.ERROR)
                totals[info.uid] = totals.get(info.uid, 0) + points
        return max(left, key=lambda info: totals.get(info.uid, 0))

    def filter_nominated(
        self, state: CycleState, pod: PodInfo, info: ReservationInfo, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        """Return why the pod may not be given this one reservation on the node."""
        if info.allocate_once and (info.consumers or info.is_taken):
            return _refused((TAKEN,))
        found: ReservationState = state.get(ReservationState) or ReservationState(ReservationRequirement())
        short, told = self._fits(state, found, pod, snapshot, row, info)
        names = tuple(f"Insufficient {name} by node" for name in sorted(short))
        return _refused((*names, *told)) if names or told else None

    def score_reservation(
        self, state: CycleState, pod: PodInfo, reservation: ReservationInfo, snapshot: Snapshot, row: int,  # noqa: ARG002
    ) -> int:
        """Return how full the reservation would be with the pod, 0 to 100."""
        return score(pod.requests, reservation.allocated(snapshot.row(row)), reservation.allocatable)

    def _nominate_pods(self, found: ReservationState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        pre_allocation = PreAllocation.of(found.reservation) if found.reservation is not None else None
        if pre_allocation is None:
            return None
        choice = self._choice(found, pre_allocation, snapshot, row)
        if not isinstance(choice, PreAllocationChoice):
            return _refused(choice)
        self._takeovers.setdefault(pod.key, {})[snapshot.names[row]] = choice
        return None

    def forget_nomination(self, pod: PodInfo) -> None:
        """Forget what was chosen for the pod."""
        self._nominations.pop(pod.key, None)
        self._takeovers.pop(pod.key, None)

    # Score

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Refusal | Skip | None:
        """Choose a reservation per node; `SKIP` where there is nothing to choose."""
        found: ReservationState | None = state.get(ReservationState)
        if found is None or found.wanted.ignored or not found.usable:
            return SKIP
        if is_reserve_pod(pod) and (found.reservation is None or PreAllocation.of(found.reservation) is None):
            return SKIP
        for row in self._rows_with_reservations(found, snapshot, rows):
            refusal = self.nominate_reservation(state, pod, snapshot, row)
            if refusal is not None and refusal.code is Code.ERROR:
                return refusal
        return None

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer nodes with a reservation for the pod, the one of the lowest order first, and fuller ones."""
        raw = self.raw_scores(state, pod, snapshot, rows)
        if not is_reserve_pod(pod):
            raw = normalize(raw)
        values = np.zeros(snapshot.size, np.int64)
        for row, points in raw.items():
            values[row] = points
        return Scores(values)

    def raw_scores(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> dict[int, int]:
        """Return the scores by row before they are normalised; rows that are not there have 0."""
        found: ReservationState | None = state.get(ReservationState)
        if found is None or found.wanted.ignored:
            return {}
        if is_reserve_pod(pod):
            chosen = self._takeovers.get(pod.key, {})
            return {row: HIGHEST_SCORE // (1 + len(chosen.get(snapshot.names[row], PreAllocationChoice()).pods))
                    for row in map(int, rows.tolist())} if chosen else {}
        here = self._rows_with_reservations(found, snapshot, rows)
        orders = [(info.order, row) for row in here for info in found.of(snapshot, row).matched if info.order > 0]
        preferred = min(orders)[1] if orders else -1
        nominated = self._nominations.get(pod.key, {})
        scores: dict[int, int] = {}
        for row in here:
            if row == preferred:
                scores[row] = _PREFERRED
                continue
            info = self.cache.get(nominated.get(snapshot.names[row], ""))
            if info is not None:
                scores[row] = self.score_reservation(state, pod, info, snapshot, row)
        return scores

    @staticmethod
    def _rows_with_reservations(found: ReservationState, snapshot: Snapshot, rows: Rows) -> list[int]:
        asked = set(rows.tolist())
        return sorted(row for node in found.usable if (row := snapshot.index[node]) in asked)

    # Reserve and bind

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Let the pod use the reservation that was chosen for it."""
        found: ReservationState | None = state.get(ReservationState)
        if found is None:
            return None
        node = snapshot.names[row]
        if is_reserve_pod(pod):
            if node not in self._takeovers.get(pod.key, {}) and (refusal := self._nominate_pods(
                found, pod, snapshot, row,
            )):
                return refusal
            for taken in self._takeovers.get(pod.key, {}).get(node, PreAllocationChoice()).pods:
                self.cache.assume(taken, pod.uid)
            state[PreAllocationChoice] = self._takeovers.get(pod.key, {}).get(node, PreAllocationChoice())
            return None
        if found.wanted.ignored:
            return None
        chosen = self.nominate(state, pod, snapshot, row)
        if isinstance(chosen, Refusal):
            return chosen
        if chosen is not None:
            self.cache.assume(pod, chosen.uid)
        elif found.wanted.affinity is not None:
            return Refusal("affinity", NO_AFFINITY)
        return None

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:  # noqa: ARG002
        """Take back what `reserve` did, and the note of it in the pod's object if the pod is not bound."""
        self._release(state.get(PreAllocationChoice, PreAllocationChoice()).pods if is_reserve_pod(pod) else (pod,))
        state.pop(PreAllocationChoice, None)
        item = self._handle.snapshot().object("Pod", pod.key)
        if item is None or is_reserve_pod(pod) or (item.get("spec") or {}).get("nodeName"):
            return
        annotations = annotations_of(item)
        if RESERVATION_ALLOCATED_ANNOTATION in annotations:
            kept = {key: value for key, value in annotations.items() if key != RESERVATION_ALLOCATED_ANNOTATION}
            try:
                self._handle.client.patch(item, {**item, "metadata": {**item["metadata"], "annotations": kept}})
            except OSError as error:
                self._handle.log.warning("the reservation of pod `%s` was not taken back: %s", pod.key, error)

    def forget_pod(self, pod: PodInfo) -> None:
        """Release what the pod used."""
        self._release((pod,))
        self.forget_nomination(pod)

    def _release(self, pods: Iterable[PodInfo]) -> None:
        for each in pods:
            self.cache.forget(each)

    def pre_bind(self, state: CycleState, pod: PodInfo, draft: dict[str, Any], node: str) -> Refusal | None:  # noqa: ARG002
        """Write down which reservation the pod uses."""
        info = None if is_reserve_pod(pod) else self.cache.used_by(pod)
        if info is not None:
            write_annotation(draft, RESERVATION_ALLOCATED_ANNOTATION, {"name": info.name, "uid": info.uid})
        return None

    def pre_bind_reservation(
        self, state: CycleState, reservation: dict[str, Any], node: str,  # noqa: ARG002
    ) -> Deferred | None:
        """Write into the pods that are taken over which reservation they use from now on."""
        metadata, client = reservation["metadata"], self._handle.client
        patches: list[tuple[Mapping[str, Any], dict[str, Any]]] = []
        for taken in state.get(PreAllocationChoice, PreAllocationChoice()).pods:
            item = json.loads(json.dumps(taken.object))
            uid = metadata.get("uid") or metadata["name"]
            write_annotation(item, RESERVATION_ALLOCATED_ANNOTATION, {"name": metadata["name"], "uid": uid})
            patches.append((taken.object, item))

        def patch() -> Refusal | None:
            try:
                for original, modified in patches:
                    client.patch(original, modified)
            except OSError as error:
                return Refusal("pre-allocation", str(error), Code.ERROR)
            return None

        return Deferred(patch) if patches else None

    def bind(self, state: CycleState, pod: PodInfo, node: str) -> Refusal | Skip | Deferred:  # noqa: ARG002
        """Make the Reservation of a reserve pod available on its node; other pods are left to others."""
        if not is_reserve_pod(pod):
            return SKIP
        item = self._handle.snapshot().object("Reservation", reservation_of(pod))
        if item is None:
            return Refusal("reservation", "reservation not found", Code.ERROR)
        if (item.get("status") or {}).get("phase") == "Failed":
            return Refusal("reservation", "reservation is not active", Code.ERROR)
        try:
            modified = available(item, node, self._handle.now())
        except ValueError as error:
            return Refusal("reservation", str(error), Code.ERROR)
        client, log = self._handle.client, self._handle.log

        def patch() -> Refusal | None:
            try:
                client.patch(item, modified)
            except (OSError, ValueError) as error:
                return Refusal("reservation", str(error), Code.ERROR)
            log.info("Successfully assigned %s to %s", item["metadata"]["name"], node)
            return None

        return Deferred(patch)

    # Failure

    def before_error(self, pod: PodInfo, refusal: Refusal) -> bool:
        """Forget the nominations of the pod, and write the failure into the status of a Reservation."""
        self.forget_nomination(pod)
        if not is_reserve_pod(pod):
            asks = bool(annotations_of(pod.object).get(RESERVATION_AFFINITY_ANNOTATION))
            message = event_message(refusal.message) if asks else ""
            if message:
                self._handle.log.warning("FailedScheduling-Reservation %s: %s", pod.key, message)
            return False
        item = self._handle.snapshot().object("Reservation", reservation_of(pod))
        if item is not None and not (item.get("status") or {}).get("nodeName"):
            failed = with_conditions(item, self._handle.now(), Scheduled=("False", "Unschedulable", refusal.message))
            if failed != item:
                try:
                    self._handle.client.patch(item, failed)
                except OSError as error:
                    self._handle.log.warning("the condition of Reservation `%s` was not written: %s",
                                             reservation_of(pod), error)
        return False

    # Controllers and endpoints

    def controllers(self) -> tuple[ReservationStatus, ...]:
        """Return what is to run beside the decisions: expiration, statuses and garbage collection."""
        return (ReservationStatus(self._handle, self._args),)

    def endpoints(self) -> Mapping[str, Any]:
        """Return what is known of a node's reservations (`nodeReservations/{nodeName}`), and of how they are found."""
        return {"nodeReservations/{nodeName}": self._of_node, "reservationSelectorIndex": self.cache.owners}

    def _of_node(self, nodeName: str) -> dict[str, Any]:  # noqa: N803 - the path's name
        return {"items": [_summary(info) for info in self.cache.on_node(nodeName)]}


def _left(event: Event) -> bool:
    """Return whether a pod left its node."""
    before, after = event.old_pod, event.new_pod
    return before is not None and bool(before.node_name) and (after is None or not after.node_name)


def normalize(scores: Mapping[Any, int]) -> dict[Any, int]:
    """Return scores in percent of the highest one."""
    most = max(scores.values(), default=0)
    return {key: points * HIGHEST_SCORE // most if most > 0 else points for key, points in scores.items()}


def _refused(told: tuple[str, ...], code: Code = Code.UNSCHEDULABLE) -> Refusal:
    """Return a refusal for several reasons, which `_reasons_of` finds in it again."""
    return Refusal("reservation", ", ".join(told), code, values=(("reasons", told),))


def _reasons_of(refusal: Refusal) -> tuple[str, ...]:
    for name, value in refusal.values:
        if name == "reasons" and isinstance(value, tuple):
            return value
    return (refusal.message,)


def _told(found: ReservationState, snapshot: Snapshot, refused: Refused) -> dict[str, tuple[str, ...]]:
    """Return why the nodes with reservations refused the pod."""
    told: dict[str, tuple[str, ...]] = {}
    for node in found.counts:
        if node in snapshot.index:
            try:
                refusal = refused.reason(snapshot.index[node])
            except KeyError:
                continue
            own = _reasons_of(refusal)
            told[node] = own if len(own) > 1 else tuple(refusal.message.split(", Insufficient "))
    return told


def _by_reason(refusals: Mapping[int, Refusal], rows: Rows) -> dict[str, Rows]:
    found: dict[str, list[int]] = {}
    for row in rows.tolist():
        for reason in _reasons_of(refusals[row]):
            found.setdefault(reason, []).append(row)
    return {reason: np.array(sorted(set(these)), np.intp) for reason, these in found.items()}


def _by_code(refusals: Mapping[int, Refusal], rows: Rows) -> dict[Code, Rows]:
    found: dict[Code, list[int]] = {}
    for row in rows.tolist():
        found.setdefault(refusals[row].code, []).append(row)
    return {code: np.array(these, np.intp) for code, these in found.items()}


def _may_take(pod: PodInfo, victim: PodInfo) -> bool:
    return victim.priority < pod.priority and not is_reserve_pod(victim) and (
        labels_of(victim.object).get(PREEMPTIBLE_LABEL) != "false")


def _summary(info: ReservationInfo) -> dict[str, Any]:
    is_pod = info.object.get("kind") == "Pod"
    return {
        "name": info.name, "namespace": info.pod.namespace if is_pod else "", "uid": info.uid,
        "kind": "Pod" if is_pod else "Reservation", "available": info.is_available,
        "allocateOnce": info.allocate_once, "allocatable": written(info.allocatable),
        "reserved": written(info.reserved), "allocated": written(info.allocated()),
        "owners": [dict(owner) for owner in info.owners], "allocatePolicy": info.policy,
        "assignedPods": sorted(info.consumers),
    }
