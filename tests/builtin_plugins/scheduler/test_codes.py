from __future__ import annotations

import numpy as np
import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Code, Point
from koordpolicy.plugin import BeforePreFilter, Changed, CycleState
from tests.fake_framework import FakeFramework

GPU = "nvidia.com/gpu"
MODEL = {"alibabacloud.com/gpu-card-model": "T4"}


def node(name, cpu="4", gpus="0", labels=None, **spec):
    return {"kind": "Node", "metadata": {"name": name, "labels": labels or {}}, "spec": spec,
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "9", GPU: gpus}}}


def pod(name="p", annotations=None, cpu="3", labels=None, port=0, **spec):
    container = {"name": "main", "resources": {"requests": {"cpu": cpu, **({GPU: "1"} if annotations else {})}},
                 "ports": [{"hostPort": port}] if port else []}
    return {"kind": "Pod", "metadata": {"name": name, "annotations": annotations or {}, "labels": labels or {}},
            "spec": {"containers": [container], **spec}}


def volume(name, zone, claim):
    return (
        {
            "kind": "PersistentVolume", "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
            "spec": {
                "csi": {"driver": "disks", "volumeHandle": name},
                "nodeAffinity": {
                    "required": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]},
                        ],
                    },
                },
            },
        },
        {
            "kind": "PersistentVolumeClaim", "metadata": {"name": claim, "namespace": "default"},
            "spec": {"volumeName": name}, "status": {"phase": "Bound"},
        },
    )


def claiming(name):
    return {
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": name}},
            {"name": "disk", "gcePersistentDisk": {"pdName": "one"}},
        ],
    }


WEB = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "zone"}
SPREAD = {**WEB, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [WEB]}}
NEAR = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [WEB]}}


def metric(name, cpu, updated="1970-01-01T00:00:00Z"):
    usage = {"nodeUsage": {"resources": {"cpu": cpu, "memory": "8Gi"}}}
    return {"kind": "NodeMetric", "metadata": {"name": name}, "status": {"updateTime": updated, "nodeMetric": usage}}


CLUSTER = (
    node("cordoned", unschedulable=True), node("small", cpu="1"), node("taken", gpus="1"),
    node("other", gpus="1", labels=MODEL),
    node("tainted", taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}]),
    node("soiled", taints=[{"key": "c", "effect": "NoExecute"}]),
    node("east", labels={"zone": "east", "topology.kubernetes.io/zone": "east"}), node("west", labels={"zone": "west"}),
    node("carded", labels={"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"}),
    {
        "kind": "Device", "metadata": {"name": "carded"},
        "spec": {"devices": [{"type": "fpga", "minor": 0, "health": True}]},
    },
    pod("web", labels={"app": "web"}, port=80, nodeName="east", affinity=APART, **claiming("far")),
    *volume("near", "west", "near"), *volume("far", "east", "far"),
    {
        "kind": "CSINode", "metadata": {"name": "east"},
        "spec": {"drivers": [{"name": "disks", "allocatable": {"count": 1}}]},
    },
    pod("here", {"alibabacloud.com/gpu-count": "1"}, nodeName="taken"),
    {"kind": "Reservation", "metadata": {"name": "kept", "uid": "kept"},
     "spec": {
         "owners": [{}], "allocatePolicy": "Restricted", "allocateOnce": False,
         "template": {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}},
     },
     "status": {"phase": "Available", "nodeName": "west", "allocatable": {"cpu": "1"}}},
    metric("small", "1"), metric("taken", "0"), metric("other", "4"), metric("tainted", "4", ""),
)
PODS = (
    pod(), pod(nodeName="small"), pod(nodeSelector={"zone": "z"}), pod(annotations={"alibabacloud.com/gpu-count": "1"}),
    pod(annotations={"alibabacloud.com/gpu-count": "1", "alibabacloud.com/gpu-card-model": "A100"}),
    pod(labels={"app": "web"}, port=80, topologySpreadConstraints=[SPREAD], affinity=APART, **claiming("near")),
    pod(affinity=NEAR), pod(annotations={"scheduling.koordinator.sh/reservation-affinity": "{}"}, cpu="2"),
)


@pytest.mark.parametrize(
    "plugin", [plugin for plugin in PLUGINS if Point.FILTER in plugin.points], ids=lambda plugin: plugin.name,
)
def test_codes_and_reasons_of_many_nodes_are_those_of_each_of_them(plugin):
    framework = FakeFramework(*CLUSTER)
    snapshot = framework.snapshot()
    instance = plugin.make(plugin.check_args({}), framework.handle())
    refusing = False
    for each in PODS:
        state, item, shown = CycleState(), PodInfo.of(each), snapshot
        if isinstance(instance, BeforePreFilter) and isinstance(
            changed := instance.before_pre_filter(state, item, snapshot), Changed,
        ):
            shown = changed.snapshot or snapshot
        answer = instance.filter(state, item, shown, framework.rows)
        refused = np.flatnonzero(~answer.passed)
        if not len(refused):
            continue
        refusing = True
        found = {code: rows.tolist() for code, rows in answer.codes(refused).items() if len(rows)}
        told = {row: answer.explain(row) for row in refused.tolist()}
        assert found == {code: rows for code in Code if (rows := [row for row in told if told[row].code is code])}
        texts = {}
        for reason, rows in answer.reasons(refused).items():
            for row in rows.tolist():
                texts[row] = f"{texts[row]}, {reason}" if row in texts else reason
        assert texts == {row: refusal.message for row, refusal in told.items()}
    assert refusing
