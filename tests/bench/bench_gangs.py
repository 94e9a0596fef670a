"""Cost of gangs, reservations and quotas on 5,000 nodes: a gang of 1,000 pods, and pods that use none of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec

from .figure import Figure

_NODES, _PODS = 5_000, 1_000
_GANG = "pod-group.scheduling.sigs.k8s.io"


def main() -> Iterator[Figure]:
    """Yield the seconds that a gang takes, and milliseconds per pod beside 1,000 reservations or 100 quotas."""
    group = {"kind": "PodGroup", "metadata": {"name": "gang", "namespace": "shop"}, "spec": {"minMember": _PODS}}
    gang = [_pod(number, {_GANG: "gang"}) for number in range(_PODS)]
    yield Figure("gang of 1000 pods, 5000 nodes", _seconds([group], gang, "Coscheduling"), "s", 2.0)
    pods = [_pod(number, {"app": "other"}) for number in range(_PODS)]
    plain = _seconds([], pods) / _PODS * 1e3
    yield Figure("pods alone, 5000 nodes", plain, "ms/pod")
    reservations = [_reservation(number) for number in range(1_000)]
    beside = _seconds(reservations, pods, "Reservation") / _PODS * 1e3
    yield Figure("beside 1000 reservations of others", beside, "ms/pod")
    quotas = [_quota(number) for number in range(100)]
    counted = [_pod(number, {"quota.scheduling.koordinator.sh/name": f"q{number % 100}"}) for number in range(_PODS)]
    yield Figure("in one of 100 quotas", _seconds(quotas, counted, "ElasticQuota") / _PODS * 1e3, "ms/pod")


def _seconds(objects: list[Mapping[str, Any]], pods: list[Mapping[str, Any]], *plugins: str) -> float:
    """Return how long it takes to place the pods, which must all find a node."""
    profile = ProfileSpec(enabled=tuple(PluginChoice(name) for name in (*plugins, "DefaultPreBind")))
    moment = [0]

    def clock() -> int:
        moment[0] += 1_000
        return moment[0]

    cluster = Cluster([*map(_node, range(_NODES)), *objects])
    loop = SchedulingLoop(cluster, Live(Registry.of(PLUGINS, generation=1)), Settings((profile,)), clock=clock)
    for pod in pods:
        cluster.upsert(pod)
    started = time.perf_counter()
    verdicts = list(loop.schedule_all())
    taken = time.perf_counter() - started
    assert len(verdicts) == len(pods)
    assert all(verdict.node is not None for verdict in verdicts)
    return taken


def _node(number: int) -> Mapping[str, Any]:
    allocatable = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    return {"kind": "Node", "metadata": {"name": f"node-{number:05}"}, "status": {"allocatable": allocatable}}


def _containers(cpu: str, memory: str) -> list[Mapping[str, Any]]:
    return [{"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]


def _pod(number: int, labels: Mapping[str, str]) -> Mapping[str, Any]:
    metadata = {"name": f"pod-{number:04}", "namespace": "shop", "uid": f"pod-{number}", "labels": labels}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": _containers("1", "2Gi")}}


def _reservation(number: int) -> Mapping[str, Any]:
    return {
        "kind": "Reservation", "metadata": {"name": f"kept-{number}", "uid": f"kept-{number}"},
        "spec": {"ttl": "24h", "allocateOnce": False, "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
                 "template": {"spec": {"containers": _containers("4", "8Gi")}}},
        "status": {"phase": "Available", "nodeName": f"node-{number:05}", "allocatable": {"cpu": "4", "memory": "8Gi"}},
    }


def _quota(number: int) -> Mapping[str, Any]:
    return {"kind": "ElasticQuota", "metadata": {"name": f"q{number}", "namespace": "kube-system"},
            "spec": {"min": {"cpu": "5", "memory": "10Gi"}, "max": {"cpu": "100", "memory": "200Gi"}}}
