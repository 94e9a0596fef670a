"""Whole decisions per second: kube-scheduler's default plugins, LoadAwareScheduling, ten policies, the queue.

All nodes are filtered and scored for every pod. Pods come in 50 shapes, as deployments make them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.configuration import read
from koordpolicy.engine.source import Problems, Source

from .bench_columns import cluster_of
from .bench_schedule import documents
from .figure import Figure

_CONFIGURATION: Final = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    multiPoint: {enabled: [{name: LoadAwareScheduling}]}
"""
_GANGS: Final = _CONFIGURATION.replace("LoadAwareScheduling}", "LoadAwareScheduling}, {name: Coscheduling}")
_SHAPES: Final = 50
_WARM_UP: Final = 1_000


def main() -> Iterator[Figure]:
    """Yield pods per second at 5,000 and 100,000 nodes, for plain pods and for pods that look at each other."""
    plain = measure(5_000, 10_000, "")
    yield Figure("5,000 nodes, plain pods", plain, "pods/s", 2_000, more_is_better=True)
    for kind in ("anti-affinity", "spreading"):
        yield Figure(f"5,000 nodes, {kind}", measure(5_000, 3_000, kind), "pods/s", 500, more_is_better=True)
    yield Figure("5,000 nodes, gang of 1,000", gang(5_000, 1_000), "s", 2.0)
    large = measure(100_000, 3_000, "")
    yield Figure("100,000 nodes, plain pods", large, "pods/s")
    yield Figure("of that at 5,000 nodes", large / plain, "", 1 / 3, more_is_better=True)


def measure(nodes: int, pods: int, kind: str) -> float:
    """Return how many pods per second are decided about, after a warm-up of a thousand."""
    cluster, start = cluster_of(nodes)
    loop = loop_over(cluster, start)
    random = Random(1)
    shapes = [shape_of(number, random, kind) for number in range(_SHAPES)]
    for number in range(_WARM_UP):
        cluster.upsert(pod_of(number, shapes[number % _SHAPES]))
    for verdict in loop.schedule_all():
        assert verdict.node is not None, verdict.summary()
    for number in range(_WARM_UP, _WARM_UP + pods):
        cluster.upsert(pod_of(number, shapes[random.randrange(_SHAPES)]))
    gc.collect()
    gc.freeze()  # as servers do once the cluster is in memory
    started = time.perf_counter()
    placed = sum(verdict.node is not None for verdict in loop.schedule_all())
    seconds = time.perf_counter() - started
    gc.unfreeze()
    assert placed == pods, f"{placed} of {pods} pods were placed"
    return pods / seconds


def gang(nodes: int, size: int) -> float:
    """Return how many seconds it takes until all pods of a gang are bound, none before the last one has its node."""
    cluster, start = cluster_of(nodes)
    loop = loop_over(cluster, start, _GANGS)
    cluster.upsert({"kind": "PodGroup", "metadata": {"name": "gang", "namespace": "shop"}, "spec": {"minMember": size}})
    shape = shape_of(0, Random(1), "")
    shape = {**shape, "labels": {"pod-group.scheduling.sigs.k8s.io": "gang"}}
    for number in range(size):
        cluster.upsert(pod_of(number, shape))
    gc.collect()
    gc.freeze()
    started = time.perf_counter()
    verdicts = list(loop.schedule_all())
    seconds = time.perf_counter() - started
    assert [verdict.waiting for verdict in verdicts] == [True] * (size - 1) + [False], verdicts[-1].summary()
    assert not loop.scheduler.waiting.keys()
    return seconds


def loop_over(cluster: Cluster, start: int, configuration: str = _CONFIGURATION) -> SchedulingLoop:
    """Return a scheduling loop over a cluster with all of the plugins; each look at its clock is 0.1 ms later."""
    problems = Problems()
    compiled = compile_documents(load([Source("ten.yaml", documents())]).documents, problems)
    problems.raise_errors()
    registry = Registry.of([*PLUGINS, *compiled], generation=1)
    moment = [start]

    def clock() -> int:
        moment[0] += 100_000
        return moment[0]

    profiles = read(Source("scheduler.yaml", configuration), registry).profiles
    return SchedulingLoop(cluster, Live(registry), Settings(profiles), clock=clock)


def shape_of(number: int, random: Random, kind: str) -> Mapping[str, Any]:
    """Return the common fields of the pods of one deployment; `kind` is empty, `anti-affinity` or `spreading`."""
    requests = {"cpu": f"{random.randrange(50, 400)}m", "memory": f"{random.randrange(64, 1024)}Mi"}
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"requests": requests}}]}
    if number % 2:
        spec["nodeSelector"] = {"pool": "general"}
    if number % 3 == 0:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    selector = {"matchLabels": {"app": f"app-{number}"}}
    if kind == "anti-affinity":
        term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    elif kind == "spreading":
        spec["topologySpreadConstraints"] = [{
            "maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": selector,
        }]
    return {"labels": {"app": f"app-{number}"}, "spec": spec}


def pod_of(number: int, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod of a shape."""
    metadata = {"name": f"pod-{number}", "namespace": "shop", "labels": shape["labels"], "uid": str(number)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": shape["spec"]}
