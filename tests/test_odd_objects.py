"""Odd objects among good ones: whatever a field of one holds, it costs nothing but that object.

One object of each kind is changed at one place, to any JSON. All of the frameworks decide then, and nothing raises.
Where the object is left out, decisions are those without it; where it is taken in, no plugin fails for another pod or
node.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.__main__ import builtins
from koordpolicy.builtin_plugins.scheduler import KOORDINATOR_PLUGINS, PLUGINS
from koordpolicy.engine.cli.composition import registry_of
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.sources.changes import apply, key_of
from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler.documents import SourceStreaks
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import build_profiles
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.explain.explanation import explain_decision, explain_pod
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec

ROOT = Path(__file__).parents[1]
NOW = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
T0 = "2025-12-31T23:59:30Z"
LABELS = {"app": "web", "zone": "z1"}
META = {
    "labels": LABELS, "annotations": {"note": "x"}, "creationTimestamp": T0, "uid": "u-odd", "resourceVersion": "7",
    "generation": 1,
    "ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u-rs", "controller": True},
    ],
    "finalizers": ["f"],
}
TERM = {
    "labelSelector": {
        "matchLabels": {"app": "web"}, "matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}],
    },
    "topologyKey": "zone", "namespaces": ["shop"], "namespaceSelector": {"matchLabels": {"a": "b"}},
    "matchLabelKeys": ["app"],
}
CONTAINER = {
    "name": "main", "image": "web:1",
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
    "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP", "hostIP": "0.0.0.0"}],
    "restartPolicy": "Always",
}
NODE_TERM = {
    "matchExpressions": [{"key": "zone", "operator": "In", "values": ["z1"]}],
    "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["x"]}],
}
SPEC = {
    "schedulerName": "koord-scheduler", "nodeSelector": {"zone": "z1"}, "priority": 9000,
    "priorityClassName": "koord-prod", "hostNetwork": True,
    "preemptionPolicy": "PreemptLowerPriority", "containers": [CONTAINER], "initContainers": [CONTAINER],
    "overhead": {"cpu": "10m"},
    "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule", "tolerationSeconds": 5}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [NODE_TERM]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": NODE_TERM}],
        },
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": TERM}]},
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {**TERM, "labelSelector": {"matchLabels": {"app": "none"}}},
            ],
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": TERM}],
        },
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 1,
            "labelSelector": {"matchLabels": {"app": "web"}}, "nodeAffinityPolicy": "Honor", "matchLabelKeys": ["app"],
        },
    ],
    "volumes": [
        {"name": "d", "persistentVolumeClaim": {"claimName": "pvc"}}, {"name": "e", "emptyDir": {"sizeLimit": "1Gi"}},
        {
            "name": "g",
            "ephemeral": {
                "volumeClaimTemplate": {"spec": {"storageClassName": "sc", "accessModes": ["ReadWriteOnce"]}},
            },
        },
    ],
    "schedulingGates": [],
}
STATUS = {
    "phase": "Running", "startTime": T0, "nominatedNodeName": "", "qosClass": "Burstable",
    "conditions": [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": T0}, {"type": "Ready", "status": "True"},
    ],
    "containerStatuses": [
        {
            "name": "main", "restartCount": 3, "ready": True, "resources": {"requests": {"cpu": "1"}},
            "allocatedResources": {"cpu": "1"}, "state": {"terminated": {"exitCode": 1, "reason": "x"}},
            "lastState": {"waiting": {"reason": "CrashLoopBackOff"}},
        },
    ],
    "resources": {"requests": {"cpu": "1"}},
}
AMOUNTS = {
    "cpu": "8", "memory": "32Gi", "pods": "30", "nvidia.com/gpu": "2", "koordinator.sh/gpu": "200",
    "kubernetes.io/batch-cpu": "4000",
}


def node(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            **META, "name": name, "labels": {**LABELS, "kubernetes.io/hostname": name},
            "annotations": {
                "node.koordinator.sh/raw-allocatable": json.dumps(AMOUNTS),
                "node.koordinator.sh/resource-amplification-ratio": '{"cpu": 1.5}',
                "node.koordinator.sh/reservation": '{"resources": {"cpu": "1"}}',
                "scheduling.koordinator.sh/usage-thresholds": '{"usageThresholds": {"cpu": 80}}',
            },
        },
        "spec": {
            "taints": [{"key": "soft", "value": "v", "effect": "PreferNoSchedule", "timeAdded": T0}],
            "unschedulable": False, "podCIDR": "10.0.0.0/24",
        },
        "status": {
            "allocatable": AMOUNTS, "capacity": AMOUNTS, "images": [{"names": ["web:1"], "sizeBytes": 500_000_000}],
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": T0, "lastTransitionTime": T0}],
            "volumesAttached": [{"name": "v", "devicePath": "/dev/x"}], "volumesInUse": ["v"],
        },
    }


def pod(name: str, on: str = "", *, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    spec = {**SPEC, **spec, **({"nodeName": on} if on else {})}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {**META, "name": name, "namespace": "shop", "uid": f"u-{name}"},
        "spec": spec, **({"status": STATUS if status is None else status} if on else {"status": {"phase": "Pending"}}),
    }


def simple(name: str, on: str = "", **metadata: Any) -> dict[str, Any]:
    spec = {
        "schedulerName": "koord-scheduler",
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
    }
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "shop", "uid": name, "creationTimestamp": T0, "labels": {"app": "web"},
            **metadata,
        },
        "spec": {**spec, **({"nodeName": on} if on else {})}, "status": {"phase": "Running" if on else "Pending"},
    }


def metric(name: str) -> dict[str, Any]:
    usage = {"cpu": "1", "memory": "4Gi"}
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {**META, "name": name},
        "spec": {
            "metricCollectPolicy": {
                "reportIntervalSeconds": 60, "aggregateDurationSeconds": 300,
                "nodeAggregatePolicy": {"durations": ["5m"]},
            },
        },
        "status": {
            "updateTime": T0,
            "nodeMetric": {
                "nodeUsage": {"resources": usage}, "systemUsage": {"resources": usage},
                "aggregatedNodeUsages": [{"duration": "5m0s", "usage": {"p95": {"resources": usage}}}],
            },
            "podsMetric": [
                {"name": "running", "namespace": "shop", "priority": "koord-prod", "podUsage": {"resources": usage}},
            ],
            "prodReclaimableMetric": {"resource": {"resources": usage}},
        },
    }


def meta(name: str, namespace: str = "") -> dict[str, Any]:
    return {**META, "name": name, **({"namespace": namespace} if namespace else {})}


ODD: dict[str, dict[str, Any]] = {
    "node": node("odd"),
    "running pod": pod("odd", "odd"),
    "running pod on a good node": pod("odd", "good-1"),
    "pending pod": pod("odd"),
    "metric": metric("odd"),
    "metric of a good node": metric("good-1"),
    "device": {
        "kind": "Device", "metadata": meta("odd"),
        "spec": {
            "devices": [
                {
                    "type": "gpu", "minor": 0, "health": True, "id": "i", "moduleID": 0,
                    "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16Gi"},
                    "labels": {"a": "b"}, "topology": {"socketID": 0, "nodeID": 0, "pcieID": "0", "busID": "1"},
                    "vfGroups": [{"labels": {"a": "b"}, "vfs": [{"minor": 0, "busID": "1"}]}],
                },
            ],
        },
        "status": {
            "allocations": [
                {"type": "gpu", "entries": [{"name": "p", "namespace": "shop", "uuid": "u", "minors": [0]}]},
            ],
        },
    },
    "reservation": {
        "kind": "Reservation", "metadata": meta("odd"),
        "spec": {
            "template": {
                "metadata": {"labels": LABELS}, "spec": {"schedulerName": "koord-scheduler", "containers": [CONTAINER]},
            },
            "owners": [
                {
                    "object": {"name": "p", "namespace": "shop", "kind": "Pod"},
                    "controller": {"name": "rs", "namespace": "shop", "controller": True},
                    "labelSelector": {"matchLabels": {"x": "y"}},
                },
            ],
            "ttl": "1h", "expires": "2027-01-01T00:00:00Z", "allocateOnce": True, "allocatePolicy": "Aligned",
            "preAllocation": False, "unschedulable": False, "taints": [{"key": "a", "effect": "NoSchedule"}],
        },
        "status": {
            "phase": "Available", "nodeName": "good-1", "allocatable": {"cpu": "1"}, "allocated": {"cpu": "1"},
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "x", "lastTransitionTime": T0, "lastProbeTime": T0},
            ],
            "currentOwners": [{"name": "p", "namespace": "shop", "uid": "u"}],
        },
    },
    "pod group": {
        "kind": "PodGroup", "metadata": meta("odd", "shop"),
        "spec": {"minMember": 2, "scheduleTimeoutSeconds": 30, "minResources": {"cpu": "1"}},
        "status": {
            "phase": "Pending", "scheduled": 0, "running": 0, "succeeded": 0, "failed": 0, "scheduleStartTime": T0,
            "occupiedBy": "x",
        },
    },
    "quota": {
        "kind": "ElasticQuota", "metadata": meta("odd", "shop"),
        "spec": {"min": {"cpu": "10"}, "max": {"cpu": "20", "memory": "200Gi"}}, "status": {"used": {"cpu": "1"}},
    },
    "topology": {
        "kind": "NodeResourceTopology", "metadata": meta("odd"), "topologyPolicies": ["None"],
        "zones": [
            {
                "name": "node-0", "type": "Node", "parent": "", "costs": [{"name": "node-0", "value": 10}],
                "attributes": [{"name": "a", "value": "b"}],
                "resources": [{"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"}],
            },
        ],
    },
    "volume": {
        "kind": "PersistentVolume", "metadata": meta("odd"),
        "spec": {
            "capacity": {"storage": "1Gi"}, "storageClassName": "sc", "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d", "volumeHandle": "h"}, "claimRef": {"name": "pvc", "namespace": "shop", "uid": "u"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [NODE_TERM]}},
        },
        "status": {"phase": "Bound"},
    },
    "claim": {"kind": "PersistentVolumeClaim", "metadata": meta("pvc", "shop"), "spec": {
        "volumeName": "odd", "storageClassName": "sc", "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": "1Gi"}},
        "selector": {"matchLabels": {"a": "b"}}}, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}},
    "class": {
        "kind": "StorageClass", "metadata": meta("sc"), "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer",
        "parameters": {"a": "b"}, "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["z1"]}]}],
    },
    "CSI node": {
        "kind": "CSINode", "metadata": meta("odd"),
        "spec": {"drivers": [{"name": "d", "nodeID": "n", "topologyKeys": ["zone"], "allocatable": {"count": 3}}]},
    },
    "namespace": {
        "kind": "Namespace", "metadata": meta("shop"), "spec": {"finalizers": ["x"]}, "status": {"phase": "Active"},
    },
    "budget": {
        "kind": "PodDisruptionBudget", "metadata": meta("odd", "shop"),
        "spec": {
            "minAvailable": 1, "maxUnavailable": "50%",
            "selector": {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "app", "operator": "Exists"}]},
        },
        "status": {
            "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
            "disruptedPods": {"p": T0},
        },
    },
    "replica set": {
        "kind": "ReplicaSet", "metadata": meta("rs", "shop"),
        "spec": {"replicas": 3, "selector": {"matchLabels": LABELS}}, "status": {"replicas": 3},
    },
    "service": {
        "kind": "Service", "metadata": meta("odd", "shop"),
        "spec": {"selector": LABELS, "ports": [{"port": 80, "targetPort": "http"}]},
    },
    "stateful set": {
        "kind": "StatefulSet", "metadata": meta("odd", "shop"),
        "spec": {"replicas": 3, "selector": {"matchLabels": LABELS}},
    },
    "controller": {
        "kind": "ReplicationController", "metadata": meta("odd", "shop"), "spec": {"replicas": 3, "selector": LABELS},
    },
    "priority class": {
        "kind": "PriorityClass", "metadata": meta("odd"), "value": 1000, "globalDefault": False,
        "preemptionPolicy": "Never",
    },
    "migration job": {
        "kind": "PodMigrationJob", "metadata": meta("odd"),
        "spec": {
            "mode": "ReservationFirst", "ttl": "5m", "podRef": {"name": "running", "namespace": "shop"},
            "paused": False,
        },
        "status": {
            "phase": "Running", "nodeName": "good-1",
            "conditions": [{"type": "x", "status": "True", "lastTransitionTime": T0}],
        },
    },
    "SLO": {
        "kind": "NodeSLO", "metadata": meta("odd"),
        "spec": {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 65}},
    },
    "unknown kind": {"kind": "Widget", "metadata": meta("odd"), "spec": {}},
}
ANNOTATIONS = {
    "pending pod": {
        "scheduling.koordinator.sh/resource-spec": '{"preferredCPUBindPolicy": "FullPCPUs"}',
        "scheduling.koordinator.sh/device-allocated": '{"gpu": [{"minor": 0}]}',
        "scheduling.koordinator.sh/reservation-affinity": '{"requiredDuringSchedulingIgnoredDuringExecution": '
                                                          '{"reservationSelectorTerms": []}}',
        "scheduling.koordinator.sh/scheduling-hint": '{"nodeNames": ["good-1"]}',
        "gang.scheduling.koordinator.sh/min-available": "2",
        "gang.scheduling.koordinator.sh/waiting-time": "30s", "gang.scheduling.koordinator.sh/groups": '["shop/odd"]'},
}
for kind, notes in ANNOTATIONS.items():
    ODD[kind]["metadata"] = {**ODD[kind]["metadata"], "annotations": notes}

GOOD = [
    node("good-1"), node("good-2"), metric("good-2"), simple("running", "good-1"), simple("failed", "good-2"),
    *(simple(f"waiting-{number}") for number in range(3)),
]
KNOWN = {plugin.name for plugin in PLUGINS}
PROFILE = ProfileSpec(name="koord-scheduler", enabled=tuple(
    PluginChoice(name, weight, points=frozenset((point,)))
    for point, plugins in KOORDINATOR_PLUGINS.items() for name, weight in plugins if name in KNOWN
))
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3),
    st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, 1e308, float("nan")]),
    st.sampled_from(
        [
            "", "x", "1e999999999", "9223372036854775807", "-1", "1Ei", "8E", "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z", "1600-01-01T00:00:00+14:00", "2300-01-01T00:00:00Z", "-1h", "9999999h", "a/b",
            "../x", "{}", "[1]", '{"cpu": -1}', "null", "\ud800", "\x1b[31m", "Infinity", "9" * 40, "\u0661",
        ],
    ),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["", "cpu", "memory", "name", "key", "a/b"]), inner, max_size=2),
    ),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values below an object, the object's kind left out: another kind is another object."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in entries:
        if path or key != "kind":
            yield (*path, key)
            yield from places(each, (*path, key))


def changed(item: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    result: Any = copy.deepcopy(item)
    holder = result
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    return result


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yield a list to which each warning is added that is logged meanwhile."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger("koordpolicy")
    root.addHandler(handler)
    try:
        yield lines
    finally:
        root.removeHandler(handler)


@pytest.fixture(scope="module")
def registries():
    return [registry_of([ROOT / "policies" / folder], builtins) for folder in ("scheduler", "descheduler")]


def decide(objects: list[Any], registries) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the decision about each pod, the failures with their places, and the faults of objects."""
    cluster, faults = Cluster(), dict[Any, str]()
    changes = sorted(((key, each) for each in objects if (key := key_of(each)) is not None),
                     key=lambda change: change[0][0] != "Node")
    problems = [problem.message for problem in apply(cluster, changes, faults)]
    assert apply(cluster, [change for change in changes if change[0] in faults], faults) == []  # not reported again
    scheduling, descheduling = registries
    loop = SchedulingLoop(cluster, Live(scheduling), Settings((PROFILE,)), clock=lambda: NOW, explained=True)
    decided: dict[str, Any] = {}
    failures: list[str] = []
    for verdict in loop.schedule_all():
        decided[verdict.pod.key] = verdict.node, sorted(verdict.reasons().items())
        failures += [f"{verdict.pod.key}: {failure}" for failure in verdict.failures]
    waiting = cluster.pod("shop/waiting-0")
    assert waiting is not None
    explained = explain_pod(loop.scheduler.profile_of(waiting), waiting, cluster.snapshot(NOW))
    assert explain_decision(explained, trials=5).as_text()
    failures += map(str, loop.failures)
    loop.close()
    snapshot = cluster.snapshot(NOW)
    configuration = config.load(ROOT / "examples" / "10-descheduler" / "config.yaml")
    profiles = build_profiles(
        configuration.profiles, descheduling, dry_run=True, snapshot=lambda: snapshot, memory=SourceStreaks(),
    )
    result = run_cycle(profiles, snapshot, limits=configuration.limits)
    failures += [str(failure) for failure in result.failures if not failure.message.startswith("would stay")] + (
        [result.error] if result.error else []
    )
    decided["evictions"] = [(each.pod, each.node) for each in result.evicted]
    return decided, failures, problems


CASES = st.sampled_from(sorted(ODD)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(list(places(ODD[name]))), JSON))


@settings(max_examples=100, deadline=None)
@given(case=CASES)
def test_an_odd_object_costs_nothing_but_itself(case, registries):
    name, path, value = case
    odd = changed(ODD[name], path, value)
    with logged() as lines:
        decided, failures, problems = decide([*GOOD, odd], registries)
    assert lines == []
    if problems:
        assert decided == decide(GOOD, registries)[0]
    assert [each for each in failures if "odd" not in each] == []


AMOUNT = str(2**63 - 1)
HUGE = [
    [simple("odd-1", "good-1"), simple("odd-2", "good-1")],
    [node("odd"), metric("odd"), simple("odd-1", "odd"), simple("odd-2", "odd")],
    [
        {
            **node("odd"),
            "status": {**node("odd")["status"], "allocatable": {"cpu": f"{AMOUNT}m", "memory": AMOUNT, "pods": AMOUNT}},
        },
        simple("odd-1", "odd"), simple("odd-2", "odd"),
    ],
]


@pytest.mark.parametrize(
    "resource",
    ["cpu", "memory", "nvidia.com/gpu", "koordinator.sh/gpu", "kubernetes.io/batch-cpu", "ephemeral-storage"],
)
@pytest.mark.parametrize("objects", HUGE)
def test_amounts_beyond_64_bits_in_sum_fill_their_node_and_no_other_one(resource, objects, registries):
    amount = f"{AMOUNT}m" if resource == "cpu" else AMOUNT
    full = copy.deepcopy(objects)
    for each in full:
        if each["kind"] == "Pod":
            each["spec"]["containers"][0]["resources"]["requests"] = {
                resource: amount, "memory": "1Gi",
            } | {resource: amount}
        elif each["kind"] == "NodeMetric":
            each["status"]["nodeMetric"]["nodeUsage"]["resources"] = {"cpu": f"{AMOUNT}m", "memory": AMOUNT}
    with logged() as lines:
        decided, failures, problems = decide([*GOOD, *full], registries)
    assert (lines, failures, problems) == ([], [], [])
    placed = {decided[f"shop/waiting-{number}"][0] for number in range(3)}
    assert None not in placed
    if objects is HUGE[0] and resource in ("cpu", "memory"):
        assert placed == {"good-2"}


@pytest.mark.parametrize(
    "time", ["0001-01-01T00:00:00Z", "1600-01-01T00:00:00+14:00", "2300-01-01T00:00:00Z", "9999-12-31T23:59:59Z"],
)
def test_a_time_that_64_bits_do_not_hold_is_a_very_old_or_a_very_new_one(time, registries):
    old = {**metric("good-1"), "status": {**metric("good-1")["status"], "updateTime": time}}
    with logged() as lines:
        _, failures, problems = decide([*GOOD, old], registries)
    cluster = Cluster([*GOOD, old])
    snapshot = cluster.snapshot(NOW)
    usage = snapshot.usage("cpu")
    assert (lines, failures, problems) == ([], [], [])
    assert bool(usage.present is None or usage.present[snapshot.index["good-1"]]) == (time > "2026")
