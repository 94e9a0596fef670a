"""Small clusters for the tests of descheduling plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.testing import FakeEvictor

NOW = 1_767_268_800_000_000_000


def node(name: str, *, cpu: str = "4", pods: str = "10", labels: Mapping[str, str] | None = None, **spec: Any) -> Any:
    """Return a node; `spec` are fields of its spec."""
    return {
        "kind": "Node", "metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": pods}},
    }


def pod(
    name: str, on: str, *, cpu: str = "1", owner: str = "web", image: str = "web:1", metadata: Any = None, **spec: Any,
) -> Any:
    """Return a pod; `spec` are fields of its spec."""
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "shop", "labels": {"app": owner},
            "ownerReferences": [{"kind": "ReplicaSet", "name": owner, "uid": owner}], **(metadata or {}),
        },
        "spec": {
            "nodeName": on, "containers": [{"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}}],
            **spec,
        },
        "status": {"phase": "Running"},
    }


def balance(
    plugin: str, args: Mapping[str, Any], objects: Sequence[Any], *, evictor: FakeEvictor | None = None,
) -> FakeEvictor:
    """Run a plugin over all nodes; return the evictor with all that it was told."""
    found = next(each for each in PLUGINS if each.name == plugin)
    assert found.check_args is not None
    evictor = evictor or FakeEvictor()
    snapshot = Cluster(objects).snapshot(NOW)
    rows = np.arange(snapshot.size, dtype=np.intp)
    found.make(found.check_args(args), None).balance(snapshot, rows, evictor)
    return evictor
