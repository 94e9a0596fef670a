"""Readings of one node whose files and measurements are plain mappings, for tests of strategies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from koordpolicy.engine.agent.logical_directory import logical_directory
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Adjustment, Evictions, Host, Processor

SECOND = 1_000_000_000
HOST = Host(processors=tuple(Processor(cpu, cpu, 0, cpu // 8) for cpu in range(16)))


@dataclass
class PlainReadings:
    """Usages are in milli-cores; those of containers by `namespace/pod/container`, and by (name, `throttled`)."""

    pods: tuple[PodInfo, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    objects: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    usage: float | None = None
    pod_cpu: Mapping[str, float] = field(default_factory=dict)
    container_cpu: Mapping[str, float] = field(default_factory=dict)
    throttled: Mapping[str, float] = field(default_factory=dict)
    now: int = 0
    collect_interval: int = 1_000_000_000
    host: Host = HOST
    evictions: Evictions = field(default_factory=Evictions)
    node: Mapping[str, Any] = field(default_factory=lambda: {
        "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "16", "memory": "64Gi"}},
    })

    def directory(self, pod: PodInfo, container: str = "") -> str:
        return logical_directory(pod, container)

    def object(self, kind: str) -> Mapping[str, Any] | None:
        return self.objects.get(kind)

    def node_usage(self, resource: str, statistic: str = "last", window: int = 0) -> float:
        return _measured(self.usage)

    def pod_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        return _measured(self.pod_cpu.get(key))

    def container_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        return _measured((self.throttled if resource == "throttled" else self.container_cpu).get(key))

    def application_usage(self, name: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        return _measured(None)

    def best_effort_cpu(self, allocation: str, statistic: str = "last", window: int = 0) -> float:
        return _measured(None)

    def apply(self, adjustments: Iterable[Adjustment]) -> list[tuple[str, str]]:
        """Write the files of adjustments; return all writes, in order."""
        writes = [write for each in adjustments for write in each.writes]
        self.files |= dict(writes)
        return writes


def _measured(value: float | None) -> float:
    if value is None:
        raise EvaluationError("not measured", reason="NoMetric")
    return value


def slo(**sections: Any) -> dict[str, Mapping[str, Any]]:
    """Return the objects of a node: its NodeSLO with these sections."""
    return {"NodeSLO": {"kind": "NodeSLO", "metadata": {"name": "n"}, "spec": sections}}


def container(name: str, **resources: Any) -> dict[str, Any]:
    """Return a container; `requests` and `limits` are its resources."""
    return {"name": name, "resources": resources}


def running_pod(name: str, *containers: dict[str, Any], qos: str = "LS", kube: str = "Burstable",
                phase: str = "Running", annotations: Mapping[str, str] | None = None) -> PodInfo:
    """Return a pod of the namespace `d` whose containers run; its UID is `NAME-uid`."""
    return PodInfo.of({
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "d", "uid": f"{name}-uid", "annotations": dict(annotations or {}),
            "labels": {"koordinator.sh/qosClass": qos} if qos else {},
        },
        "spec": {"nodeName": "n", "containers": list(containers)},
        "status": {
            "phase": phase, "qosClass": kube, "containerStatuses": [
                {"name": each["name"], "containerID": f"containerd://{name}-{each['name']}", "state": {"running": {}}}
                for each in containers
            ],
        },
    })
