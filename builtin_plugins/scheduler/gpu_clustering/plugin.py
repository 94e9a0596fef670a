"""GpuClustering: prefers nodes that run GPU pods of the same kind.

The kinds are pods that share a device, and those that take one, two, four ... whole ones (the public trace simulator's
GpuClusteringScore). The kinds on a node depend on all its pods, which are not visible to expressions over nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.objects.pods import WHOLE_DEVICE, DeviceRequest, PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Scores
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import CycleState, Handle

_PATHS: Final = frozenset({("nodeInfo", "pods")})
_FULLNESS: Final = 25
_LARGEST_NODE: Final = 8 * WHOLE_DEVICE
_ALONE, _AMONG_OTHERS, _NO_KIND = 75, 50, 25


class GpuClustering:
    """The scorer: up to 25 points for little free GPU, and up to 75 for pods of the same kind."""

    name = "GpuClustering"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._kinds = Derived(_PATHS, np.int64, _kinds)

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Score the nodes; 0 everywhere for a pod without GPUs."""
        if pod.gpu is None:
            return Scores(np.zeros(snapshot.size, np.int64))
        kinds = self._kinds.of(snapshot)
        own_kind = np.int64(1 << _kind(pod.gpu))
        # At least 0, also for nodes larger than the largest of the trace.
        fullness = np.maximum(_FULLNESS * (_LARGEST_NODE - snapshot.devices.free.sum(axis=1)) // _LARGEST_NODE, 0)
        present = (kinds & own_kind) != 0
        with_own = np.where(kinds == own_kind, _ALONE, _AMONG_OTHERS)
        company = np.where(present, with_own, np.where(kinds == 0, _NO_KIND, 0))
        return Scores(fullness + company)


def _kind(request: DeviceRequest) -> int:
    """Return the kind of a request as a number from 0 to 62."""
    return 0 if request.count == 1 and request.share < WHOLE_DEVICE else min(request.count, 62)


def _kinds(snapshot: Snapshot, row: int) -> int:
    """Return one bit per kind of GPU pod on a node."""
    bits = 0
    for pod in snapshot.pods(row):
        if pod.gpu is not None:
            bits |= 1 << _kind(pod.gpu)
    return bits
