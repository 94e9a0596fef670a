"""Memory of the scheduler without the objects themselves: derived facts, columns and cached results.

Ten policies, kube-scheduler's default plugins and LoadAwareScheduling have decided about a thousand pods of 50 shapes.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from random import Random
from typing import Any

from koordpolicy.engine.cluster.cluster import Cluster

from .bench_columns import objects_of
from .bench_throughput import loop_over, pod_of, shape_of
from .figure import Figure

_NODES, _PER_NODE, _DECISIONS = 5_000, 10, 1_000


def main() -> Iterator[Figure]:
    """Yield kilobytes per node and per pod."""
    random = Random(1)
    shapes = [shape_of(number, random, "") for number in range(50)]
    nodes, start = objects_of(_NODES)
    pods = [_placed(number, shapes[number % 50]) for number in range(_NODES * _PER_NODE)]
    waiting = [pod_of(len(pods) + number, shapes[number % 50]) for number in range(_DECISIONS)]
    bare = _kept(nodes, [], waiting, start)
    full = _kept(nodes, pods, waiting, start)
    yield Figure("beside its objects, per node", bare / _NODES / 1024, "KB", 20)
    yield Figure("beside its object, per pod", (full - bare) / len(pods) / 1024, "KB", 3)


def _kept(nodes: list[dict[str, Any]], pods: list[dict[str, Any]], waiting: list[dict[str, Any]], start: int) -> int:
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    cluster = Cluster([*nodes, *pods])
    loop = loop_over(cluster, start)
    for pod in waiting:
        cluster.upsert(pod)
    assert sum(verdict.node is not None for verdict in loop.schedule_all()) == len(waiting)
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    loop.close()
    return kept


def _placed(number: int, shape: Any) -> dict[str, Any]:
    pod = pod_of(number, shape)
    return {**pod, "spec": {**pod["spec"], "nodeName": f"node-{number // _PER_NODE:05}"}}
