from __future__ import annotations

import asyncio
import logging
import math
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from koordpolicy.engine.agent.states_informer.claims import ClaimVolumes
from koordpolicy.engine.agent.states_informer.kubelet import KubeletSettings
from koordpolicy.engine.agent.states_informer.settings import StatesSettings
from koordpolicy.engine.agent.states_informer.state_store import StateStore, StoredState
from koordpolicy.engine.agent.states_informer.states_informer import StatesInformer
from koordpolicy.engine.cluster.kinds import field_paths
from koordpolicy.engine.framework.states import States, StateType
from tests.engine.client.object_server import ObjectServer
from tests.waiting import until

from .conftest import Clock, informed, node, of_kind
from .fake_kubelet import FakeKubelet, pod, pod_list, text


def keys(states: StatesInformer) -> list[str]:
    return [each.key for each in states.pods]


def test_states_are_those_of_the_own_node(api: ObjectServer, kubelet: FakeKubelet):
    api.put(node())
    api.put({**node(), "metadata": {"name": "other"}})
    api.put(of_kind("NodeSLO", spec={"systemStrategy": {"minFreeKbytesFactor": 100}}))
    api.put(of_kind("NodeMetric", spec={"metricCollectPolicy": {}}, status={"updateTime": "2026-01-01T00:00:00Z"}))
    api.put(of_kind("NodeResourceTopology", zones=[{"name": "node-0"}]))
    kubelet.answer = lambda: pod_list(pod("b"), pod("a"))
    with informed(api, kubelet) as states:
        public: States = states
        until(lambda: states.synced and states.node_metric and states.topology and states.node_slo)
        assert public.node is not None
        assert "images" not in public.node["status"]
        assert public.node["metadata"]["name"] == "node"
        assert public.node_slo is not None
        assert public.node_slo["spec"] == {
            "resourceUsedThresholdWithBE": {"enable": False}, "systemStrategy": {"minFreeKbytesFactor": 100}}
        assert states.object("NodeSLO") is public.node_slo
        assert (states.node_metric or {}).keys() == {"apiVersion", "kind", "metadata", "spec"}
        assert (public.topology or {})["zones"] == [{"name": "node-0"}]
        assert keys(states) == ["default/a", "default/b"]
        assert (states.pods_stale, states.faults) == (False, {})
        assert all(states.age(kind) < 60 for kind in ("Node", "NodeSLO", "NodeMetric", "NodeResourceTopology", "Pod"))
        selectors = {query["fieldSelector"] for _, _, query in api.requests if "fieldSelector" in query}
        assert selectors == {"metadata.name=node"}


def test_without_a_node_slo_it_is_synced_and_there_is_none(api: ObjectServer, kubelet: FakeKubelet):
    api.put(node())
    with informed(api, kubelet, started=False) as states:
        assert (states.synced, states.pods_age, states.age("NodeSLO"), states.pods_stale) == (
            False, math.inf, math.inf, True)
        kubelet.answer = lambda: pod_list(pod())
        states.start()
        until(lambda: states.synced)
        assert states.node_slo is None
        assert states.object("NodeSLO") is None
        assert states.object("Pod") is None


def test_a_node_slo_is_merged_once_per_change_of_its_spec(api: ObjectServer, kubelet: FakeKubelet):
    api.put(node())
    api.put(of_kind("NodeSLO", spec={"a": 1}))
    seen: list[Any] = []
    with informed(api, kubelet, started=False) as states:
        states.register_callback(StateType.NODE_SLO, "test", "", lambda _, spec, __: seen.append(spec))
        states.start()
        until(states.run_callbacks)
        item = of_kind("NodeSLO", spec={"a": 1})
        version = api.put({**item, "metadata": {"name": "node", "labels": {"a": "b"}}})["metadata"]["resourceVersion"]
        until(lambda: (states.node_slo or {})["metadata"]["resourceVersion"] == version)
        assert states.run_callbacks() == 0
        api.put(of_kind("NodeSLO", spec={"a": 2}))
        until(states.run_callbacks)
        assert [spec["a"] for spec in seen] == [1, 2]


def test_a_malformed_or_deleted_node_slo_leaves_the_last_one(
    api: ObjectServer, kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture,
):
    api.put(node())
    api.put(of_kind("NodeSLO", spec={"a": 1}))
    with informed(api, kubelet) as states:
        until(lambda: states.node_slo)
        for _ in range(2):
            api.put(of_kind("NodeSLO", spec={"systemStrategy": "off"}))
        until(lambda: "`systemStrategy` is not an object" in caplog.text)
        api.delete("NodeSLO", "node")
        until(lambda: "the NodeSLO `node` was deleted" in caplog.text)
        assert (states.node_slo or {})["spec"]["a"] == 1
        assert caplog.text.count("the NodeSLO is malformed") == 1


def test_callbacks_of_the_node_follow_labels_and_annotations_only(api: ObjectServer, kubelet: FakeKubelet):
    api.put(node())
    calls: list[str] = []
    with informed(api, kubelet, started=False) as states:
        states.register_callback(StateType.NODE_METADATA, "node", "", lambda *_: calls.append("node"))
        states.register_callback(StateType.NODE_TOPOLOGY, "topology", "", lambda *_: calls.append("topology"))
        states.start()
        until(states.run_callbacks)
        api.put(node(allocatable={"cpu": "4"}))
        until(lambda: (states.node or {})["status"]["allocatable"] == {"cpu": "4"})
        assert states.run_callbacks() == 0
        api.put(of_kind("NodeResourceTopology", zones=[]))
        until(states.run_callbacks)
        api.put(of_kind("NodeResourceTopology", zones=[]))
        api.put({**node(), "metadata": {"name": "node", "labels": {"zone": "b"}}})
        until(states.run_callbacks)
        assert calls == ["node", "topology", "node"]


def test_l56_an_empty_list_and_errors_of_the_kubelet_keep_the_old_pods_until_they_are_stale(
    api: ObjectServer, kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    api.put(node())
    clock = Clock()
    kubelet.answer = lambda: pod_list(pod("old"))
    with informed(api, kubelet, clock=clock) as states:
        until(lambda: keys(states) == ["default/old"])
        kubelet.answer = pod_list
        until(lambda: "its list is empty" in caplog.text)
        kubelet.answer = text("failed", 500)
        until(lambda: "500: failed" in caplog.text)
        clock.ahead = 59
        assert (keys(states), states.pods_stale) == (["default/old"], False)
        clock.ahead = 200
        assert (keys(states), states.pods_stale, states.pods_age > 190) == (["default/old"], True, True)
        assert states.faults == {"Pod": "500: failed"}
        kubelet.answer = lambda: pod_list(pod("new"))
        until(lambda: keys(states) == ["default/new"])
        assert (states.pods_stale, states.faults) == (False, {})
        assert "the kubelet lists its pods again" in caplog.text


@pytest.mark.parametrize(("answer", "message"), [
    (text('{"metadata": {}, "items": [{"metadata": {"name": "a"}}'), "the list ends early"),
    (text("<html>"), "is not expected here"),
    (text('{"metadata": {}, "items": 3}'), "`items` is not a list"),
    (text('{"metadata": {}, "items": [3]}'), "an item of the list is not an object"),
    (text("denied", 403), "grant `get` on `nodes/pods` (before Kubernetes 1.36 on `nodes/proxy`)"),
    (lambda: web.Response(headers={"Location": "/elsewhere"}, status=302), "302"),
])
def test_an_answer_that_is_no_list_of_pods_is_refused_in_one_line(
    api: ObjectServer, kubelet: FakeKubelet, answer: Any, message: str, caplog: pytest.LogCaptureFixture,
):
    api.put(node())
    kubelet.answer = lambda: pod_list(pod("old"))
    with informed(api, kubelet) as states:
        until(lambda: keys(states) == ["default/old"])
        kubelet.answer = answer
        until(lambda: message in caplog.text)
        count = len(kubelet.requests)
        until(lambda: len(kubelet.requests) > count + 3)
        assert keys(states) == ["default/old"]
        assert caplog.text.count("the pods cannot be read from the kubelet") == 1


def test_a_new_pod_is_listed_at_once_and_many_are_few_lists(api: ObjectServer, kubelet: FakeKubelet):
    api.put(node())
    rarely = KubeletSettings(read_only_port=kubelet.port, interval=3600, timeout=5)
    kubelet.answer = lambda: pod_list(pod("a"))
    with informed(api, kubelet, kubelet=rarely) as states:
        until(lambda: keys(states) == ["default/a"])
        kubelet.answer = lambda: pod_list(pod("a"), pod("b"))
        for _ in range(200):
            states.pod_started()
        until(lambda: keys(states) == ["default/a", "default/b"])
        assert len(kubelet.requests) < 100


def test_pods_of_the_api_server_are_those_of_the_node(api: ObjectServer):
    api.put(node())
    for name, where in (("here", "node"), ("there", "other")):
        item = {"apiVersion": "v1", "kind": "Pod", **pod(name)}
        item["spec"]["nodeName"] = where
        api.put(item)
    with informed(api) as states:
        until(lambda: keys(states) == ["default/here"])
        assert states.pods_max_age == 150
        api.put({"apiVersion": "v1", "kind": "Pod", **pod("later")})
        until(lambda: keys(states) == ["default/here", "default/later"])
        api.delete("Pod", "default/here")
        until(lambda: keys(states) == ["default/later"])


def test_a_claim_is_read_when_it_is_looked_up_and_again_until_it_is_bound(api: ObjectServer, kubelet: FakeKubelet):
    api.put(node())
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
             "metadata": {"name": "web-data", "namespace": "default"}, "spec": {}}
    api.put(claim)
    kubelet.answer = lambda: pod_list(pod("web"))
    path, key = "/api/v1/namespaces/default/persistentvolumeclaims/web-data", "default/web-data"

    def reads() -> int:
        return [each for _, each, _ in api.requests].count(path)

    clock = Clock()
    with informed(api, kubelet) as states:
        claims = ClaimVolumes(states._transport, states._io.spawn, clock=clock)
        until(lambda: keys(states))
        assert (reads(), claims.get(key)) == (0, None)
        until(lambda: reads() == 1)
        assert [claims.get(key) for _ in range(3)] == [None] * 3
        api.put({**claim, "spec": {"volumeName": "pv-1"}})
        clock.ahead = 11
        until(lambda: claims.get(key) == "pv-1")
        assert (dict(claims), reads()) == ({key: "pv-1"}, 2)
        claims.retain(states.pods)
        assert dict(claims) == {key: "pv-1"}
        claims.retain([])
        assert dict(claims) == {}
    assert claims.get(key) is None
    assert states.claims.get(key) is None


def test_claims_that_cannot_be_read_are_logged_once_per_cause(kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture):
    with ObjectServer() as api, informed(api, kubelet) as states:
        for name in ("a", "b"):
            assert states.claims.get(f"default/{name}") is None
        until(lambda: sum("persistentvolumeclaims" in path for _, path, _ in api.requests) == 2)
        until(lambda: "the claim `default/" in caplog.text)
        assert (len(states.claims), caplog.text.count("cannot be read: 404")) == (0, 1)


def test_d9_states_are_restored_with_their_age_while_server_and_kubelet_are_away(
    api: ObjectServer, kubelet: FakeKubelet, tmp_path: Path,
):
    api.put(node())
    api.put(of_kind("NodeSLO", spec={"a": 1}))
    kubelet.answer = lambda: pod_list(pod("web"))
    with informed(api, kubelet, directory=tmp_path / "state") as states:
        until(lambda: states.synced and states.node_slo and keys(states))
    seen: list[Any] = []
    nowhere = ObjectServer()
    nowhere.server = "http://127.0.0.1:1"
    clock = Clock()
    with informed(nowhere, kubelet, directory=tmp_path / "state", clock=clock, started=False) as states:
        states.register_callback(StateType.NODE_SLO, "test", "", lambda _, spec, target: seen.append((spec, target)))
        assert states.synced
        assert states.node is not None
        assert keys(states) == ["default/web"]
        assert (states.node_slo or {})["spec"] == {"resourceUsedThresholdWithBE": {"enable": False}, "a": 1}
        assert not states.pods_stale
        clock.ahead = 100
        assert 100 <= states.age("NodeSLO") < 160
        assert states.pods_stale


def test_a_stored_time_of_the_future_is_of_no_known_age(api: ObjectServer, kubelet: FakeKubelet, tmp_path: Path):
    store = StateStore(tmp_path, "node", boot="boot")
    store.write(store.encode({"Pod": StoredState(1e12, [{"apiVersion": "v1", "kind": "Pod", **pod()}, 3])}))
    with informed(api, kubelet, directory=tmp_path, started=False) as states:
        assert keys(states) == ["default/web"]
        assert (states.pods_age, states.pods_stale, states.synced) == (math.inf, True, False)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"node": ""}, "set NODE_NAME"), ({"node": "n", "pods_from": "cri"}, "pods come from kubelet or api"),
    ({"node": "n", "pods_max_age": -1}, "must not be negative"),
])
def test_wrong_settings_are_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        StatesSettings(**arguments)


@pytest.mark.parametrize("pods_from", ["kubelet", "api"])
def test_fields_that_new_policies_read_arrive_without_a_restart(
    api: ObjectServer, kubelet: FakeKubelet, pods_from: str,
):
    api.put(node())
    api.put({"apiVersion": "v1", "kind": "Pod", **pod("web")})
    kubelet.answer = lambda: pod_list(pod("web"))
    rarely = KubeletSettings(read_only_port=kubelet.port, interval=3600, timeout=5)
    with informed(api, kubelet, kubelet=rarely, pods_from=pods_from) as states:
        until(lambda: states.synced and keys(states))
        assert "image" not in states.pods[0].object["spec"]["containers"][0]
        states.require({"Pod": field_paths("spec.containers.image"), "Node": None})
        until(lambda: states.pods[0].object["spec"]["containers"][0].get("image") == "web:1")
        until(lambda: (states.node or {})["status"].get("images") == [{"names": ["big"]}])
        lists = len(kubelet.requests)
        states.require({"Pod": field_paths("spec.containers.image")})
        states._io.submit(asyncio.sleep(0.1)).result(60)
        assert len(kubelet.requests) == lists
