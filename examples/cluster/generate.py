"""Write cluster.yaml: a small, realistic cluster as `kubectl get nodes,pods,nodemetrics -A -o yaml` would dump it.

Three zones and four pools of nodes; a few hot nodes, one cordoned, one whose agent died; GPUs behind a taint;
best-effort pods on batch resources; and pending pods, two of which cannot run anywhere. Run it again after editing:

    python examples/cluster/generate.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path

ZONES = ("eu-1a", "eu-1b", "eu-1c")
NOW = "2026-11-02T09:00:00Z"
POOLS = {  # name: (nodes, cores, GiB, GPUs, model)
    "general": (18, 16, 64, 0, ""),
    "memory": (4, 16, 256, 0, ""),
    "gpu": (6, 32, 128, 4, "NVIDIA-A10"),
    "batch": (4, 32, 64, 0, ""),
}
HOT = {"general-03": 88, "general-07": 81, "general-12": 74, "memory-02": 71}
IMAGES = {"web": 220, "api": 310, "cache": 120, "ledger": 410, "inference": 5200, "training": 7400, "etl": 640}
GIB = 1024**3


def node(pool: str, number: int) -> dict:
    _count, cores, memory, gpus, model = POOLS[pool]
    name = f"{pool}-{number:02d}"
    zone = ZONES[number % len(ZONES)]
    labels = {
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "node.koordinator.sh/pool": pool,
        "topology.kubernetes.io/region": "eu-1", "topology.kubernetes.io/zone": zone,
    }
    allocatable = {"cpu": f"{cores * 1000 - 200}m", "memory": f"{memory - 2}Gi", "pods": "110",
                   "ephemeral-storage": "200Gi"}
    spec: dict = {"podCIDR": f"10.{sorted(POOLS).index(pool)}.{number}.0/24"}
    if gpus:
        labels["node.koordinator.sh/gpu-model"] = model
        allocatable["nvidia.com/gpu"] = str(gpus)
        allocatable["koordinator.sh/gpu-core"] = allocatable["koordinator.sh/gpu-memory-ratio"] = str(gpus * 100)
        spec["taints"] = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    if pool == "batch":
        allocatable["kubernetes.io/batch-cpu"] = "24000"
        allocatable["kubernetes.io/batch-memory"] = "40Gi"
        spec["taints"] = [{"key": "workload", "value": "batch", "effect": "PreferNoSchedule"}]
    if name == "general-15":
        spec["unschedulable"] = True
        spec["taints"] = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    here = [app for index, app in enumerate(IMAGES) if (number + index) % 3 == 0 or (app == "inference" and gpus)]
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "uid": f"node-{name}", "labels": labels,
                     "creationTimestamp": "2026-06-01T08:00:00Z"},
        "spec": spec,
        "status": {
            "capacity": {**allocatable, "cpu": str(cores), "memory": f"{memory}Gi"}, "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "images": [{"names": [f"registry.example.com/{app}:v1"], "sizeBytes": IMAGES[app] * 1024**2}
                       for app in here],
        },
    }


def pod(name: str, *, cpu: str, memory: str, node_name: str = "", band: str = "koord-prod", qos: str = "LS",
        namespace: str = "shop", minute: int = 0, batch: bool = False, **more: object) -> dict:
    app = name.rsplit("-", 1)[0]
    requests = ({"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": memory} if batch
                else {"cpu": cpu, "memory": memory})
    limits = dict(requests) if batch else {"memory": memory}
    requests |= more.pop("resources", {})  # type: ignore[operator]
    limits |= {key: value for key, value in requests.items() if "gpu" in key}
    priority = {"koord-prod": 9500, "koord-mid": 7500, "koord-batch": 5500, "koord-free": 3500}[band]
    spec: dict = {
        "priorityClassName": band, "priority": priority, "schedulerName": "koord-scheduler",
        "containers": [{"name": "main", "image": f"registry.example.com/{app}:v1",
                        "resources": {"requests": requests, "limits": limits}}],
        **more,
    }
    if node_name:
        spec["nodeName"] = node_name
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"pod-{namespace}-{name}",
                     "labels": {"app": app, "koordinator.sh/qosClass": qos},
                     "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{app}-5d4f",
                                          "uid": f"replicaset-{namespace}-{app}", "controller": True}],
                     "creationTimestamp": f"2026-11-02T08:{minute:02d}:00Z"},
        "spec": spec,
        "status": {"phase": "Running" if node_name else "Pending", "startTime": f"2026-11-02T08:{minute:02d}:05Z"}
        if node_name else {"phase": "Pending"},
    }


def metric(name: str, cores: int, memory: int, percent: int, pods: list[dict]) -> dict:
    milli, mebibytes = cores * 10 * percent, int(memory * percent / 130) * 1024
    usage = {"cpu": f"{milli}m", "memory": f"{mebibytes}Mi"}
    # Nine tenths of the usage is the pods', in equal parts; the rest is the system's.
    each = (milli * 9 // 10 // len(pods), mebibytes * 9 // 10 // len(pods)) if pods else (0, 0)
    system = {"cpu": f"{milli - each[0] * len(pods)}m", "memory": f"{mebibytes - each[1] * len(pods)}Mi"}
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
        "metadata": {"name": name, "creationTimestamp": "2026-06-01T08:00:00Z"},
        "spec": {"metricCollectPolicy": {"aggregateDurationSeconds": 300, "reportIntervalSeconds": 60}},
        "status": {
            "updateTime": NOW,
            "nodeMetric": {
                "nodeUsage": {"resources": usage},
                "systemUsage": {"resources": system},
                "aggregatedNodeUsages": [
                    {"duration": "5m", "usage": {
                        "p50": {"resources": usage},
                        **{name: {"resources": {
                            "cpu": f"{min(cores * 1000, milli * percent // 100)}m", "memory": usage["memory"],
                        }} for name, percent in (("p90", 110), ("p95", 115))},
                    }},
                    {"duration": "30m", "usage": {"p95": {"resources": {
                        "cpu": f"{min(cores * 1000, milli * 125 // 100)}m", "memory": usage["memory"],
                    }}}},
                ],
            },
            "podsMetric": [{
                "namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"],
                "podUsage": {"resources": {"cpu": f"{each[0]}m", "memory": f"{each[1]}Mi"}},
            } for pod in pods],
        },
    }


def shared_gpu(percent: str) -> dict[str, str]:
    return {"koordinator.sh/gpu-core": percent, "koordinator.sh/gpu-memory-ratio": percent}


def cluster() -> list[dict]:
    chance = random.Random(20261102)
    nodes = [node(pool, number) for pool, (count, *_rest) in POOLS.items() for number in range(1, count + 1)]
    names = [each["metadata"]["name"] for each in nodes]
    gpu_toleration = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    pods: list[dict] = []
    services = [("web", "500m", "1Gi", 16), ("api", "2", "4Gi", 16), ("cache", "1", "8Gi", 8),
                ("ledger", "4", "16Gi", 8)]
    general = [name for name in names if name.startswith(("general", "memory")) and name != "general-15"]
    spare = dict.fromkeys(general, 15)
    for app, cpu, memory, count in services:
        cores = 1 if cpu.endswith("m") else int(cpu)
        for number in range(1, count + 1):
            fits = [name for name in general if spare[name] >= cores]
            # Skewed on purpose: the hot nodes got more than their share.
            where = chance.choice([name for name in fits if name in HOT] * 2 + fits)
            spare[where] -= cores
            pods.append(pod(f"{app}-{number}", cpu=cpu, memory=memory, node_name=where, minute=chance.randrange(60)))
    pods += [pod(f"inference-{number}", cpu="4", memory="16Gi", node_name=f"gpu-{(number + 1) // 2:02d}",
                 namespace="ml", resources=shared_gpu("50"), tolerations=gpu_toleration, minute=number)
             for number in range(1, 7)]
    pods += [pod(f"etl-{number}", cpu="2000", memory="2Gi", node_name=f"batch-{1 + number % 4:02d}", batch=True,
                 band="koord-batch", qos="BE", namespace="data", minute=number) for number in range(1, 19)]

    pending = [pod(f"web-{number}", cpu="500m", memory="1Gi", minute=40) for number in range(101, 109)]
    pending += [pod(f"api-{number}", cpu="2", memory="4Gi", minute=41,
                    nodeSelector={"topology.kubernetes.io/zone": "eu-1b"}) for number in range(101, 105)]
    pending += [pod(f"cache-{number}", cpu="1", memory="48Gi", minute=42) for number in range(101, 104)]
    pending += [pod(f"inference-{number}", cpu="4", memory="16Gi", namespace="ml", minute=43,
                    tolerations=gpu_toleration, resources=shared_gpu("30")) for number in range(101, 105)]
    pending += [pod(f"training-{number}", cpu="8", memory="32Gi", namespace="ml", band="koord-mid", minute=44,
                    tolerations=gpu_toleration, resources={"nvidia.com/gpu": "2"}) for number in range(101, 104)]
    pending += [pod(f"etl-{number}", cpu="2000", memory="2Gi", batch=True, band="koord-batch", qos="BE",
                    namespace="data", minute=45) for number in range(101, 107)]
    pending += [pod("ledger-201", cpu="40", memory="64Gi", minute=46),
                pod("web-201", cpu="500m", memory="1Gi", minute=47, nodeSelector={"node.koordinator.sh/pool": "edge"})]

    metrics = []
    for each in nodes:
        name = each["metadata"]["name"]
        if name == "general-09":  # its agent died: nobody knows how busy it is
            continue
        _count, cores, memory, *_rest = POOLS[name.rsplit("-", 1)[0]]
        here = [p for p in pods if p["spec"].get("nodeName") == name]
        percent = HOT.get(name) or min(66, 8 + 6 * len(here) + chance.randrange(12))
        metrics.append(metric(name, cores, memory, percent, here))
        if name == "general-05":  # reported once, long ago
            metrics[-1]["status"]["updateTime"] = "2026-11-02T07:10:00Z"
    return [*nodes, *pods, *pending, *metrics]


def main() -> None:
    """Write cluster.yaml beside this script, one object a line below its key so that diffs stay readable."""
    lines = ["apiVersion: v1", "kind: List", "items:"]
    lines += [f"- {json.dumps(item)}" for item in cluster()]
    (Path(__file__).parent / "cluster.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
