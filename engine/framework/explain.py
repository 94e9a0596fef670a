"""Optional protocols of plugins of any framework: explanations that say more than a refusal.

Called by `koord-policy explain` and the extender's `/explain` only, never in a decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from koordpolicy.engine.cel.vector.frame import Rows
    from koordpolicy.engine.cluster.edits import Edit
    from koordpolicy.engine.cluster.objects.pods import PodInfo
    from koordpolicy.engine.cluster.snapshot import Snapshot
    from koordpolicy.engine.explanation import Finding

    from .qos import Readings


@runtime_checkable
class Counterfactuals(Protocol):
    """Suggests changes with which its filter would accept a node that it refuses."""

    def counterfactuals(self, pod: PodInfo, snapshot: Snapshot, row: int) -> Iterable[Edit]:
        """Return changes of the pod or of that node, each of which alone would satisfy this plugin.

        Each is tried before it is reported, so one that does not help does no harm.
        """
        ...


@runtime_checkable
class ExplainsWaiting(Protocol):
    """A scheduling plugin that explains what pods wait for beside a node, such as their gang or their quota."""

    def explain_waiting(self, pod: PodInfo) -> Sequence[Finding]:
        """Return the findings about a pod without a node; empty if it waits for nothing of this plugin.

        Changes nothing.
        """
        ...


@runtime_checkable
class ExplainsRound(Protocol):
    """A QoS strategy that explains its decisions, also those to do nothing."""

    def explain_round(self, readings: Readings) -> Sequence[Finding]:
        """Return the thresholds, the measured values and the state that the next round would start from.

        Changes nothing. Raises `EvaluationError`, which is reported, if a value is unknown.
        """
        ...


@runtime_checkable
class ExplainsNode(Protocol):
    """A descheduling plugin that explains how far a node is from being a source of evictions."""

    def explain_node(self, snapshot: Snapshot, rows: Rows, node: str) -> Sequence[Finding]:
        """Return the findings about the node in a cycle over the nodes at `rows`; changes nothing."""
        ...
