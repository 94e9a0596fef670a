from __future__ import annotations

import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler.device_share.requests import gpu_request
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.scheduler.cycle.schedule_one import ReservedDevices
from koordpolicy.plugin import SKIP, CycleState
from tests import grants
from tests.fake_framework import FakeFramework, done
from tests.grants import FakeReservations, SeenReservation, passes

NAME = "DeviceShare"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION = "scheduling.koordinator.sh/gpu-partition-spec"
K = "koordinator.sh/"
UNRESOLVABLE, UNSCHEDULABLE = Code.UNRESOLVABLE, Code.UNSCHEDULABLE


def node(name="n", **labels):
    labels = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"cpu": "64"}}}


def gpu(minor, *, health=True, numa=None, pcie="0", labels=None, memory="80Gi"):
    entry = {
        "type": "gpu", "minor": minor, "id": f"GPU-{minor}", "health": health, "labels": labels or {},
        "resources": {K + "gpu-core": "100", K + "gpu-memory-ratio": "100", K + "gpu-memory": memory},
    }
    if numa is not None:
        entry["topology"] = {"socketID": numa, "nodeID": numa, "pcieID": f"{numa}-{pcie}", "busID": f"0000:{minor}"}
    return entry


def nic(minor, *, numa=None, pcie="0", vfs=0, labels=None):
    entry = {"type": "rdma", "minor": minor, "id": f"NIC-{minor}", "health": True, "labels": labels or {},
             "resources": {K + "rdma": "100"}}
    if numa is not None:
        entry["topology"] = {"socketID": numa, "nodeID": numa, "pcieID": f"{numa}-{pcie}", "busID": f"0001:{minor}"}
    if vfs:
        entry["vfGroups"] = [{"labels": {"type": "general"}, "vfs": [
            {"minor": number, "busID": f"0000:{minor}:{number}"} for number in reversed(range(vfs))]}]
    return entry


def device(*entries, name="n", labels=None, partitions=None):
    annotations = {} if partitions is None else {"scheduling.koordinator.sh/gpu-partitions": json.dumps(partitions)}
    return {"kind": "Device", "metadata": {"name": name, "labels": labels or {}, "annotations": annotations},
            "spec": {"devices": list(entries)}}


def pod_object(name="p", *, on="", annotations=None, labels=None, **requests):
    requests = {K + key.replace("_", "-"): str(amount) for key, amount in requests.items()}
    requests = {key.replace(K + "gpu-shared", K + "gpu.shared").replace(K + "nvidia", "nvidia.com/gpu"): amount
                for key, amount in requests.items()}
    texts = {key: each if isinstance(each, str) else json.dumps(each) for key, each in (annotations or {}).items()}
    return {
        "kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels or {},
                                    "annotations": texts},
        "spec": {"nodeName": on, "containers": [{"name": "c", "resources": {"requests": requests}}]},
    }


def pod(name="p", **fields):
    return PodInfo.of(pod_object(name, **fields))


place = partial(grants.place, annotation=ALLOCATED)


def minors(found, device_type="gpu"):
    return found if isinstance(found, str) else [each["minor"] for each in found[device_type]]


def world(*entries, labels=None, node_labels=None, partitions=None, **args):
    framework = FakeFramework(node(**(node_labels or {})), device(*entries, labels=labels, partitions=partitions))
    return framework, framework.make(NAME, **args)


GPUS = tuple(gpu(minor) for minor in range(4))


@pytest.mark.parametrize(("requests", "expected"), [
    ({}, SKIP),
    ({"gpu": 101}, "invalid resource unit koordinator.sh/gpu: 101"),
    ({"fpga": 150}, "invalid resource unit koordinator.sh/fpga: 150"),
    ({"gpu_core": 100}, "invalid resource device requests: [koordinator.sh/gpu-core]"),
    ({"gpu": 50, "gpu_core": 50}, "invalid resource device requests: [koordinator.sh/gpu koordinator.sh/gpu-core]"),
    ({"gpu_core": 150, "gpu_memory_ratio": 100},
     "invalid resource device requests: [koordinator.sh/gpu-core koordinator.sh/gpu-memory-ratio]"),
    ({"gpu_shared": 3, "gpu_memory_ratio": 100},
     "invalid resource device requests: [koordinator.sh/gpu-memory-ratio koordinator.sh/gpu.shared]"),
    ({"gpu_shared": 2, "gpu_core": 100, "gpu_memory": "8Gi"}, None),
    ({"nvidia": 2}, None), ({"rdma": 200}, None),
])
def test_only_names_that_go_together_and_amounts_that_there_are_make_a_request(requests, expected):
    framework, plugin = world(*GPUS)
    found = plugin.pre_filter(CycleState(), pod(**requests), framework.snapshot())
    if isinstance(expected, str):
        assert (found.code, found.message) == (UNRESOLVABLE, expected)
    else:
        assert found is expected


@pytest.mark.parametrize(("amounts", "count", "per_gpu", "shared"), [
    ({"gpu-core": 200, "gpu-memory-ratio": 200}, 2, {"gpu-core": 100, "gpu-memory-ratio": 100}, False),
    ({"gpu-memory-ratio": 50}, 1, {"gpu-memory-ratio": 50}, True),
    ({"gpu-core": 60, "gpu-memory": 2048}, 1, {"gpu-core": 60, "gpu-memory": 2048}, True),
    ({"gpu.shared": 2, "gpu-memory-ratio": 100}, 2, {"gpu-memory-ratio": 50}, True),
    ({"gpu.shared": 2, "gpu-memory-ratio": 200}, 2, {"gpu-memory-ratio": 100}, False),
])
def test_requests_are_brought_to_what_one_gpu_gives(amounts, count, per_gpu, shared):
    found = gpu_request({K + name: amount for name, amount in amounts.items()})
    assert (found.count, dict(found.per_gpu), found.shared) == (
        count, {K + name: amount for name, amount in per_gpu.items()}, shared)


def test_old_names_of_devices_still_count():
    framework, plugin = world(*GPUS)
    old = pod_object()
    old["spec"]["containers"][0]["resources"]["requests"] = {"kubernetes.io/gpu": "200"}
    assert minors(place(framework, plugin, PodInfo.of(old))) == [0, 1]


def test_what_a_pod_got_is_written_down_with_ids_and_memory():
    framework, plugin = world(*GPUS)
    assert place(framework, plugin, pod(gpu=50)) == {"gpu": [{
        "minor": 0, "id": "GPU-0",
        "resources": {K + "gpu-core": "50", K + "gpu-memory": "40Gi", K + "gpu-memory-ratio": "50"},
    }]}
    assert place(framework, plugin, pod("q", gpu_memory="20Gi"))["gpu"][0]["resources"] == {
        K + "gpu-memory": "20Gi", K + "gpu-memory-ratio": "25"}


def test_a_device_that_goes_before_binding_is_an_error():
    framework, plugin = world(*GPUS)
    state, asked = CycleState(), pod(gpu=100)
    plugin.pre_filter(state, asked, framework.snapshot())
    plugin.reserve(state, asked, framework.snapshot(), 0)
    framework.delete("Device", "n")
    assert plugin.pre_bind(state, asked, {"metadata": {}}, "n").code is Code.ERROR


def test_shared_gpus_spread_by_default_and_pack_where_that_is_asked_for():
    framework, plugin = world(*GPUS)
    assert [minors(place(framework, plugin, pod(f"p{number}", gpu=30))) for number in range(3)] == [[0], [1], [2]]
    most = {"type": "MostAllocated", "resources": [{"name": K + "gpu-memory-ratio", "weight": 1}]}
    framework, plugin = world(*GPUS, scoringStrategy=most)
    assert [minors(place(framework, plugin, pod(f"p{number}", gpu=30))) for number in range(4)] == [[0], [0], [0], [1]]


def test_unhealthy_devices_and_nodes_without_enough_are_refused():
    framework, plugin = world(gpu(0), gpu(1, health=False))
    assert minors(place(framework, plugin, pod("a", gpu=100))) == [0]
    assert passes(plugin, pod(gpu=100), framework.snapshot()) == (UNSCHEDULABLE, "Insufficient gpu devices")
    assert passes(plugin, pod(rdma=100), framework.snapshot()) == (UNRESOLVABLE, "Insufficient rdma devices")


def test_nodes_without_a_device_object_are_left_to_others():
    framework = FakeFramework(node())
    plugin, state, asked = framework.make(NAME), CycleState(), pod(gpu=100)
    assert passes(plugin, asked, framework.snapshot(), state=state) is None
    assert plugin.score(state, asked, framework.snapshot(), framework.rows).values.tolist() == [0]
    assert plugin.reserve(state, asked, framework.snapshot(), 0) is None
    assert plugin.pre_bind(state, asked, {"metadata": {}}, "n") is None


@pytest.mark.parametrize(("labels", "args", "expected"), [
    ({K.replace("/", "__") + "gpu_isolation_provider": "HAMi-core"}, {}, None),
    ({}, {}, (Code.ERROR, "GPUIsolationProviderHAMICore not found on the node")),
])
def test_a_shared_gpu_needs_the_isolation_that_the_pod_names(labels, args, expected):
    framework, plugin = world(*GPUS, node_labels=labels, **args)
    asked = pod(gpu=50, labels={K + "gpu-isolation-provider": "HAMi-core"})
    assert passes(plugin, asked, framework.snapshot()) == expected
    assert passes(plugin, pod(gpu=100, labels=asked.object["metadata"]["labels"]), framework.snapshot()) is None


def test_some_models_cannot_be_shared():
    labels = {"node.koordinator.sh__gpu_vendor": "huawei", "node.koordinator.sh__gpu_model": "M"}
    framework, plugin = world(*GPUS, node_labels=labels, gpuShareUnsupportedModels=[{"vendor": "huawei", "model": "M"}])
    assert passes(plugin, pod(gpu=50), framework.snapshot()) == (
        UNRESOLVABLE, 'model "M" of vendor "huawei" does not support GPU Share')
    assert passes(plugin, pod(gpu=100), framework.snapshot()) is None


# RDMA and FPGA


@pytest.mark.parametrize(("amount", "hint", "expected"), [
    (200, None, [(0, "100"), (1, "100")]),
    (10, None, [(0, "10")]),
    (10, {"allocateStrategy": "ApplyForAll"}, [(0, "10"), (1, "10"), (2, "10")]),
    (10, {"allocateStrategy": "ApplyForAll", "selector": {"matchLabels": {"fast": "yes"}}}, [(2, "10")]),
    (2, {"allocateStrategy": "RequestsAsCount"}, [(0, "1"), (1, "1")]),
    (2, {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"}, [(0, "100"), (1, "100")]),
    (10, {"allocateStrategy": "ApplyForAll", "selector": {"matchLabels": {"fast": "no"}}}, "Insufficient rdma devices"),
    (10, {"vfSelector": {}}, "Insufficient rdma VirtualFunctions"),
])
def test_hints_say_how_many_devices_an_amount_means(amount, hint, expected):
    framework, plugin = world(nic(0), nic(1), nic(2, labels={"fast": "yes"}))
    found = place(framework, plugin, pod(rdma=amount, annotations={HINT: {"rdma": hint}} if hint else {}))
    if not isinstance(found, str):
        found = [(each["minor"], each["resources"][K + "rdma"]) for each in found["rdma"]]
    assert found == expected


def test_each_pod_gets_a_virtual_function_of_its_own():
    framework, plugin = world(nic(0, vfs=2))
    wish = {HINT: {"rdma": {"vfSelector": {"matchLabels": {"type": "general"}}}}}
    found = [place(framework, plugin, pod(name, rdma=1, annotations=wish)) for name in "abc"]
    assert [each["rdma"][0]["extension"]["vfs"] for each in found[:2]] == [
        [{"busID": "0000:0:0", "minor": 0}], [{"busID": "0000:0:1", "minor": 1}]]
    assert found[2] == "Insufficient rdma devices"


@pytest.mark.parametrize(("annotations", "message"), [
    ({HINT: "{"}, "invalid DeviceAllocateHint annotation, err: "),
    (
        {HINT: {"gpu": {"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}}},
        "invalid Selector of DeviceHint, ",
    ),
    ({JOINT: {"deviceTypes": "gpu"}}, "invalid DeviceJointAllocate annotation, err: "),
    ({PARTITION: "[]"}, "invalid GPUPartitionSpec annotation, err: "),
    ({ALLOCATED: "{"}, f"annotation `{ALLOCATED}` is not JSON"),
])
def test_annotations_that_cannot_be_read_keep_the_pod_waiting(annotations, message):
    framework, plugin = world(*GPUS)
    code, told = passes(plugin, pod(gpu=100, annotations=annotations), framework.snapshot())
    assert (code, told[: len(message)]) == (UNRESOLVABLE, message)


# Joint allocation


TOGETHER = {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
PAIRED = (gpu(0, numa=0, pcie="0"), gpu(1, numa=0, pcie="1"), nic(0, numa=0, pcie="1"), nic(1, numa=0, pcie="0"))


def test_the_other_types_come_from_the_switches_of_the_first():
    framework, plugin = world(*PAIRED)
    found = place(framework, plugin, pod(gpu=100, rdma=10, annotations={JOINT: {**TOGETHER, "requiredScope": ""}}))
    assert (minors(found), minors(found, "rdma")) == ([0], [1])


def test_one_device_of_each_switch_where_the_scope_requires_it():
    framework, plugin = world(*PAIRED)
    found = place(framework, plugin, pod(gpu=200, rdma=10, annotations={JOINT: TOGETHER}))
    assert (minors(found), sorted(minors(found, "rdma"))) == ([0, 1], [0, 1])
    framework, plugin = world(*PAIRED[:2], nic(0, numa=1), nic(1, numa=0, pcie="0"))
    assert passes(plugin, pod(gpu=200, rdma=10, annotations={JOINT: TOGETHER}), framework.snapshot()) == (
        UNSCHEDULABLE, "node(s) Device Joint-Allocate rules violation")


def test_well_planned_nodes_settle_the_other_types_when_the_node_is_chosen():
    planned = {"node.koordinator.sh/secondary-device-well-planned": "true"}
    framework, plugin = world(*PAIRED[:2], nic(0, numa=0, pcie="9"), labels=planned)
    asked = pod(gpu=100, rdma=10, annotations={JOINT: TOGETHER})
    assert passes(plugin, asked, framework.snapshot()) is None
    assert place(framework, plugin, asked) == "node(s) Device Joint-Allocate rules violation"


# Partitions


def test_gpus_of_known_models_come_by_partition_and_leave_the_larger_ones_whole():
    labels = {"node.koordinator.sh__gpu_model": "H800", "node.koordinator.sh__gpu_partition_policy": "Honor"}
    framework, plugin = world(*(gpu(minor) for minor in range(8)), node_labels=labels)
    found = [
        minors(place(framework, plugin, pod(f"p{number}", gpu=amount)))
        for number, amount in enumerate((100, 200, 100, 400))
    ]
    assert found == [[0], [2, 3], [1], [4, 5, 6, 7]]
    assert passes(plugin, pod(gpu=300), framework.snapshot()) == (
        UNRESOLVABLE, "node(s) Unsupported number of GPU requests")
    assert passes(plugin, pod(gpu=100), framework.snapshot()) == (UNSCHEDULABLE, "Insufficient Partitioned GPU Devices")


def test_a_table_of_partitions_is_gone_through_from_the_lowest_score():
    table = {"2": [
        {"minors": [0, 1], "allocationScore": 2, "ringBusBandwidth": "400Gi"},
        {"minors": [2, 3], "allocationScore": 1, "ringBusBandwidth": "200Gi"},
    ]}
    framework, plugin = world(*GPUS, partitions=table)
    assert minors(place(framework, plugin, pod("a", gpu=200))) == [2, 3]
    fast = pod("b", gpu=200, annotations={PARTITION: {"ringBusBandwidth": "300Gi"}})
    assert minors(place(*world(*GPUS, partitions=table), fast)) == [0, 1]
    strict = pod("c", gpu=200, annotations={PARTITION: {"allocatePolicy": "Restricted", "ringBusBandwidth": "300Gi"}})
    assert passes(world(*GPUS, partitions=table)[1], strict, world(*GPUS, partitions=table)[0].snapshot()) == (
        UNSCHEDULABLE, "Insufficient Partitioned GPU Devices")
    # Nobody insists on partitions: others do.
    assert minors(place(*world(*GPUS, partitions=table), pod("d", gpu=300))) == [0, 1, 2]


def test_a_pod_that_wants_a_partition_needs_a_table():
    framework, plugin = world(*GPUS)
    assert passes(plugin, pod(gpu=200, annotations={PARTITION: {}}), framework.snapshot()) == (
        UNRESOLVABLE, "node(s) missing GPU Partition Table")


# Topology


TREE = (gpu(0, numa=0, pcie="0"), gpu(1, numa=0, pcie="1"), gpu(2, numa=1, pcie="0"), gpu(3, numa=1, pcie="0"))


@pytest.mark.parametrize(("amount", "scope", "expected"), [
    (200, "", [2, 3]),  # the deepest scope
    (300, "", [0, 1, 2]),
    (100, "", [0]),
    (200, "PCIe", [2, 3]),
    (300, "NUMANode", "Insufficient Topology Scoped GPU Devices"),
    (100, "Device", "Insufficient Topology Scoped GPU Devices"),
    (500, "", "Insufficient GPU Devices"),
])
def test_gpus_come_from_the_deepest_part_of_the_topology_that_has_enough(amount, scope, expected):
    framework, plugin = world(*TREE)
    annotations = {HINT: {"gpu": {"requiredTopologyScope": scope}}} if scope else {}
    assert minors(place(framework, plugin, pod(gpu=amount, annotations=annotations))) == expected


def test_a_required_scope_needs_a_topology():
    framework, plugin = world(*GPUS)
    asked = pod(gpu=100, annotations={HINT: {"gpu": {"requiredTopologyScope": "PCIe"}}})
    assert passes(plugin, asked, framework.snapshot()) == (
        UNRESOLVABLE, "node(s) missing GPU Device Topology Tree")


def test_scopes_that_are_used_already_are_filled_first():
    framework, plugin = world(*TREE)
    assert minors(place(framework, plugin, pod("a", gpu=100))) == [0]
    assert minors(place(framework, plugin, pod("b", gpu=100))) == [1]
    assert minors(place(framework, plugin, pod("c", gpu=50))) == [2]
    assert minors(place(framework, plugin, pod("d", gpu=100))) == [3]


# Templates


TEMPLATES = {
    "kind": "ConfigMap", "metadata": {"name": "gpu-shared-resource-templates", "namespace": "koordinator-system"},
    "data": {"data.yaml": (
        "huawei-310P:\n  vir02:\n    huawei.com/npu-core: 2\n    huawei.com/npu-cpu: 2\n"
        "    koordinator.sh/gpu-memory: 6Gi\n"
    )},
}


def npu_pod(core):
    item = pod_object("p")
    item["spec"]["containers"][0]["resources"]["requests"] = {
        K + "gpu.shared": "1", "huawei.com/npu-core": core, "huawei.com/npu-cpu": "2", K + "gpu-memory": "6Gi"}
    return PodInfo.of(item)


def npu_world(model, *objects):
    entry = gpu(0)
    entry["resources"] = {"huawei.com/npu-core": "8", "huawei.com/npu-cpu": "7", K + "gpu-memory": "21Gi",
                          K + "gpu-memory-ratio": "100"}
    labels = {"node.koordinator.sh__gpu_vendor": "huawei", "node.koordinator.sh__gpu_model": model}
    framework = FakeFramework(node(**labels), device(entry), *objects)
    return framework, framework.make(NAME)


def test_shared_npus_are_given_by_template():
    found = place(*npu_world("310P", TEMPLATES), npu_pod("2"))
    assert found["gpu"][0]["extension"] == {"gpuSharedResourceTemplate": "vir02"}
    framework, plugin = npu_world("910B", TEMPLATES)
    assert passes(plugin, npu_pod("2"), framework.snapshot()) == (
        UNRESOLVABLE, "no matched GPU shared resource template",
    )
    assert plugin.pre_filter(CycleState(), npu_pod("4"), framework.snapshot()).message == (
        "no matched GPU shared resource template")
    framework, plugin = npu_world("310P")
    assert plugin.pre_filter(CycleState(), npu_pod("2"), framework.snapshot()).code is UNRESOLVABLE


# NUMA


def test_devices_and_cpus_come_from_one_numa_node():
    detail = [{"id": cpu, "core": cpu, "socket": cpu // 8, "node": cpu // 8} for cpu in range(16)]
    zones = [{"name": f"node-{zone}", "type": "Node", "resources": [
        {"name": "cpu", "allocatable": "8"}, {"name": "memory", "allocatable": "8Gi"}]} for zone in (0, 1)]
    held = {"cpuset": "", "numaNodeResources": [{"node": 1, "resources": {"cpu": "7"}}]}
    single = {"node.koordinator.sh__numa_topology_policy": "SingleNUMANode"}
    framework = FakeFramework(
        node(**single), device(*TREE), {
            "kind": "NodeResourceTopology", "zones": zones, "metadata": {"name": "n", "annotations": {
                "node.koordinator.sh/cpu-topology": json.dumps({"detail": detail})}}},
        pod_object("busy", on="n", annotations={"scheduling.koordinator.sh/resource-status": held}),
    )
    numa, devices = framework.make("NodeNUMAResource"), framework.make(NAME)

    def both(gpus, cpu):
        item = pod_object("p", gpu=gpus)
        item["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
        asked, state, snapshot = PodInfo.of(item), CycleState(), framework.snapshot()
        assert (numa.pre_filter(state, asked, snapshot), devices.pre_filter(state, asked, snapshot)) == (None, None)
        answer = numa.filter(state, asked, snapshot, framework.rows)
        if not answer.passed[0]:
            return answer.explain(0).message
        assert devices.filter(state, asked, snapshot, framework.rows).passed.all()
        assert (numa.reserve(state, asked, snapshot, 0), devices.reserve(state, asked, snapshot, 0)) == (None, None)
        draft = {"metadata": {}}
        for plugin in (numa, devices):
            plugin.pre_bind(state, asked, draft, "n")
            plugin.unreserve(state, asked, snapshot, 0)
        return minors(json.loads(draft["metadata"]["annotations"][ALLOCATED]))

    # The switch of NUMA node 1 would be the better one, but its cpus are taken.
    assert both(200, "4") == [0, 1]
    assert both(200, "1") == [2, 3]
    assert both(300, "1").startswith("Unaligned NUMA Hint cause ")


# What-ifs, reservations, hints, designated devices


def test_a_preempted_pod_leaves_its_devices_in_the_what_if_only():
    framework, plugin = world(gpu(0))
    place(framework, plugin, pod("a", gpu=100))
    asked = pod("b", gpu=100)
    without = framework.snapshot().overlay({"n": NodeChange(remove=["default/a"])})
    assert passes(plugin, asked, framework.snapshot()) == (UNSCHEDULABLE, "Insufficient gpu devices")
    assert passes(plugin, asked, without) is None
    assert passes(plugin, asked, framework.snapshot()) == (UNSCHEDULABLE, "Insufficient gpu devices")


def test_what_was_reserved_can_be_given_back_more_than_once_and_goes_with_the_pod():
    framework, plugin = world(*GPUS)
    plugin.start()
    before, asked, state = plugin.endpoints()["nodes"](), pod("a", gpu=150 - 100), CycleState()
    plugin.reserve(state, asked, framework.snapshot(), 0)
    framework.assume(asked, "n")
    assert plugin.endpoints()["nodes/{name}"]("n") != before["n"]
    framework.forget(asked)
    for _ in range(2):
        plugin.unreserve(state, asked, framework.snapshot(), 0)
    assert (plugin.endpoints()["nodes"](), ReservedDevices in state) == (before, False)
    place(framework, plugin, asked)
    framework.upsert(pod_object("a", gpu=50, on="n"))
    framework.delete("Pod", "default/a")
    assert (plugin.endpoints()["nodes"](), len(plugin._granted)) == (before, 0)


def test_designated_devices_are_given_again_or_refused():
    hint = {"internal.scheduling.koordinator.sh/scheduling-hint": {"extensions": {NAME: {}}}}
    wanted = {"gpu": [{"minor": 2, "resources": {K + "gpu-core": "100", K + "gpu-memory-ratio": "100"}}]}
    framework, plugin = world(*GPUS)
    assert minors(place(framework, plugin, pod("a", gpu=100, annotations={ALLOCATED: wanted, **hint}))) == [2]
    assert place(
        framework, plugin, pod("b", gpu=100, annotations={ALLOCATED: wanted, **hint}),
    ) == "Insufficient gpu devices"


def reserved(minor, policy="", ratio=100):
    amounts = {
        K + "gpu-core": str(ratio), K + "gpu-memory-ratio": str(ratio), K + "gpu-memory": f"{80 * ratio // 100}Gi",
    }
    text = json.dumps({"gpu": [{"minor": minor, "resources": amounts}]})
    metadata = {"name": "r", "annotations": {ALLOCATED: text}}
    return SeenReservation("r", {"kind": "Reservation", "metadata": metadata}, policy)


@pytest.mark.parametrize(("reservation", "amount", "expected"), [
    (reserved(1), 100, [1]),
    (reserved(1), 200, [0, 1]),  # what is left of the node helps out
    (reserved(1, "Restricted", 50), 50, [1]),
    (reserved(1, "Restricted", 50), 60, [0]),  # not in the reservation: of the node
])
def test_a_pod_takes_the_devices_of_its_reservation(reservation, amount, expected):
    framework, plugin = world(gpu(0), gpu(1))
    framework.plugins.append(FakeReservations(reservation))
    asked, state, snapshot = pod(gpu=amount), CycleState(), framework.snapshot()
    plugin.restore(state, asked, [reservation], [], "n")
    plugin.pre_filter(state, asked, snapshot)
    assert plugin.filter(state, asked, snapshot, framework.rows).passed.all()
    assert plugin.reserve(state, asked, snapshot, 0) is None
    assert sorted(state[ReservedDevices]) == expected
    assert plugin.filter_reservation(state, asked, reservation, snapshot, 0) == (
        Refusal("reservation", "Reservation(s) Insufficient gpu devices") if expected == [0] else None)
    assert 0 <= plugin.score_reservation(state, asked, reservation, snapshot, 0) <= 100


def test_what_is_reserved_for_others_is_not_free():
    framework, plugin = world(gpu(0), gpu(1))
    asked, state, snapshot = pod(gpu=200), CycleState(), framework.snapshot()
    plugin.restore(state, asked, [], [reserved(1)], "n")
    plugin.pre_filter(state, asked, snapshot)
    assert plugin.filter(state, asked, snapshot, framework.rows).explain(0).message == "Insufficient gpu devices"


def test_a_reserve_pod_asks_for_all_that_it_gets_once_its_node_is_known():
    framework, plugin = world(*GPUS)
    asked = pod(gpu=100, annotations={"scheduling.koordinator.sh/reserve-pod": "true"})
    resized = plugin.resize_pod(CycleState(), asked, framework.snapshot(), 0)
    assert dict(resized.requests) == {
        K + "gpu": 100, K + "gpu-core": 100, K + "gpu-memory-ratio": 100, K + "gpu-memory": 80 * 2**30}
    assert plugin.resize_pod(CycleState(), pod(gpu=100), framework.snapshot(), 0) is None


def test_what_the_framework_counts_by_gpu_follows_the_choice():
    labels = {"node.koordinator.sh__gpu_model": "H800"}
    framework, plugin = world(*(gpu(minor) for minor in range(8)), node_labels=labels)
    for number, amount in enumerate((100, 200)):
        place(framework, plugin, pod(f"p{number}", gpu=amount))
    assert framework.snapshot().devices.free[0].tolist() == [0, 1000, 0, 0, 1000, 1000, 1000, 1000]


@pytest.mark.parametrize(("args", "message"), [
    ({"scoringStrategy": {"type": "RequestedToCapacityRatio"}}, "`scoringStrategy.type` is `RequestedToCapacityRatio`"),
    ({"scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": "x", "weight": 0}]}},
     "`scoringStrategy.resources[0].weight` is 0: it must lie within 1 and 100"),
    ({"gpuSharedTemplates": 1}, "there is no argument `gpuSharedTemplates`"),
])
def test_arguments_are_checked_with_their_paths(args, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what is compared
        FakeFramework().make(NAME, **args)
    assert message in str(caught.value)


KINDS = [
    {"gpu": 100}, {"gpu": 30}, {"gpu": 200}, {"gpu_memory": "20Gi"}, {"gpu_shared": 2, "gpu_memory_ratio": 100},
    {"rdma": 50}, {"gpu": 100, "rdma": 20, "annotations": {JOINT: TOGETHER}},
    {"rdma": 1, "annotations": {HINT: {"rdma": {"vfSelector": {}}}}},
]
STEPS = st.lists(st.tuples(st.sampled_from(range(len(KINDS))), st.integers(0, 4), st.booleans()), max_size=12)


def clusters():
    return [
        node("a"), device(*GPUS, nic(0, vfs=2), name="a"),
        node("b"), device(*TREE, nic(0, numa=0, pcie="0", vfs=1), nic(1, numa=1, pcie="0"), name="b"),
        node("c"),
        *(item for name in "de" for item in (node(name), device(*TREE, nic(0, numa=0, pcie="0"), name=name))),
    ]


@settings(max_examples=20, deadline=None)
@given(steps=STEPS)
def test_nothing_is_given_twice_and_kept_answers_are_those_of_a_plugin_that_knows_nothing(steps):
    framework = FakeFramework(*clusters())
    plugin = framework.make(NAME)
    placed = {}
    for number, (kind, row, goes) in enumerate(steps):
        asked, snapshot, state = pod(f"p{number}", **KINDS[kind]), framework.snapshot(), CycleState()
        assert plugin.pre_filter(state, asked, snapshot) is None
        passed = plugin.filter(state, asked, snapshot, framework.rows).passed.tolist()
        scores = plugin.score(state, asked, snapshot, framework.rows).values.tolist()
        fresh = FakeFramework(*clusters())
        for held, where, found in placed.values():
            metadata = held.object["metadata"]
            annotations = {**metadata["annotations"], ALLOCATED: json.dumps(found)}
            fresh.upsert({**held.object, "metadata": {**metadata, "annotations": annotations},
                          "spec": {**held.object["spec"], "nodeName": where}})
        stranger = fresh.make(NAME)
        assert passed == [passes(stranger, asked, fresh.snapshot(), each) is None for each in range(5)]
        assert scores == stranger.score(CycleState(), asked, fresh.snapshot(), fresh.rows).values.tolist()
        found = place(framework, plugin, asked, row)
        if isinstance(found, dict):
            placed[asked.key] = asked, snapshot.names[row], found
            if goes:
                plugin.forget_pod(asked)
                framework.cluster.forget(asked.key)
                placed.pop(asked.key)
    for name in "abde":
        used, functions = {}, []
        for _, where, found in placed.values():
            for device_type, entries in found.items() if where == name else ():
                for entry in entries:
                    for resource, amount in entry["resources"].items():
                        if resource != K + "gpu-memory":
                            key = device_type, entry["minor"], resource
                            used[key] = used.get(key, 0) + int(amount)
                    functions += [each["busID"] for each in (entry.get("extension") or {}).get("vfs", ())]
        assert max(used.values(), default=0) <= 100
        assert len(functions) == len(set(functions))


# Feature gates


def bound_to(
    vendor, model="M", *, requests, labels=None, gates=("DevicePluginAdaption",), node_notes=None, template=False,
):
    entry = gpu(0)
    entry["resources"] |= {"huawei.com/npu-core": "8", "huawei.com/npu-cpu": "7"}
    kinds = {"node.koordinator.sh/gpu-vendor": vendor, "node.koordinator.sh/gpu-model": model}
    host = {**node(), "metadata": {"name": "n", "labels": kinds, "annotations": node_notes or {}}}
    framework = FakeFramework(host, device(entry, gpu(1), labels=kinds), TEMPLATES, gates=gates, now=7_000_000_000_000)
    plugin, state = framework.make(NAME), CycleState()
    asked = npu_pod("2") if template else pod("p", labels=labels, **requests)
    assert plugin.pre_filter(state, asked, framework.snapshot()) is None
    assert plugin.reserve(state, asked, framework.snapshot(), 0) is None
    draft = json.loads(json.dumps(asked.object))
    refusal = done(plugin.pre_bind(state, asked, draft, "n"))
    draft["metadata"]["annotations"].pop(ALLOCATED)
    return refusal, draft["metadata"], framework


GENERAL = {"scheduling.koordinator.sh/bind-timestamp": "7000000000000", "scheduling.koordinator.sh/gpu-minors": "0"}
PREDICATE = {"predicate-time": "7000000000000"}


@pytest.mark.parametrize(("vendor", "model", "requests", "expected"), [
    ("nvidia", "M", {"gpu": 100}, {}),
    ("huawei", "910B", {"gpu": 100}, {**PREDICATE, "huawei.com/npu-core": "0"}),
    ("huawei", "Ascend-310P3-300I-DUO", {"gpu": 100}, {**PREDICATE, "huawei.com/Ascend310P": "Ascend310P-0"}),
    ("huawei", "310P", None, {**PREDICATE, "huawei.com/npu-core": "0-vir02"}),
    ("cambricon", "M", {"gpu": 50}, {"CAMBRICON_DSMLU_ASSIGHED": "false", "CAMBRICON_DSMLU_PROFILE": "0_50_160"}),
    ("metax", "M", {"gpu": 50}, {
        "metax-tech.com/gpu-devices-allocated": '[[{"uuid":"GPU-0","compute":50,"vRam":40960}]]'}),
])
def test_device_plugins_of_vendors_find_what_they_want_where_the_gate_is_on(vendor, model, requests, expected):
    refusal, metadata, _ = bound_to(vendor, model, requests=requests, template=requests is None)
    assert (refusal, metadata["annotations"]) == (None, {**GENERAL, **expected})
    if requests is not None:
        assert bound_to(vendor, model, requests=requests, gates=())[1]["annotations"] == {}


def test_a_pod_isolated_by_hami_is_labelled_with_its_node():
    _, metadata, _ = bound_to("nvidia", requests={"gpu": 100}, labels={K + "gpu-isolation-provider": "HAMi-core"})
    assert metadata["labels"]["hami.io/vgpu-node"] == "n"


@pytest.mark.parametrize(("lock", "message"), [
    (None, None), ("1970-01-01T01:50:00Z,default,gone", None), ("1970-01-01T00:00:00Z,default,p", None),
    ("1970-01-01T01:56:00Z,default,here", 'node "n" has been locked'), ("now", 'invalid node lock value "now"'),
])
def test_a_node_is_locked_for_device_plugins_that_tell_pods_apart_by_time(lock, message):
    notes = {} if lock is None else {"hami.io/mutex.lock": lock}
    entry = pod_object("here")
    framework = FakeFramework(
        {**node(), "metadata": {"name": "n", "annotations": notes}}, entry,
        device(gpu(0), labels={"node.koordinator.sh/gpu-vendor": "metax"}), gates=("DevicePluginAdaption",),
        now=7_000_000_000_000)
    plugin, state, asked = framework.make(NAME), CycleState(), pod("p", gpu=50)
    plugin.pre_filter(state, asked, framework.snapshot())
    plugin.reserve(state, asked, framework.snapshot(), 0)
    refusal = done(plugin.pre_bind(state, asked, {"metadata": {"name": "p", "namespace": "default"}}, "n"))
    if message is None:
        (_, locked), = framework.client.patches
        assert (refusal, locked["metadata"]["annotations"]) == (None, {
            "hami.io/mutex.lock": "1970-01-01T01:56:40Z,default,p"})
    else:
        assert (refusal.code, refusal.message[: len(message)], framework.client.patches) == (Code.ERROR, message, [])


def test_what_a_device_plugin_cannot_do_is_an_error():
    for requests, message in (({"gpu": 200}, "multiple gpu share is not supported on device side"),
                              ({"gpu_memory": "1Gi"}, "gpu core resource is required")):
        assert bound_to("cambricon", requests=requests)[0].message == message


def test_a_reservation_says_what_it_holds_where_the_gate_for_that_is_on():
    framework = FakeFramework(node(), device(*GPUS), gates=("ResizePod",))
    plugin, state, asked = framework.make(NAME), CycleState(), pod(gpu=50)
    plugin.pre_filter(state, asked, framework.snapshot())
    plugin.reserve(state, asked, framework.snapshot(), 0)
    draft = {"metadata": {"name": "r"}}
    assert plugin.pre_bind_reservation(state, draft, "n") is None
    assert json.loads(draft["metadata"]["annotations"]["scheduling.koordinator.sh/reservation-resize-allocatable"]) == {
        "resources": {K + "gpu-core": "50", K + "gpu-memory": "40Gi", K + "gpu-memory-ratio": "50"}}
