"""Cost of each of Kubernetes' default plugins per decision: 5,000 nodes, all of them evaluated, pods of 50 shapes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from random import Random
from statistics import median
from typing import Any

import numpy as np

from koordpolicy.builtin_plugins.scheduler import DEFAULT_PLUGINS, PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Point
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles.profile import EVERYTHING, PluginChoice, ProfileSpec
from koordpolicy.plugin import SKIP, CycleState, Handle

from .figure import Figure

_SHAPES, _WARM_UP, _PODS = 50, 400, 1000
_HOSTNAME, _ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
# 2,000 pods/s, and 500 pods/s with constraints about other pods.
_BOUNDS = {"plain": 500.0, "spread": 2000.0, "apart": 2000.0}


def main() -> Iterator[Figure]:
    """Yield microseconds per pod, for pods without and with constraints about other pods.

    First of whole cycles with the default set, then of each plugin alone: the framework caches the results of some of
    them between decisions, from which a plugin that is called alone does not profit. Figures are of the fastest
    twentieth (a neighbour's programs can only add to a time), unless they say otherwise.
    """
    for kind, bound in _BOUNDS.items():
        cycles = _measure_cycles(kind)
        yield Figure(f"{kind}: whole cycles", _fast(cycles) * 1e6, "us/pod", bound)
        yield Figure(f"{kind}: whole cycles, median", median(cycles) * 1e6, "us/pod")
        for name, times in _measure(kind).items():
            yield Figure(f"{kind}: {name} alone", _fast(times) * 1e6, "us/pod")


def _fast(times: list[float]) -> float:
    return sorted(times)[len(times) // 20]


def _measure_cycles(kind: str) -> list[float]:
    enabled = tuple(PluginChoice(name, weight, points=frozenset((point,)))
                    for point, plugins in DEFAULT_PLUGINS.items() for name, weight in plugins)
    profile = ProfileSpec(enabled=enabled, disabled={None: frozenset({EVERYTHING})})
    scheduler = Scheduler(_cluster(), Live(Registry.of(PLUGINS, generation=1)), Settings((profile,)))
    random = Random(1)
    taken = []
    for number in range(_WARM_UP + _PODS):
        pod = _pod(number, random.randrange(_SHAPES), kind)
        started = time.perf_counter()
        verdict = scheduler.schedule(pod)
        taken.append(time.perf_counter() - started)
        assert verdict.node is not None, verdict.summary()
        assert verdict.errors() == ()
    return taken[_WARM_UP:]


def _cluster() -> Cluster:
    return Cluster([*(_node(number) for number in range(5_000)), *(_service(number) for number in range(_SHAPES))])


def _measure(kind: str) -> dict[str, list[float]]:
    cluster = _cluster()
    table = {plugin.name: plugin for plugin in PLUGINS}
    names = [name for name, _ in DEFAULT_PLUGINS[Point.FILTER]]
    names += [name for name, _ in DEFAULT_PLUGINS[Point.SCORE] if name not in names]
    weights = dict(DEFAULT_PLUGINS[Point.SCORE])
    plugins = {name: table[name].make(
        table[name].check_args({}) if table[name].check_args else {},  # type: ignore[misc]
        Handle("bench", cluster.snapshot, lambda: 0, logging.getLogger("bench")),
    ) for name in names}
    random = Random(1)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(_WARM_UP + _PODS):
        pod = _pod(number, random.randrange(_SHAPES), kind)
        spent = dict.fromkeys(names, 0.0)
        node = _decide(plugins, weights, pod, cluster, spent)
        cluster.assume(pod, node)
        if number >= _WARM_UP:
            for name, seconds in spent.items():
                taken[name].append(seconds)
    return taken


def _decide(
    plugins: dict[str, Any], weights: dict[str, int], pod: PodInfo, cluster: Cluster, spent: dict[str, float],
) -> str:
    snapshot, state = cluster.snapshot(), CycleState()
    rows = np.arange(snapshot.size)
    totals = np.zeros(snapshot.size, np.int64)
    for name, plugin in plugins.items():
        started = time.perf_counter()
        if hasattr(plugin, "filter") and (
            not hasattr(plugin, "pre_filter") or plugin.pre_filter(state, pod, snapshot) is not SKIP
        ):
            passed = plugin.filter(state, pod, snapshot, rows).spread(rows, snapshot.size).passed
            if not passed.all():
                rows = rows[passed[rows]]
        spent[name] += time.perf_counter() - started
    assert len(rows)
    for name, weight in weights.items():
        plugin = plugins[name]
        started = time.perf_counter()
        if not hasattr(plugin, "pre_score") or plugin.pre_score(state, pod, snapshot, rows) is not SKIP:
            totals += plugin.score(state, pod, snapshot, rows).spread(rows, snapshot.size).values * weight
        spent[name] += time.perf_counter() - started
    return snapshot.names[int(rows[totals[rows].argmax()])]


def _node(number: int) -> dict[str, Any]:
    name = f"node-{number:05}"
    images = [{"names": [f"registry/app-{(number + each) % _SHAPES}:1"], "sizeBytes": 400_000_000} for each in range(5)]
    taints = [{"key": "dedicated", "value": "batch", "effect": "NoSchedule"}] if number % 20 == 0 else []
    taints += [{"key": "spot", "effect": "PreferNoSchedule"}] if number % 7 == 0 else []
    return {
        "kind": "Node", "metadata": {"name": name, "labels": {_HOSTNAME: name, _ZONE: f"zone-{number % 8}"}},
        "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"}, "images": images},
    }


def _service(number: int) -> dict[str, Any]:
    return {"kind": "Service", "metadata": {"name": f"app-{number}", "namespace": "shop"},
            "spec": {"selector": {"app": f"app-{number}"}}}


def _pod(number: int, shape: int, kind: str) -> PodInfo:
    labels = {"app": f"app-{shape}"}
    requests = {"cpu": f"{100 + 50 * (shape % 8)}m", "memory": f"{128 * (1 + shape % 5)}Mi"}
    selector = {"matchLabels": labels}
    spec: dict[str, Any] = {"containers": [
        {"name": "main", "image": f"registry/app-{shape}:1", "resources": {"requests": requests}},
    ]}
    if kind == "spread":
        spec["topologySpreadConstraints"] = [
            {"topologyKey": _ZONE, "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector},
            {"topologyKey": _HOSTNAME, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector},
        ]
    if kind == "apart":
        term = {"topologyKey": _HOSTNAME, "labelSelector": selector}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    if shape % 3 == 0:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    return PodInfo.of({"kind": "Pod", "metadata": {"name": f"pod-{number}", "namespace": "shop", "labels": labels},
                       "spec": spec})
