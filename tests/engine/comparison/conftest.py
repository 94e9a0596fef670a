"""Small clusters and sets of policies, and the registry that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.eligibility import ELIGIBLE
from koordpolicy.engine.comparison.outcome import Outcome
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import Source

NOW = 1_767_355_200_000_000_000
"""2026-01-02T12:00:00Z, in nanoseconds since the epoch."""


def node(name: str, cpu: str = "4", **labels: str) -> dict[str, Any]:
    if "zone" in labels:
        labels["topology.kubernetes.io/zone"] = labels["zone"]
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}},
    }


def pod(name: str, cpu: str = "1", on: str = "", *, namespace: str = "shop", labels: dict[str, str] | None = None,
        **spec: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}], **spec}
    if on:
        spec["nodeName"] = on
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels or {},
            "ownerReferences": [{"kind": "ReplicaSet", "name": name.partition("-")[0], "uid": "owner"}],
        }, "spec": spec,
    }


def metric(
    name: str, cpu: str, *, at: str = "2026-01-02T12:00:00Z", pods: dict[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": name},
        "status": {
            "updateTime": at, "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu}}},
            "podsMetric": [{"namespace": "shop", "name": key, "podUsage": {"resources": {"cpu": used}}}
                           for key, used in (pods or {}).items()],
        },
    }


def document(name: str, spec: str, *, kind: str = "SchedulerPlugin") -> str:
    body = "\n".join(f"  {line}" for line in spec.strip().splitlines())
    return (f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: {kind}\nmetadata: {{name: {name}, annotations: "
            f"{{policy.koordinator.sh/description: d}}}}\nspec:\n{body}\n---\n")


COLD = document("cold", """
variables: [{name: cpu, expression: usage.cpu * 100 / allocatable.cpu}]
filter:
- {name: below, expression: "variables.cpu < 65", messageExpression: "'at ' + string(variables.cpu)", message: too hot}
""")
MEASURED = COLD.replace("variables.cpu < 65", "!nodeInfo.measured || variables.cpu < 65")


Policies = Callable[..., Registry]


@pytest.fixture
def policies() -> Policies:
    """Return the registry of documents beside the built-in plugins."""

    def make(*documents: str) -> Registry:
        loaded = load([Source("policy.yaml", "".join(documents))], source_name="test")
        return Registry.of((*builtins(), *compile_documents(loaded)), generation=1)

    return make


@pytest.fixture
def cluster() -> Cluster:
    """Return two nodes of zone `a`, a small one of zone `b`, running and pending pods."""
    return Cluster([
        node("cool", zone="a"), node("hot", zone="a"), node("small", cpu="1", zone="b"),
        metric("cool", "1"), metric("hot", "3", pods={"web-2": "2500m"}),
        metric("small", "100m", at="2026-01-02T11:00:00Z"),
        pod("web-1", "1", "cool"), pod("web-2", "1", "hot"), pod("agent", "100m", "hot", namespace="kube-system"),
        pod("new-1", "2"), pod("new-2", "2"), pod("new-3", "2"), pod("huge", "64"),
    ])


def refusals(found: Outcome) -> dict[str, dict[str, str]]:
    """Return by shape and node which rule refuses it."""
    return {
        shape.name: {name: found.causes[number].rule or found.causes[number].plugin
                     for name, number in zip(found.nodes, shape.refused_by.tolist(), strict=True) if number != ELIGIBLE}
        for shape in found.shapes
    }
