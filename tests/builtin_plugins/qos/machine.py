"""Readings of one machine for tests of strategies, and its files after rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from koordpolicy.engine.agent.recorded_files import apply_writes
from koordpolicy.engine.agent.recording import MetricsRecording, RecordedReadings
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Adjustment, Host, Readings


class _Round(Protocol):
    def __call__(self, readings: Readings, /) -> Sequence[Adjustment]: ...


def pod(name: str, qos: str = "BE", *, annotations: Mapping[str, str] | None = None, phase: str = "Running",
        volumes: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return a pod without requests, so that it is best-effort for Kubernetes, with a container `main`."""
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "d", "uid": name, "annotations": dict(annotations or {}),
                     "labels": {"koordinator.sh/qosClass": qos} if qos else {}},
        "spec": {"nodeName": "n", "containers": [{"name": "main"}], "volumes": list(volumes)},
        "status": {"phase": phase},
    }


class Machine:
    """Node `n` with 4 cores and 1 Gi of memory."""

    def __init__(self, spec: Mapping[str, Any] | None, files: Mapping[str, str], *, host: Host | None = None,
                 pods: Sequence[Mapping[str, Any]] = ()) -> None:
        self.files = dict(files)
        self.now = 0
        self.recording = MetricsRecording(nodes={"n": {
            "kind": "Node", "metadata": {"name": "n"},
            "status": {"capacity": {"cpu": "4", "memory": "1Gi"}, "allocatable": {"cpu": "4", "memory": "1Gi"}},
        }})
        self.recording.hosts["n"] = host or Host()
        self.use(spec)
        self.run_pods(pods)

    def use(self, spec: Mapping[str, Any] | None) -> None:
        """Replace the NodeSLO's spec; None removes the object."""
        self.recording.objects.pop(("NodeSLO", "n"), None)
        if spec is not None:
            self.recording.objects["NodeSLO", "n"] = {"kind": "NodeSLO", "metadata": {"name": "n"}, "spec": spec}

    def run_pods(self, pods: Sequence[Mapping[str, Any]]) -> None:
        """Replace the pods."""
        self.recording.pods["n"] = {info.key: info for info in map(PodInfo.of, pods)}

    @property
    def readings(self) -> RecordedReadings:
        """The present readings."""
        return RecordedReadings(self.recording, "n", self.now, self.files)

    def after(self, call: _Round) -> list[tuple[str, bool, tuple[tuple[str, str], ...]]]:
        """Run a round and make its writes; return subject, whether it recovers, and writes of each adjustment."""
        found = call(self.readings)
        for each in found:
            apply_writes(self.files, each.writes)
        return [(each.subject, each.recovers, each.writes) for each in found]
