from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from koordpolicy.engine.agent.states_informer.pods import PodReader, container_ids, pod_projection
from koordpolicy.engine.cluster.kinds import field_paths

from .fake_kubelet import pod


def raw(item: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(item).encode())


def reader(**more: Any) -> PodReader:
    return PodReader(pod_projection({}), **more)


def test_only_fields_that_are_read_stay():
    full = pod(annotations={"kubectl.kubernetes.io/last-applied-configuration": "{}", "koordinator.sh/cpuBurst": "{}"})
    read = reader().read(raw(full))
    assert read.object["spec"]["containers"] == [
        {"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}, {"name": "side", "resources": {}}]
    assert read.object["metadata"]["annotations"] == {"koordinator.sh/cpuBurst": "{}"}
    assert (read.key, read.uid, read.kubernetes_qos, dict(read.requests)) == (
        "default/web", "uid-web", "Burstable", {"cpu": 1000, "memory": 1 << 30})


def test_fields_that_plugins_read_stay_too():
    some = PodReader(pod_projection({"Pod": field_paths("spec.containers.image")})).read(raw(pod()))
    assert some.object["spec"]["containers"][0]["image"] == "web:1"
    whole = PodReader(pod_projection({"Pod": None})).read(raw(pod()))
    assert whole.object["spec"]["containers"][0]["env"] == [{"name": "A", "value": "x" * 100}]


def test_container_ids_are_those_of_containers_that_run():
    read = reader().read(raw(pod()))
    assert container_ids(read) == {"main": "containerd://web-main"}
    assert container_ids(read, running=False) == {"main": "containerd://web-main", "side": "containerd://web-side"}


def test_sidecars_have_ids_and_containers_that_are_not_made_yet_have_none():
    item = pod()
    item["status"]["initContainerStatuses"] = [{"name": "proxy", "containerID": "cri-o://p", "state": {"running": {}}}]
    item["status"]["containerStatuses"] += [
        {"name": "new", "state": {"running": {}}}, {"name": "newer", "containerID": "", "state": {"running": {}}}]
    read = reader().read(raw(item))
    assert container_ids(read) == {"main": "containerd://web-main", "proxy": "cri-o://p"}


def test_a_static_pod_of_the_api_server_has_the_uid_of_its_control_group():
    item = pod(annotations={"kubernetes.io/config.mirror": "hash"})
    assert reader(mirrors=True).read(raw(item)).uid == "hash"
    assert reader().read(raw(item)).uid == "uid-web"


def test_an_odd_pod_costs_itself_and_keeps_its_last_state(caplog: pytest.LogCaptureFixture):
    many = reader()
    known = many.read_all([raw(pod("a")), raw(pod("b"))], {})
    odd = {**pod("a"), "spec": {"containers": "none"}}
    found = many.read_all([raw(odd), raw(pod("b")), raw({**pod("c"), "spec": 3})], known)
    again = many.read_all([raw(odd), raw(pod("b"))], known)
    assert (list(found), list(again)) == (["default/a", "default/b"], ["default/a", "default/b"])
    assert found["default/a"] is known["default/a"]
    assert caplog.text.count("`default/a` cannot be read, and is left as it was") == 1
    assert many.faults.keys() == {"default/a"}


def test_a_pod_that_has_not_changed_is_the_same_object():
    many = reader()
    first = many.read_all([raw(pod("a")), raw(pod("b"))], {})
    second = many.read_all([raw(pod("a")), raw(pod("b", uid="other"))], first)
    assert second["default/a"] is first["default/a"]
    assert second["default/b"].uid == "other"
