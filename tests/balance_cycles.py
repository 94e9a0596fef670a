"""Small clusters, and cycles over them, for the tests of Koordinator's smaller descheduling plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.limits import CycleLimits
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.descheduler.results import CycleResult
from koordpolicy.engine.framework.handle import Nothing
from koordpolicy.engine.framework.points import Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Plugin, Registry

Json = dict[str, Any]


def node(name: str, *, labels: Mapping[str, str] | None = None, spec: Json | None = None, **allocatable: str) -> Json:
    """A node of 4 cores, 8 GiB and 10 pods, as far as nothing else is said."""
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10", **allocatable}
    return {
        "kind": "Node", "metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec or {},
        "status": {"allocatable": {key: value for key, value in amounts.items() if value}},
    }


def pod(
    name: str, on: str, cpu: str = "", memory: str = "", *, namespace: str = "d",
    labels: Mapping[str, str] | None = None, created: str = "2026-01-01T10:00:00Z", phase: str = "Running", **spec: Any,
) -> Json:
    """A running pod of a replica set."""
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": f"{namespace}/{name}", "labels": dict(labels or {}),
            "creationTimestamp": created, "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "r"}],
        },
        "spec": {"nodeName": on, "containers": [{"name": "c", "resources": {"requests": requests}}], **spec},
        "status": {"phase": phase},
    }


class Server(Nothing):
    """Evicts and patches; `refuses` are the names of pods and nodes for which that fails."""

    def __init__(self, *refuses: str) -> None:
        self.refuses = refuses
        self.writes: list[tuple[str, Any]] = []

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any]) -> None:
        name = modified["metadata"]["name"]
        if name in self.refuses:
            raise OSError("the server is away")
        kind = modified["kind"]
        value = (
            bool(modified["spec"].get("unschedulable")) if kind == "Node" else modified["metadata"]["annotations"]
        )
        self.writes.append((f"{kind} {name}", value))


class Hands:
    """The filter and evict plugin of a profile: keeps `kept` and, when it comes to an eviction, `not_now`. It fails
    to evict what the server refuses.
    """

    def __init__(self, server: Server, kept: tuple[str, ...], not_now: tuple[str, ...]) -> None:
        self.server = server
        self.kept = kept
        self.not_now = not_now

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        return Refusal("kept", "it stays") if pod.name in self.kept else None

    def pre_eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        return Refusal("notNow", "it stays for now") if pod.name in self.not_now else None

    def evict(self, pod: PodInfo, reason: str) -> bool:
        if pod.name in self.server.refuses:
            return False
        self.server.writes.append((f"evict {pod.name}", reason))
        return True


def run(
    plugin: str, objects: list[Json], *, server: Server | None = None, kept: tuple[str, ...] = (),
    not_now: tuple[str, ...] = (), dry_run: bool = True,
    limits: CycleLimits | None = None, **args: Any,
) -> CycleResult:
    """Run one cycle of a plugin over a cluster."""
    server = server or Server()
    hands = Plugin(
        "Hands", Framework.DESCHEDULER, (Point.EVICTION_FILTER,), lambda _args, _handle: Hands(server, kept, not_now),
        origin="test", digest="hands", enabled=False,
    )
    spec = DeschedulerProfileSpec("p", balance=(plugin,), evict=("Hands",), filter=("Hands",), args={plugin: args})
    profiles = build_profiles([spec], Registry.of([*PLUGINS, hands], generation=1), dry_run=dry_run)
    snapshot = Cluster(objects).snapshot(1_767_268_800_000_000_000)
    return run_cycle(profiles, snapshot, dry_run=dry_run, client=server, limits=limits or CycleLimits())


def evicted(result: CycleResult) -> list[str]:
    """Return the names of the evicted pods."""
    return [outcome.pod.partition("/")[2] for outcome in result.evicted]


def kept(result: CycleResult) -> dict[str, str]:
    """Return the rules that stopped the other candidates, by name."""
    return {outcome.pod.partition("/")[2]: outcome.decision.stopped_rule for outcome in result.staying}
