"""ScarceResourceAvoidance: keeps pods that request no scarce resource off the nodes that have it.

The behaviour is Koordinator's (pkg/scheduler/plugins/scarceresourceavoidance).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Scores
from koordpolicy.engine.scheduler.profiles.args import check_fields
from koordpolicy.plugin import CycleState, Handle

_ALLOCATABLE: Final = frozenset({("allocatable",)})
_PODS: Final = "pods"


class ScarceResourceAvoidance:
    """The scorer.

    Arguments: `resources` names the scarce ones. A node's score is the share, in percent, of non-scarce resources among
    those that it has and the pod does not request; 100 if there are none.
    """

    name = "ScarceResourceAvoidance"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._scarce = frozenset(args.get("resources") or ()) - {_PODS}
        self._kinds = Derived(_ALLOCATABLE, np.int64, _count_kinds)

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments; raises `ValueError` for unknown ones."""
        return check_fields({name: value for name, value in args.items() if value is not None}, {"resources": list})

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Score the nodes."""
        requested = {name for name, amount in pod.requests.items() if amount > 0 and name != _PODS}
        unrequested = self._kinds.of(snapshot) - _present(snapshot, requested)
        scarce = _present(snapshot, self._scarce - requested)
        return Scores(np.where(
            unrequested > 0, (unrequested - scarce) * HIGHEST_SCORE // np.maximum(unrequested, 1), HIGHEST_SCORE,
        ))


def _present(snapshot: Snapshot, names: Sequence[str] | set[str] | frozenset[str]) -> NDArray[np.int64]:
    """Return the number of these resources that each node has."""
    count: NDArray[np.int64] = np.zeros(snapshot.size, np.int64)
    for name in names:
        count += snapshot.allocatable(name) > 0
    return count


def _count_kinds(snapshot: Snapshot, row: int) -> int:
    return sum(1 for name, amount in snapshot.row(row).allocatable.items() if amount > 0 and name != _PODS)
