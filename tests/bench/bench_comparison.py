"""Time of comparing two versions of the shipped policies over 5,000 nodes, and of auditing them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.audit import audit
from koordpolicy.engine.comparison.difference import difference
from koordpolicy.engine.comparison.outcome import outcome
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import Source

from .figure import Figure

NODES, PODS_PER_NODE, PENDING, APPLICATIONS = 5_000, 10, 500, 300
_NOW = 1_767_355_200_000_000_000
_POLICIES = Path(__file__).parents[2] / "policies"


def main() -> Iterator[Figure]:
    """Yield seconds of processor time: the machine's other work is not the comparison's."""
    cluster = Cluster(_objects(Random(1)))
    for name, folders, bound in (
        ("scheduling policies", ("scheduler",), 15.0), ("all policies", ("scheduler", "qos", "descheduler"), None),
    ):
        old, new = _registry(folders, "cpuPercent: 65"), _registry(folders, "cpuPercent: 55")
        started = time.process_time()
        before = outcome(old, cluster, now=_NOW)
        after = outcome(new, cluster, now=_NOW, before=before)
        found = difference(before, after)
        yield Figure(f"diff, {name}, 5000 nodes", time.process_time() - started, "s", bound)
        assert found.added.misfits
        assert not found.moved
    started = time.process_time()
    audit(old, cluster, now=_NOW)
    yield Figure("audit, all policies, 5000 nodes", time.process_time() - started, "s")


def _registry(folders: tuple[str, ...], watermark: str) -> Registry:
    files = (
        path for folder in folders for path in sorted((_POLICIES / folder).glob("*.yaml")) if ".test." not in path.name
    )
    texts = [Source(path.name, path.read_text(encoding="utf-8").replace("cpuPercent: 65", watermark)) for path in files]
    return Registry.of((*builtins(), *compile_documents(load(texts, source_name="shipped"))), generation=1)


def _objects(random: Random) -> Iterator[dict[str, Any]]:
    for number in range(NODES):
        name = f"node-{number:04d}"
        resources = {"cpu": "32", "memory": "128Gi", "pods": "110"}
        labels = {"topology.kubernetes.io/zone": "abc"[number % 3], "kubernetes.io/hostname": name}
        yield {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {},
               "status": {"allocatable": resources, "capacity": resources}}
        used = []
        for place in range(PODS_PER_NODE):
            pod = _pod(f"web-{number}-{place}", random)
            yield {**pod, "spec": {**pod["spec"], "nodeName": name}}
            usage = {"cpu": f"{random.randrange(100, 3000)}m", "memory": "1Gi"}
            used.append({"namespace": "shop", "name": pod["metadata"]["name"], "podUsage": {"resources": usage}})
        usage = {"cpu": f"{random.randrange(2_000, 30_000)}m", "memory": "40Gi"}
        yield {"kind": "NodeMetric", "metadata": {"name": name}, "status": {
            "updateTime": "2026-01-02T12:00:00Z", "nodeMetric": {"nodeUsage": {"resources": usage}}, "podsMetric": used,
        }}
    for number in range(PENDING):
        yield _pod(f"new-{number}", random)


def _pod(name: str, random: Random) -> dict[str, Any]:
    application, best_effort = f"app-{random.randrange(APPLICATIONS)}", random.random() < 0.3
    labels = {"app": application, "koordinator.sh/qosClass": "BE" if best_effort else "LS"}
    owner = {"kind": "ReplicaSet", "name": application, "uid": application, "controller": True}
    resources = {"cpu": "1", "memory": "2Gi"}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": labels, "ownerReferences": [owner]},
        "spec": {
            "priority": 5500 if best_effort else 9500,
            "priorityClassName": "koord-batch" if best_effort else "koord-prod",
            "containers": [
                {"name": "main", "image": f"registry/{application}:v1", "resources": {"requests": resources}},
            ],
        },
    }
