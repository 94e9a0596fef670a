"""CPUSetAllocator: CPUs of containers, allocated or shared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos.cpuset_allocator.plugin import CPUSetAllocator
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from tests.builtin_plugins.qos.readings import PlainReadings, container, running_pod

STATUS = "scheduling.koordinator.sh/resource-status"


def topology(policy: str = "none", **annotations: str) -> dict[str, Any]:
    return {"NodeResourceTopology": {"metadata": {"annotations": {
        "node.koordinator.sh/cpu-shared-pools": json.dumps([
            {"socket": 0, "node": 0, "cpuset": "0-3"}, {"socket": 0, "node": 1, "cpuset": "8-11"},
        ]),
        "node.koordinator.sh/system-qos-resource": json.dumps({"cpuset": "14-15"}),
        "kubelet.koordinator.sh/cpu-manager-policy": json.dumps({"policy": policy}), **annotations,
    }}}}


def pod(qos: str, status: Any = None, kube: str = "Burstable") -> PodInfo:
    annotations = {} if status is None else {STATUS: status if isinstance(status, str) else json.dumps(status)}
    return running_pod("web", container("main"), qos=qos, kube=kube, annotations=annotations)


def readings(*pods: PodInfo, policy: str = "none") -> PlainReadings:
    given = PlainReadings(pods=pods, objects=topology(policy))
    for each in pods:
        for directory in (given.directory(each), given.directory(each, "main")):
            given.files |= {f"{directory}/cpuset.cpus": "0-15", f"{directory}/cpu.cfs_quota_us": "200000"}
    return given


@pytest.mark.parametrize(("qos", "status", "kube", "cpus", "quota"), [
    ("LSR", {"cpuset": "4-5"}, "Guaranteed", "4-5", "-1"),
    ("LSE", {"cpuset": "4-5"}, "Guaranteed", "4-5", "-1"),
    ("LSR", None, "Guaranteed", "0-15", "200000"),
    ("LS", None, "Burstable", "0-3,8-11", "200000"),
    ("LS", {"numaNodeResources": [{"node": 1}]}, "Burstable", "8-11", "200000"),
    ("SYSTEM", None, "Burstable", "14-15", "200000"),
    ("BE", {"cpuset": "4-5"}, "BestEffort", "0-15", "200000"),
    ("", None, "Burstable", "0-3,8-11", "200000"),
    ("", None, "BestEffort", "0-15", "200000"),
    ("LSR", "{", "Guaranteed", "0-15", "200000"),
    ("LSR", "[]", "Guaranteed", "0-15", "200000"),
    ("LSR", {"cpuset": "a-b"}, "Guaranteed", "0-15", "200000"),
    ("LS", {"numaNodeResources": [{}]}, "Burstable", "0-15", "200000"),
])
def test_each_pod_has_the_cpus_of_its_class(qos: str, status: Any, kube: str, cpus: str, quota: str) -> None:
    given = readings(pod(qos, status, kube))
    given.apply(CPUSetAllocator({}).adjust(given))
    directory = given.directory(given.pods[0], "main")
    assert given.files[f"{directory}/cpuset.cpus"] == cpus
    assert given.files[f"{directory}/cpu.cfs_quota_us"] == quota
    assert given.files[f"{given.directory(given.pods[0])}/cpu.cfs_quota_us"] == quota


def test_pods_without_a_class_are_left_to_a_static_kubelet() -> None:
    assert CPUSetAllocator({}).adjust(readings(pod("", None), policy="static")) == ()


def test_the_quota_of_the_pod_goes_before_that_of_its_container() -> None:
    given = readings(pod("LSR", {"cpuset": "4-5"}, "Guaranteed"))
    (found,) = CPUSetAllocator({}).adjust(given)
    assert found.writes == (
        ("guaranteed/podweb-uid/cpu.cfs_quota_us", "-1"), ("guaranteed/podweb-uid/main/cpu.cfs_quota_us", "-1"),
        ("guaranteed/podweb-uid/main/cpuset.cpus", "4-5"),
    )


def test_cpus_that_are_not_allocated_any_more_are_given_back() -> None:
    plugin, given = CPUSetAllocator({}), readings(pod("LSR", {"cpuset": "4-5"}, "Guaranteed"))
    before = dict(given.files)
    given.apply(plugin.adjust(given))
    assert plugin.adjust(given) == ()
    given.pods = (pod("LSR", None, "Guaranteed"),)
    found = plugin.adjust(given)
    assert all(each.recovers for each in found)
    given.apply(found)
    assert given.files == before


def test_recovering_restores_the_former_cpus() -> None:
    plugin, given = CPUSetAllocator({}), readings(pod("LS"))
    before = dict(given.files)
    given.apply(plugin.adjust(given))
    assert given.files != before
    given.apply(plugin.recover(given))
    assert given.files == before


def test_a_malformed_topology_is_an_error() -> None:
    given = readings(pod("LS"))
    given.objects = topology(**{"node.koordinator.sh/cpu-shared-pools": '[{"node": 0, "cpuset": "x"}]'})
    with pytest.raises(EvaluationError, match="annotation of the NodeResourceTopology"):
        CPUSetAllocator({}).adjust(given)


def test_without_a_topology_only_allocated_cpus_are_set() -> None:
    given = readings(pod("LS"), )
    given.objects = {}
    assert CPUSetAllocator({}).adjust(given) == ()
