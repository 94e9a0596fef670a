"""The results of a cycle: the outcome of each candidate, and the reason."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from koordpolicy.engine.cluster.kinds import Lack
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.records import fast_init

from .proof.memory import UselessEvictionMemory
from .proof.verdicts import EvictionProof


@fast_init
@dataclass(frozen=True, slots=True)
class EvictionOutcome:
    """The outcome of one candidate of one plugin.

    `rule` names the criterion or the phase that chose the pod. If the pod stays, `stopped_by` names the plugin or the
    limit that stopped the eviction, `stopped_rule` its rule, and `message` is the reason.
    """

    pod: str
    node: str
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

    def to_json(self) -> dict[str, object]:
        """Return the outcome as plain data; fields that do not apply are omitted."""
        head = {"pod": self.pod, "node": self.node, "profile": self.profile, "plugin": self.plugin}
        rest = {"rule": self.rule, "reason": self.reason, "stoppedBy": self.stopped_by,
                "stoppedRule": self.stopped_rule, "message": self.message, "requested": self.requested,
                "mode": self.mode}
        proof = {} if self.proof is None else {"proof": self.proof.to_json()}
        return {**head, "evicted": self.evicted, **{key: value for key, value in rest.items() if value}, **proof}


@dataclass(frozen=True, slots=True)
class DeschedulerFailure:
    """A plugin that failed as a whole, or an expression that failed on a pod or a node."""

    profile: str
    plugin: str
    message: str
    rule: str = ""
    subject: str = ""

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
    """The result of one cycle, dry or not. `outcomes` are in the order in which they were decided."""

    generation: int
    dry_run: bool
    nodes: int
    outcomes: tuple[EvictionOutcome, ...] = ()
    failures: tuple[DeschedulerFailure, ...] = ()
    node_notes: tuple[NodeNote, ...] = ()
    error: str = ""
    """The reason why the cycle ended early; empty if it completed."""
    lacks: tuple[Lack, ...] = ()
    """The plugins whose evictions were refused, as they read kinds that the source of the cluster does not contain."""
    changes: tuple[ObjectChange, ...] = ()
    memory: UselessEvictionMemory | None = None
    """The memory of useless evictions after this cycle; None if none was given."""

    @property
    def evicted(self) -> tuple[EvictionOutcome, ...]:
        """The evictions."""
        return tuple(outcome for outcome in self.outcomes if outcome.evicted)

    @property
    def requested(self) -> tuple[EvictionOutcome, ...]:
        """The pods that another component was requested to remove."""
        return tuple(outcome for outcome in self.outcomes if outcome.requested)

    @property
    def kept(self) -> tuple[EvictionOutcome, ...]:
        """The candidates that stay."""
        return tuple(outcome for outcome in self.outcomes if not (outcome.evicted or outcome.requested))

    def to_json(self) -> dict[str, object]:
        """Return the result as plain data."""
        return {
            "generation": self.generation, "dryRun": self.dry_run, "nodes": self.nodes,
            "evicted": [outcome.to_json() for outcome in self.evicted],
            "kept": [outcome.to_json() for outcome in self.kept],
            **({"requested": [outcome.to_json() for outcome in self.requested]} if self.requested else {}),
            "failures": [failure.to_json() for failure in self.failures],
            "nodeNotes": [note.to_json() for note in self.node_notes],
            **({"changes": [change.to_json() for change in self.changes]} if self.changes else {}),
            **({"lacking": [lack.to_json() for lack in self.lacks]} if self.lacks else {}),
            **({"error": self.error} if self.error else {}),
        }


class CycleRecord:
    """The state of a cycle: the last outcome per profile, plugin and pod; an eviction is final."""

    def __init__(self, *, dry_run: bool) -> None:
        self.dry_run = dry_run
        self.outcomes: dict[tuple[str, str, str], EvictionOutcome] = {}
        self.failures: list[DeschedulerFailure] = []
        self.notes: dict[tuple[str, str, str, str], NodeNote] = {}
        self.changes: list[ObjectChange] = []
        self._evicted: dict[str, tuple[str, str]] = {}

    def put(self, outcome: EvictionOutcome) -> None:
        """Record an outcome."""
        key = (outcome.profile, outcome.plugin, outcome.pod)
        if outcome.evicted or outcome.requested:
            self._evicted.setdefault(outcome.pod, (outcome.profile, outcome.plugin))
        known = self.outcomes.pop(key, None)
        self.outcomes[key] = known if known is not None and (known.evicted or known.requested) else outcome

    def note_elsewhere(self, pod: str) -> None:
        """Note that another part of this cycle evicts the pod."""
        self._evicted.setdefault(pod, ("", "another part of the cycle"))

    def evicted_by(self, pod: str) -> tuple[str, str] | None:
        """Return profile and plugin that evicted the pod in this cycle, or requested it, if any did."""
        return self._evicted.get(pod)

    def leaving(self) -> Collection[str]:
        """Return the keys of all pods that were evicted, or will be by request."""
        return self._evicted.keys()

    def audit(self, profile: str, plugin: str, pod: str, refusal: Refusal) -> None:
        """Record a veto that is not enforced, as its document only warns or audits."""
        # Not a failure, but the only list of the result that is not about the calling plugin's candidates.
        self.failures.append(DeschedulerFailure(profile, plugin, f"would stay: {refusal.message}", refusal.rule, pod))
