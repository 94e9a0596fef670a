"""Reservations that take over running pods: which pods of a node they may take, and whether they fit with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.scheduler.extensions.reservations import (
    RESTRICTED,
    ReservationInfo,
    is_reserve_pod,
    matches_owners,
)

from ..allocation.annotations import annotations_of, labels_of
from .args import ReservationArgs
from .fit import NodeView, score, shares_names, short_of_reservation
from .matching import Counts, ReservationRequirement, matches

REQUIRED_LABEL: Final = "scheduling.koordinator.sh/pre-allocation-required"
UNSUPPORTED: Final = "node(s) reservation pre allocation is unsupported with current attributes"
NO_CLUSTER_MODE: Final = "reservation requires cluster mode pre-allocation which is disabled"
NO_PODS: Final = "node(s) no pod(s) to meet the pre-allocation requirements"
NO_MATCH: Final = "node(s) no pod match reservation with pre allocation required"


@dataclass(frozen=True, slots=True)
class PreAllocationChoice:
    """The pods that a reservation takes over on a node; none where the node alone is enough."""

    pods: tuple[PodInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class PreAllocation:
    """The pre-allocation policy of a Reservation: whether running pods become its consumers."""

    info: ReservationInfo
    required: bool
    """True if at least one pod is required."""
    multiple: bool
    cluster_mode: bool

    @staticmethod
    def of(info: ReservationInfo) -> PreAllocation | None:
        """Read a Reservation; None for one that takes over no pods."""
        spec = info.object.get("spec") or {}
        if not spec.get("preAllocation"):
            return None
        policy = spec.get("preAllocationPolicy") or {}
        return PreAllocation(
            info, labels_of(info.object).get(REQUIRED_LABEL) == "true", bool(policy.get("enableMultiple")),
            policy.get("mode") == "Cluster",
        )

    def problem(self, args: ReservationArgs) -> Refusal | None:
        """Return the refusal of all nodes, if the policy cannot be carried out; else None."""
        if self.info.policy != RESTRICTED:
            return Refusal("pre-allocation", UNSUPPORTED, Code.UNRESOLVABLE)
        if self.cluster_mode and not args.cluster_mode:
            return Refusal("pre-allocation", NO_CLUSTER_MODE, Code.UNRESOLVABLE)
        return None

    def candidates(
        self, snapshot: Snapshot, args: ReservationArgs, is_used: Callable[[PodInfo], bool], *, node_labels: bool,
    ) -> dict[str, tuple[PodInfo, ...]]:
        """Return, by node, the running pods that may be pre-allocated, in the order in which they are tried.

        `is_used` returns whether a pod uses a reservation already.
        """
        found: dict[str, tuple[PodInfo, ...]] = {}
        for row, name in enumerate(snapshot.names):
            here = [pod for pod in snapshot.row(row).pods.values()
                    if self._may_take(pod, snapshot.node(row), args, node_labels=node_labels) and not is_used(pod)]
            if self.cluster_mode:
                here.sort(key=lambda pod: (-_priority(pod, args.priority_annotation), pod.uid))
            elif self.multiple:
                here.sort(key=lambda pod: -score(pod.requests, {}, self.info.allocatable))
            if here:
                found[name] = tuple(here)
        return found

    def _may_take(self, pod: PodInfo, node: Mapping[str, Any], args: ReservationArgs, *, node_labels: bool) -> bool:
        if is_reserve_pod(pod):
            return False
        if self.cluster_mode:
            if labels_of(pod.object).get(args.cluster_label) != "true":
                return False
        elif self.info.parse_error or not matches_owners(pod, self.info.owners):
            return False
        try:
            requirement = ReservationRequirement.of(pod)
        except ValueError:
            return False
        return matches(pod, requirement, self.info, node, Counts(), labels=node_labels)

    def choose(
        self, view: NodeView, candidates: Sequence[PodInfo], args: ReservationArgs,
        allows: Callable[[PodInfo], Refusal | None],
    ) -> PreAllocationChoice | tuple[str, ...]:
        """Return the pods to pre-allocate on a node, or why the reservation does not fit there.

        `allows` returns why other plugins refuse that a pod uses the reservation.
        """
        if not candidates:
            return (NO_PODS,) if self.required else PreAllocationChoice()
        requests = self.info.pod.requests
        if not self.required and (args.prefers_no_pods or self.multiple) and not view.short(requests, {}):
            return PreAllocationChoice()
        of_node: dict[str, None] = {}
        of_reservation: list[str] = []
        usable = (
            self._several(view, candidates, args, of_node, of_reservation, allows) if self.multiple
            else self._one(view, candidates, args, of_node, of_reservation, allows)
        )
        if usable:
            return PreAllocationChoice(tuple(usable))
        node_reasons = tuple(f"Insufficient {name} by node" for name in sorted(of_node))
        if self.required:
            return (*node_reasons, *of_reservation) or (NO_PODS,)
        if node_reasons:
            return node_reasons
        short = view.short(requests, {})
        return tuple(f"Insufficient {name} by node" for name in sorted(short)) or PreAllocationChoice()

    def _one(  # noqa: PLR0917 - what is collected on the way
        self, view: NodeView, candidates: Sequence[PodInfo], args: ReservationArgs, of_node: dict[str, None],
        of_reservation: list[str], allows: Callable[[PodInfo], Refusal | None],
    ) -> list[PodInfo]:
        """Return the best of the pods that are enough alone, in a list; empty if there is none."""
        usable: list[PodInfo] = []
        for pod in candidates:
            if not shares_names(pod.requests, self.info.allocatable):
                continue
            short = view.short(self.info.pod.requests, pod.requests)
            missing = short_of_reservation(pod.requests, self.info, view.row, args.ignores)
            of_node |= dict.fromkeys(short)
            of_reservation += [f"Reservation(s) {reason}" for reason in missing]
            if short or missing:
                continue
            refusal = allows(pod)
            if refusal is None:
                usable.append(pod)
            else:
                of_reservation.append(f"Reservation(s) {refusal.message}")
        return sorted(usable, key=lambda pod: -score(pod.requests, {}, self.info.allocatable))[:1]

    def _several(  # noqa: PLR0917 - what is collected on the way
        self, view: NodeView, candidates: Sequence[PodInfo], args: ReservationArgs, of_node: dict[str, None],
        of_reservation: list[str], allows: Callable[[PodInfo], Refusal | None],
    ) -> list[PodInfo]:
        """Return the first candidates that are enough together; empty if all of them are not."""
        chosen: list[PodInfo] = []
        total = ResourceList()
        for pod in candidates:
            if not shares_names(pod.requests, self.info.allocatable):
                continue
            more = ResourceList(total)
            for name, amount in pod.requests.items():
                more[name] += amount
            missing = short_of_reservation(more, self.info, view.row, args.ignores)
            refusal = None if missing else allows(pod)
            if missing or refusal is not None:
                of_reservation += [f"Reservation(s) {reason}" for reason in missing]
                if refusal is not None:
                    of_reservation.append(f"Reservation(s) {refusal.message}")
                continue
            chosen.append(pod)
            total = more
            if not view.short(self.info.pod.requests, total):
                return chosen
        of_node |= dict.fromkeys(view.short(self.info.pod.requests, total))
        return []


def _priority(pod: PodInfo, annotation: str) -> int:
    try:
        return int(annotations_of(pod.object).get(annotation) or 0)
    except ValueError:
        return 0
