"""The proof of an eviction: its result, the loop that it found, and the placement of the pod's successor."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from koordpolicy.engine.cel.values.values import Timestamp
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Proof

_MOST_REASONS: Final = 5


class ProofResult(enum.Enum):
    """The result of a proof."""

    HELPS = "helps"
    """The successor runs on another node, from which the same policy would not evict it; or there is none."""
    LOOP = "loop"
    """The successor would come back to the node, or run on another one that the same policy would clear."""
    NO_NODE = "noNode"
    """No node would take the successor."""
    COOL_DOWN = "coolDown"
    """Evictions of the workload from this node were useless lately."""
    UNPROVED = "unproved"
    """There is no proof: the pod's scheduler is not known, or the budget is used up."""


@dataclass(frozen=True, slots=True)
class Preference:
    """A scorer that prefers a node to `other`, the best one of the others: scores are unweighted (0..100)."""

    plugin: str
    weight: int
    score: int
    other: str
    other_score: int

    def __str__(self) -> str:
        return f"{self.plugin} ({self.score} there, {self.other_score} on {self.other}, weight {self.weight})"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"plugin": self.plugin, "weight": self.weight, "score": self.score, "other": self.other,
                "otherScore": self.other_score}


@dataclass(frozen=True, slots=True)
class Landing:
    """The placement of a pod by a profile of its scheduler; `node` is empty if no node passes the filters.

    `tied` are all nodes of which the scheduler chooses one at random, if they are few; empty if the choice is certain.
    """

    profile: str
    node: str = ""
    tied: tuple[str, ...] = ()
    passed: int = 0
    """The number of nodes that passed the filters."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """The reasons of refusals with their numbers of nodes."""
    preferred_by: tuple[Preference, ...] = ()
    """The scorers that prefer the node which the pod leaves, if it may come back there; the strongest first."""
    preferred_by_left_out: int = 0
    """The number of the others, which are not listed."""

    def may_be(self, node: str) -> bool:
        """Return whether the pod would run on the node, or may, by the luck of a tie-break."""
        return node == self.node or node in self.tied


class SuccessorPlacements(Protocol):
    """The scheduler, as proofs call it."""

    def place(self, pod: PodInfo, snapshot: Snapshot, *, home: str, avoids_home: bool) -> Landing | None:
        """Return the placement of a pending pod by the profile that its `spec.schedulerName` names; None if there is
        no such profile. Changes nothing.

        `home` is the node that its predecessor leaves; `avoids_home` excludes that node.
        """
        ...


@dataclass(frozen=True, slots=True)
class EvictionLoop:
    """An eviction that repeats itself: what evicts, and what brings the pod back."""

    pod: str
    """The pod that comes back: the candidate, or one that was evicted before it in the same cycle."""
    node: str
    """The node that it comes back to, or the one that the same policy would clear next."""
    same_node: bool
    evicted_by: str
    """The descheduling policy with its rule."""
    cleared: str = ""
    """Why the policy would clear the node, if it is another one."""
    profile: str = ""
    """The scheduling profile."""
    preferred_by: tuple[Preference, ...] = ()
    preferred_by_left_out: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    """The reasons for which the other nodes refuse the pod, if the node is the only one that takes it."""

    def __str__(self) -> str:
        who = self.pod
        if not self.same_node:
            return f"{who} would run on {self.node}, which {self.evicted_by} would clear next: {self.cleared}"
        if self.refused:
            why = f"takes it on no other node ({counts(self.refused)})"
        elif self.preferred_by:
            more = f" and {self.preferred_by_left_out} more" if self.preferred_by_left_out else ""
            why = f"prefers it by {', '.join(map(str, self.preferred_by))}{more}"
        else:
            why = "places it there"
        return (f"{who} would come back to {self.node}: {self.evicted_by} evicts from it, and profile {self.profile} "
                f"{why}")

    def to_json(self) -> dict[str, Any]:
        """Return plain data; fields that do not apply are omitted."""
        return {
            "pod": self.pod, "node": self.node, "sameNode": self.same_node, "evictedBy": self.evicted_by,
            **({"cleared": self.cleared} if self.cleared else {}), "profile": self.profile,
            **({"preferredBy": [each.to_json() for each in self.preferred_by]} if self.preferred_by else {}),
            **({"preferredByLeftOut": self.preferred_by_left_out} if self.preferred_by_left_out else {}),
            **({"refused": dict(self.refused)} if self.refused else {}),
        }


@dataclass(frozen=True, slots=True)
class EvictionProof:
    """The proof of one candidate's eviction. `effect` is that of the plugin that chose it."""

    result: ProofResult
    message: str
    effect: Proof = Proof.OFF
    profile: str = ""
    """The scheduling profile; empty if none was called."""
    node: str = ""
    """The node of the successor; empty if there is none."""
    loop: EvictionLoop | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)
    """With `NO_NODE`: the reasons of refusals with their numbers of nodes."""
    until: int = 0
    """With `COOL_DOWN`: its end, in ns since the epoch."""

    @property
    def stops(self) -> bool:
        """Return whether the pod stays."""
        return self.effect is Proof.ENFORCE and self.useless

    @property
    def useless(self) -> bool:
        """Return whether the eviction would not help."""
        return self.result not in (ProofResult.HELPS, ProofResult.UNPROVED)

    @property
    def warns(self) -> bool:
        """Return whether the pod is evicted with a warning: Warn, or Enforce without a proof."""
        if self.result is ProofResult.UNPROVED:
            return self.effect is not Proof.OFF
        return self.effect is Proof.WARN and self.useless

    def to_json(self) -> dict[str, Any]:
        """Return plain data; fields that do not apply are omitted."""
        return {
            "result": self.result.value, "effect": self.effect.value, "message": self.message,
            **({"profile": self.profile} if self.profile else {}),
            **({"node": self.node} if self.node else {}),
            **({"loop": self.loop.to_json()} if self.loop is not None else {}),
            **({"reasons": dict(self.reasons)} if self.reasons else {}),
            **({"until": str(Timestamp(self.until))} if self.until else {}),
        }


def counts(reasons: Mapping[str, int]) -> str:
    """Return reasons with their numbers of nodes as a text, the commonest first, at most five."""
    ordered = sorted(reasons.items(), key=lambda each: -each[1])
    shown = [f"{number} {reason}" for reason, number in ordered[:_MOST_REASONS]]
    more = len(ordered) - len(shown)
    return "; ".join((*shown, f"{more} more reasons") if more else shown)
