"""The models of policies and their files."""

from __future__ import annotations

from typing import Any

from .model import Fault, Model


class RuleView(Model, frozen=True, kw_only=True, rename="camel"):
    """An expression of a policy, with its place."""

    point: str
    name: str
    expression: str
    line: int
    column: int
    reads: list[str]
    """The paths that it reads, those of its variables included; empty if it does not compile."""
    reads_left_out: int = 0


class PolicyView(Model, frozen=True, kw_only=True, rename="camel"):
    """One policy document."""

    name: str
    kind: str
    file: str
    line: int
    description: str
    enforcement: str
    points: list[str]
    profiles: list[str]
    """The profiles that it is limited to; empty for all."""
    active: bool
    """False if no profile of the cluster's pods has it."""
    reads: list[str]
    reads_left_out: int = 0
    params_from: list[str]
    """The PolicyParams that it takes params from."""
    params: dict[str, Any]
    rules: list[RuleView]
    refuses: int
    """The number of pairs of a pending pod and a node that it refuses first."""


class PoliciesView(Model, frozen=True, kw_only=True, rename="camel"):
    """All policy documents, and what is wrong with them."""

    policies: list[PolicyView]
    files: list[str]
    faults: list[Fault]
    pending: int
    """The number of pending pods that `refuses` was counted for."""
    pairs: int


class FileView(Model, frozen=True, kw_only=True, rename="camel"):
    """The text of a policy file."""

    file: str
    text: str
    faults: list[Fault]


class AuditLine(Model, frozen=True, kw_only=True, rename="camel"):
    """A finding of the audit."""

    level: str
    """`warning`, or `note`: it may be intended."""
    finding: str
    """The kind of the finding, as `koord-policy audit --output json`."""
    message: str
    policy: str
    """Empty for a finding about the cluster."""
    framework: str
    rule: str
    examples: list[str]
    examples_left_out: int


class RuleTally(Model, frozen=True, kw_only=True, rename="camel"):
    """The results of a rule over the pairs of a pod and a node."""

    rule: str
    point: str
    evaluated: int
    refused: int
    failed: int


class PolicyReach(Model, frozen=True, kw_only=True, rename="camel"):
    """The part of the cluster that a policy applies to, and what its rules decided there."""

    policy: str
    framework: str
    active: bool
    pods: int
    nodes: int
    rules: list[RuleTally]


class AuditView(Model, frozen=True, kw_only=True, rename="camel"):
    """The audit of all policies over the cluster, as `koord-policy audit`."""

    nodes: int
    pods: int
    findings: list[AuditLine]
    """Warnings first."""
    policies: list[PolicyReach]
