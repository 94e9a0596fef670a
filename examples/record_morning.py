"""Records an hour and a half of the example cluster, in virtual time: pods come and go, a node is drained, policies
change.

    python examples/record_morning.py DIR

The same hour each time. `make console` shows it in the view Time.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from koordpolicy import __version__
from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli.cluster_loading import cluster_of, moment_of
from koordpolicy.engine.cli.composition import live_of
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.flight_recorder.fields import Fields
from koordpolicy.engine.flight_recorder.recorder import FlightRecorder, RecorderSettings
from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec

HERE = Path(__file__).parent
CLUSTER = str(HERE / "cluster")
EXAMPLE = HERE / "16-flight-recorder"
SHIPPED = HERE.parent / "policies" / "scheduler"
SECOND = 1_000_000_000
MINUTES = 90
DRAINED = "general-05"
DRAINED_AT, RELOADED_AT = 35, 55
"""Minutes after the start."""
SHAPES = (("shop", "cart", "500m", "1Gi"), ("shop", "search", "2", "4Gi"), ("media", "encode", "4", "8Gi"))


def main() -> int:
    """Record into the directory that the command line names."""
    if len(sys.argv) != 2:
        print(f"usage: python {sys.argv[0]} DIR", file=sys.stderr)
        return 2
    cluster = cluster_of(CLUSTER)
    now = moment_of(None, CLUSTER, cluster)
    live = live_of([SHIPPED], builtins)
    named = sorted({name for plugin in live.registry.plugins.values() for name in plugin.profiles or ()})
    settings = Settings((ProfileSpec("default-scheduler"), *map(ProfileSpec, named)), initial_backoff=20 * SECOND,
                        longest_backoff=600 * SECOND)
    # All fields are recorded: any policy can be tried.
    recorder = FlightRecorder(Path(sys.argv[1]), RecorderSettings(__version__, settings, Fields.parse(["all"])), live,
                              clock=lambda: now)
    loop = SchedulingLoop(cluster, live, settings, clock=lambda: now, cycle_observers=[recorder])
    recorder.start(cluster)
    chance = random.Random(7)
    names = numbers()
    ends: list[tuple[int, str]] = []
    for minute in range(MINUTES):
        if minute == DRAINED_AT:
            drain(cluster, now)
        if minute == RELOADED_AT:
            live.activate(live_of([SHIPPED, EXAMPLE / "fullest.yaml"], builtins).registry)
        for key in [key for at, key in ends if at == minute]:
            cluster.delete("Pod", key)
        for _ in range(chance.choice((0, 1, 2, 4)) + (6 if 20 <= minute < 30 else 0)):
            pod = made_pod(next(names), chance.choice(SHAPES), now)
            cluster.upsert(pod)
            ends.append((minute + chance.randint(8, 60), f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"))
        measure(cluster, chance, now)
        until = now + 60 * SECOND
        while True:
            for _ in loop.schedule_all():
                pass
            due = loop.next_time()
            if due is None or due >= until:
                break
            now = max(now, due)
        now = until
    recorder.close()
    loop.close()
    return 0


def numbers() -> Iterator[int]:
    """Yield 1000, 1001 and so on: numbers that no pod of the example has."""
    number = 1000
    while True:
        yield number
        number += 1


def made_pod(number: int, shape: tuple[str, str, str, str], now: int) -> dict[str, Any]:
    """Return a pod that a controller has made now."""
    namespace, name, cpu, memory = shape
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"{name}-{number}", "namespace": namespace, "uid": f"00000000-0000-4000-8000-{number:012}",
                     "creationTimestamp": rfc3339(now), "labels": {"app": name, "koordinator.sh/qosClass": "LS"},
                     "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name,
                                          "uid": f"of-{name}", "controller": True}]},
        "spec": {"schedulerName": "koord-scheduler", "priority": 9000,
                 "containers": [{"name": "main", "image": name,
                                 "resources": {"requests": {"cpu": cpu, "memory": memory},
                                               "limits": {"cpu": cpu, "memory": memory}}}]},
        "status": {"phase": "Pending"},
    }


def drain(cluster: Cluster, now: int) -> None:
    """Cordon a node and evict its pods, as `kubectl drain` does."""
    node = cluster.object("Node", DRAINED)
    assert node is not None
    cluster.upsert({**node, "spec": {**node["spec"], "unschedulable": True}})
    for pod in list(cluster.rows[cluster.index[DRAINED]].pods.values()):
        item: Mapping[str, Any] = pod.object
        reason = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                  "message": "Eviction API: evicting"}
        cluster.upsert({**item, "metadata": {**item["metadata"], "deletionTimestamp": rfc3339(now)},
                        "spec": {**item["spec"], "nodeName": DRAINED},
                        "status": {**(item.get("status") or {}), "conditions": [reason]}})
        cluster.delete("Pod", pod.key)


def measure(cluster: Cluster, chance: random.Random, now: int) -> None:
    """Let usage follow what is requested."""
    for row in cluster.rows:
        metric = cluster.object("NodeMetric", row.name)
        if metric is None:
            continue
        share = chance.uniform(0.5, 0.95)
        usage = {"cpu": f"{int(row.requested['cpu'] * share)}m", "memory": str(int(row.requested["memory"] * share))}
        status = {**metric["status"], "updateTime": rfc3339(now), "nodeMetric": {"nodeUsage": {"resources": usage}}}
        cluster.upsert({**metric, "status": status})


if __name__ == "__main__":
    sys.exit(main())
