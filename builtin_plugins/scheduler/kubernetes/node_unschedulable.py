"""NodeUnschedulable: cordoned nodes accept only pods that tolerate the taint of cordoned nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.edits import Edit, toleration_edit, uncordon_edit
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, CacheKey, Code, Point, Refusal
from koordpolicy.engine.kubernetes.selectors import NO_SCHEDULE, tolerates
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import CycleState, Event, Handle

from ..allocation.requeue_hints import is_of, node_came_or_changed

_PATHS: Final = frozenset({("node", "spec", "unschedulable")})
_TAINT: Final = {"key": "node.kubernetes.io/unschedulable", "effect": NO_SCHEDULE}
_REASON: Final = "node(s) were unschedulable"


class NodeUnschedulable:
    """The filter (kube-scheduler's plugin of that name)."""

    name = "NodeUnschedulable"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._cordoned = Derived(_PATHS, np.bool_, _is_cordoned, distinct=True)
        self._refusal = Refusal("unschedulable", _REASON, Code.UNRESOLVABLE)

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse the cordoned nodes."""
        cordoned = self._cordoned.of(snapshot)
        tolerations = (pod.object.get("spec") or {}).get("tolerations") or ()
        if any(tolerates(each, _TAINT) for each in tolerations):
            return Answer(np.ones(snapshot.size, np.bool_))
        return Answer(~cordoned, lambda _: self._refusal, reasons=lambda refused: {_REASON: refused},
                      codes=lambda refused: {Code.UNRESOLVABLE: refused})

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey:
        """Return the dependencies of the filter: whether the pod tolerates the taint."""
        tolerations = (pod.object.get("spec") or {}).get("tolerations") or ()
        return CacheKey(any(tolerates(each, _TAINT) for each in tolerations), _PATHS, stable_for_shape=True,
                        refusal=self._refusal)

    def counterfactuals(self, pod: PodInfo, snapshot: Snapshot, row: int) -> Iterator[Edit]:
        """Yield uncordoning the node, and a toleration of the pod."""
        yield uncordon_edit(snapshot.node(row))
        yield toleration_edit(pod, _TAINT)

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether a node came or changed."""
        return node_came_or_changed(event) or is_of(event, pod)


def _is_cordoned(snapshot: Snapshot, row: int) -> bool:
    return bool((snapshot.node(row).get("spec") or {}).get("unschedulable"))
