from __future__ import annotations

import logging

import numpy as np
import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.plugin import CycleState, Handle

TABLE = {plugin.name: plugin for plugin in PLUGINS}


class Kit:
    """Nodes, pods, and one built-in plugin asked about them."""

    @staticmethod
    def node(name, *, labels=None, gpus=0, **spec):
        allocatable = {"cpu": "4", "memory": "8Gi", "pods": "3"}
        if gpus:
            allocatable["nvidia.com/gpu"] = str(gpus)
        return {
            "kind": "Node", "metadata": {"name": name, "labels": labels or {}}, "spec": spec,
            "status": {"allocatable": allocatable},
        }

    @staticmethod
    def pod(name="p", *, requests=None, annotations=None, **spec):
        container = {"name": "main", "resources": {"requests": requests or {}}}
        return PodInfo.of({
            "kind": "Pod", "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"containers": [container], **spec},
        })

    @staticmethod
    def gpu_pod(name="p", count=1, milli=1000, models=""):
        annotations = {"alibabacloud.com/gpu-count": str(count), "alibabacloud.com/gpu-milli": str(milli)}
        if models:
            annotations["alibabacloud.com/gpu-card-model"] = models
        return Kit.pod(name, annotations=annotations)

    @staticmethod
    def cluster(*nodes):
        return Cluster(nodes)

    @staticmethod
    def make(name, cluster=None, seed=0, **args):
        plugin = TABLE[name]
        handle = Handle(
            "default-scheduler", (cluster or Cluster()).snapshot, lambda: 0, logging.getLogger(name), seed=seed,
        )
        return plugin.make(plugin.check_args(args), handle)

    @staticmethod
    def rows(snapshot):
        return np.arange(snapshot.size, dtype=np.intp)

    @staticmethod
    def passed(plugin, pod, cluster):
        """The names of the nodes that pass."""
        snapshot = cluster.snapshot()
        answer = plugin.filter(CycleState(), pod, snapshot, Kit.rows(snapshot))
        return [name for name, passes in zip(snapshot.names, answer.passed.tolist(), strict=True) if passes]

    @staticmethod
    def refusal(plugin, pod, cluster, name):
        """Why a node does not pass."""
        snapshot = cluster.snapshot()
        answer = plugin.filter(CycleState(), pod, snapshot, Kit.rows(snapshot))
        row = snapshot.index[name]
        assert not answer.passed[row]
        return answer.explain(row)

    @staticmethod
    def reasons(plugin, pod, cluster):
        """The names of the nodes that do not pass, by reason."""
        snapshot = cluster.snapshot()
        answer = plugin.filter(CycleState(), pod, snapshot, Kit.rows(snapshot))
        groups = answer.reasons(np.flatnonzero(~answer.passed))
        return {reason: [snapshot.names[row] for row in rows.tolist()] for reason, rows in groups.items()}

    @staticmethod
    def scores(plugin, pod, cluster, names=None):
        """The scores of the nodes, or of some."""
        snapshot = cluster.snapshot()
        rows = np.array([row for row, name in enumerate(snapshot.names) if names is None or name in names], np.intp)
        values = plugin.score(CycleState(), pod, snapshot, rows).spread(rows, snapshot.size).values
        return {snapshot.names[row]: int(values[row]) for row in rows.tolist()}


@pytest.fixture
def kit():
    return Kit
