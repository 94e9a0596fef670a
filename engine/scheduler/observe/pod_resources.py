"""The metrics of /metrics/resources: what each pod requests and is limited to, with kube-scheduler's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.serving.instruments import Metric, MetricSpec, MetricType, Sample

_LABELS: Final = ("namespace", "pod", "node", "scheduler", "priority", "resource", "unit")
REQUESTS: Final = MetricSpec(
    "kube_pod_resource_request", MetricType.GAUGE, "Resources that a pod requests; node is empty while it waits",
    _LABELS)
LIMITS: Final = MetricSpec("kube_pod_resource_limit", MetricType.GAUGE, "Limits of a pod's resources", _LABELS)
_ENDED: Final = frozenset(("Succeeded", "Failed"))
_UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "cpu": ("cores", 1000.0), "memory": ("bytes", 1.0), "ephemeral-storage": ("bytes", 1.0)}


class PodResources:
    """Yields the metrics of a cluster's pods, in any thread."""

    def __init__(self, cluster: Cluster, enabled: Callable[[], bool]) -> None:
        """There are no series while `enabled` returns false: only a leader reports pods."""
        self._cluster = cluster
        self._enabled = enabled

    def collect(self) -> Iterator[Metric]:
        """Yield both families."""
        yield Metric(REQUESTS, self._series(lambda pod: pod.requests))
        yield Metric(LIMITS, self._series(lambda pod: pod.limits))

    def _series(self, resources: Callable[[PodInfo], Mapping[str, float]]) -> Iterator[Sample]:
        # The keys are copied at once, whatever the owner of the cluster does meanwhile.
        for key in tuple(self._cluster.objects("Pod")) if self._enabled() else ():
            pod = self._cluster.pod(key)
            if pod is None or (pod.object.get("status") or {}).get("phase") in _ENDED:
                continue
            scheduler = str((pod.object.get("spec") or {}).get("schedulerName") or "default-scheduler")
            who = pod.namespace, pod.name, pod.node_name, scheduler, str(pod.priority)
            for resource, amount in resources(pod).items():
                unit, scale = _UNITS.get(resource, ("integer", 1.0))
                if resource.startswith("hugepages-"):
                    unit = "bytes"
                yield (*who, resource, unit), amount / scale
