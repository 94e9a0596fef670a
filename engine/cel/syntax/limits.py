"""Limits of expressions: size, depth and cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpressionLimits:
    """The bounds of an expression. Costs are in Kubernetes' units (about 0.1 us each)."""

    characters: int = 100_000
    depth: int = 120
    """The deepest nesting, with that of definitions that are read. Later stages recurse, up to four calls per level."""
    nodes: int = 20_000
    comprehensions: int = 4
    """Deepest nesting of comprehensions."""
    estimated_cost: int = 100_000_000
    cost: int = 1_000_000
    """Cost limit of one evaluation at run time (Kubernetes' PerCallLimit, apiserver `pkg/apis/cel/config.go`)."""
    document_cost: int = 10_000_000
    """Cost limit of one document in one decision, for all rows together, or 1,000 per row if that is more."""
    decision_cost: int = 100_000_000
    """Cost limit of all evaluations of one decision, or 10,000 per row if that is more."""
