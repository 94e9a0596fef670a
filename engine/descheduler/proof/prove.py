"""Proves evictions: places the successors of the candidates one after another on an overlay without the evicted pods.

An eviction is a loop if the successor would come back to the node, or run on a node that the same policy would clear.
Each further eviction makes its node emptier, so the successors before it are placed again: one that would now come back
to its own node makes the new eviction a loop, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Proof

from .memory import Place, UselessEvictionMemory, place_of
from .successors import metric_entry, owner_of, successor_of, with_successor, without_pods
from .verdicts import EvictionLoop, EvictionProof, Landing, ProofResult, SuccessorPlacements, counts

Clears = Callable[[Snapshot, int, PodInfo], str]
"""Returns why a policy would evict from the node at a row, on which a pod now runs; empty if it would not."""


@dataclass(frozen=True, slots=True)
class ProofBudget:
    """The limits of the proofs of one cycle, over all its candidates."""

    placements: int = 5_000
    """The most placements of successors."""
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Proving:
    """The means of a cycle to prove its evictions."""

    placements: SuccessorPlacements | None = None
    """None: no scheduler is known, so nothing is proved; the memory still counts."""
    budget: ProofBudget = ProofBudget()
    memory: UselessEvictionMemory | None = None
    """The useless evictions of the past; None: they are not remembered."""
    clock: Callable[[], float] = time.monotonic
    """The clock of the budget, in seconds."""


def _never(snapshot: Snapshot, row: int, pod: PodInfo) -> str:  # noqa: ARG001
    return ""


@dataclass(frozen=True, slots=True)
class ProofCandidate:
    """A pod that a policy would evict."""

    pod: PodInfo
    policy: str
    """The plugin or document with its rule, as a loop shows it."""
    effect: Proof = Proof.ENFORCE
    restarts: bool = False
    """True if the policy wants the pod restarted, on whichever node: that is never a loop."""
    avoids_home: bool = False
    """True if a reservation on another node precedes the eviction."""
    clears: Clears = _never


@dataclass(frozen=True, slots=True)
class _Evicted:
    """A pod that leaves in this cycle, and its successor; None if nothing replaces it or its scheduler is not known."""

    candidate: ProofCandidate
    successor: PodInfo | None
    entry: Mapping[str, Any] | None
    node: str = ""


@dataclass(slots=True)
class _Spent:
    """The used part of a budget."""

    proving: Proving
    begun: float = field(init=False)
    placements: int = 0

    def __post_init__(self) -> None:
        self.begun = self.proving.clock()

    def exceeded(self) -> str:
        """Return which limit is reached; empty if none is."""
        budget = self.proving.budget
        if self.placements >= budget.placements:
            return f"{budget.placements:,} placements"
        if self.proving.clock() - self.begun >= budget.seconds:
            return f"{budget.seconds:g} s"
        return ""


class _BudgetUsedUp(Exception):
    pass


class CycleProof:
    """The proofs of one cycle over a snapshot, in the order of its candidates."""

    def __init__(self, snapshot: Snapshot, proving: Proving) -> None:
        self._memory = None if proving.memory is None else proving.memory.observed(snapshot)
        self._loops: dict[Place, str] = {}
        self._made: list[PodInfo] = []
        self._snapshot = snapshot
        self._without = snapshot
        """Without the evicted pods. Overlays of it share what is cached about its nodes."""
        self._placements = proving.placements
        self._spent = _Spent(proving)
        self._evicted: tuple[_Evicted, ...] = ()
        self._proved: tuple[PodInfo, tuple[_Evicted, ...]] | None = None

    def prove(self, candidate: ProofCandidate) -> EvictionProof | None:
        """Return the proof of an eviction after those before it; None if no scheduler is known at all, and the memory
        has nothing against it.
        """
        pod = candidate.pod
        self._proved = None
        counts_past = candidate.effect is not Proof.OFF and not candidate.restarts
        cooling = self._memory.cool_down(pod, self._snapshot.now) if self._memory is not None and counts_past else None
        if cooling is not None:
            return EvictionProof(ProofResult.COOL_DOWN, cooling.message, candidate.effect, until=cooling.until)
        if self._placements is None:
            return None
        try:
            proof = self._prove(candidate)
        except _BudgetUsedUp as error:
            message = f"not proved: the budget of this cycle's proofs is used up ({error})"
            return EvictionProof(ProofResult.UNPROVED, message, candidate.effect)
        if proof.loop is not None and proof.stops:
            self._loops.setdefault(place_of(pod), str(proof.loop))
        return proof

    def evicted(self, candidate: ProofCandidate, *, made: bool) -> None:
        """Count an eviction, of which `prove` was called last; `made` is false in a dry run, and if another component
        is to remove the pod later.
        """
        pod = candidate.pod
        if self._proved is not None and self._proved[0] is pod:
            self._evicted = self._proved[1]
        else:
            self._evicted += (_Evicted(candidate, None, None),)
        if self._placements is not None:
            self._without = without_pods(self._without, [pod])
        if made:
            self._made.append(pod)

    def remembered(self) -> UselessEvictionMemory | None:
        """Return the memory with the loops and evictions of this cycle; None if there is none.

        A loop counts once per workload and node, and not where another pod of them was evicted.
        """
        memory, now = self._memory, self._snapshot.now
        if memory is None:
            return None
        helped = {place_of(each.candidate.pod) for each in self._evicted}
        for place, loop in self._loops.items():
            if place not in helped:
                memory = memory.with_loop(place, loop, now)
        for pod in self._made:
            memory = memory.with_eviction(pod, now)
        return memory

    def _prove(self, candidate: ProofCandidate) -> EvictionProof:
        pod, snapshot = candidate.pod, self._snapshot
        if pod.node_name not in snapshot.index:
            return EvictionProof(ProofResult.HELPS, "its node is not known", candidate.effect)
        if owner_of(pod) is None:
            self._proved = pod, (*self._evicted, _Evicted(candidate, None, None))
            return EvictionProof(ProofResult.HELPS, "no controller replaces it", candidate.effect)
        new = _Evicted(candidate, successor_of(pod, snapshot.now), metric_entry(snapshot, pod))
        overlay, planned, landing, disturbed = self._place_all(new)
        if landing is None:
            name = str(pod.object["spec"].get("schedulerName") or "default-scheduler")
            self._proved = pod, (*self._evicted, _Evicted(candidate, None, None))
            return EvictionProof(ProofResult.UNPROVED, f"not proved: no profile for the scheduler `{name}` is known",
                                 candidate.effect)
        # Also if it does not help: with Warn and Off the pod is evicted all the same.
        self._proved = pod, planned
        if not landing.node:
            message = f"profile {landing.profile} finds no node for its successor: {counts(landing.reasons)}"
            return EvictionProof(ProofResult.NO_NODE, message, candidate.effect, landing.profile,
                                 reasons=landing.reasons)
        loop = None if candidate.restarts else self._loop(overlay, planned, landing, disturbed)
        if loop is not None:
            return EvictionProof(ProofResult.LOOP, str(loop), candidate.effect, landing.profile, landing.node, loop)
        message = f"profile {landing.profile} would place its successor on {landing.node}"
        return EvictionProof(ProofResult.HELPS, message, candidate.effect, landing.profile, landing.node)

    def _place_all(
        self, new: _Evicted,
    ) -> tuple[Snapshot, tuple[_Evicted, ...], Landing | None, tuple[PodInfo, Landing] | None]:
        """Place all successors on an overlay without the evicted pods, the new one last.

        Returns the overlay, the evicted pods with their nodes, the landing of the new one, and the first earlier pod
        that would come back to the node which the new one leaves.
        """
        overlay = without_pods(self._without, [new.candidate.pod])
        planned: list[_Evicted] = []
        landing: Landing | None = None
        disturbed: tuple[PodInfo, Landing] | None = None
        home = new.candidate.pod.node_name
        for each in (*self._evicted, new):
            landing = None if each.successor is None else self._place(each, overlay)
            if each.successor is None or landing is None or not landing.node:
                planned.append(each)
                continue
            pod = each.candidate.pod
            # A pod that is evicted although it comes back (Warn, Off) is no fault of the evictions after it.
            if (each is not new and disturbed is None and pod.node_name == home != each.node
                    and not each.candidate.restarts and landing.may_be(home)):
                disturbed = pod, landing
            overlay = with_successor(overlay, each.successor, landing.node, each.entry)
            planned.append(_Evicted(each.candidate, each.successor, each.entry, landing.node))
        return overlay, tuple(planned), landing, disturbed

    def _place(self, evicted: _Evicted, overlay: Snapshot) -> Landing | None:
        over = self._spent.exceeded()
        if over:
            raise _BudgetUsedUp(over)
        self._spent.placements += 1
        assert self._placements is not None
        assert evicted.successor is not None
        return self._placements.place(evicted.successor, overlay, home=evicted.candidate.pod.node_name,
                                      avoids_home=evicted.candidate.avoids_home)

    def _loop(
        self, overlay: Snapshot, planned: tuple[_Evicted, ...], landing: Landing,
        disturbed: tuple[PodInfo, Landing] | None,
    ) -> EvictionLoop | None:
        candidate = planned[-1].candidate
        if landing.may_be(candidate.pod.node_name):
            return _back(candidate.pod, candidate.policy, landing)
        if disturbed is not None:
            return _back(disturbed[0], candidate.policy, disturbed[1])
        before = {id(each.candidate.pod): each.node for each in self._evicted}
        # Only nodes that receive another pod than before can have become sources.
        changed = [each for each in planned if each.node and before.get(id(each.candidate.pod)) != each.node]
        for each in reversed(changed):
            assert each.successor is not None
            why = candidate.clears(overlay, overlay.index[each.node], each.successor)
            if why:
                return EvictionLoop(each.candidate.pod.key, each.node, False, candidate.policy, why, landing.profile)
        return None


def _back(pod: PodInfo, policy: str, landing: Landing) -> EvictionLoop:
    alone = landing.passed == 1
    return EvictionLoop(pod.key, pod.node_name, True, policy, profile=landing.profile,
                        preferred_by=landing.preferred_by, refused=landing.reasons if alone else {})


def prove_evictions(
    snapshot: Snapshot, proving: Proving, candidates: Iterable[ProofCandidate],
) -> tuple[EvictionProof | None, ...]:
    """Return the proofs of candidates, in their order: those that a proof `stops` stay for the proofs after them."""
    cycle = CycleProof(snapshot, proving)
    proofs: list[EvictionProof | None] = []
    for candidate in candidates:
        proof = cycle.prove(candidate)
        if proof is None or not proof.stops:
            cycle.evicted(candidate, made=False)
        proofs.append(proof)
    return tuple(proofs)


__all__ = ["Clears", "CycleProof", "ProofBudget", "ProofCandidate", "Proving", "prove_evictions"]
