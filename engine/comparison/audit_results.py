"""Results of an audit: its findings, and the coverage of policies and rules."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from koordpolicy.engine.framework.points import Enforcement


class AuditLevel(enum.Enum):
    """The severity of a finding."""

    WARNING = "warning"
    """A policy or rule does not do what it is meant for."""
    NOTE = "note"
    """It may be intended."""


class What(enum.Enum):
    """The kind of a finding; the values are stable."""

    NEVER_ACTIVE = "never-active"
    MATCHES_NOTHING = "matches-nothing"
    MATCHES_FEW = "matches-few"
    REFUSES_EVERYTHING = "refuses-everything"
    REFUSES_NOTHING = "refuses-nothing"
    STRANDS_PODS = "strands-pods"
    FAILS = "fails"
    CONSTANT_SCORE = "constant-score"
    NEVER_ACTS = "never-acts"
    NO_TARGET = "no-target"
    USELESS = "useless-evictions"
    """The proof of an eviction says that the pod comes back, or fits nowhere."""
    UNPROVED = "unproved-evictions"
    """Evictions should have been proved, and were not."""
    EXPIRED_METRICS = "expired-metrics"
    NO_METRICS = "no-metrics"


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A finding about one policy (or, without one, about the cluster), with examples of pods or nodes."""

    level: AuditLevel
    what: What
    message: str
    policy: str = ""
    framework: str = ""
    rule: str = ""
    origin: str = ""
    examples: tuple[str, ...] = ()
    others: int = 0
    """The number of pods or nodes concerned beyond the examples."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data; fields that do not apply are omitted."""
        texts = {"policy": self.policy, "framework": self.framework, "rule": self.rule, "origin": self.origin}
        return {"level": self.level.value, "finding": self.what.value, "message": self.message,
                **{name: text for name, text in texts.items() if text}, "examples": list(self.examples),
                **({"examplesLeftOut": self.others} if self.others else {})}


@dataclass(slots=True)
class RuleUse:
    """The results of one rule: the pairs of a pod and a node that it evaluated, refused and failed for.

    A rule of a preFilter is evaluated once for each pod, which counts for all nodes. `matchConditions` are one rule,
    reported if they fail.
    """

    name: str
    point: str
    evaluated: int = 0
    refused: int = 0
    failed: int = 0
    stranded: list[str] = field(default_factory=list)
    """Pods to which it refuses every node of the cluster."""
    error: str = ""
    """The first failure."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"rule": self.name, "point": self.point, "asked": self.evaluated, "refused": self.refused,
                "failed": self.failed, "stranded": len(self.stranded)}


@dataclass(slots=True)
class PolicyCoverage:
    """The part of the cluster that one policy applies to."""

    policy: str
    framework: str
    enforcement: Enforcement
    origin: str
    pods: int = 0
    """Pods that `match` selects and that are not exempt."""
    nodes: int = 0
    """Nodes that `match` selects."""
    exempt: int = 0
    """System pods that `match` selects and that are exempt."""
    rules: list[RuleUse] = field(default_factory=list)
    active: bool = True
    met: bool = False
    """True if `match` and `matchConditions` hold for any pod and node."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "policy": self.policy, "framework": self.framework, "enforcement": self.enforcement.value,
            "origin": self.origin, "active": self.active, "pods": self.pods, "nodes": self.nodes,
            "exemptPods": self.exempt, "rules": [each.to_json() for each in self.rules],
        }


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings, warnings first, and the coverage of each policy, by framework and name."""

    findings: tuple[AuditFinding, ...]
    policies: tuple[PolicyCoverage, ...]
    pods: int
    nodes: int

    @property
    def warnings(self) -> int:
        """The number of warnings."""
        return sum(each.level is AuditLevel.WARNING for each in self.findings)

    @property
    def has_unproved(self) -> bool:
        """Return whether documents evict pods without a proof that should have been made."""
        return any(each.what is What.UNPROVED for each in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"nodes": self.nodes, "pods": self.pods, "findings": [each.to_json() for each in self.findings],
                "policies": [each.to_json() for each in self.policies]}
