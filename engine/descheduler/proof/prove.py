"""Proves evictions: places the successors of the candidates one after another on an overlay without the evicted pods.

An eviction is a loop if the successor would come back to the node, or run on a node that the same policy would clear.
Each proof goes on from the overlay of those before it. Each further eviction makes its node emptier, so successors of
pods of that node are placed again: one that would now come back makes the new eviction a loop, too. Of several alike it
is the one that was placed last, and so worst; the others follow while they move. So the work grows with the evictions,
and not with their square.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

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


def _never(snapshot: Snapshot, row: int, pod: PodInfo) -> str:  # noqa: ARG001 - a default
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
    successor: PodInfo | None = None
    entry: Mapping[str, Any] | None = None
    node: str = ""
    """The node of the successor; empty if none takes it."""

    @property
    def home(self) -> str:
        """The node that the pod leaves."""
        return self.candidate.pod.node_name

    @property
    def alike(self) -> Hashable:
        """Equal for evictions whose successors a scheduler places alike."""
        assert self.successor is not None
        return (self.successor.shape() or self.successor.uid, self.home if self.candidate.avoids_home else "")


_Alike: TypeAlias = dict[Hashable, list[int]]
"""The numbers of evictions in their order, by `_Evicted.alike`."""


@dataclass(slots=True)
class _Step:
    """The changes by one more eviction, once it is made."""

    new: _Evicted
    overlay: Snapshot
    """Without the pod, with all successors."""
    moved: dict[int, _Evicted] = field(default_factory=dict)
    """The evictions before it, by number, whose successors run elsewhere now."""
    landing: Landing | None = None
    """That of the new successor; None if its scheduler is not known."""
    disturbed: tuple[PodInfo, Landing] | None = None
    """The first earlier pod that would come back to the node which the new one leaves."""

    def put(self, each: _Evicted, landing: Landing | None) -> _Evicted:
        """Put a successor, which is on no node, where it landed."""
        node = "" if landing is None else landing.node
        if node:
            assert each.successor is not None
            self.overlay = with_successor(self.overlay, each.successor, node, each.entry)
        return replace(each, node=node)


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
        self._overlay = snapshot
        """Without the evicted pods, with their successors. Overlays of it share what is cached about its nodes."""
        self._placements = proving.placements
        self._spent = _Spent(proving)
        self._evicted: list[_Evicted] = []
        self._away: dict[str, _Alike] = {}
        """By node, the evictions from it whose successors run elsewhere."""
        self._waiting: _Alike = {}
        """The evictions whose successors no node takes."""
        self._step: _Step | None = None
        """That of the last proof."""

    def prove(self, candidate: ProofCandidate) -> EvictionProof | None:
        """Return the proof of an eviction after those before it; None if no scheduler is known at all, and the memory
        has nothing against it.
        """
        pod = candidate.pod
        self._step = None
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
        step = self._step
        if step is not None and step.new.candidate.pod is pod:
            for number, each in step.moved.items():
                self._list(number, self._evicted[number], remove=True)
                self._evicted[number] = each
                self._list(number, each)
            self._evicted.append(step.new)
            self._list(len(self._evicted) - 1, step.new)
            self._overlay = step.overlay
        else:
            self._evicted.append(_Evicted(candidate))
            if self._placements is not None:
                self._overlay = without_pods(self._overlay, [pod])
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
            return EvictionProof(ProofResult.HELPS, "no controller replaces it", candidate.effect)
        step = self._placed(_Evicted(candidate, successor_of(pod, snapshot.now), metric_entry(snapshot, pod)))
        landing = step.landing
        if landing is None:
            name = str(pod.object["spec"].get("schedulerName") or "default-scheduler")
            return EvictionProof(ProofResult.UNPROVED, f"not proved: no profile for the scheduler `{name}` is known",
                                 candidate.effect)
        # Also if it does not help: with Warn and Off the pod is evicted all the same.
        self._step = step
        if not landing.node:
            message = f"profile {landing.profile} finds no node for its successor: {counts(landing.reasons)}"
            return EvictionProof(ProofResult.NO_NODE, message, candidate.effect, landing.profile,
                                 reasons=landing.reasons)
        loop = None if candidate.restarts else _loop(step, landing)
        if loop is not None:
            return EvictionProof(ProofResult.LOOP, str(loop), candidate.effect, landing.profile, landing.node, loop)
        message = f"profile {landing.profile} would place its successor on {landing.node}"
        return EvictionProof(ProofResult.HELPS, message, candidate.effect, landing.profile, landing.node)

    def _placed(self, new: _Evicted) -> _Step:
        """Place the successors that wait for a node, those that may come back to the node, and the new one."""
        step = _Step(new, without_pods(self._overlay, [new.candidate.pod]))
        for numbers in self._waiting.values():
            for number in numbers:
                each = self._evicted[number]
                landing = self._place(each, step.overlay)
                if landing is None or not landing.node:
                    break  # nor would any node take the others
                self._note_back(step, each, landing)
                step.moved[number] = step.put(each, landing)
        for numbers in self._away.get(new.home, {}).values():
            for number in reversed(numbers):
                each, before = self._evicted[number], step.overlay
                assert each.successor is not None
                step.overlay = without_pods(before, [each.successor.on(each.node)])
                landing = self._place(each, step.overlay)
                if landing is not None:
                    self._note_back(step, each, landing)
                if landing is None or landing.node == each.node:
                    step.overlay = before
                    break
                step.moved[number] = step.put(each, landing)
        step.landing = self._place(new, step.overlay)
        step.new = step.put(new, step.landing)
        return step

    @staticmethod
    def _note_back(step: _Step, each: _Evicted, landing: Landing) -> None:
        # A pod that is evicted although it comes back (Warn, Off) is no fault of the evictions after it.
        if (step.disturbed is None and each.home == step.new.home != each.node and not each.candidate.restarts
                and landing.may_be(each.home)):
            step.disturbed = each.candidate.pod, landing

    def _list(self, number: int, each: _Evicted, *, remove: bool = False) -> None:
        """List an eviction, or remove it from the list, by where its successor is."""
        if not each.node:
            of = self._waiting
        elif each.node != each.home and not each.candidate.restarts:
            of = self._away.setdefault(each.home, {})
        else:
            return
        if remove:
            of[each.alike].remove(number)
        else:
            of.setdefault(each.alike, []).append(number)

    def _place(self, evicted: _Evicted, overlay: Snapshot) -> Landing | None:
        over = self._spent.exceeded()
        if over:
            raise _BudgetUsedUp(over)
        self._spent.placements += 1
        assert self._placements is not None
        assert evicted.successor is not None
        return self._placements.place(evicted.successor, overlay, home=evicted.candidate.pod.node_name,
                                      avoids_home=evicted.candidate.avoids_home)


def _loop(step: _Step, landing: Landing) -> EvictionLoop | None:
    new = step.new
    candidate = new.candidate
    if landing.may_be(new.home):
        return _back(candidate.pod, candidate.policy, landing)
    if step.disturbed is not None:
        return _back(step.disturbed[0], candidate.policy, step.disturbed[1])
    # Only nodes that receive another pod than before can have become sources.
    for each in (new, *reversed(step.moved.values())):
        if each.node:
            assert each.successor is not None
            why = candidate.clears(step.overlay, step.overlay.index[each.node], each.successor)
            if why:
                return EvictionLoop(each.candidate.pod.key, each.node, False, candidate.policy, why, landing.profile)
    return None


def _back(pod: PodInfo, policy: str, landing: Landing) -> EvictionLoop:
    alone = landing.passed == 1
    return EvictionLoop(pod.key, pod.node_name, True, policy, profile=landing.profile,
                        preferred_by=landing.preferred_by, preferred_by_left_out=landing.preferred_by_left_out,
                        refused=landing.reasons if alone else {})


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
