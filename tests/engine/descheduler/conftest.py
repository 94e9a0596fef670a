from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.descheduler.results import CycleResult
from koordpolicy.engine.documents.loader import load
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import Source

NOW = 1_767_268_800_000_000_000  # 2026-01-01T12:00:00Z
MOMENT = "2026-01-01T12:00:00Z"


def node(name: str, cpu: int = 10, *, ready: str = "True", **spec: Any) -> dict[str, Any]:
    amounts = {"cpu": str(cpu), "memory": "10Gi", "pods": "20"}
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": ready}]}
    return {"kind": "Node", "metadata": {"name": name, "labels": {"name": name}}, "spec": spec, "status": status}


def pod(
    name: str, on: str, cpu: str = "1", namespace: str = "d", phase: str = "Running", **extra: Any,
) -> dict[str, Any]:
    """A pod of a replica set; `extra` goes into its spec, but `metadata` into its metadata."""
    metadata = {
        "name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T10:00:00Z",
        "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "r"}], **extra.pop("metadata", {}),
    }
    containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
    return {
        "kind": "Pod", "metadata": metadata, "spec": {"nodeName": on, "containers": containers, **extra},
        "status": {"phase": phase},
    }


def metric(name: str, pods: dict[str, str], system: str = "0", moment: str = MOMENT) -> dict[str, Any]:
    """A NodeMetric: usage of pods of namespace `d`, and of the system."""
    total = sum(int(cpu.removesuffix("m")) for cpu in (*pods.values(), system))
    return {
        "kind": "NodeMetric", "metadata": {"name": name},
        "status": {
            "updateTime": moment,
            "nodeMetric": {
                "nodeUsage": {"resources": {"cpu": f"{total}m"}}, "systemUsage": {"resources": {"cpu": system}},
            },
            "podsMetric": [
                {"namespace": "d", "name": each, "podUsage": {"resources": {"cpu": cpu}}} for each, cpu in pods.items()
            ],
        },
    }


@pytest.fixture
def cycle() -> Callable[..., CycleResult]:
    """Runs one cycle of documents (texts) and named built-ins over objects; `spec` is the profile's."""

    def run(
        objects: list[dict[str, Any]], *texts: str, spec: DeschedulerProfileSpec | None = None,
        specs: list[DeschedulerProfileSpec] | None = None,
        cycles: int = 1, **given: Any,
    ) -> CycleResult:
        documents = load([Source(f"{number}.yaml", text) for number, text in enumerate(texts)])
        registry = Registry.of([*PLUGINS, *compile_documents(documents)], generation=1)
        profiles = build_profiles(specs or [spec or DeschedulerProfileSpec("p")], registry, dry_run=True)
        cluster = Cluster(objects)
        for number in range(cycles):
            result = run_cycle(profiles, cluster.snapshot(NOW + number * 10**9), **given)
        return result

    return run


def evicted(result: CycleResult) -> list[str]:
    return [outcome.pod.partition("/")[2] for outcome in result.evicted]


def kept(result: CycleResult) -> dict[str, tuple[str, str]]:
    return {each.pod.partition("/")[2]: (each.decision.stopped_by, each.decision.stopped_rule)
            for each in result.staying}
