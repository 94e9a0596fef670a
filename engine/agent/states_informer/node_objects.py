"""The objects of the API server that are named like the node."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.client.informer import Informer
from koordpolicy.engine.client.projection import Projection
from koordpolicy.engine.cluster.kinds import IDENTITY, field_paths

NODE: Final = "Node"
NODE_SLO: Final = "NodeSLO"
NODE_METRIC: Final = "NodeMetric"
NODE_TOPOLOGY: Final = "NodeResourceTopology"
DEVICE: Final = "Device"
OBJECTS: Final[Mapping[str, frozenset[tuple[str, ...]] | None]] = {
    NODE: field_paths("metadata.{annotations,creationTimestamp,deletionTimestamp,labels}",
                      "spec.{taints,unschedulable}",
                      "status.{addresses,allocatable,capacity,daemonEndpoints,nodeInfo}"),
    NODE_SLO: None,
    NODE_METRIC: field_paths("spec"),
    NODE_TOPOLOGY: None,
    DEVICE: field_paths("metadata.labels", "spec"),
}
"""The kinds with an object of the node's name, and the fields that the agent itself reads; None for all."""
OPTIONAL: Final = frozenset({DEVICE})
"""The kinds that are followed only if they are demanded (`StatesSettings.follow`)."""


@dataclass(slots=True)
class FollowedObject:
    """The object of a kind that is named like the node."""

    projection: Projection
    object: dict[str, Any] | None = None
    informer: Informer | None = None
    restored: float = -math.inf
    """When the state was last heard of, as it was restored."""
    fault: str = ""

    @property
    def heard(self) -> float:
        """When it was last heard of, on the monotonic clock."""
        live = self.informer.view.heard if self.informer is not None else 0.0
        return live or self.restored


def projection_of(own: frozenset[tuple[str, ...]] | None, more: frozenset[tuple[str, ...]] | None) -> Projection:
    """Return the projection of the agent's own and more fields; None for all."""
    return Projection() if own is None or more is None else Projection(own | more | IDENTITY)


def metadata_of(item: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the metadata of an object; empty without any."""
    metadata = (item or {}).get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def is_same_but_version(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    """Return whether two versions of an object differ in their version only."""
    if one is None:
        return False
    ignored = {"resourceVersion", "generation"}

    def content(item: Mapping[str, Any]) -> dict[str, Any]:
        return {**item, "metadata": {key: value for key, value in metadata_of(item).items() if key not in ignored}}

    return content(one) == content(other)
