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
