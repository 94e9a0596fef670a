"""Limits of evictions in one cycle (Koordinator pkg/descheduler/evictions)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.explanation import counted

from .workload_limits import WorkloadLimits

_NO_LIMITS: Final = WorkloadLimits()


@dataclass(frozen=True, slots=True)
class CycleLimits:
    """The maximum numbers of evictions in one cycle; None means no limit, 0 refuses all."""

    per_node: int | None = None
    per_namespace: int | None = None
    total: int | None = None
    workloads: WorkloadLimits = _NO_LIMITS


class EvictionLimiter:
    """Counts the evictions of one cycle against limits (pkg/descheduler/evictions semantics)."""

    def __init__(self, limits: CycleLimits) -> None:
        self._limits = limits
        self.per_node: dict[str, int] = {}
        self.per_namespace: dict[str, int] = {}
        self.total = 0

    @property
    def is_unlimited(self) -> bool:
        """True if there is no limit, so that nothing needs to be counted."""
        return self._limits.per_node is self._limits.per_namespace is self._limits.total is None

    def refusal(self, node: str, namespace: str) -> str:
        """Return the limit that one more eviction would exceed, or an empty string."""
        limits = self._limits
        if node and limits.per_node is not None and self.per_node.get(node, 0) + 1 > limits.per_node:
            return f"at most {counted(limits.per_node, 'pod')} of one node per cycle"
        if limits.per_namespace is not None and self.per_namespace.get(namespace, 0) + 1 > limits.per_namespace:
            return f"at most {counted(limits.per_namespace, 'pod')} of one namespace per cycle"
        if limits.total is not None and self.total + 1 > limits.total:
            return f"at most {counted(limits.total, 'pod')} per cycle"
        return ""

    def done(self, node: str, namespace: str) -> None:
        """Count an eviction."""
        if node:
            self.per_node[node] = self.per_node.get(node, 0) + 1
        self.per_namespace[namespace] = self.per_namespace.get(namespace, 0) + 1
        self.total += 1

    def total_limit_exceeded(self) -> bool:
        """Return whether the limit of all evictions is used up."""
        return self._limits.total is not None and self.total >= self._limits.total

    def node_limit_exceeded(self, node: str) -> bool:
        """Return whether the node's limit is used up."""
        return self._limits.per_node is not None and self.per_node.get(node, 0) >= self._limits.per_node
