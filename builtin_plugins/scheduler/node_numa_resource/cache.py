"""The plugin's cache of the CPU topology of each node, the holdings of pods and reservations, and the grants.

It corresponds to resourceManager of Koordinator's pkg/scheduler/plugins/nodenumaresource.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.derived import DerivedObjects, RowObjects
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.vocabulary import (
    CPU_BIND_POLICY_LABEL,
    NUMA_ALLOCATE_STRATEGY_LABEL,
    NUMA_TOPOLOGY_POLICY_LABEL,
    RESOURCE_AMPLIFICATION_RATIO_ANNOTATION,
)
from koordpolicy.plugin import CycleState

from ..allocation.grants import Grants
from .allocation import NodeAllocation, PodAllocation, allocation_in, of_pod
from .topology import FACTS, NO_FACTS, NodeTopology, topology_of

_TOPOLOGY_PATHS: Final = frozenset({
    ("objects", "NodeResourceTopology"),
    ("node", "metadata", "annotations", RESOURCE_AMPLIFICATION_RATIO_ANNOTATION),
    *(("node", "metadata", "labels", label) for label in (
        CPU_BIND_POLICY_LABEL, NUMA_ALLOCATE_STRATEGY_LABEL, NUMA_TOPOLOGY_POLICY_LABEL,
    )),
})
_ALLOCATION_PATHS: Final = _TOPOLOGY_PATHS | {("requested",)}
OUTCOME_PATHS: Final = _ALLOCATION_PATHS | {("allocatable",)}
"""The paths of a node that results of this plugin depend on."""


@dataclass(frozen=True, slots=True)
class CpuGrant:
    """The allocation reserved for a pod on a node until its annotations record it; also a key of the cycle state."""

    uid: str
    node: str
    held: PodAllocation
    binding: bool
    bind_policy: tuple[str, bool]


class NumaCache:
    """The topology of each node and its holders, recomputed when the topology, the pods or the grants change."""

    def __init__(self) -> None:
        self._topologies: DerivedObjects[NodeTopology | None] = DerivedObjects(
            _TOPOLOGY_PATHS, topology_of, lambda topology: NO_FACTS if topology is None else topology.facts, FACTS)
        self._allocations: DerivedObjects[NodeAllocation | None] = DerivedObjects(
            _ALLOCATION_PATHS, self._compute_allocation, lambda held: (0 if held is None else held.bound,), 1)
        self.granted: Grants[CpuGrant, PodAllocation] = Grants(
            allocation_in, of_pod, PodAllocation(), self._allocations.forget,
        )
        """The grants whose pods do not record them yet."""

    def topologies(self, snapshot: Snapshot) -> RowObjects[NodeTopology | None]:
        """Return the topologies of all nodes."""
        return self._topologies.of(snapshot)

    def topology(self, snapshot: Snapshot, row: int) -> NodeTopology | None:
        """Return the topology of a node; None for a node without labels, annotations and objects about it."""
        return self._topologies.at(snapshot, row)

    def bound_cpus(self, snapshot: Snapshot) -> NDArray[np.float64]:
        """Return float64[nodes]: the number of cpus that are bound to pods."""
        result: NDArray[np.float64] = self._allocations.of(snapshot).numbers[:, 0]
        return result

    def held(self, snapshot: Snapshot, row: int) -> NodeAllocation | None:
        """Return the allocation that pods and reservations hold on a node; None for a node without a topology."""
        return self._allocations.at(snapshot, row)

    def held_in_cycle(self, state: CycleState, snapshot: Snapshot, row: int) -> NodeAllocation | None:
        """Return the same, including reservations that the snapshot shows without their reserve pods."""
        held = self._allocations.at(snapshot, row)
        return None if held is None else held.with_claims(self.granted.claims(state, snapshot.names[row]))

    def _compute_allocation(self, snapshot: Snapshot, row: int) -> NodeAllocation | None:
        topology = self._topologies.at(snapshot, row)
        if topology is None:
            return None
        pods = snapshot.pods(row) if topology.cpus else ()
        return NodeAllocation.of(topology, *self.granted.held_on(snapshot.names[row], pods))
