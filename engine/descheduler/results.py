"""The results of a cycle: the outcome of each candidate, and the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from koordpolicy.engine.cluster.kinds import Lack
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Refusal

from .proof.memory import UselessEvictionMemory
from .proof.verdicts import EvictionProof, ProofResult

PROOF: Final = "proof"
"""The name of the proof among what stops evictions; its rules are the values of `ProofResult`."""


WAITING: Final = "waiting"
"""The role of a node that would be a source, but not in enough cycles in a row yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A decision about one or many candidates of a plugin.

    `rule` names the criterion or the phase that chose the pod. If the pod stays, `stopped_by` names the plugin or the
    limit that stopped the eviction, `stopped_rule` its rule, and `message` is the reason.
    """

    profile: str
    plugin: str
    evicted: bool
    rule: str = ""
    reason: str = ""
    stopped_by: str = ""
    stopped_rule: str = ""
    message: str = ""
    requested: bool = False
    """True if another component was requested to remove the pod, which is not evicted yet."""
    mode: str = ""
    """The mode of the eviction, if a filter chose one."""
    proof: EvictionProof | None = None
    """The proof of the eviction; None if none was made."""

    @property
    def is_final(self) -> bool:
        """True if later decisions about the pod are ignored."""
        return self.evicted or self.requested


class EvictionOutcome(NamedTuple):
    """A candidate of a plugin with the decision about it, which it may share with other candidates."""

    pod: str
    node: str
    decision: Decision

    def to_json(self) -> dict[str, object]:
        """Return the outcome as plain data; fields that do not apply are omitted."""
        decision = self.decision
        head = {"pod": self.pod, "node": self.node, "profile": decision.profile, "plugin": decision.plugin}
        rest = {"rule": decision.rule, "reason": decision.reason, "stoppedBy": decision.stopped_by,
                "stoppedRule": decision.stopped_rule, "message": decision.message, "requested": decision.requested,
                "mode": decision.mode}
        proof = {} if decision.proof is None else {"proof": decision.proof.to_json()}
        return {**head, "evicted": decision.evicted, **{key: value for key, value in rest.items() if value}, **proof}


def _outcome(pod: PodInfo, decision: Decision) -> EvictionOutcome:
    return EvictionOutcome(pod.key, pod.node_name, decision)


class Turn(NamedTuple):
    """The decisions made while one plugin used the evictor, the last one per pod.

    Pods are keyed by object, not by name: a snapshot has one object per pod, and the names of a million candidates
    would cost more than their decisions. `Decisions` joins the turns by name.
    """

    profile: str
    plugin: str
    decisions: dict[PodInfo, Decision]

    def put(self, pod: PodInfo, decision: Decision) -> None:
        """Record a decision; a final earlier one is not replaced."""
        known = self.decisions.pop(pod, None)
        self.decisions[pod] = decision if known is None or not known.is_final else known

    def put_all(self, pods: Iterable[PodInfo], decision: Decision) -> None:
        """Record one decision about many pods."""
        self.put_each(dict.fromkeys(pods, decision))

    def put_each(self, decisions: Mapping[PodInfo, Decision]) -> None:
        """Record the decisions about many pods, in order."""
        if self.decisions.keys().isdisjoint(decisions):
            self.decisions.update(decisions)
            return
        for pod, decision in decisions.items():
            self.put(pod, decision)


class Decisions:
    """The decisions of a cycle in their order. Immutable, for any thread.

    A large cluster has a million candidates, and few different decisions: the outcome of each is made when it is read.
    """

    def __init__(self, turns: Sequence[Turn] = ()) -> None:
        self._turns = tuple(turn for turn in turns if turn.decisions)

    def __add__(self, other: Decisions) -> Decisions:
        return Decisions((*self._turns, *other._turns))

    @cached_property
    def outcomes(self) -> tuple[EvictionOutcome, ...]:
        """The outcomes, one for each plugin and candidate of it."""
        found: dict[tuple[str, str, str], EvictionOutcome] = {}
        for profile, plugin, decisions in self._turns:
            for pod, decision in decisions.items():
                key = profile, plugin, pod.key
                known = found.pop(key, None)
                found[key] = known if known is not None and known.decision.is_final else _outcome(pod, decision)
        return tuple(found.values())

    def which(self, takes: Callable[[Decision], bool]) -> tuple[EvictionOutcome, ...]:
        """Return the outcomes whose decision satisfies `takes`, without building the others."""
        if not self._is_each_of_its_own:
            return tuple(each for each in self.outcomes if takes(each.decision))
        found: list[EvictionOutcome] = []
        for turn in self._turns:
            selected = {decision for decision in set(turn.decisions.values()) if takes(decision)}
            if selected:
                found += [_outcome(pod, decision) for pod, decision in turn.decisions.items() if decision in selected]
        return tuple(found)

    def staying(self) -> Mapping[tuple[str, str], int]:
        """Return the numbers of candidates that stay, by plugin and by what stopped their eviction."""
        found: Counter[tuple[str, str]] = Counter()
        if self._is_each_of_its_own:
            for turn in self._turns:
                for decision, number in Counter(turn.decisions.values()).items():
                    if not decision.is_final:
                        found[decision.plugin, decision.stopped_by] += number
        else:
            decisions = (each.decision for each in self.outcomes)
            found.update((each.plugin, each.stopped_by) for each in decisions if not each.is_final)
        return found

    @property
    def _is_each_of_its_own(self) -> bool:
        """True if no plugin had two turns, so that no pod has two decisions of it."""
        return len({turn[:2] for turn in self._turns}) == len(self._turns)


NO_DECISIONS = Decisions()


@dataclass(frozen=True, slots=True)
class DeschedulerFailure:
    """A plugin that failed as a whole, or an expression that failed on a pod or a node."""

    profile: str
    plugin: str
    message: str
    rule: str = ""
    subject: str = ""
    audited: bool = False
    """True for a veto that is not enforced, which is no failure."""

    def to_json(self) -> dict[str, object]:
        """Return the failure as plain data; fields that do not apply are omitted."""
        values = {"profile": self.profile, "plugin": self.plugin, "rule": self.rule, "subject": self.subject}
        return {**{key: value for key, value in values.items() if value}, "message": self.message}


@dataclass(frozen=True, slots=True)
class NodeNote:
    """The role of a node for a plugin: `source`, `target`, `waiting` (not a source yet) or `unmeasured`."""

    node: str
    profile: str
    plugin: str
    role: str
    message: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the note as plain data."""
        head: dict[str, object] = {
            "node": self.node, "profile": self.profile, "plugin": self.plugin, "role": self.role,
        }
        return head | ({"message": self.message} if self.message else {})


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A change that a plugin made, or would make in a dry run, besides evictions: a node's cordon, an annotation."""

    kind: str
    key: str
    profile: str
    plugin: str
    message: str

    def to_json(self) -> dict[str, object]:
        """Return the change as plain data."""
        return {
            "kind": self.kind, "object": self.key, "profile": self.profile, "plugin": self.plugin,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class CycleResult:
    """The result of one cycle, dry or not."""

    generation: int
    dry_run: bool
    nodes: int
    decisions: Decisions = NO_DECISIONS
    failures: tuple[DeschedulerFailure, ...] = ()
    node_notes: tuple[NodeNote, ...] = ()
    error: str = ""
    """The reason why the cycle ended early; empty if it completed."""
    lacks: tuple[Lack, ...] = ()
    """The plugins whose evictions were refused, as they read kinds that the source of the cluster does not contain."""
    changes: tuple[ObjectChange, ...] = ()
    memory: UselessEvictionMemory | None = None
    """The memory of useless evictions after this cycle; None if none was given."""
    to_prove: frozenset[tuple[str, str]] = frozenset()
    """The profiles and plugins whose evictions should be proved (`proof: Enforce` or `Warn`)."""

    @property
    def outcomes(self) -> tuple[EvictionOutcome, ...]:
        """The outcomes of all candidates, in the order in which they were decided."""
        return self.decisions.outcomes

    @property
    def evicted(self) -> tuple[EvictionOutcome, ...]:
        """The evictions."""
        return self.decisions.which(lambda each: each.evicted)

    @property
    def requested(self) -> tuple[EvictionOutcome, ...]:
        """The pods that another component was requested to remove."""
        return self.decisions.which(lambda each: each.requested)

    @property
    def staying(self) -> tuple[EvictionOutcome, ...]:
        """The candidates that stay."""
        return self.decisions.which(lambda each: not each.is_final)

    @property
    def useless(self) -> tuple[EvictionOutcome, ...]:
        """The evictions that only the proof stopped, of pods that no other plugin evicts."""
        stopped = self.decisions.which(lambda each: each.stopped_by == PROOF)
        evicted = {each.pod for each in self.evicted} if stopped else frozenset()
        return tuple(each for each in stopped if each.pod not in evicted)

    @property
    def unproved(self) -> tuple[EvictionOutcome, ...]:
        """The evictions that should have been proved and were not: no profile of the pod's scheduler is known, or the
        budget of proofs is used up.
        """
        return self.decisions.which(self._is_unproved)

    def _is_unproved(self, decision: Decision) -> bool:
        if not decision.evicted or (decision.profile, decision.plugin) not in self.to_prove:
            return False
        return decision.proof is None or decision.proof.result is ProofResult.UNPROVED

    def to_json(self) -> dict[str, object]:
        """Return the result as plain data."""
        unproved = len(self.unproved)
        return {
            "generation": self.generation, "dryRun": self.dry_run, "nodes": self.nodes,
            "evicted": [outcome.to_json() for outcome in self.evicted],
            "kept": [outcome.to_json() for outcome in self.staying],
            **({"requested": [outcome.to_json() for outcome in self.requested]} if self.requested else {}),
            "failures": [failure.to_json() for failure in self.failures],
            "nodeNotes": [note.to_json() for note in self.node_notes],
            **({"changes": [change.to_json() for change in self.changes]} if self.changes else {}),
            **({"lacking": [lack.to_json() for lack in self.lacks]} if self.lacks else {}),
            **({"unproved": unproved} if unproved else {}),
            **({"error": self.error} if self.error else {}),
        }


class CycleRecord:
    """The state of a cycle: the last decision per profile, plugin and pod; an eviction is final."""

    def __init__(self, *, dry_run: bool) -> None:
        self.dry_run = dry_run
        self.failures: list[DeschedulerFailure] = []
        self.notes: dict[tuple[str, str, str, str], NodeNote] = {}
        self.changes: list[ObjectChange] = []
        self._turns: list[Turn] = []
        self._evicted: dict[str, tuple[str, str]] = {}
        self._leaving: list[PodInfo] = []

    @property
    def decisions(self) -> Decisions:
        """The decisions, once all are recorded."""
        return Decisions(self._turns)

    def turn_of(self, profile: str, plugin: str) -> Turn:
        """Return the record of the decisions about a plugin's candidates, until the turn of another one."""
        turn = Turn(profile, plugin, {})
        if self._turns and self._turns[-1][:2] == turn[:2]:
            turn = self._turns[-1]
        else:
            self._turns.append(turn)
        return turn

    def note_leaving(self, pod: PodInfo, by: tuple[str, str]) -> None:
        """Note that a plugin of a profile evicts the pod, or requests that."""
        if pod.key not in self._evicted:
            self._evicted[pod.key] = by
            self._leaving.append(pod)

    def note_elsewhere(self, key: str, pod: PodInfo | None) -> None:
        """Note that another part of this cycle evicts the pod with this key; None if the snapshot does not have it."""
        if key not in self._evicted:
            self._evicted[key] = "", "another part of the cycle"
            if pod is not None:
                self._leaving.append(pod)

    def evicted_by(self, pod: str) -> tuple[str, str] | None:
        """Return profile and plugin that evicted the pod in this cycle, or requested it, if any did."""
        return self._evicted.get(pod)

    def leaving(self) -> Collection[str]:
        """Return the keys of all pods that were evicted, or will be by request."""
        return self._evicted.keys()

    def leaving_pods(self) -> Sequence[PodInfo]:
        """Return the leaving pods that are in the snapshot, in order; always the same, growing list."""
        return self._leaving

    def audit(self, profile: str, plugin: str, pod: str, refusal: Refusal) -> None:
        """Record a veto that is not enforced, as its document only warns or audits."""
        # Not a failure, but the only list of the result that is not about the calling plugin's candidates.
        self.failures.append(DeschedulerFailure(
            profile, plugin, f"would stay: {refusal.message}", refusal.rule, pod, audited=True))
