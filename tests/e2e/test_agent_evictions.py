"""Evictions of a node agent on a real API server: memoryEvict over live readings, budgets, and a hard threshold."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from koordpolicy.builtin_plugins.qos.memory_evict.plugin import MemoryEvict
from koordpolicy.engine.agent.qos_manager.evictor import (
    CONTROLLER,
    EvictionAttempt,
    PodEvictor,
)
from koordpolicy.engine.client.event_recorder import EventRecorder
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.client.writes import ClusterWriter
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.testing import FakeReadings

from .control_plane import AdminClient, ControlPlane

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
NODE = {"metadata": {"name": "one"}, "status": {"capacity": {"cpu": "8", "memory": "100Gi"}}}
SLO = {"kind": "NodeSLO", "spec": {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70}}}


def best_effort(admin: AdminClient, name: str, app: str, priority_class: str) -> None:
    path = "/api/v1/namespaces/default/pods"
    admin.create(path, {
        "metadata": {"name": name, "labels": {"app": app, "koordinator.sh/qosClass": "BE"}},
        "spec": {"containers": [{"name": "main", "image": "example/main"}], "schedulerName": "nobody",
                 "nodeName": "one", "priorityClassName": priority_class}})
    admin.merge(f"{path}/{name}/status", {"status": {"phase": "Running", "conditions": [
        {"type": "Ready", "status": "True"}]}})


def until(true: Callable[[], object], check: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        check()
        time.sleep(0.05)


class Node:
    """The rounds of memoryEvict on one node, live: the usage is given, all else is the cluster's."""

    def __init__(self, plane: ControlPlane, io: IoThread) -> None:
        self.admin = plane.admin
        self.attempts: list[EvictionAttempt] = []
        self.strategy = MemoryEvict({
            "features": ["BEMemoryEvict"], "coolTimeSeconds": 0, "hardThresholdPercent": 90})

        async def connect() -> tuple[Transport, EventRecorder]:
            transport = Transport(load_connection(configuration_file=plane.kubeconfig()))
            return transport, EventRecorder(transport, host="one")

        transport, events = io.submit(connect()).result(30)
        io.on_close(transport.close)
        self.recording = io.submit(events.run())
        self.evictor = PodEvictor(
            io, ClusterWriter(transport), pods=lambda: self.pods, events=events, on_attempt=[self.attempts.append])

    @property
    def pods(self) -> tuple[PodInfo, ...]:
        items = self.admin.get("/api/v1/namespaces/default/pods")["items"]
        return tuple(map(PodInfo.of, items))

    def round(self, used: str) -> list[tuple[str, str]]:
        """Run one round with that usage of memory; return the names and outcomes of its evictions."""
        pods, before = self.pods, len(self.attempts)
        readings: Any = FakeReadings(
            NODE, usage={"memory": used}, pods=[pod.object for pod in pods], objects=[SLO],
            pod_usage={pod.key: {"memory": "10Gi"} for pod in pods}, evictions=self.evictor.evictions)
        chosen = self.strategy.adjust(readings)
        for each in chosen:
            self.evictor.evict(next(pod for pod in pods if pod.key == each.subject), each)
        until(lambda: len(self.attempts) == before + len(chosen))
        return [(each.name, each.outcome.value) for each in self.attempts[before:]]


def test_an_agent_evicts_best_effort_pods_and_passes_a_budget_only_above_the_hard_threshold(
    own_control_plane: ControlPlane,
):
    plane, admin = own_control_plane, own_control_plane.admin
    manager = plane.start_controller_manager("disruption-controller")
    for name, value in (("low", 100), ("high", 200)):
        admin.create_priority_class(name, value)
    best_effort(admin, "guarded", "web", "low")
    best_effort(admin, "free", "other", "high")
    admin.create(BUDGETS, {"metadata": {"name": "web"}, "spec": {
        "minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}})
    until(lambda: admin.get(f"{BUDGETS}/web").get("status", {}).get("currentHealthy") == 1, manager.check)

    with IoThread() as io:
        node = Node(plane, io)
        assert node.round("60Gi") == []
        # One pod is enough, and its budget refuses it: the next round takes the next pod at once.
        assert node.round("72Gi") == [("guarded", "blocked")]
        assert [text for text in node.evictor.evictions.protected.values() if "disruption budget web" in text]
        assert node.round("72Gi") == [("free", "evicted")]
        assert node.round("72Gi") == []
        # More is to be released than the pods that are leaving release, but not so much that the budget is passed.
        assert node.round("85Gi") == []
        assert node.round("92Gi") == [("guarded", "deleted")]
        events = "/apis/events.k8s.io/v1/namespaces/default/events"
        until(lambda: {"evictPodSuccess", "evictPodFail"} <= {
            each["reason"] for each in admin.get(events)["items"]} and len(admin.get(events)["items"]) >= 3)
        notes = {(each["reason"], each["regarding"]["name"]): each["note"] for each in admin.get(events)["items"]
                 if each["reportingController"] == CONTROLLER}
        node.recording.cancel()
    reason = "trigger by koordlet feature BEMemoryEvict"
    assert notes["evictPodSuccess", "free"] == (
        f"evict Pod:default/free, reason: {reason}, message: {reason}, kill pod: free")
    assert ", error Cannot evict pod as it would violate the pod's disruption budget." in notes[
        "evictPodFail", "guarded"]
    assert ", deleted past PodDisruptionBudget web, which refused: " in notes["evictPodSuccess", "guarded"]
    left = {each["metadata"]["name"]: each for each in admin.get("/api/v1/namespaces/default/pods")["items"]}
    assert all("deletionTimestamp" in each["metadata"] for each in left.values())
    assert {each["reason"] for each in left["free"]["status"]["conditions"] if "reason" in each} >= {
        "EvictionByEvictionAPI"}


def test_the_pod_of_another_uid_is_never_evicted(own_control_plane: ControlPlane):
    plane, admin = own_control_plane, own_control_plane.admin
    admin.create_priority_class("low", 100)
    best_effort(admin, "a", "web", "low")
    with IoThread() as io:
        node = Node(plane, io)
        (now,) = node.pods
        former = PodInfo.of({**now.object, "metadata": {
            **now.object["metadata"], "uid": "00000000-0000-0000-0000-000000000000"}})
        (chosen,) = node.strategy.adjust(FakeReadings(  # type: ignore[arg-type]
            NODE, usage={"memory": "80Gi"}, pods=[former.object], objects=[SLO],
            pod_usage={former.key: {"memory": "10Gi"}}))
        node.evictor.evict(former, chosen)
        until(lambda: node.attempts)
        assert [each.outcome.value for each in node.attempts] == ["gone"]
        node.recording.cancel()
    assert "deletionTimestamp" not in admin.get("/api/v1/namespaces/default/pods/a")["metadata"]
