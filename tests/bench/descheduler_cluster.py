"""Clusters for the benchmark of the descheduler: 200 workloads on nodes of which some are full and some almost empty.

Each pod is decoded by itself, and its parts that others have too are made one, as the feed of a live cluster does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from koordpolicy.engine.client.projection import PartPool

SHAPES: Final = 200
NOW: Final = 1_767_268_800 * 10**9
"""2026-01-01T12:00:00Z."""
_HOSTNAME: Final = "kubernetes.io/hostname"
_ZONE: Final = "topology.kubernetes.io/zone"
_MIB: Final = 1024 * 1024

PLUGIN_ARGS: Final[dict[str, dict[str, Any]]] = {
    "PodLifeTime": {"maxPodLifeTimeSeconds": 30 * 86_400},
    "RemovePodsHavingTooManyRestarts": {"podRestartThreshold": 100, "includingInitContainers": True},
    "RemovePodsViolatingNodeTaints": {},
    "RemovePodsViolatingNodeAffinity": {"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]},
    "RemovePodsViolatingInterPodAntiAffinity": {},
    "RemoveDuplicates": {},
    "RemovePodsViolatingTopologySpreadConstraint": {"constraints": ["DoNotSchedule"]},
    "LowNodeUtilization": {"thresholds": {"cpu": 20, "memory": 20, "pods": 20},
                           "targetThresholds": {"cpu": 60, "memory": 60, "pods": 60}},
}
"""The arguments of the plugins that are measured, without those of the evictor."""
DESCHEDULE: Final = tuple(PLUGIN_ARGS)[:5]
BALANCE: Final = tuple(PLUGIN_ARGS)[5:]
EVICTOR_ARGS: Final[dict[str, Any]] = {"nodeFit": True, "minReplicas": 2, "priorityThreshold": {"value": 100_000}}


def nodes(count: int) -> Iterator[dict[str, Any]]:
    """Yield nodes in eight zones; one of twenty has a taint, one of a hundred is cordoned, one of ten has an SSD."""
    for number in range(count):
        name = node_name(number)
        spec: dict[str, Any] = {"podCIDR": f"10.{number // 256 % 256}.{number % 256}.0/24"}
        if number % 20 == 3:
            spec["taints"] = [{"key": "dedicated", "value": "batch", "effect": "NoSchedule"}]
        if number % 100 == 7:
            spec["unschedulable"] = True
        amounts = {"cpu": "32", "memory": "128Gi", "pods": "110"}
        yield {
            "kind": "Node", "apiVersion": "v1",
            "metadata": {"name": name, "labels": {
                _HOSTNAME: name, _ZONE: f"zone-{number % 8}", "disk": "ssd" if number % 10 == 4 else "hdd"}},
            "spec": spec,
            "status": {"allocatable": amounts, "capacity": amounts,
                       "conditions": [{"type": "Ready", "status": "True"}]},
        }


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"node-{number:05}"


def pods(nodes: int, count: int, seed: int = 1, *, is_orderly: bool = False) -> Iterator[dict[str, Any]]:
    """Yield running pods of `SHAPES` workloads; a tenth of the nodes stays almost empty.

    An orderly cluster has each workload spread evenly over its nodes. Else they are placed at random, twice as many
    on the first half of the nodes as on the others, and leave much to do: a node has several pods of a workload, zones
    differ, and most nodes are full. Of a thousand pods some ten are too old, restart too often, are on a node with a
    taint or without an SSD, or beside one that they avoid.
    """
    random = Random(seed)
    pool = PartPool()
    shapes = [json.dumps(_shape(number)) for number in range(SHAPES)]
    occupied = [number for number in range(nodes) if number % 10]
    weights = [2 if number < nodes / 2 else 1 for number in occupied]
    chosen = random.choices(occupied, weights, k=count)
    avoided: set[tuple[int, int]] = set()
    for number, drawn in enumerate(chosen):
        shape = random.randrange(SHAPES)
        if is_orderly:
            shape, turn = number % SHAPES, number // SHAPES
            drawn = occupied[(shape * 97 + turn * len(occupied) * SHAPES // count) % len(occupied)]  # noqa: PLW2901 - instead of the drawn one
        node = _place(shape, drawn, occupied, avoided, random)
        yield pool.share(_pod(number, shapes[shape], node, random))


def _place(shape: int, drawn: int, occupied: Sequence[int], avoided: set[tuple[int, int]], random: Random) -> int:
    """Return the node of a pod: nearly always one that suits it, instead of the one that was drawn."""
    node = drawn
    if shape % 20 == 4 and random.random() < 0.97:  # an SSD is required
        node -= node % 10 - 4
    if shape % 20 == 5:  # beside no other of its workload
        while (shape, node) in avoided and random.random() < 0.97:
            node = random.choice(occupied)
        avoided.add((shape, node))
    if node % 20 == 3 and shape % 4 != 0 and random.random() < 0.95:  # it does not tolerate the taint
        node += 1
    return node


def node_metrics(pods: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the NodeMetrics of the nodes of pods, each of which uses three quarters of its requests."""
    by_node: dict[str, list[dict[str, Any]]] = {}
    for pod in pods:
        requests = pod["spec"]["containers"][0]["resources"]["requests"]
        used = {"cpu": f"{int(requests['cpu'][:-1]) * 3 // 4}m", "memory": f"{int(requests['memory'][:-2]) * 3 // 4}Mi"}
        by_node.setdefault(pod["spec"]["nodeName"], []).append(
            {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"],
             "podUsage": {"resources": used}})
    for name, measured in by_node.items():
        usage = {"resources": {"cpu": "500m", "memory": "1Gi"}}
        yield {"kind": "NodeMetric", "metadata": {"name": name}, "status": {
            "updateTime": _time(0), "podsMetric": measured,
            "nodeMetric": {"nodeUsage": usage, "systemUsage": usage}}}


def _shape(number: int) -> dict[str, Any]:
    labels = {"app": f"app-{number:03}", "pod-template-hash": f"{number * 7919:09x}"}
    requests = {"cpu": f"{200 + 100 * (number % 5)}m", "memory": f"{768 * (1 + number % 4)}Mi"}
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "image": f"registry/app-{number}:1", "resources": {"requests": requests}}],
        "priority": 1000 * (number % 3) if number % 50 != 9 else 2_000_000_000, "schedulerName": "default-scheduler",
        "volumes": [{"name": "config", "configMap": {"name": "config"}}],
        "tolerations": [{"key": f"node.kubernetes.io/{each}", "operator": "Exists", "effect": "NoExecute",
                         "tolerationSeconds": 300} for each in ("not-ready", "unreachable")],
    }
    if number % 4 == 0:
        spec["tolerations"].append({"key": "dedicated", "operator": "Exists"})
    if number % 10 == 2:
        spec["volumes"].append({"name": "scratch", "emptyDir": {}})
    affinity: dict[str, Any] = {}
    if number % 20 == 4:
        terms = [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    if number % 20 == 5:
        term = {"topologyKey": _HOSTNAME, "labelSelector": {"matchLabels": {"app": labels["app"]}}}
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    if affinity:
        spec["affinity"] = affinity
    if number % 4 == 1:
        spec["topologySpreadConstraints"] = [
            {"topologyKey": _ZONE, "maxSkew": 20, "whenUnsatisfiable": "DoNotSchedule",
             "labelSelector": {"matchLabels": {"app": labels["app"]}}}]
    kind = "DaemonSet" if number % 50 == 11 else "ReplicaSet"
    return {
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"namespace": f"team-{number % 20}", "labels": labels, "annotations": {"team": "shop"},
                     "ownerReferences": [{"kind": kind, "name": f"app-{number:03}", "uid": f"uid-{number:03}",
                                          "apiVersion": "apps/v1", "controller": True}]},
        "spec": spec,
    }


def _pod(number: int, shape: str, node: int, random: Random) -> dict[str, Any]:
    item: dict[str, Any] = json.loads(shape)
    name = f"{item['metadata']['labels']['app']}-{number:07}"
    age = random.randrange(40 * 1440) if number % 50 == 0 else random.randrange(20 * 1440)
    at = _time(age)
    item["metadata"] |= {"name": name, "uid": f"{number:032x}", "creationTimestamp": at}
    item["spec"]["nodeName"] = node_name(node)
    # The API server adds a volume with a name of its own to each pod.
    item["spec"]["volumes"].append({"name": f"kube-api-access-{number:x}", "projected": {"defaultMode": 420}})
    restarts = random.randrange(200) if number % 100 == 0 else 0
    item["status"] = {
        "phase": "Running", "startTime": at, "qosClass": "Burstable",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at}],
        "containerStatuses": [{"name": "main", "ready": True, "restartCount": restarts,
                               "state": {"running": {"startedAt": at}}}],
    }
    return item


def _time(minutes: int) -> str:
    """Return the time so many minutes before `NOW` as the API server writes it."""
    return (datetime.fromtimestamp(NOW // 10**9, UTC) - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
