"""Admission of pods to nodes with a NUMA policy by the topology manager, and its cached results."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cluster.derived import DerivedOfBase
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.scheduler.extensions.topology import KeepableHints, TopologyDemand, admit
from koordpolicy.plugin import CycleState, Handle, TopologyHints

from ..allocation.trials import TrialOutcomes, Trials, derived_outcomes
from ..reservation.holdings import anything_restored
from .cache import OUTCOME_PATHS, NumaCache
from .numa_request import NumaRequest

_NO_ZONES: Final = Refusal("numa", "node(s) missing NUMA resources", Code.UNRESOLVABLE)


class NumaAdmission:
    """The plugin's access to the topology manager; `own` are the plugin's hints."""

    def __init__(self, cache: NumaCache, handle: Handle, own: TopologyHints) -> None:
        self._cache = cache
        self._handle = handle
        self._own = own

    def admit(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, request: NumaRequest,
    ) -> Refusal | None:
        """Return why the topology manager finds no NUMA nodes for the pod; None if it finds and records some."""
        topology, held = self._cache.topology(snapshot, row), self._cache.held_in_cycle(state, snapshot, row)
        if topology is None or held is None or not topology.zones:
            return _NO_ZONES
        demand = TopologyDemand(list(topology.zones), request.policy_on(topology), request.exclusively, held.states())
        return admit(state, pod, snapshot, row, providers=self.providers(state), demand=demand)

    def providers(self, state: CycleState) -> Sequence[TopologyHints]:
        """Return the plugins with topology hints; the plugin's own alone outside a framework."""
        if TopologyHints not in state:
            state[TopologyHints] = self._handle.peers(TopologyHints) or (self._own,)
        found: Sequence[TopologyHints] = state[TopologyHints]
        return found

    def trials(
        self, outcomes: dict[frozenset[Path], DerivedOfBase[TrialOutcomes]], state: CycleState, pod: PodInfo,
        snapshot: Snapshot, request: NumaRequest,
    ) -> Trials | None:
        """Return the cached results of pods of the same kind; None where results are not cacheable."""
        if anything_restored(state):
            return None
        kinds: list[Hashable] = [request.kind]
        paths = OUTCOME_PATHS
        for provider in self.providers(state):
            if provider is self._own:
                continue
            found = provider.topology_kind(state, pod, snapshot) if isinstance(provider, KeepableHints) else None
            if found is None:
                return None
            kinds.append(found[0])
            paths |= found[1]
        if paths not in outcomes:
            outcomes[paths] = derived_outcomes(paths)
        alone = paths == OUTCOME_PATHS

        def alike(row: int) -> Hashable:
            held = self._cache.held(snapshot, row)
            if not alone or held is None:
                return row
            at = snapshot.row(row)
            return held.likeness, tuple(sorted(at.requested.items())), tuple(sorted(at.allocatable.items()))

        return Trials(outcomes[paths].of_base(snapshot, tuple(kinds)), alike)
