from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from koordpolicy.engine.agent.recording import MetricsRecording
from koordpolicy.engine.agent.recording import load as load_recording
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.documents.loader import load
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import Source

NODE = {
    "kind": "Node", "metadata": {"name": "n"},
    "status": {"capacity": {"cpu": "10"}, "allocatable": {"cpu": "10", "memory": "10Gi"}},
}


def pod(name: str, qos: str, **annotations: str) -> dict[str, object]:
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "d", "labels": {"koordinator.sh/qosClass": qos}, "annotations": annotations,
        },
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
    }


@pytest.fixture
def registry() -> Callable[..., Registry]:
    """Compiles texts of documents into a registry."""

    def make(*texts: str, generation: int = 1) -> Registry:
        sources = [Source(f"{number}.yaml", text) for number, text in enumerate(texts)]
        return Registry.of(compile_documents(load(sources)), generation=generation)

    return make


@pytest.fixture
def recording(tmp_path) -> Callable[..., MetricsRecording]:
    """Makes a recording of node `n` with 10 cores: samples are (second, node milli-cores, {pod: milli-cores})."""

    def make(*samples: tuple[float, int, dict[str, int]], pods: tuple[dict[str, object], ...] = ()) -> MetricsRecording:
        lines: list[object] = [{"interval": "1s", "files": {"n": {"besteffort/cpu.cfs_quota_us": "-1"}}}, NODE, *pods]
        for time, cpu, used in samples:
            of_pods = {f"d/{name}": {"cpu": f"{milli}m"} for name, milli in used.items()}
            lines.append({"time": f"{time}s", "node": "n", "usage": {"cpu": f"{cpu}m"}, "pods": of_pods})
        path = tmp_path / "metrics.jsonl"
        path.write_text("\n".join(json.dumps(line) for line in lines))
        return load_recording(path)

    return make
