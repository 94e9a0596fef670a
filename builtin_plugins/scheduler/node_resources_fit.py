"""NodeResourcesFit: what a pod requests must be free on the node, and the node must have room for one more pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.frame import Rows
from koordpolicy.engine.cluster.edits import Edit, allocatable_edits, eviction_edits, request_edits
from koordpolicy.engine.cluster.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.plugins import CycleState, Handle
from koordpolicy.engine.points import Answer, Code, Refusal
from koordpolicy.engine.scheduler.args import check_fields

_PODS: Final = "pods"
_TOO_MANY_PODS: Final = "Too many pods"
_NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})


class NodeResourcesFit:
    """The filter (kube-scheduler's plugin of that name).

    Arguments: `ignoredResources` and `ignoredResourceGroups` name extended resources that are not looked at.
    """

    name = "NodeResourcesFit"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:  # noqa: ARG002 - every plugin is made like this
        self._ignored = frozenset(args.get("ignoredResources", ()))
        self._ignored_groups = frozenset(args.get("ignoredResourceGroups", ()))

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments; raises ValueError for those that there are not."""
        return check_fields(args, {"ignoredResources": list, "ignoredResourceGroups": list})

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:  # noqa: ARG002
        """Refuse nodes where a request exceeds what is free (allocatable less the requests of the pods there)."""
        passed = snapshot.pod_count < snapshot.allocatable(_PODS)
        wanted = self._wanted(pod)
        for name, amount in wanted:
            passed &= snapshot.allocatable(name) - snapshot.requested(name) >= amount

        def explain(row: int) -> Refusal:
            return _explain(wanted, snapshot, row)

        def reasons(refused: Rows) -> dict[str, Rows]:
            return _reasons(wanted, snapshot, refused)

        def codes(refused: Rows) -> dict[Code, Rows]:
            # Not even an empty node of that size would do.
            never = np.zeros(len(refused), np.bool_)
            for name, amount in wanted:
                never |= snapshot.allocatable(name)[refused] < amount
            return {Code.UNSCHEDULABLE: refused[~never], Code.UNRESOLVABLE: refused[never]}

        return Answer(passed, explain, reasons=reasons, codes=codes)

    def remedies(self, pod: PodInfo, snapshot: Snapshot, row: int) -> Iterator[Edit]:
        """Yield, for what is short: a smaller request, fewer pods on the node, a larger node."""
        held = snapshot.row(row)
        free_of = {name: held.allocatable[name] - held.requested[name] for name, _ in self._wanted(pod)}
        free_of[_PODS] = held.allocatable[_PODS] - len(held.pods)
        for name, amount in ((_PODS, 1), *self._wanted(pod)):
            free = free_of[name]
            if free >= amount:
                continue
            if free > 0:
                yield from request_edits(pod, name, free)
            yield from eviction_edits(held, name, amount - free)
            yield from allocatable_edits(held, name, held.allocatable[name] + amount - free)

    def _wanted(self, pod: PodInfo) -> list[tuple[str, int]]:
        return [(name, amount) for name, amount in pod.requests.items() if amount > 0 and not self._ignores(name)]

    def _ignores(self, name: str) -> bool:
        if name == _PODS:
            return True  # the pods that a node takes are counted, not requested
        if name in _NATIVE:
            return False
        return name in self._ignored or name.partition("/")[0] in self._ignored_groups


def _reasons(wanted: list[tuple[str, int]], snapshot: Snapshot, refused: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    full = refused[snapshot.pod_count[refused] >= snapshot.allocatable(_PODS)[refused]]
    if len(full):
        found[_TOO_MANY_PODS] = full
    for name, amount in wanted:
        short = refused[(snapshot.allocatable(name) - snapshot.requested(name))[refused] < amount]
        if len(short):
            found[f"Insufficient {name}"] = short
    return found


def _explain(wanted: list[tuple[str, int]], snapshot: Snapshot, row: int) -> Refusal:
    reasons: list[str] = []
    values: list[tuple[str, object]] = []
    code = Code.UNSCHEDULABLE
    pods, most = int(snapshot.pod_count[row]), int(snapshot.allocatable(_PODS)[row])
    if pods >= most:
        reasons.append(_TOO_MANY_PODS)
        values.append((_PODS, {"requested": 1, "used": pods, "capacity": most}))
    for name, amount in wanted:
        used, capacity = int(snapshot.requested(name)[row]), int(snapshot.allocatable(name)[row])
        if capacity - used < amount:
            reasons.append(f"Insufficient {name}")
            values.append((name, {"requested": amount, "used": used, "capacity": capacity}))
            if amount > capacity:
                code = Code.UNRESOLVABLE  # not even an empty node of that size would do
    return Refusal("resources", ", ".join(reasons), code, values=tuple(values))
