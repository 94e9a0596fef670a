"""NodePorts: the requested host ports of a pod must be free on the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Code, Refusal
from koordpolicy.engine.scheduler.extensions.pod_counts import PodKind, pod_counts
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import SKIP_SHAPE, CycleState, Event, Handle, Skip

from ..allocation.requeue_hints import is_of, pod_left

_REASON: Final = "node(s) didn't have free ports for the requested pod ports"


class NodePorts:
    """PreFilter and filter (kube-scheduler's plugin of that name)."""

    name = "NodePorts"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._refusal = Refusal("ports", _REASON)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Skip | None:
        """Skip pods without host ports."""
        return None if pod_counts(snapshot).kind_of(pod).ports else SKIP_SHAPE

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes where another pod has one of the ports."""
        pods = pod_counts(snapshot)
        requested = pods.kind_of(pod).ports
        if not requested or not pods.any_ports:
            return Answer(np.ones(snapshot.size, np.bool_))

        def conflicts(kind: PodKind) -> int:
            return int(any(port.conflicts(other) for port in requested for other in kind.ports))

        free = pods.column((NodePorts, requested), conflicts) == 0
        return Answer(free, lambda _: self._refusal, reasons=lambda refused: {_REASON: refused},
                      codes=lambda refused: {Code.UNSCHEDULABLE: refused})

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether a pod left a node, or a node came."""
        return pod_left(event) or (event.kind == "Node" and event.old is None) or is_of(event, pod)
