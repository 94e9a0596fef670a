"""Settings of the states informer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .kubelet import KubeletSettings

FROM_KUBELET: Final = "kubelet"
FROM_API: Final = "api"
MAX_AGE_S: Final[Mapping[str, float]] = {FROM_KUBELET: 60.0, FROM_API: 150.0}
"""Pods older than this are stale. A watch that is alive may be silent for longer than a kubelet that is listed."""


@dataclass(frozen=True, slots=True)
class StatesSettings:
    """The node that is followed, and the sources of its states."""

    node: str
    """The name of the node."""
    pods_from: str = FROM_KUBELET
    """`kubelet`, or `api` for the API server."""
    kubelet: KubeletSettings = field(default_factory=KubeletSettings)
    pods_max_age: float = 0.0
    """Seconds after which pods are stale; 0 for 60 from the kubelet and 150 from the API server."""
    follow: frozenset[str] = frozenset()
    """The kinds of `node_objects.OPTIONAL` that are followed, too."""

    def __post_init__(self) -> None:
        """Check the values; raises `ValueError`."""
        if not self.node:
            raise ValueError("the name of the node is missing: set NODE_NAME, as the manifests do")
        if self.pods_from not in MAX_AGE_S:
            raise ValueError(f"pods come from {' or '.join(MAX_AGE_S)}, not from `{self.pods_from}`")
        if not self.pods_max_age >= 0:
            raise ValueError("the highest age of pods must not be negative")
