from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.engine.agent.states_informer.node_topology_reporter import (
    NodeTopologyReporter,
    TopologySettings,
    numa_memory,
)
from koordpolicy.engine.agent.states_informer.states_informer import StatesInformer
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult
from koordpolicy.engine.framework.qos import Host, Processor
from tests.engine.client.object_server import ObjectServer
from tests.waiting import until

from .conftest import informed, node, of_kind
from .fake_kubelet import FakeKubelet, pod, pod_list

HOST = Host(processors=tuple(Processor(cpu, cpu, 0, 0) for cpu in range(4)))
KIND = "NodeResourceTopology"


@contextmanager
def reporting(
    api: ObjectServer, kubelet: FakeKubelet, path: Path, host: Host = HOST,
) -> Iterator[tuple[StatesInformer, NodeTopologyReporter]]:
    settings = TopologySettings(cpu_manager_state=path / "cpu_manager_state", numa_nodes=path)
    with informed(api, kubelet, started=False) as states:
        reporter = NodeTopologyReporter(states, ClusterWriter(states._transport), lambda: host, settings)
        states.start()
        until(lambda: states.synced and states._followed[KIND].heard > 0)
        yield states, reporter


def report(states: StatesInformer, reporter: NodeTopologyReporter) -> WriteResult | None:
    return states._io.submit(reporter.report()).result(60)


@pytest.fixture(autouse=True)
def objects(api: ObjectServer, kubelet: FakeKubelet) -> None:
    api.put(node())
    kubelet.answer = lambda: pod_list(pod("web", uid="uid-web"))


def reported(api: ObjectServer) -> dict[str, Any]:
    return api.objects(KIND)["node"]


def test_a_topology_is_created_and_then_written_only_when_it_changes(
    api: ObjectServer, kubelet: FakeKubelet, tmp_path: Path,
):
    with reporting(api, kubelet, tmp_path) as (states, reporter):
        result = report(states, reporter)
        assert result is not None
        assert result.done
        until(lambda: states.topology)
        metadata = reported(api)["metadata"]
        assert metadata["labels"] == {"app.kubernetes.io/managed-by": "Koordinator"}
        assert metadata["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": "node", "uid": (states.node or {})["metadata"]["uid"]}]
        assert reported(api)["topologyPolicies"] == ["None"]
        listed = len(kubelet.requests)
        until(lambda: len(kubelet.requests) > listed + 2)  # the pods are other objects with the same content
        assert [report(states, reporter) for _ in range(3)] == [None, None, None]
        state = {"policyName": "static", "entries": {"uid-web": {"main": "1-2"}}}
        (tmp_path / "cpu_manager_state").write_text(json.dumps(state))
        assert report(states, reporter) is not None
        assert [method for method, _, _ in api.writes] == ["POST", "PATCH"]
        assert api.writes[1][2].keys() == {"metadata"}
        assert json.loads(reported(api)["metadata"]["annotations"]["node.koordinator.sh/cpu-shared-pools"]) == [
            {"socket": 0, "node": 0, "cpuset": "0,3"}]
        assert reporter.writes == 2


def test_others_fields_stay_and_the_order_of_lists_is_no_change(
    api: ObjectServer, kubelet: FakeKubelet, tmp_path: Path,
):
    with reporting(api, kubelet, tmp_path) as (states, reporter):
        report(states, reporter)
        until(lambda: states.topology)
        item = reported(api)
        annotations = item["metadata"]["annotations"]
        detail = json.loads(annotations["node.koordinator.sh/cpu-topology"])["detail"]
        annotations["node.koordinator.sh/cpu-topology"] = json.dumps({"detail": detail[::-1]})
        annotations["theirs"] = "kept"
        annotations["node.koordinator.sh/reservation"] = '{"reservedCPUs": "1"}'  # the Node has none any more
        item["zones"][0]["resources"].append({"name": "kubernetes.io/batch-cpu", "capacity": "7"})
        version = api.put(item)["metadata"]["resourceVersion"]
        until(lambda: (states.topology or {})["metadata"]["resourceVersion"] == version)
        assert report(states, reporter) is not None
        assert api.writes[-1][2] == {"metadata": {"annotations": {"node.koordinator.sh/reservation": None}}}
        assert reported(api)["metadata"]["annotations"]["theirs"] == "kept"
        assert reported(api)["zones"][0]["resources"][1]["name"] == "kubernetes.io/batch-cpu"


def test_a_patch_of_zones_is_not_written_over_a_change_that_was_not_seen(
    api: ObjectServer, kubelet: FakeKubelet, tmp_path: Path,
):
    api.put(of_kind(KIND, zones=[], topologyPolicies=["None"]))
    with reporting(api, kubelet, tmp_path) as (states, reporter):
        until(lambda: states.topology)
        seen = states.topology
        api.refusals = [409]
        assert report(states, reporter) is not None
        assert reporter.writes == 0
        assert api.writes[0][2]["zones"][0]["name"] == "node-0"
        assert seen is not None
        assert report(states, reporter) is not None
        assert reporter.writes == 1


def test_a_malformed_state_of_the_kubelet_leaves_the_topology_and_is_logged_once(
    api: ObjectServer, kubelet: FakeKubelet, tmp_path: Path, caplog: pytest.LogCaptureFixture,
):
    (tmp_path / "cpu_manager_state").write_text("{")
    kubelet.configuration = []
    with reporting(api, kubelet, tmp_path) as (states, reporter):
        assert [report(states, reporter) for _ in range(2)] == [None, None]
        assert caplog.text.count("is malformed, and the topology stays as it is") == 1
        assert caplog.text.count("the kubelet's configuration cannot be read") == 1
        assert api.writes == []


def test_a_missing_right_is_logged_with_the_right(
    api: ObjectServer, kubelet: FakeKubelet, tmp_path: Path, caplog: pytest.LogCaptureFixture,
):
    with reporting(api, kubelet, tmp_path) as (states, reporter):
        api.refusals = [403]
        report(states, reporter)
        assert "grant `create` and `patch` on `noderesourcetopologies`" in caplog.text


def test_of_an_unknown_machine_nothing_is_reported(api: ObjectServer, kubelet: FakeKubelet, tmp_path: Path):
    with reporting(api, kubelet, tmp_path, Host()) as (states, reporter):
        assert report(states, reporter) is None


def test_without_the_kind_nothing_is_reported(kubelet: FakeKubelet, tmp_path: Path):
    with ObjectServer(absent=[KIND]) as api:
        api.put(node())
        with informed(api, kubelet, started=False) as states:
            reporter = NodeTopologyReporter(states, ClusterWriter(states._transport), lambda: HOST)
            states.start()
            until(lambda: states.synced and states.faults.get(KIND))
            assert report(states, reporter) is None
            assert api.writes == []


def test_memory_of_numa_nodes_is_read_from_sysfs(tmp_path: Path):
    for name, text in (("node0", "Node 0 MemTotal:       1024 kB\n"), ("node1", "Node 1 MemFree: 3 kB\n"),
                       ("node2", "Node 2 MemTotal: many kB\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meminfo").write_text(text)
    (tmp_path / "node3").mkdir()
    assert numa_memory(tmp_path) == {0: 1 << 20}
