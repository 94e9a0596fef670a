"""The models of the descheduler's view."""

from __future__ import annotations

from typing import Any

from .model import Model


class PlannedEviction(Model, frozen=True, kw_only=True, rename="camel"):
    """A pod that a cycle would evict now."""

    pod: str
    node: str
    plugin: str
    reason: str


class SparedPods(Model, frozen=True, kw_only=True, rename="camel"):
    """Candidates that a cycle would not evict, for one reason."""

    plugin: str
    stopped_by: str
    reason: str
    pods: int
    example: str


class EvictionsView(Model, frozen=True, kw_only=True, rename="camel"):
    """The result of one dry cycle of the descheduler."""

    plugins: list[str]
    evicted: list[PlannedEviction]
    evicted_left_out: int
    spared: list[SparedPods]
    """The commonest reasons first."""
    spared_left_out: int
    """The number of further reasons."""
    failure: str
    """The reason why the cycle ended early; empty if it completed."""


class EvictionView(Model, frozen=True, kw_only=True, rename="camel"):
    """The result of a cycle for one pod, plugin by plugin."""

    pod: str
    evicted: bool
    explanation: dict[str, Any]
    """The tree of findings that `koord-policy explain --eviction --output json` has."""
