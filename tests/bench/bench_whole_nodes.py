"""The extender with whole nodes in both directions (`nodeCacheCapable: false`): pods per second, two calls each.

From body to answer, without HTTP: what moving 20 MB both ways takes is the machine's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.extender.decision_record import Verb
from koordpolicy.engine.scheduler.extender.protocol import Extender
from koordpolicy.engine.source import Source

from .bench_columns import FILTERS, SCORES, objects_of
from .bench_extender import document
from .figure import Figure

NODES = 5_000
SIZES = (100, 1_000, 5_000)
PODS = 10


def main() -> Iterator[Figure]:
    """Yield pods per second by the number of nodes (4 KB each) of a call, and by how many differ from the cluster's."""
    documents = [document(f"filter-{number}", "filter", text) for number, text in enumerate(FILTERS)]
    documents += [document(f"score-{number}", "score", text) for number, text in enumerate(SCORES)]
    plugins = compile_documents(
        load([Source("bench.yaml", "---\n".join(json.dumps(each) + "\n" for each in documents))]),
    )
    objects, now = objects_of(NODES)
    names = [each["metadata"]["name"] for each in objects if each["kind"] == "Node"]
    others = [each for each in objects if each["kind"] != "Node"]
    cluster = Cluster([{"kind": "Node", "apiVersion": "v1", **_node(name)} for name in names] + others)
    scheduler = Scheduler(cluster, Live(Registry.of(plugins, generation=1)), clock=lambda: now)
    extender = Extender(scheduler, clock=lambda: now, timer=time.monotonic)
    for size in SIZES:
        for every, what in ((0, "as listed"), (10, "one in ten differs")):
            yield Figure(
                f"whole nodes, {size} per call, {what}", _pods_per_second(extender, names[:size], every), "pods/s",
            )


def _pods_per_second(extender: Extender, names: list[str], every: int) -> float:
    nodes = ",".join(
        json.dumps(_node(name, changed=bool(every) and number % every == 0)) for number, name in enumerate(names)
    )
    took = []
    for number in range(PODS):
        pod = json.dumps(
            {"metadata": {"name": f"p{number}", "uid": f"u{number}"}, "spec": {"containers": [{"name": "c"}]}},
        )
        body = f'{{"Pod":{pod},"Nodes":{{"metadata":{{}},"items":[{nodes}]}},"NodeNames":null}}'.encode()
        started = time.perf_counter()
        for verb in Verb:
            extender.answer(verb, body)
        took.append(time.perf_counter() - started)
        extender.review()
    return 1 / sorted(took)[len(took) // 2]


def _node(name: str, *, changed: bool = False) -> dict[str, Any]:
    """Return a node as kube-scheduler sends it."""
    conditions = [{"type": kind, "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z", "reason": "KubeletHas",
                   "message": "kubelet has sufficient of it"} for kind in ("Memory", "Disk", "PID", "Network", "Ready")]
    images = [
        {
            "names": [f"registry.example.com/app-{number}@sha256:{'0' * 40}", f"registry.example.com/app-{number}:v1"],
            "sizeBytes": 123_456_789,
        }
        for number in range(15)
    ]
    labels = {f"label-{number}.example.com/x": f"value-{number}" for number in range(20)} | {"pool": "general"}
    return {
        "metadata": {
            "name": name, "uid": f"u-{name}", "resourceVersion": "2" if changed else "1",
            "labels": labels | ({"new": "1"} if changed else {}),
        },
        "spec": {},
        "status": {
            "allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"}, "conditions": conditions, "images": images,
        },
    }


if __name__ == "__main__":
    for figure in main():
        print(f"{figure.name:<48} {figure.value:>10.3f} {figure.unit}")
