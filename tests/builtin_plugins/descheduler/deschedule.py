"""One cycle of one Deschedule plugin over a few objects, for the tests of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.descheduler.results import CycleResult
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError

NOW = 1_767_268_800_000_000_000  # 2026-01-01T12:00:00Z
REGISTRY = Registry.of(PLUGINS, generation=1)
Json = dict[str, Any]


def node(name: str, *taints: Json, cpu: str = "10", **labels: str) -> Json:
    """A ready node; its labels are its name and those given."""
    amounts = {"cpu": cpu, "memory": "10Gi", "pods": "20"}
    return {
        "kind": "Node", "metadata": {"name": name, "labels": {"name": name, **labels}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(name: str, on: str = "a", created: str | None = "2026-01-01T10:00:00Z", *, namespace: str = "d",
        labels: Mapping[str, str] = {}, kind: str = "ReplicaSet", status: Mapping[str, Any] = {}, **spec: Any) -> Json:
    """A running pod of a controller of this kind, on a node."""
    metadata = {
        "name": name, "namespace": namespace, "labels": dict(labels),
        "ownerReferences": [{"kind": kind, "name": "r", "uid": "r"}] if kind else [],
        **({} if created is None else {"creationTimestamp": created}),
    }
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    return {
        "kind": "Pod", "metadata": metadata, "spec": {"nodeName": on, "containers": containers, **spec},
        "status": {"phase": "Running", **status},
    }


def cycle(
    name: str, args: Mapping[str, Any], *objects: Json, cluster: Cluster | None = None,
    evictor: Mapping[str, Any] = {}, before: tuple[str, ...] = (),
) -> CycleResult:
    """Run one cycle of a plugin with DefaultEvictor as filter; `before` are plugins that run before it."""
    spec = DeschedulerProfileSpec("p", deschedule=(*before, name), filter=("DefaultEvictor",), args={
        **NEEDED, name: args, "DefaultEvictor": evictor,
    })
    profiles = build_profiles([spec], REGISTRY, dry_run=True)
    result = run_cycle(profiles, (cluster or Cluster(objects)).snapshot(NOW))
    assert result.failures == ()
    return result


NEEDED: Mapping[str, Mapping[str, Any]] = {"PodLifeTime": {"maxPodLifeTimeSeconds": 1}}


def evicted(name: str, args: Mapping[str, Any], *objects: Json, **given: Any) -> list[str]:
    """Return the evicted pods of a cycle by name, in order."""
    return [each.pod.partition("/")[2] for each in cycle(name, args, *objects, **given).evicted]


def faults(name: str, args: Mapping[str, Any]) -> list[str]:
    """Return the problems of a profile with these arguments."""
    try:
        build_profiles([DeschedulerProfileSpec("p", deschedule=(name,), args={name: args})], REGISTRY, dry_run=True)
    except PolicyError as error:
        begin = f"profile `p`: initializing plugin `{name}`: "
        return [problem.message.removeprefix(begin) for problem in error.problems]
    return []
