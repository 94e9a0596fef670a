"""NodeNUMAResource's filter: by columns of all nodes at once, then node by node where the columns do not decide."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import DerivedOfBase
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Code, Refusal
from koordpolicy.engine.scheduler.extensions.topology import affinities_of, affinity_of
from koordpolicy.plugin import CycleState

from ..allocation.row_refusals import RowRefusals
from ..allocation.trials import TrialOutcomes, refuse_one_by_one
from ..reservation.holdings import Reserved
from .admission import NumaAdmission
from .allocator import INVALID_TOPOLOGY, NumaAllocator, holds_anything
from .cache import NumaCache
from .cpus import FULL_PCPUS
from .numa_request import NOT_INTEGER, NumaRequest
from .topology import ALIGNING_POLICIES, bind_code, policy_code

_NOT_MATCHING: Final = Refusal("numaPolicy", "node(s) NUMA Topology policy not match", Code.UNRESOLVABLE)
_INVALID_RATIO: Final = Refusal("amplification", "node(s) invalid CPU amplification ratio", Code.UNRESOLVABLE)
_INSUFFICIENT_AMPLIFIED: Final = Refusal("amplification", "Insufficient amplified cpu")
_CONFLICT: Final = Refusal(
    "bindPolicy", "node(s) cpu bind policy conflicts with pod's required cpu bind policy", Code.UNRESOLVABLE)
_NOT_ALIGNED: Final = Refusal("bindPolicy", "node(s) requested cpus not multiple cpus per core", Code.UNRESOLVABLE)
_ALIGNING_CODES: Final = tuple(policy_code(policy) for policy in ALIGNING_POLICIES)
_NOT_IN_SCOPE: Final = Refusal(
    "reservation", "reservation NUMA scope is incompatible with the best topology hint")

_Booleans = NDArray[np.bool_]


class NumaFilter:
    """The filter, with the cached results of nodes that were tried for pods of the same kind."""

    def __init__(self, cache: NumaCache, allocator: NumaAllocator, admission: NumaAdmission) -> None:
        self._cache = cache
        self._allocator = allocator
        self._admission = admission
        self._outcomes: dict[frozenset[Path], DerivedOfBase[TrialOutcomes]] = {}

    def filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows, request: NumaRequest,
    ) -> Answer:
        """Refuse nodes whose policies contradict the pod's, or whose free cpus or NUMA nodes do not suffice."""
        refusals = RowRefusals(snapshot.size, rows)
        topologies = self._cache.topologies(snapshot)
        if request.designated is not None:
            self._refuse_designated(refusals, state, pod, snapshot, request, topologies.numbers)
            return refusals.answer()
        # Nodes without a topology can only refuse pods that bind cpus or name a NUMA policy.
        checked = rows if request.bind or request.numa_policy else topologies.present
        if len(checked):
            self._refuse(refusals, state, pod, snapshot, request, checked, topologies.numbers[checked])
        return refusals.answer()

    def filter_reservation(
        self, state: CycleState, reservation: Reserved, snapshot: Snapshot, row: int, request: NumaRequest,
    ) -> Refusal | None:
        """Refuse a reservation that holds cpus or NUMA amounts which do not suffice for the pod."""
        topology = self._cache.topology(snapshot, row)
        if topology is None:
            return None
        binding = request.binds(topology)
        if binding and request.milli_cpu % 1000:
            return NOT_INTEGER
        if not binding and not request.policy_on(topology):
            return None
        if binding and not topology.cpus:
            return INVALID_TOPOLOGY
        held = self._cache.held_in_cycle(state, snapshot, row)
        if held is None or not holds_anything(held, reservation):
            return None
        affinity = affinity_of(state, snapshot, row)
        mask = None if affinity is None else affinity.mask
        found = self._allocator.allocate_from_reservations(held, request, (reservation,), mask)
        return _NOT_IN_SCOPE if found is None else found if isinstance(found, Refusal) else None

    def _refuse_designated(  # noqa: PLR0917 - the parameters of a decision
        self, refusals: RowRefusals, state: CycleState, pod: PodInfo, snapshot: Snapshot, request: NumaRequest,
        facts: NDArray[np.float64],
    ) -> None:
        def attempt(row: int) -> Refusal | None:
            found = self._allocator.allocate(state, pod, snapshot, row, request)
            return found if isinstance(found, Refusal) else None

        refusals.refuse(_contradict(request, facts), _NOT_MATCHING)
        refuse_one_by_one(refusals, snapshot, np.ones(snapshot.size, np.bool_), attempt, None)

    def _refuse(  # noqa: PLR0917 - one decision's facts
        self, refusals: RowRefusals, state: CycleState, pod: PodInfo, snapshot: Snapshot, request: NumaRequest,
        checked: Rows, facts: NDArray[np.float64],
    ) -> None:
        """Refuse rows by their facts, and try the rows whose facts do not decide."""
        policy, bind, valid, cpus_per_core, _, _ = facts.T
        refusals.refuse_at(checked, _contradict(request, facts), _NOT_MATCHING)
        binding = request.binding(bind)
        if not request.bind and request.milli_cpu % 1000:
            refusals.refuse_at(checked, binding, NOT_INTEGER)
        self._refuse_amplified(refusals, request, snapshot, checked, facts[:, 5], binding)
        refusals.refuse_at(checked, binding & (valid == 0), INVALID_TOPOLOGY)
        required = np.where(bind != 0, bind, bind_code(request.required) if request.required else 0)
        if request.required:
            refusals.refuse_at(checked, binding & (required != bind_code(request.required)), _CONFLICT)
        uneven = request.cpus % np.maximum(cpus_per_core, 1) != 0
        refusals.refuse_at(checked, binding & (required == bind_code(FULL_PCPUS)) & uneven, _NOT_ALIGNED)
        effective = np.where(policy != 0, policy, policy_code(request.numa_policy))
        aligning = (effective == _ALIGNING_CODES[0]) | (effective == _ALIGNING_CODES[1])
        tried = np.zeros(snapshot.size, np.bool_)
        tried[checked] = aligning | (binding & (required != 0) & (effective == 0))
        if (tried & refusals.open).any():
            self._try_all(state, pod, snapshot, request, refusals, tried)

    def _try_all(  # noqa: PLR0917 - the parameters of a decision
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, request: NumaRequest, refusals: RowRefusals,
        tried: _Booleans,
    ) -> None:
        """Try nodes one by one, except those with a cached result for pods of the same kind."""
        trials = self._admission.trials(self._outcomes, state, pod, snapshot, request)

        def attempt(row: int) -> Refusal | None:
            refusal = self._try(state, pod, snapshot, row, request)
            if trials is not None:
                trials.note_affinity(snapshot, row, affinity_of(state, snapshot, row))
            return refusal

        refuse_one_by_one(refusals, snapshot, tried, attempt, trials)
        if trials is not None and trials.outcomes.affinities:
            affinities_of(state).note_known(snapshot, trials.outcomes.affinities)

    def _try(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, request: NumaRequest,
    ) -> Refusal | None:
        if request.policy_on(self._cache.topology(snapshot, row)):
            return self._admission.admit(state, pod, snapshot, row, request)
        return self._allocator.check(state, snapshot, row, request, None)

    def _refuse_amplified(  # noqa: PLR0917 - one decision's facts
        self, refusals: RowRefusals, request: NumaRequest, snapshot: Snapshot, checked: Rows,
        ratio: NDArray[np.float64], binding: _Booleans,
    ) -> None:
        """Refuse nodes with amplified cpu whose free cpu does not suffice once bound cpus are amplified."""
        if not request.milli_cpu or not (ratio != 1).any():
            return
        refusals.refuse_at(checked, np.isnan(ratio), _INVALID_RATIO)
        amplified = ratio > 1
        if not amplified.any():
            return
        requested = snapshot.requested("cpu")[checked]
        bound = self._cache.bound_cpus(snapshot)[checked] * 1000
        counted = np.where(
            (bound > 0) & (bound <= requested), requested - bound + np.ceil(bound * np.maximum(ratio, 1)), requested)
        needed = np.where(binding, np.ceil(request.milli_cpu * np.maximum(ratio, 1)), request.milli_cpu)
        short = needed > snapshot.allocatable("cpu")[checked] - counted
        refusals.refuse_at(checked, amplified & short, _INSUFFICIENT_AMPLIFIED)


def _contradict(request: NumaRequest, facts: NDArray[np.float64]) -> _Booleans:
    """Return by row whether the node has another NUMA policy than the pod."""
    policy = facts[:, 0]
    if not request.numa_policy:
        return np.zeros(len(policy), np.bool_)
    contradicting: _Booleans = (policy != 0) & (policy != policy_code(request.numa_policy))
    return contradicting
