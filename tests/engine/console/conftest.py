"""A state of three nodes and four pods under one policy, and names that are markup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.console.policy_set import PolicySet
from koordpolicy.engine.console.state import ConsoleState
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.discovery import DiscoveredPlugins
from koordpolicy.engine.source import Source

NOW = nanoseconds("2026-01-02T12:00:00Z", "now")
HOT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata:
  name: keep-off-hot-nodes
  annotations: {policy.koordinator.sh/description: Pods avoid hot nodes.}
spec:
  params: {percent: 65}
  variables:
  - {name: cpu, expression: usage.cpu * 100 / allocatable.cpu}
  filter:
  - name: below-watermark
    expression: variables.cpu < params.percent
    messageExpression: "'cpu at ' + string(variables.cpu) + '%'"
  score:
  - {name: coolest-first, expression: "math.greatest(0, 100 - variables.cpu)"}
"""
TEST = """\
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: PolicyTest
metadata: {name: keep-off-hot-nodes}
spec:
  fixtures:
    nodes: {cool: {cpu: 10, usage: {cpu: 2}}, hot: {cpu: 10, usage: {cpu: 7}}}
    pods: {web: {cpu: 1}}
  cases:
  - {name: a cool node passes, pod: web, nodes: [cool], filter: {cool: pass}}
"""
MARKUP = "<img src=x onerror=alert(1)>"


def node(name: str, zone: str, cpu: str = "4", **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone, **labels}},
        "spec": {}, "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}},
    }


def pod(name: str, cpu: str, on: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
                 **({"nodeName": on} if on else {})},
    }


def metric(name: str, cpu: str) -> dict[str, Any]:
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": name},
        "status": {"updateTime": "2026-01-02T12:00:00Z", "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu}}}},
    }


OBJECTS = [
    node("cool", "a", pool=MARKUP), node("hot", "b", pool="x"), node("unmeasured", "b", cpu="1"),
    metric("cool", "1"), metric("hot", "3"), pod("web-1", "1", "cool"), pod("web-2", "2"), pod("web-3", "64"),
]


@pytest.fixture(scope="session")
def discovered() -> DiscoveredPlugins:
    return DiscoveredPlugins(tuple(builtins()), ())


@pytest.fixture(scope="session")
def policies_of(discovered: DiscoveredPlugins) -> Callable[..., PolicySet]:
    def make(*texts: str) -> PolicySet:
        sources = [Source(f"{number}.yaml", text) for number, text in enumerate(texts)]
        return PolicySet.of(load(sources, source_name="policies"), sources, discovered)

    return make


@pytest.fixture(scope="session")
def state(policies_of: Callable[..., PolicySet]) -> ConsoleState:
    """Not changed by any view, so that all tests share it."""
    cluster = Cluster()
    assert not cluster.upsert_all(OBJECTS)
    return ConsoleState(cluster, policies_of(HOT), now=NOW, name="dump.yaml")
