"""What plugins of any framework may fulfil beside: saying more about their answers than a refusal holds.

Asked by `koord-policy explain` and by the extender's `/explain` only, never while deciding.
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
    """Knows what would have to change for a node that its filter refuses."""

    def counterfactuals(self, pod: PodInfo, snapshot: Snapshot, row: int) -> Iterable[Edit]:
        """Return changes of the pod or of that node, each of which alone would satisfy this plugin.

        They are suggestions: each is tried before anybody is told of it, so one that does not help does no harm.
        """
        ...


@runtime_checkable
class ExplainsRound(Protocol):
    """A QoS strategy that can say what its decision rests on, also where there was nothing to do."""

    def explain_round(self, readings: Readings) -> Sequence[Finding]:
        """Return the thresholds, the measured values and the state that the next round would start from.

        It changes nothing. Raises `EvaluationError` where something is not known; that is told then.
        """
        ...


@runtime_checkable
class ExplainsNode(Protocol):
    """A descheduling plugin that can say how far a node is from being one that pods leave."""

    def explain_node(self, snapshot: Snapshot, rows: Rows, node: str) -> Sequence[Finding]:
        """Return what was found about the node, looking at the nodes at `rows` as a cycle would; it changes nothing."""
        ...
