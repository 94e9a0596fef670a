"""The client of a scheduler that has no API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo


class OwnCluster:
    """Writes only to the cluster that the scheduler owns (implements `framework.handle.Client`)."""

    simulated = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.evicted: list[tuple[str, str]] = []
        """The keys of the pods that were evicted, each with the reason."""

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace the object, and return it."""
        if original != modified:
            self._cluster.upsert(modified)
        return modified

    def bind(self, pod: PodInfo, node: str) -> None:
        """Do nothing: the pod is already assumed on the node."""

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Remove the pod."""
        self.evicted.append((pod.key, reason))
        self._cluster.delete("Pod", pod.key)

    def preempt(self, pod: PodInfo, preemptor: PodInfo, node: str) -> None:
        """Remove the pod; disruption budgets are not enforced here."""
        self.evict(pod, f"preempted by {preemptor.key} on {node}")

    def delete(self, item: Mapping[str, Any]) -> None:
        """Remove an object."""
        metadata = item["metadata"]
        namespace = metadata.get("namespace")
        self._cluster.delete(item["kind"], f"{namespace}/{metadata['name']}" if namespace else metadata["name"])
