from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler.node_numa_resource.topology import topology_of
from koordpolicy.engine.agent.cpuset import format_cpuset, parse_cpuset
from koordpolicy.engine.agent.states_informer.node_topology import KubeletCpus, is_same, node_annotations, node_zones
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Processor
from koordpolicy.testing import node as node_object
from koordpolicy.testing import pod as pod_object

# Two sockets of two cores with two threads each.
PROCESSORS = tuple(Processor(cpu, cpu % 4, cpu % 4 // 2, cpu % 4 // 2) for cpu in range(8))
CONFIG = {"cpuManagerPolicy": "static", "topologyManagerPolicy": "restricted", "reservedSystemCPUs": "0"}


def pod(name: str, *, cpuset: str = "", qos: str = "", phase: str = "Running") -> PodInfo:
    annotations = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": cpuset})} if cpuset else {}
    labels = {"koordinator.sh/qosClass": qos} if qos else {}
    made = pod_object(name, node="node", annotations=annotations, labels=labels)
    return PodInfo.of({**made, "status": {"phase": phase}})


def annotations_of(*pods: PodInfo, kubelet: KubeletCpus | None = None, **of_node: Any) -> dict[str, Any]:
    node = {"metadata": {"name": "node", "annotations": {
        f"node.koordinator.sh/{name.replace('_', '-')}": value for name, value in of_node.items()}}}
    found = node_annotations(PROCESSORS, pods, node, kubelet or KubeletCpus())
    return {name.rpartition("/")[2]: json.loads(text) for name, text in found.items()}


def pools(first: str, second: str) -> list[dict[str, Any]]:
    return [{"socket": 0, "node": 0, "cpuset": first}, {"socket": 1, "node": 1, "cpuset": second}]


def test_without_bound_cpus_all_are_shared():
    found = annotations_of(pod("a"))
    assert found.pop("cpu-topology")["detail"][4] == {"id": 4, "core": 0, "socket": 0, "node": 0}
    shared = pools("0-1,4-5", "2-3,6-7")
    assert found == {"cpu-shared-pools": shared, "be-cpu-shared-pools": shared, "pod-cpu-allocs": []}


def test_shared_pools_lack_the_cpus_of_pods_and_be_pools_only_those_of_lse_pods():
    found = annotations_of(pod("lse", cpuset="0,4", qos="LSE"), pod("lsr", cpuset="2", qos="LSR"),
                        pod("done", cpuset="3", qos="LSE", phase="Succeeded"))
    assert found["cpu-shared-pools"] == pools("1,5", "3,6-7")
    assert found["be-cpu-shared-pools"] == pools("1,5", "2-3,6-7")


def test_reserved_and_exclusive_system_cpus_are_in_no_pool():
    found = annotations_of(
        reservation='{"reservedCPUs": "0"}', system_qos_resource='{"cpuset": "7"}')
    assert found["cpu-shared-pools"] == found["be-cpu-shared-pools"] == pools("1,4-5", "2-3,6")
    assert (found["reservation"], found["system-qos-resource"]) == ({"reservedCPUs": "0"}, {"cpuset": "7"})
    shared = annotations_of(system_qos_resource='{"cpuset": "7", "cpusetExclusive": false}')
    assert shared["cpu-shared-pools"] == pools("0-1,4-5", "2-3,6-7")


@pytest.mark.parametrize(("cpu", "reserved"), [("1500m", "0,4"), ("3", "0-1,4"), ("1", "0"), ("0", None), ("x", None)])
def test_a_reserved_amount_takes_whole_cores_first(cpu: str, reserved: str | None):
    found = annotations_of(reservation=json.dumps({"resources": {"cpu": cpu}}))
    assert found.get("reservation") == ({"reservedCPUs": reserved} if reserved else None)


def test_pods_that_the_kubelet_bound_are_reported_in_the_order_of_their_names():
    b, a, lsr = pod("b"), pod("a"), pod("lsr", cpuset="6", qos="LSR")
    state = {"policyName": "static", "defaultCpuSet": "0,3-5", "entries": {
        b.uid: {"main": "1", "side": "5"}, a.uid: {"main": "2"}, lsr.uid: {"main": "7"}, "gone": {"main": "3"}}}
    kubelet = KubeletCpus.of(json.dumps(state), {**CONFIG, "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}},
                             PROCESSORS)
    found = annotations_of(b, a, lsr, kubelet=kubelet)
    assert found["pod-cpu-allocs"] == [
        {"namespace": "default", "name": name, "uid": uid, "cpuset": cpus, "managedByKubelet": True}
        for name, uid, cpus in (("a", a.uid, "2"), ("b", b.uid, "1,5"))]
    assert found["cpu-manager-policy"] == {
        "policy": "static", "options": {"full-pcpus-only": "true"}, "reservedCPUs": "0"}
    assert found["cpu-shared-pools"] == pools("0,4", "3,7")
    assert found["be-cpu-shared-pools"] == pools("0-1,4-5", "2-3,6-7")


@pytest.mark.parametrize(("state", "config", "expected"), [
    ("", None, KubeletCpus()),
    ('{"policyName": "none", "entries": {"uid": {"c": "1"}}}', None, KubeletCpus("none")),
    ('{"policyName": "static", "entries": {"uid": {"c": "1"}}}', None,
     KubeletCpus("static", allocations={"uid": frozenset({1})})),
    ("", {"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "500m"}, "systemReserved": {"cpu": "600m"},
          "topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "pod"},
     KubeletCpus("static", reserved=frozenset({0, 4}), topology_policy="SingleNUMANodePodLevel")),
    ("", {"cpuManagerPolicy": "none", "topologyManagerPolicy": "best-effort", "cpuManagerPolicyOptions": []},
     KubeletCpus("none", topology_policy="BestEffort")),
    ("", {"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "a lot"}, "topologyManagerPolicy": "new"},
     KubeletCpus("static")),
])
def test_the_kubelets_policies_come_from_its_state_and_configuration(
    state: str, config: Any, expected: KubeletCpus,
):
    assert KubeletCpus.of(state, config, PROCESSORS) == expected


@pytest.mark.parametrize(("state", "message"), [
    ("{", "Expecting property name"), ("[]", "it is not an object"),
    ('{"policyName": "static", "entries": {"uid": {"c": "x"}}}', "`x` is neither a CPU nor a range"),
])
def test_a_malformed_state_is_an_error(state: str, message: str):
    with pytest.raises(ValueError, match=message):
        KubeletCpus.of(state, None, PROCESSORS)


def test_zones_keep_the_resources_and_zones_of_others():
    known = [
        {"name": "node-1", "type": "Node", "costs": [1], "resources": [
            {"name": "kubernetes.io/batch-cpu", "capacity": "1000"}, {"name": "cpu", "capacity": "9"}]},
        {"name": "socket", "type": "Socket"}]
    amount = {"capacity": "4", "allocatable": "4", "available": "4"}
    memory = {"capacity": "1024", "allocatable": "1024", "available": "1024"}
    assert node_zones(PROCESSORS, {1: 1024}, known) == [
        {"name": "node-0", "type": "Node", "resources": [{"name": "cpu", **amount}]},
        {"name": "node-1", "type": "Node", "costs": [1], "resources": [
            {"name": "cpu", **amount}, {"name": "kubernetes.io/batch-cpu", "capacity": "1000"},
            {"name": "memory", **memory}]},
        {"name": "socket", "type": "Socket"}]


@pytest.mark.parametrize(("one", "other", "same"), [
    ('[{"a": 1}, {"b": 2}]', '[{"b":2},{"a":1}]', True), ('{"a": 1, "b": [2, 1]}', '{"b": [1, 2], "a": 1}', True),
    ('{"a": 1}', '{"a": 2}', False), (None, "{}", False), ("{", "{", True), ("{", "}", False),
    ([{"name": "a"}], [{"name": "a"}], True),
])
def test_the_order_of_lists_is_no_difference(one: object, other: object, same: bool):
    assert is_same(one, other) is same


def test_the_scheduler_reads_the_topology_back():
    kubelet = KubeletCpus.of("", {**CONFIG, "topologyManagerScope": "pod"}, PROCESSORS)
    topology = {
        "apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology",
        "metadata": {"name": "node", "annotations": node_annotations(PROCESSORS, [], {}, kubelet)},
        "topologyPolicies": [kubelet.topology_policy], "zones": node_zones(PROCESSORS, {0: 1 << 30, 1: 1 << 30}, None)}
    found = topology_of(Cluster([node_object(), topology]).snapshot(), 0)
    assert found is not None
    # One of the four CPUs of the first NUMA node is the kubelet's own.
    assert {number: dict(amounts) for number, amounts in found.zones.items()} == {
        0: {"cpu": 3000, "memory": 1 << 30}, 1: {"cpu": 4000, "memory": 1 << 30}}
    assert (found.policy, found.cpus.cpus_per_core, found.reserved) == ("Restricted", 2, 1)


OWNERS = st.tuples(st.sets(st.integers(0, 7), max_size=4), st.sampled_from(["LSE", "LSR", "LS", ""]))


@given(st.lists(OWNERS, max_size=4), st.sets(st.integers(0, 7)))
def test_a_cpu_is_shared_unless_somebody_has_it_alone(owners: list[tuple[set[int], str]], reserved: set[int]):
    pods = [pod(f"p{number}", cpuset=format_cpuset(cpus), qos=qos) for number, (cpus, qos) in enumerate(owners)]
    found = annotations_of(*pods, reservation=json.dumps({"reservedCPUs": format_cpuset(reserved)}))

    def cpus_in(name: str) -> set[int]:
        return {cpu for pool in found[name] for cpu in parse_cpuset(pool["cpuset"])}

    bound = set[int]().union(*(cpus for cpus, _ in owners))
    exclusive = set[int]().union(*(cpus for cpus, qos in owners if qos == "LSE"))
    assert cpus_in("cpu-shared-pools") == set(range(8)) - bound - reserved
    assert cpus_in("be-cpu-shared-pools") == set(range(8)) - exclusive - reserved
