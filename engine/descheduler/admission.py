"""The nodes that admit pods by labels, taints and cordons, as columns: found once for pods with equal constraints."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.node_selection import NodeSelection
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.selectors import untolerated

from .templates import fact_of

_TAINTS: Final = frozenset({("node", "spec", "taints")})
_CORDON: Final = frozenset({("node", "spec", "unschedulable")})


class NodeAdmission:
    """The columns of a cluster, cached from cycle to cycle and refreshed for nodes that changed."""

    def __init__(self) -> None:
        self._selection = NodeSelection()
        self._tolerated = Derived(_TAINTS, np.bool_, distinct=True)
        self._open = Derived(_CORDON, np.bool_, _is_open, distinct=True)

    @staticmethod
    def of(snapshot: Snapshot) -> NodeAdmission:
        """Return the columns of the snapshot's cluster."""
        cache = snapshot.cluster.cross_version_cache
        found = cache.get(NodeAdmission)
        if not isinstance(found, NodeAdmission):
            found = cache[NodeAdmission] = NodeAdmission()
        return found

    def selected(self, pod: PodInfo, snapshot: Snapshot) -> NDArray[np.bool_]:
        """Return the nodes that match the pod's node selector and required node affinity, bool[nodes]. Read-only."""
        found = self._selection.of(pod.object, snapshot)
        return np.ones(snapshot.size, np.bool_) if found is None else found

    def tolerated(self, pod: PodInfo, snapshot: Snapshot) -> NDArray[np.bool_]:
        """Return the nodes whose NoSchedule and NoExecute taints the pod tolerates, bool[nodes]. Read-only."""
        return self._tolerated.of(
            snapshot, fact_of(pod, _tolerations), lambda view, row: untolerated(pod.object, view.node(row)) is None,
        )

    def open(self, snapshot: Snapshot) -> NDArray[np.bool_]:
        """Return the nodes that are not cordoned, bool[nodes]. Read-only."""
        return self._open.of(snapshot)


def _is_open(snapshot: Snapshot, row: int) -> bool:
    return not (snapshot.node(row).get("spec") or {}).get("unschedulable")


def _tolerations(pod: PodInfo) -> str:
    return repr(pod.object["spec"].get("tolerations") or None)
