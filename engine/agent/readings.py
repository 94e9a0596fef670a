"""The inputs of the QoS manager for one round on a node, live or recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from koordpolicy.engine.framework.qos import Readings

if TYPE_CHECKING:
    from .node_variables import NodeVariables


class NodeReadings(Readings, Protocol):
    """Readings with what documents need beyond strategies in Python."""

    @property
    def variables(self) -> NodeVariables:
        """The node and its pods as expressions see them, without measurements."""
        ...

    def measured(self, what: str, name: str, statistic: str, window: int) -> dict[str, float]:
        """Return all resources measured within the window of a `node`, `pod`, `container` or `application`.

        `name` is the node's name, the pod's key, `namespace/pod/container` or the application's name; `window` is in
        nanoseconds. Empty if nothing was measured.
        """
        ...

    def age(self) -> int:
        """Return the age of the node's last sample, in nanoseconds; raise `EvaluationError` if there is none."""
        ...
