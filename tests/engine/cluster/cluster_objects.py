"""Objects for clusters, and what expressions yield of them; for the tests of clusters and snapshots."""


from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.slots import Slot, environment

T0 = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
SECOND = 1_000_000_000
ENVIRONMENT = environment(Slot.FILTER)
PROGRAMS = {text: compile_program(text, ENVIRONMENT) for text in (
    "allocatable.cpu - requested.cpu >= requests.cpu",
    "usage.cpu * 100 / allocatable.cpu",
    "usage.p90.cpu < 2000 && nodeInfo.zone == 'z1'",
    "nodeInfo.measured ? estimated.memory : -1",
    "node.metadata.labels.pool == 'a' || nodeInfo.gpuFree > 500",
    "devices.exists(d, d.free >= 500) || metricAge > 60",
    "nodeInfo.pods + int(requests.cpu)",
    "string(requested.memory) + nodeInfo.gpuModel",
    "has(node.spec.taints) && node.spec.taints.exists(t, t.key == 'k')",
    "nodeMetric.status.updateTime",
    "allocatable['nvidia.com/gpu'] * 2 + requested['x/y']",
    "!nodeInfo.unschedulable && requests.cpu > 0",
    "nonZeroRequested.cpu",
    "nonZeroRequested.memory",
    "nonZeroRequested['ephemeral-storage']",
)}


def node(name, *, cpu="8", gpus=None, labels=None, **spec):
    allocatable = {"cpu": cpu, "memory": "32Gi", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "kind": "Node", "metadata": {"name": name, "labels": labels or {}}, "spec": spec,
        "status": {"allocatable": allocatable},
    }


def pod(name, *, cpu="500m", on=None, gpus=0, **metadata):
    requests = {"cpu": cpu, "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    spec = {"containers": [{"name": "main", "resources": {"requests": requests}}]} | ({"nodeName": on} if on else {})
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "shop", **metadata}, "spec": spec}


def metric(name, *, cpu="2", p90=None, at="2026-01-01T00:00:00Z"):
    content = {"nodeUsage": {"resources": {"cpu": cpu, "memory": "4Gi"}}}
    if p90:
        content["aggregatedNodeUsages"] = [{"duration": "5m", "usage": {"p90": {"resources": {"cpu": p90}}}}]
    return {"kind": "NodeMetric", "metadata": {"name": name}, "status": {"updateTime": at, "nodeMetric": content}}


def info(name, **options):
    return PodInfo.of(pod(name, **options))


def amounts(snapshot, resource="cpu"):
    return dict(zip(snapshot.names, snapshot.requested(resource).tolist(), strict=True))


def answers(snapshot, text, asking=None):
    asking = asking or info("asking")
    frame = snapshot.frame({"pod": asking.object, "requests": asking.requests, "limits": asking.limits})
    column = evaluate(PROGRAMS[text], frame)
    return [
        (column.errors[row].reason or column.errors[row].message) if row in column.errors else value
        for row, value in enumerate(column.values.tolist())
    ]
