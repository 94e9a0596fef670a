"""NodeName: a pod that names its node runs only there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, CacheKey, Code, Point, Refusal
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import CycleState, Event, Handle

from ..allocation.requeue_hints import is_of, node_came_or_changed

_PATHS: Final = frozenset({("node", "metadata", "name")})
_REASON: Final = "node(s) didn't match the requested node name"


class NodeName:
    """The filter (kube-scheduler's plugin of that name)."""

    name = "NodeName"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._refusal = Refusal("node-name", _REASON, Code.UNRESOLVABLE)

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse all nodes except the named one."""
        if not pod.node_name:
            return Answer(np.ones(snapshot.size, np.bool_))
        passed = np.zeros(snapshot.size, np.bool_)
        row = snapshot.index.get(pod.node_name)
        if row is not None:
            passed[row] = True
        return Answer(passed, lambda _: self._refusal, reasons=lambda refused: {_REASON: refused},
                      codes=lambda refused: {Code.UNRESOLVABLE: refused})

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey:
        """Return the dependencies of the filter: the name."""
        return CacheKey(pod.node_name, _PATHS, stable_for_shape=True, refusal=self._refusal)

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether a node came or changed."""
        return node_came_or_changed(event) or is_of(event, pod)
