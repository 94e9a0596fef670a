from __future__ import annotations

import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler.node_numa_resource.cpus import parse_cpus
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.framework.points import Code
from koordpolicy.plugin import SKIP, CycleState
from tests import grants
from tests.fake_framework import FakeFramework
from tests.grants import FakeReservations, SeenReservation, passes

NAME = "NodeNUMAResource"
STATUS = "scheduling.koordinator.sh/resource-status"
SPEC = "scheduling.koordinator.sh/resource-spec"
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"


def node(name="n", *, cpu=16, labels=None, ratio=None, **annotations):
    annotations = {key.replace("_", "-"): value for key, value in annotations.items()}
    if ratio is not None:
        annotations["node.koordinator.sh/resource-amplification-ratio"] = json.dumps({"cpu": ratio})
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations}
    return {"kind": "Node", "metadata": metadata, "status": {"allocatable": {"cpu": str(cpu), "memory": "64Gi"}}}


def topology(name="n", *, zones=2, cores=4, threads=2, policies=(), **annotations):
    detail = [
        {"id": cpu, "core": cpu // threads, "socket": zone, "node": zone}
        for zone in range(zones) for cpu in range(zone * cores * threads, (zone + 1) * cores * threads)
    ]
    held = {"cpu": str(cores * threads), "memory": "32Gi"}
    return {
        "kind": "NodeResourceTopology",
        "metadata": {"name": name, "annotations": {
            "node.koordinator.sh/cpu-topology": json.dumps({"detail": detail}), **annotations,
        }},
        "topologyPolicies": list(policies),
        "zones": [
            {"name": f"node-{zone}", "type": "Node", "resources": [
                {"name": key, "capacity": amount, "allocatable": amount, "available": amount}
                for key, amount in held.items()
            ]} for zone in range(zones)
        ],
    }


def pod_object(
    name="p", *, cpu=None, memory=None, qos="LSR", spec=None, numa=None, labels=None, annotations=None, on="",
):
    requests = {key: amount for key, amount in (("cpu", cpu), ("memory", memory)) if amount is not None}
    annotations = dict(annotations or {})
    if spec is not None:
        annotations[SPEC] = json.dumps(spec)
    if numa is not None:
        annotations[NUMA_SPEC] = json.dumps(numa)
    labels = {**({"koordinator.sh/qosClass": qos} if qos else {}), **(labels or {})}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels,
                     "annotations": annotations},
        "spec": {"priority": 9500, "nodeName": on, "containers": [{"name": "c", "resources": {"requests": requests}}]},
    }


def pod(name="p", **fields):
    return PodInfo.of(pod_object(name, **fields))


place = partial(grants.place, annotation=STATUS)


def test_pods_without_requests_are_skipped_and_broken_annotations_are_errors():
    framework = FakeFramework(node())
    plugin = framework.make(NAME)
    assert plugin.pre_filter(CycleState(), pod(), framework.snapshot()) is SKIP
    refusal = plugin.pre_filter(CycleState(), pod(annotations={SPEC: "{"}), framework.snapshot())
    assert (refusal.code, f"annotation `{SPEC}` is not JSON" in refusal.message) == (Code.ERROR, True)


@pytest.mark.parametrize(("asked", "expected"), [
    (pod(cpu="1500m"), (Code.UNRESOLVABLE, "the requested CPUs must be integer")),
    (pod(cpu="1500m", qos=""), None),  # Guaranteed or not: only the label makes a cpu set possible
    (pod(cpu="1500m", spec={"preferredCPUBindPolicy": "ConstrainedBurst"}), None),
    (pod(cpu="1500m", labels={"koordinator.sh/priority-class": "koord-batch"}), None),
])
def test_only_prod_pods_labelled_lse_or_lsr_want_whole_cpus(asked, expected):
    framework = FakeFramework(node(), topology())
    assert passes(framework.make(NAME), asked, framework.snapshot()) == expected


def test_pods_get_cpus_of_their_own_and_write_down_which():
    framework = FakeFramework(node(), topology())
    plugin = framework.make(NAME)
    assert place(framework, plugin, pod("a", cpu="4")) == {"cpuset": "0-3"}
    assert place(
        framework, plugin, pod("b", cpu="2", spec={"preferredCPUBindPolicy": "SpreadByPCPUs"}),
    ) == {"cpuset": "8,10"}
    assert place(framework, plugin, pod("c", cpu="2")) == {"cpuset": "12-13"}  # the socket with more free


def test_a_bind_policy_that_nobody_named_is_written_back():
    framework = FakeFramework(
        node(), topology(), node("m", labels={"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"}), topology("m"),
    )
    plugin = framework.make(NAME)
    specs = []
    for row, asked in ((1, pod("a", cpu="2")), (0, pod("b", cpu="2", qos=""))):
        snapshot, state = framework.snapshot(), CycleState()
        assert passes(plugin, asked, snapshot, row, state) is None
        assert plugin.reserve(state, asked, snapshot, row) is None
        draft = {"metadata": {}}
        plugin.pre_bind(state, asked, draft, snapshot.names[row])
        specs.append(json.loads(draft["metadata"]["annotations"][SPEC]))
    assert specs == [{"preferredCPUBindPolicy": "FullPCPUs"}, {"requiredCPUBindPolicy": "FullPCPUs"}]


def test_any_pod_is_bound_where_the_node_requires_it():
    framework = FakeFramework(node(labels={"node.koordinator.sh/cpu-bind-policy": "SpreadByPCPUs"}), topology())
    plugin = framework.make(NAME)
    assert passes(plugin, pod(cpu="500m", qos=""), framework.snapshot()) == (
        Code.UNRESOLVABLE, "the requested CPUs must be integer")
    asked = pod(cpu="2", spec={"requiredCPUBindPolicy": "FullPCPUs"})
    assert passes(plugin, asked, framework.snapshot()) == (
        Code.UNRESOLVABLE, "node(s) cpu bind policy conflicts with pod's required cpu bind policy")
    assert place(framework, plugin, pod("a", cpu="3", qos="")) == {"cpuset": "0,2,4"}


def test_a_required_policy_is_tried_before_the_node_is_chosen():
    framework = FakeFramework(node(), topology(zones=1))
    plugin = framework.make(NAME)
    assert place(
        framework, plugin, pod("a", cpu="1", spec={"requiredCPUBindPolicy": "SpreadByPCPUs"}),
    ) == {"cpuset": "0"}
    wish = {"requiredCPUBindPolicy": "FullPCPUs"}
    assert passes(plugin, pod("b", cpu="6", spec=wish), framework.snapshot()) is None
    assert passes(plugin, pod("b", cpu="8", spec=wish), framework.snapshot()) == (
        Code.UNSCHEDULABLE, "not enough cpus available to satisfy request")


def test_reserved_cpus_go_to_nobody():
    framework = FakeFramework(node(), topology(**{
        "kubelet.koordinator.sh/cpu-manager-policy": '{"policy": "static", "reservedCPUs": "0-1"}',
        "node.koordinator.sh/reservation": '{"reservedCPUs": "2"}',
        "node.koordinator.sh/system-qos-resource": '{"cpuset": "4"}',
        "node.koordinator.sh/pod-cpu-allocs":
            '[{"managedByKubelet": true, "uid": "u", "cpuset": "6-7"}, {"uid": "v", "cpuset": "8-15"}]',
    }))
    plugin = framework.make(NAME)
    assert plugin.endpoints()["nodes/{name}"]("n") == {
        "pods": {}, "reservations": {}, "reservedCPUs": "0-2,4,6-7", "availableCPUs": "3,5,8-15",
        "available": {"0": {"cpu": 2000, "memory": 2**35}, "1": {"cpu": 8000, "memory": 2**35}},
    }


SINGLE = {"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"}


def test_a_single_numa_node_policy_keeps_pods_in_one_zone_each():
    framework = FakeFramework(node(labels=SINGLE), topology())
    plugin = framework.make(NAME)
    zones = [place(framework, plugin, pod(name, cpu="6", qos="", memory="1Gi")) for name in "ab"]
    amounts = {"cpu": "6", "memory": "1073741824"}
    assert zones == [
        {"numaNodeResources": [{"node": 0, "resources": amounts}]},
        {"numaNodeResources": [{"node": 1, "resources": amounts}]},
    ]
    assert passes(plugin, pod("c", cpu="4", qos=""), framework.snapshot()) == (
        Code.UNSCHEDULABLE, "Unaligned NUMA Hint cause cpu prefer [11] among [11]")
    assert passes(plugin, pod("c", cpu="5", qos=""), framework.snapshot()) == (
        Code.UNSCHEDULABLE, "Unsatisfied NUMA cpu")
    assert passes(plugin, pod("c", cpu="2", qos=""), framework.snapshot()) is None


def test_cpus_lie_in_the_zone_that_was_chosen():
    framework = FakeFramework(node(labels=SINGLE), topology())
    plugin = framework.make(NAME)
    found = [place(framework, plugin, pod(name, cpu="6")) for name in "ab"]
    assert [(each["cpuset"], each["numaNodeResources"][0]["node"]) for each in found] == [("0-5", 0), ("8-13", 1)]


def test_a_restricted_policy_may_span_zones_where_all_hints_agree():
    framework = FakeFramework(node(), topology(policies=["Restricted"]))
    plugin = framework.make(NAME)
    found = place(framework, plugin, pod("a", cpu="12", qos=""))
    assert found == {"numaNodeResources": [
        {"node": 0, "resources": {"cpu": "6"}}, {"node": 1, "resources": {"cpu": "6"}}]}


def test_best_effort_is_settled_when_the_node_is_chosen():
    framework = FakeFramework(node(labels={"node.koordinator.sh/numa-topology-policy": "BestEffort"}), topology())
    plugin = framework.make(NAME)
    assert place(framework, plugin, pod("a", cpu="4", qos="")) == {
        "numaNodeResources": [{"node": 0, "resources": {"cpu": "4"}}]}


def test_a_pod_that_names_a_policy_does_not_share_zones_with_pods_that_span_them():
    framework = FakeFramework(node(), topology())
    plugin = framework.make(NAME)
    numa = {"numaTopologyPolicy": "SingleNUMANode"}
    assert place(framework, plugin, pod("wide", cpu="10"))["cpuset"] == "0-9"
    assert passes(plugin, pod("b", cpu="2", numa=numa), framework.snapshot())[0] is Code.UNSCHEDULABLE
    relaxed = {**numa, "singleNUMANodeExclusive": "Preferred"}
    assert passes(plugin, pod("b", cpu="2", numa=relaxed), framework.snapshot()) is None


@pytest.mark.parametrize(("labels", "expected"), [
    ({}, None), (SINGLE, None), ({"node.koordinator.sh/numa-topology-policy": "None"}, None),
    ({"node.koordinator.sh/numa-topology-policy": "Restricted"},
     (Code.UNRESOLVABLE, "node(s) NUMA Topology policy not match")),
])
def test_the_policies_of_pod_and_node_must_not_differ(labels, expected):
    framework = FakeFramework(node(labels=labels), topology())
    asked = pod(cpu="2", numa={"numaTopologyPolicy": "SingleNUMANode"})
    assert passes(framework.make(NAME), asked, framework.snapshot()) == expected


def test_a_policy_needs_zones():
    framework = FakeFramework(node(labels=SINGLE))
    assert passes(framework.make(NAME), pod(cpu="2", qos=""), framework.snapshot()) == (
        Code.UNRESOLVABLE, "node(s) missing NUMA resources")


def test_bound_cpus_count_amplified():
    framework = FakeFramework(node(cpu=32, ratio=2.0), topology(zones=2))
    plugin = framework.make(NAME)
    assert place(framework, plugin, pod("a", cpu="8")) == {"cpuset": "0-7"}
    # 32 - 8 * 2 are left for others, and a bound pod counts twice.
    assert passes(plugin, pod("b", cpu="16", qos=""), framework.snapshot()) is None
    assert passes(plugin, pod("b", cpu="17", qos=""), framework.snapshot()) == (
        Code.UNSCHEDULABLE, "Insufficient amplified cpu")
    assert passes(plugin, pod("b", cpu="9"), framework.snapshot()) == (
        Code.UNSCHEDULABLE, "Insufficient amplified cpu")


def test_a_ratio_that_cannot_be_read_keeps_pods_away():
    framework = FakeFramework(node(ratio="two"))
    assert passes(framework.make(NAME), pod(cpu="1", qos=""), framework.snapshot()) == (
        Code.UNRESOLVABLE, "node(s) invalid CPU amplification ratio")


def test_what_was_reserved_can_be_given_back_more_than_once_and_goes_with_the_pod():
    framework = FakeFramework(node(), topology())
    plugin = framework.make(NAME)
    plugin.start()
    asked, snapshot, state = pod("a", cpu="4"), framework.snapshot(), CycleState()
    before = plugin.endpoints()["nodes/{name}"]("n")
    plugin.reserve(state, asked, snapshot, 0)
    framework.assume(asked, "n")
    assert plugin.endpoints()["nodes/{name}"]("n")["pods"] == {"default/a": {"cpuset": "0-3"}}
    framework.forget(asked)
    for _ in range(2):
        plugin.unreserve(state, asked, snapshot, 0)
    assert plugin.endpoints()["nodes/{name}"]("n") == before
    place(framework, plugin, asked)
    framework.upsert(pod_object("a", cpu="4", on="n"))
    framework.delete("Pod", "default/a")
    assert (plugin.endpoints()["nodes/{name}"]("n"), len(plugin._granted)) == (before, 0)


def test_what_a_bound_pod_holds_is_read_from_its_annotations():
    status = {"cpuset": "0-7", "numaNodeResources": [{"node": 0, "resources": {"cpu": "8"}}]}
    framework = FakeFramework(node(labels=SINGLE), topology(), pod_object(
        "bound", cpu="8", annotations={STATUS: json.dumps(status)}, on="n"))
    assert place(framework, framework.make(NAME), pod("a", cpu="2"))["cpuset"] == "8-9"


def test_a_preempted_pod_leaves_its_cpus_in_the_what_if_only():
    framework = FakeFramework(node(), topology(zones=1))
    plugin = framework.make(NAME)
    wish = {"requiredCPUBindPolicy": "FullPCPUs"}
    place(framework, plugin, pod("a", cpu="6"))
    asked = pod("b", cpu="4", spec=wish)
    without = framework.snapshot().overlay({"n": NodeChange(remove=["default/a"])})
    assert passes(plugin, asked, framework.snapshot())[0] is Code.UNSCHEDULABLE
    assert passes(plugin, asked, without) is None
    assert passes(plugin, asked, framework.snapshot())[0] is Code.UNSCHEDULABLE


def test_a_designated_allocation_is_given_again_or_refused():
    hint = {"internal.scheduling.koordinator.sh/scheduling-hint": '{"extensions": {"NodeNUMAResource": {}}}'}
    asked = pod("a", cpu="2", annotations={STATUS: '{"cpuset": "4-5"}', **hint})
    framework = FakeFramework(node(), topology())
    plugin = framework.make(NAME)
    assert place(framework, plugin, asked) == {"cpuset": "4-5"}
    again = pod("b", cpu="2", annotations={STATUS: '{"cpuset": "4-5"}', **hint})
    assert place(framework, plugin, again) == "not enough cpus available to satisfy request"


def reserved(cpus, policy="", uid="r"):
    status = json.dumps({"cpuset": cpus})
    metadata = {"name": uid, "annotations": {STATUS: status}}
    return SeenReservation(uid, {"kind": "Reservation", "metadata": metadata}, policy)


@pytest.mark.parametrize(("policy", "cpu", "expected"), [
    ("", "2", {"cpuset": "4-5"}),
    ("Restricted", "4", {"cpuset": "4-7"}),
    ("", "6", {"cpuset": "0-1,4-7"}),  # the rest of the node too
    ("Restricted", "6", "pod has a nominated reservation but cannot be allocated within its NUMA scope"),
])
def test_a_pod_takes_the_cpus_of_its_reservation(policy, cpu, expected):
    framework = FakeFramework(node(cpu=8), topology(zones=1))
    plugin, nominator = framework.make(NAME), FakeReservations()
    framework.plugins.append(nominator)
    nominator.chosen = reserved("4-7", policy)
    asked, snapshot, state = pod(cpu=cpu), framework.snapshot(), CycleState()
    plugin.pre_filter(state, asked, snapshot)
    plugin.restore(state, asked, [nominator.chosen], [], "n")
    refusal = plugin.reserve(state, asked, snapshot, 0)
    if refusal is not None:
        assert refusal.message == expected
        return
    draft = {"metadata": {}}
    plugin.pre_bind(state, asked, draft, "n")
    assert json.loads(draft["metadata"]["annotations"][STATUS]) == expected


def test_a_reservation_that_a_pod_may_not_use_keeps_its_cpus():
    framework = FakeFramework(node(cpu=8), topology(zones=1))
    plugin = framework.make(NAME)
    asked, snapshot, state = pod(
        cpu="6", spec={"requiredCPUBindPolicy": "FullPCPUs"},
    ), framework.snapshot(), CycleState()
    plugin.pre_filter(state, asked, snapshot)
    plugin.restore(state, asked, [], [reserved("4-7")], "n")
    assert plugin.filter(state, asked, snapshot, framework.rows).explain(0).message == (
        "not enough cpus available to satisfy request")
    plugin.restore(state, asked, [reserved("4-7")], [], "n")
    assert plugin.filter(state, asked, snapshot, framework.rows).passed.all()
    assert plugin.filter_reservation(state, asked, reserved("4-7"), snapshot, 0) is None
    assert plugin.filter_reservation(state, asked, reserved("4-7", "Restricted"), snapshot, 0).message == (
        "reservation NUMA scope is incompatible with the best topology hint")


def test_scores_follow_the_zone_that_the_pod_would_get():
    framework = FakeFramework(node("a", labels=SINGLE), topology("a"), node("b", labels=SINGLE), topology("b"))
    plugin = framework.make(
        NAME, scoringStrategy={"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]},
    )
    place(framework, plugin, pod("x", cpu="6", qos=""), row=0)
    snapshot, state, asked = framework.snapshot(), CycleState(), pod("y", cpu="2", qos="")
    plugin.pre_filter(state, asked, snapshot)
    assert plugin.filter(state, asked, snapshot, framework.rows).passed.all()
    # Zones are still spread over: the emptier one is taken, 2 of 8.
    assert plugin.score(state, asked, snapshot, framework.rows).values.tolist() == [25, 25]


def test_only_what_may_free_cpus_wakes_a_pod():
    framework = FakeFramework(node(), topology(), pod_object("a", cpu="2", on="n"))
    plugin, asked, heard = framework.make(NAME), pod("b", cpu="2"), []
    framework.cluster.listen(heard.append)
    framework.upsert(topology())
    framework.upsert({"kind": "ConfigMap", "metadata": {"name": "x"}})
    framework.upsert(pod_object("c", cpu="2"))
    framework.delete("Pod", "default/a")
    assert [(event.kind, plugin.may_help(event, asked)) for event in heard] == [
        ("NodeResourceTopology", True), ("ConfigMap", False), ("Pod", False), ("Pod", True)]


KINDS = [
    {"cpu": "2"}, {"cpu": "3", "spec": {"preferredCPUBindPolicy": "SpreadByPCPUs"}},
    {"cpu": "4", "spec": {"requiredCPUBindPolicy": "FullPCPUs"}}, {"cpu": "5", "qos": "", "memory": "9Gi"},
    {"cpu": "2", "numa": {"numaTopologyPolicy": "SingleNUMANode"}, "memory": "20Gi"},
    {"cpu": "3", "spec": {"preferredCPUExclusivePolicy": "PCPULevel"}}, {"cpu": "500m", "qos": ""},
]
STEPS = st.lists(st.tuples(st.sampled_from(range(len(KINDS))), st.integers(0, 5), st.booleans()), max_size=12)


def clusters():
    return [
        node("a"), topology("a"), node("b", labels=SINGLE), topology("b"),
        node("c", ratio=1.5), topology("c", policies=["Restricted"]), node("d"),
        node("e", labels=SINGLE), topology("e"), node("f", labels=SINGLE), topology("f"),  # like b
    ]


@settings(max_examples=20, deadline=None)
@given(steps=STEPS)
def test_nothing_is_given_twice_and_kept_answers_are_those_of_a_plugin_that_knows_nothing(steps):
    framework = FakeFramework(*clusters())
    plugin = framework.make(NAME)
    placed = {}
    for number, (kind, row, goes) in enumerate(steps):
        asked = pod(f"p{number}", **KINDS[kind])
        snapshot = framework.snapshot()
        state = CycleState()
        if plugin.pre_filter(state, asked, snapshot) is None:
            passed = plugin.filter(state, asked, snapshot, framework.rows).passed.tolist()
            fresh = FakeFramework(*clusters())
            for key, (held, where, status) in placed.items():
                annotations = {**held.object["metadata"]["annotations"], STATUS: json.dumps(status)}
                metadata = {**held.object["metadata"], "annotations": annotations}
                fresh.upsert({**held.object, "metadata": metadata, "spec": {**held.object["spec"], "nodeName": where}})
                assert key == held.key
            stranger = fresh.make(NAME)
            assert passed == [passes(stranger, asked, fresh.snapshot(), each) is None for each in range(6)]
            assert plugin.score(state, asked, snapshot, framework.rows).values.min() >= 0
        found = place(framework, plugin, asked, row)
        if isinstance(found, dict):
            placed[asked.key] = asked, snapshot.names[row], found
            if goes:
                framework.delete("Pod", asked.key)
                plugin.forget_pod(asked)
                framework.cluster.forget(asked.key)
                placed.pop(asked.key)
    for name in "abcef":
        sets = [parse_cpus(each.get("cpuset", "")) for _, where, each in placed.values() if where == name]
        together = 0
        for cpus in sets:
            assert not together & cpus
            together |= cpus
        assert together < 1 << 16
        for zone in (0, 1):
            cpu = sum(
                canonical_amount("cpu", entry["resources"].get("cpu", "0"), "")
                for _, where, each in placed.values() if where == name
                for entry in each.get("numaNodeResources", ()) if entry["node"] == zone
            )
            assert cpu <= (12_000 if name == "c" else 8_000)
