"""The models of a decision about a pod."""

from __future__ import annotations

from typing import Any

from .model import Model


class PluginColumn(Model, frozen=True, kw_only=True, rename="camel"):
    """A filter or a scorer in the decision matrix."""

    name: str
    origin: str
    document: bool
    """True for a policy document, false for a plugin in Python."""
    enforcement: str
    weight: int = 0
    refused: int = 0
    """The number of nodes that a filter refused."""


class MatrixRow(Model, frozen=True, kw_only=True, rename="camel"):
    """One node in the decision matrix."""

    node: str
    refused: list[int] = []
    """The filters that refused it and count, by number, first one first."""
    watched: list[int] = []
    """The filters that would have refused it, but only warn or audit."""
    total: int | None = None
    scores: list[int] = []
    """The score of each scorer, 0 to 100, if it passed."""


class PodView(Model, frozen=True, kw_only=True, rename="camel"):
    """A decision about a pod, for all nodes: made now, as if the pod were pending."""

    key: str
    node: str
    """The node that it is on; empty for a pending pod."""
    qos_class: str
    priority_band: str
    profile: str
    requests: dict[str, int]
    chosen: str | None
    passed: int
    message: str
    """Kube-scheduler's message; empty if a node was chosen."""
    refused_whole: str
    """The plugin that refused the pod before any node was looked at; else empty."""
    filters: list[PluginColumn]
    scorers: list[PluginColumn]
    rows: list[MatrixRow]
    """Nodes that pass, best first, then the others, fewest refusals first."""
    explanation: dict[str, Any]
    """The tree of findings that `koord-policy explain --output json` has."""


class PodNodeView(Model, frozen=True, kw_only=True, rename="camel"):
    """A pod on one node: plugin by plugin, with values, distances and counterfactuals."""

    pod: str
    node: str
    passed: bool
    explanation: dict[str, Any]
