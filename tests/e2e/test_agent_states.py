"""The states informer of a node agent against a real API server, beside a kubelet of the test's."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.engine.agent import permissions
from koordpolicy.engine.agent.host.devices import GPU, HostDevice
from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.states_informer.device_reporter import DeviceReporter
from koordpolicy.engine.agent.states_informer.kubelet import KubeletSettings
from koordpolicy.engine.agent.states_informer.node_metric_reporter import NodeMetricReporter
from koordpolicy.engine.agent.states_informer.node_objects import DEVICE as DEVICE_KIND
from koordpolicy.engine.agent.states_informer.node_topology_reporter import NodeTopologyReporter, TopologySettings
from koordpolicy.engine.agent.states_informer.settings import StatesSettings
from koordpolicy.engine.agent.states_informer.state_store import StateStore
from koordpolicy.engine.agent.states_informer.states_informer import StatesInformer
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.permissions import rules
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.client.writes import ClusterWriter
from koordpolicy.engine.cluster.objects.metrics import NodeMetric
from koordpolicy.engine.framework.qos import Host, Processor
from koordpolicy.engine.framework.states import StateType
from koordpolicy.engine.slo.effective import effective_spec
from tests.engine.agent.states_informer.fake_kubelet import FakeKubelet, pod, pod_list, text

from .control_plane import AdminClient, ApiError, ControlPlane, NamedCluster
from .custom_resources import DEVICE, NODE_METRIC, NODE_SLO, NODE_TOPOLOGY, define
from .nodes import add_node, add_pod
from .roles import NAMESPACE, account_kubeconfig
from .scheduler_process import until

HOST = Host(processors=tuple(Processor(cpu, cpu // 2, 0, 0) for cpu in range(4)))
KINDS = (NODE_SLO, NODE_METRIC, NODE_TOPOLOGY, DEVICE)
GPUS = (HostDevice(GPU, 0, "card0", "0000:3b:00.0", "amdgpu", 0, healthy=True, directory=Path("/none"),
                   memory=1 << 34),)
POLICY = {"metricCollectPolicy": {"reportIntervalSeconds": 1, "aggregateDurationSeconds": 60,
                                  "nodeAggregatePolicy": {"durations": ["5m"]}}}


class Node:
    """A node with its states as an agent follows them, and the time that a test adds to the agent's clock."""

    def __init__(self, io: IoThread, kubeconfig: Path, name: str, kubelet: FakeKubelet, directory: Path,
                 pods_from: str) -> None:
        self.ahead = 0.0
        reached = KubeletSettings(address="127.0.0.1", read_only_port=kubelet.port, interval=0.2, timeout=10)
        self.transport = Transport(load_connection(configuration_file=kubeconfig), rate=0)
        io.on_close(self.transport.close)
        self.io = io
        self.states = StatesInformer(
            io, self.transport, StatesSettings(
                name, pods_from, reached, follow=frozenset({DEVICE_KIND})), effective_spec=effective_spec,
            store=StateStore(directory, name), clock=lambda: time.monotonic() + self.ahead)

    def keys(self) -> list[str]:
        return [each.key for each in self.states.pods]

    def reporter(self, **more: Any) -> NodeMetricReporter:
        statistics = MetricCache(self.states.settings.node)
        now = time.time_ns()
        for what, name in (("node", self.states.settings.node), ("pod", "default/web")):
            for resource, value in (("cpu", 1500.0), ("memory", 2.0**30)):
                statistics.append(what, name, resource, now, value)
        return NodeMetricReporter(self.states, ClusterWriter(self.transport), statistics,
                                  server_time=self.transport.server_clock.nanoseconds, **more)

    def devices(self, found: Sequence[HostDevice]) -> DeviceReporter:
        return DeviceReporter(self.states, ClusterWriter(self.transport), lambda: found, lambda: HOST.processors,
                              frozenset({GPU}), interval=0.1)


@pytest.fixture(scope="module", autouse=True)
def kinds(cluster: ControlPlane | NamedCluster) -> None:
    for kind in KINDS:
        with contextlib.suppress(ApiError):
            define(cluster.admin, kind)


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    with FakeKubelet() as server:
        server.answer = lambda: pod_list(pod("web"))
        yield server


@pytest.fixture
def name(admin: AdminClient) -> Iterator[str]:
    made = f"e2e-{secrets.token_hex(4)}"
    add_node(admin, made, cpu="4")
    yield made
    for path in (f"/api/v1/nodes/{made}", *(kind.path(name=made) for kind in KINDS)):
        with contextlib.suppress(ApiError):
            admin.delete(path)


@contextmanager
def following(
    kubeconfig: Path, name: str, kubelet: FakeKubelet, directory: Path, *, pods_from: str = "kubelet",
) -> Iterator[Node]:
    with IoThread() as io:
        made = Node(io, kubeconfig, name, kubelet, directory, pods_from)
        made.states.start()
        yield made


def put(admin: AdminClient, kind: Any, name: str, **more: Any) -> None:
    admin.create(kind.path(), {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, **more})


def test_objects_of_the_own_node_arrive_and_change(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, name: str, kubelet: FakeKubelet, tmp_path: Path,
):
    put(admin, NODE_SLO, name, spec={"resourceUsedThresholdWithBE": {"enable": True}})
    calls: list[StateType] = []
    with following(cluster.kubeconfig(), name, kubelet, tmp_path / "state") as node:
        for each in StateType:
            node.states.register_callback(each, "test", "", lambda state_type, *_: calls.append(state_type))
        until(lambda: node.states.synced and node.states.node_slo)
        spec = (node.states.node_slo or {})["spec"]
        assert spec["resourceUsedThresholdWithBE"] == {
            "enable": True, "cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cpuset",
            "memoryEvictThresholdPercent": 70, "cpuEvictPolicy": "evictByRealLimit"}
        admin.merge(NODE_SLO.path(name=name), {"spec": {"resourceUsedThresholdWithBE": {"enable": False}}})
        until(lambda: not (node.states.node_slo or {})["spec"]["resourceUsedThresholdWithBE"]["enable"])
        admin.merge(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"pool": "mixed"}}})
        until(lambda: (node.states.node or {})["metadata"]["labels"].get("pool") == "mixed")
        node.states.run_callbacks()
        assert {StateType.NODE_SLO, StateType.PODS, StateType.NODE_METADATA} <= set(calls)
        assert node.keys() == ["default/web"]


def test_l56_the_old_pods_stay_while_the_kubelet_answers_nothing_and_are_stale_after_the_limit(
    cluster: ControlPlane | NamedCluster, name: str, kubelet: FakeKubelet, tmp_path: Path,
):
    with following(cluster.kubeconfig(), name, kubelet, tmp_path / "state") as node:
        until(lambda: node.keys() == ["default/web"])
        for answer in (pod_list, text("failed", 500)):
            kubelet.answer = answer
            count = len(kubelet.requests)
            until(lambda count=count: len(kubelet.requests) > count + 1)  # type: ignore[misc]
            assert (node.keys(), node.states.pods_stale) == (["default/web"], False)
        node.ahead = 70
        assert (node.keys(), node.states.pods_stale) == (["default/web"], True)
        kubelet.answer = lambda: pod_list(pod("web"), pod("new"))
        until(lambda: node.keys() == ["default/new", "default/web"])
        assert not node.states.pods_stale


def test_l57_usage_is_reported_after_an_interval_and_nothing_is_created(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, name: str, kubelet: FakeKubelet, tmp_path: Path,
):
    with following(cluster.kubeconfig(), name, kubelet, tmp_path / "state") as node:
        reporter = node.reporter(least_interval=1.0)
        until(lambda: node.states.synced)
        assert node.io.submit(reporter.report()).result(120) is None
        with pytest.raises(ApiError, match="404"):
            admin.get(NODE_METRIC.path(name=name))
        put(admin, NODE_METRIC, name, spec=POLICY)
        until(lambda: node.states.node_metric)
        assert "status" not in admin.get(NODE_METRIC.path(name=name))
        node.io.spawn(reporter.run(), "reports")
        until(lambda: admin.get(NODE_METRIC.path(name=name)).get("status"))
        first = admin.get(NODE_METRIC.path(name=name))
        assert first["spec"] == POLICY
        metric = NodeMetric.of(first)
        assert (metric.usage["cpu"], metric.usage["memory"], dict(metric.pods["default/web"])) == (
            1500, 1 << 30, {"cpu": 1500, "memory": 1 << 30})
        admin.merge(NODE_METRIC.path(name=name), {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 2}}})
        until(lambda: admin.get(NODE_METRIC.path(name=name))["status"]["updateTime"] > first["status"]["updateTime"])
        admin.delete(NODE_METRIC.path(name=name))
        until(lambda: node.states.node_metric is None)
        assert node.io.submit(reporter.report()).result(120) is None
        with pytest.raises(ApiError, match="404"):
            admin.get(NODE_METRIC.path(name=name))


def test_a_topology_is_created_and_not_written_again(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, name: str, kubelet: FakeKubelet, tmp_path: Path,
):
    settings = TopologySettings(interval=0.1, cpu_manager_state=tmp_path / "none", numa_nodes=tmp_path)
    with following(cluster.kubeconfig(), name, kubelet, tmp_path / "state") as node:
        reporter = NodeTopologyReporter(node.states, ClusterWriter(node.transport), lambda: HOST, settings)
        until(lambda: node.states.synced)
        node.io.spawn(reporter.run(), "reports")
        until(lambda: node.states.topology)
        made = admin.get(NODE_TOPOLOGY.path(name=name))
        assert made["zones"][0]["resources"][0] == {
            "name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"}
        listed = len(kubelet.requests)
        until(lambda: len(kubelet.requests) > listed + 5)
        version = admin.get(NODE_TOPOLOGY.path(name=name))["metadata"]["resourceVersion"]
        assert (version, reporter.writes) == (made["metadata"]["resourceVersion"], 1)
        admin.merge(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {
            "node.koordinator.sh/reservation": '{"reservedCPUs": "0"}'}}})
        until(lambda: reporter.writes == 2)
        annotations = admin.get(NODE_TOPOLOGY.path(name=name))["metadata"]["annotations"]
        assert annotations["node.koordinator.sh/cpu-shared-pools"] == '[{"socket":0,"node":0,"cpuset":"1-3"}]'


def test_pods_of_the_api_server_are_those_of_the_node(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, namespace: str, name: str, kubelet: FakeKubelet,
    tmp_path: Path,
):
    add_pod(admin, namespace, "here", nodeName=name)
    add_pod(admin, namespace, "nowhere")
    with following(cluster.kubeconfig(), name, kubelet, tmp_path / "state", pods_from="api") as node:
        until(lambda: node.keys() == [f"{namespace}/here"])
        admin.delete(f"/api/v1/namespaces/{namespace}/pods/here?gracePeriodSeconds=0")
        until(lambda: node.keys() == [])
        assert node.states.pods_age < math.inf


def test_d9_an_agent_starts_without_its_api_server_and_follows_it_once_it_is_back(
    own_control_plane: ControlPlane, kubelet: FakeKubelet, tmp_path: Path,
):
    admin, name = own_control_plane.admin, "node-a"
    define(admin, NODE_SLO, NODE_METRIC, NODE_TOPOLOGY)
    add_node(admin, name)
    put(admin, NODE_SLO, name, spec={"cpuBurstStrategy": {"policy": "auto"}})
    kubeconfig = own_control_plane.kubeconfig()
    with following(kubeconfig, name, kubelet, tmp_path / "state") as node:
        until(lambda: node.states.synced and node.states.node_slo and node.keys())
    server = own_control_plane.components["kube-apiserver"]
    os.kill(server.pid, signal.SIGSTOP)
    kubelet.answer = text("starting", 503)
    try:
        with following(kubeconfig, name, kubelet, tmp_path / "state") as node:
            assert node.states.synced
            assert (node.states.node_slo or {})["spec"]["cpuBurstStrategy"]["policy"] == "auto"
            assert node.keys() == ["default/web"]
            assert 0 < node.states.age("NodeSLO") < 60
            node.ahead = 3600
            assert (node.states.age("NodeSLO") >= 3600, node.states.pods_stale) == (True, True)
            os.kill(server.pid, signal.SIGCONT)
            admin.merge(NODE_SLO.path(name=name), {"spec": {"cpuBurstStrategy": {"policy": "none"}}})
            kubelet.answer = lambda: pod_list(pod("web"), pod("new"))
            until(lambda: (node.states.node_slo or {})["spec"]["cpuBurstStrategy"]["policy"] == "none")
            until(lambda: node.keys() == ["default/new", "default/web"])
            assert (node.states.age("NodeSLO") < 60, node.states.pods_stale) == (True, False)
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_a_device_is_created_and_written_only_when_it_changes(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, name: str, kubelet: FakeKubelet, tmp_path: Path,
):
    found = list(GPUS)
    with following(cluster.kubeconfig(), name, kubelet, tmp_path / "state") as node:
        reporter = node.devices(found)
        until(lambda: node.states.synced)
        node.io.spawn(reporter.run(), "reports")
        until(lambda: node.states.device)
        made = admin.get(DEVICE.path(name=name))
        assert made["spec"]["devices"] == [{
            "type": "gpu", "minor": 0, "id": "0000:3b:00.0", "health": True,
            "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
                          "koordinator.sh/gpu-memory": "17179869184"},
            "topology": {"socketID": 0, "nodeID": 0, "pcieID": "", "busID": "0000:3b:00.0"}}]
        admin.merge(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"changed": "yes"}}})
        until(lambda: (node.states.node or {})["metadata"].get("annotations", {}).get("changed"))
        time.sleep(1)
        assert (admin.get(DEVICE.path(name=name))["metadata"]["resourceVersion"], reporter.writes) == (
            made["metadata"]["resourceVersion"], 1)
        admin.merge(DEVICE.path(name=name), {"spec": {"devices": []}})
        until(lambda: reporter.writes == 2)
        assert admin.get(DEVICE.path(name=name))["spec"] == made["spec"]


def role(admin: AdminClient, account: str, granted: Sequence[permissions.Permission]) -> None:
    with contextlib.suppress(ApiError):
        admin.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    admin.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": account}})
    group = "rbac.authorization.k8s.io"
    admin.create(f"/apis/{group}/v1/clusterroles", {"metadata": {"name": account}, "rules": rules(granted)})
    admin.create(f"/apis/{group}/v1/clusterrolebindings", {
        "metadata": {"name": account}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]})


def test_l64_with_the_listed_permissions_nothing_is_refused(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, name: str, kubelet: FakeKubelet, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    account = f"agent-{secrets.token_hex(4)}"
    role(admin, account, (*permissions.STATES, *permissions.DEVICES))
    put(admin, NODE_SLO, name, spec={})
    put(admin, NODE_METRIC, name, spec=POLICY)
    settings = TopologySettings(interval=0.1, cpu_manager_state=tmp_path / "none", numa_nodes=tmp_path)
    with following(account_kubeconfig(cluster, account, tmp_path), name, kubelet, tmp_path / "state") as node:
        reporter = node.reporter()
        topology = NodeTopologyReporter(node.states, ClusterWriter(node.transport), lambda: HOST, settings)
        until(lambda: node.states.synced and node.states.node_slo and node.states.node_metric)
        result = node.io.submit(reporter.report()).result(120)
        assert result is not None
        assert result.done
        node.io.spawn(topology.run(), "reports")
        until(lambda: topology.writes == 1 and node.states.topology)
        admin.merge(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {
            "node.koordinator.sh/reservation": '{"reservedCPUs": "0"}'}}})
        until(lambda: topology.writes == 2)
        devices = node.devices(GPUS)
        node.io.spawn(devices.run(), "reports")
        until(lambda: devices.writes == 1 and node.states.device)
        admin.merge(DEVICE.path(name=name), {"spec": {"devices": []}})
        until(lambda: devices.writes == 2)
        assert (node.states.faults, "grant" in caplog.text) == ({}, False)
    with following(account_kubeconfig(cluster, account, tmp_path), name, kubelet, tmp_path / "other",
                   pods_from="api") as node:
        until(lambda: "Pod" in node.states.faults)
        assert "grant `list` and `watch` on `pods`" in caplog.text
