"""A cluster in which evicted pods come back: controllers replace them, a scheduler places them, and metrics follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cel.values.values import Timestamp
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.placements import SchedulerPlacements
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler.documents import SourceStreaks
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import build_profiles
from koordpolicy.engine.descheduler.proof.memory import UselessEvictionMemory
from koordpolicy.engine.descheduler.proof.prove import Proving
from koordpolicy.engine.descheduler.results import CycleResult
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.engine.source import Source

Json = dict[str, Any]

BEGIN = 1_767_355_200_000_000_000
"""2026-01-02T12:00:00Z, in nanoseconds since the epoch."""
INTERVAL = 120_000_000_000
"""Between two cycles."""


def registry_of(*texts: str) -> Registry:
    """Return the registry of documents and all built-in plugins."""
    documents = load([Source(f"{number}.yaml", text) for number, text in enumerate(texts) if text.strip()])
    return Registry.of([*builtins(), *compile_documents(documents)], generation=1)


@dataclass(slots=True)
class Workload:
    """A replica set whose pods use `usage` milli-cores each."""

    name: str
    usage: int
    requests: Mapping[str, str]
    spec: Mapping[str, Any]
    made: int = 0


@dataclass(slots=True)
class LoopCluster:
    """The state of the cluster between cycles: its nodes, and the pods with their workloads."""

    nodes: Sequence[Json]
    workloads: Mapping[str, Workload]
    pods: dict[str, tuple[str, Json]] = field(default_factory=dict)
    """The workload and the object of each pod, by key."""
    now: int = BEGIN

    @staticmethod
    def of(case: Mapping[str, Any]) -> LoopCluster:
        """Return the cluster of a case."""
        nodes = [_node(name, given or {}) for name, given in case["nodes"].items()]
        workloads = {
            each["name"]: Workload(each["name"], int(each["usage"]), {"cpu": str(each.get("requests", "100m"))},
                                   each.get("spec") or {})
            for each in case["pods"]
        }
        cluster = LoopCluster(nodes, workloads)
        for each in case["pods"]:
            for node in each["on"]:
                cluster.create(each["name"], node)
        return cluster

    def create(self, workload: str, node: str = "") -> str:
        """Create a pod of a workload, and return its key."""
        of = self.workloads[workload]
        of.made += 1
        name = f"{workload}-{of.made}"
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": workload, "uid": workload, "controller": True}
        spec: Json = {"containers": [{"name": "main", "resources": {"requests": dict(of.requests)}}], **of.spec}
        if node:
            spec["nodeName"] = node
        self.pods[f"shop/{name}"] = workload, {
            "apiVersion": "v1", "kind": "Pod", "spec": spec, "status": {"phase": "Running" if node else "Pending"},
            "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": workload},
                         "creationTimestamp": str(Timestamp(self.now)), "ownerReferences": [owner]},
        }
        return f"shop/{name}"

    def objects(self) -> Iterator[Json]:
        """Yield all objects, with the metrics of this moment."""
        yield from self.nodes
        for node in self.nodes:
            name = node["metadata"]["name"]
            used = {key: self.workloads[workload].usage for key, (workload, pod) in self.pods.items()
                    if pod["spec"].get("nodeName") == name}
            yield _metric(name, used, self.now)
        for _, pod in self.pods.values():
            yield pod

    def evict(self, keys: Sequence[str], cluster: Cluster, scheduler: Scheduler) -> None:
        """Remove pods, create their successors, and schedule all pending pods; the metrics are those from before."""
        for key in keys:
            workload, _ = self.pods.pop(key)
            cluster.delete("Pod", key)
            cluster.upsert(self.pods[self.create(workload)][1])
        for pod in cluster.pending:
            verdict = scheduler.schedule(pod)
            if verdict.node is not None:
                workload, item = self.pods[pod.key]
                self.pods[pod.key] = workload, {
                    **item, "spec": {**item["spec"], "nodeName": verdict.node}, "status": {"phase": "Running"},
                }


def run_cycles(case: Mapping[str, Any], cycles: int, *, proof: str) -> list[CycleResult]:
    """Run cycles of a case with this proof of every plugin, and return their results.

    The scheduler of the cluster has the documents of `scheduler`; the proof knows those of `known`, else the same.
    """
    state = LoopCluster.of(case)
    settings = _settings(case)
    registry, scheduling = registry_of(case.get("documents", "")), registry_of(case.get("scheduler", ""))
    known = scheduling if "known" not in case else registry_of(case["known"])
    given = config.read_plain(_configuration(case, registry, proof))
    streaks, memory = SourceStreaks(), UselessEvictionMemory()
    profiles = build_profiles(given.profiles, registry, dry_run=True, memory=streaks)
    results: list[CycleResult] = []
    for _ in range(cycles):
        cluster = Cluster(list(state.objects()))
        prover = Scheduler(cluster, Live(known), settings, clock=lambda: state.now)
        result = run_cycle(profiles, cluster.snapshot(state.now), limits=given.limits,
                           proving=Proving(SchedulerPlacements(prover), memory=memory))
        prover.close()
        assert result.memory is not None
        memory = result.memory
        evicted = [each.pod for each in result.evicted]
        for key in evicted:  # the cycle is a dry one, and the evictions are made here
            pod = cluster.pod(key)
            assert pod is not None
            memory = memory.with_eviction(pod, state.now)
        scheduler = Scheduler(cluster, Live(scheduling), settings, clock=lambda: state.now)
        state.evict(evicted, cluster, scheduler)
        scheduler.close()
        results.append(result)
        state.now += INTERVAL
    return results


def _configuration(case: Mapping[str, Any], registry: Registry, proof: str) -> Json:
    off = {"disabled": [{"name": "MigrationController"}]}
    profile: Json = {"plugins": {
        "evict": off, "filter": off, **case.get("plugins", {}),
    }, "pluginConfig": case.get("pluginConfig", [])}
    named = [each["name"] for point in case.get("plugins", {}).values() for each in point.get("enabled", ())]
    documents = [each.name for each in registry.plugins.values() if each.framework.value == "descheduler" and each.span]
    profile["proof"] = dict.fromkeys([*named, *documents], proof)
    return {"profiles": [profile], **case.get("configuration", {})}


def _settings(case: Mapping[str, Any]) -> Settings:
    enabled = tuple(PluginChoice(name, args=args or {}) for name, args in (case.get("enable") or {}).items())
    return Settings((ProfileSpec("default-scheduler", enabled, args=case.get("args") or {}),))


def _node(name: str, given: Mapping[str, Any]) -> Json:
    amounts = {"cpu": str(given.get("cpu", 10)), "memory": "64Gi", "pods": "50"}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, **given.get("labels", {})}},
        "spec": {"taints": given["taints"]} if "taints" in given else {},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _metric(node: str, used: Mapping[str, int], now: int) -> Json:
    pods = [
        {"namespace": "shop", "name": key.partition("/")[2],
         "podUsage": {"resources": {"cpu": f"{cpu}m", "memory": "1Gi"}}} for key, cpu in used.items()
    ]
    whole = {"resources": {"cpu": f"{sum(used.values())}m", "memory": f"{len(used)}Gi"}}
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": node}, "spec": {},
        "status": {
            "updateTime": str(Timestamp(now)), "podsMetric": pods,
            "nodeMetric": {"nodeUsage": whole, "systemUsage": {"resources": {"cpu": "0", "memory": "0"}}},
        },
    }
