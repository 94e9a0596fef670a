"""Cost of ten policies per pod. (`bench_cel` measures the cost of an expression per node.)"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.slots import Slot, environment

from .figure import Figure

SIZES = (100, 5_000, 100_000)
FILTERS = (
    "allocatable.cpu - requested.cpu >= requests.cpu && allocatable.memory - requested.memory >= requests.memory",
    "nodeInfo.pods < allocatable.pods",
    ("has(node.spec.taints) ? node.spec.taints.all(t, t.effect == 'PreferNoSchedule' || (has(pod.spec.tolerations) &&"
    " pod.spec.tolerations.exists(l, l.key == t.key && (!has(l.value) || l.value == t.value)))) : true"),
    "usage.cpu * 100 / allocatable.cpu < 80 && usage.memory * 100 / allocatable.memory < 90",
    ("!has(pod.spec.nodeSelector) || pod.spec.nodeSelector.all(k, k in node.metadata.labels &&"
    " node.metadata.labels[k] == pod.spec.nodeSelector[k])"),
    "!nodeInfo.unschedulable && nodeInfo.zone in ['z0', 'z1', 'z2'] && (metricAge < 120 || requests.cpu < 1000)",
)
SCORES = (
    ("((allocatable.cpu - requested.cpu - requests.cpu) * 100 / allocatable.cpu"
    " + (allocatable.memory - requested.memory - requests.memory) * 100 / allocatable.memory) / 2"),
    "100 - usage.cpu * 100 / allocatable.cpu",
    "nodeInfo.zone == 'z1' ? 100 : (has(node.metadata.labels.pool) && node.metadata.labels.pool == 'general' ? 50 : 0)",
    "100 - nodeInfo.pods * 100 / allocatable.pods",
)


def main() -> Iterator[Figure]:
    """Yield milliseconds per pod of ten policies, and what each of them takes of it."""
    yield from _ten_policies()


def _ten_policies(size: int = 5_000) -> Iterator[Figure]:
    cluster, now = cluster_of(size)
    filters = [compile_program(text, environment(Slot.FILTER)) for text in FILTERS]
    scores = [compile_program(text, environment(Slot.SCORE)) for text in SCORES]
    random = Random(1)
    pods = [_pod(number, random) for number in range(3_000)]
    number = [0]
    frame = cluster.snapshot(now).frame({})

    def decide() -> None:
        nonlocal now, frame
        number[0] += 1
        now += 5_000_000
        pod = pods[number[0] % len(pods)]
        frame = cluster.snapshot(now).frame({"pod": pod.object, "requests": pod.requests, "limits": pod.limits})
        passed = evaluate(filters[0], frame).values
        for program in filters[1:]:
            passed = passed & evaluate(program, frame).values
        total = sum(evaluate(program, frame).values for program in scores)
        total[~passed] = -1  # type: ignore[index]
        cluster.assume(pod, cluster.names[int(total.argmax())])  # type: ignore[union-attr]

    seconds = _seconds(decide)
    yield Figure(f"ten policies, {size} nodes", seconds * 1e3, "ms/pod", 1.0)
    for kind, programs in (("filter", filters), ("score", scores)):
        for position, program in enumerate(programs, 1):
            spent = [0.0]

            def one(program: Program = program, spent: list[float] = spent) -> None:
                decide()
                started = time.perf_counter()
                evaluate(program, cluster.snapshot(now).frame({
                    "pod": pods[number[0] % 3_000].object, "requests": pods[(number[0] + 1) % 3_000].requests,
                }))
                spent[0] += time.perf_counter() - started

            for _ in range(100):
                one()
            yield Figure(f"  {kind} {position}", spent[0] / 100 * 1e6, "us/pod")


def cluster_of(size: int) -> tuple[Cluster, int]:
    """Return a cluster with labels, taints, metrics and pods, and its time."""
    objects, now = objects_of(size)
    return Cluster(objects), now


def objects_of(size: int) -> tuple[list[dict[str, Any]], int]:
    """Return the objects of `cluster_of`."""
    random = Random(5)
    objects: list[dict[str, Any]] = []
    for number in range(size):
        name = f"node-{number:05}"
        objects.append({
            "kind": "Node",
            "metadata": {"name": name, "labels": {
                "topology.kubernetes.io/zone": f"z{number % 3}", "pool": random.choice(["general", "batch"]),
                "kubernetes.io/hostname": name,
            }},
            "spec": {"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]} if number % 9 == 0
            else {},
            "status": {"allocatable": {"cpu": random.choice(["32", "64", "96"]), "memory": "256Gi", "pods": "110"}},
        })
        objects.append({
            "kind": "NodeMetric", "metadata": {"name": name},
            "status": {"updateTime": "2026-01-01T00:00:00Z", "nodeMetric": {"nodeUsage": {"resources": {
                "cpu": f"{random.randrange(30_000)}m", "memory": f"{random.randrange(200)}Gi",
            }}}},
        })
    return objects, 1_767_225_600_000_000_000


def _pod(number: int, random: Random) -> PodInfo:
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"requests": {
        "cpu": f"{random.randrange(100, 4000)}m", "memory": f"{random.randrange(64, 8192)}Mi",
    }}}]}
    if number % 2:
        spec["nodeSelector"] = {"pool": "general"}
    if number % 3 == 0:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    return PodInfo.of({"kind": "Pod", "metadata": {"name": f"pod-{number}", "namespace": "shop"}, "spec": spec})


def _seconds(decide: Callable[[], None]) -> float:
    """Return the time of one call in steady state: the median of several rounds."""
    for _ in range(5):
        decide()
    rounds = []
    for _ in range(7):
        count, started = 0, time.perf_counter()
        while count < 3 or time.perf_counter() - started < 0.05:
            decide()
            count += 1
        rounds.append((time.perf_counter() - started) / count)
    return sorted(rounds)[len(rounds) // 2]
