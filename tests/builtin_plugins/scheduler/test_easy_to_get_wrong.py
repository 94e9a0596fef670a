"""Behaviour of Koordinator's plugins that is easy to get wrong: cpus and NUMA nodes, devices, quotas and gangs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from koordpolicy.builtin_plugins.scheduler.device_share.devices import holding_in
from koordpolicy.builtin_plugins.scheduler.node_numa_resource.args import check_args, convert
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.scheduler.extensions.topology import TopologyDemand, merge
from koordpolicy.plugin import CycleState, TopologyHint, Wait
from tests.fake_framework import FakeFramework

GROUP = "pod-group.scheduling.sigs.k8s.io"
QUOTA = "quota.scheduling.koordinator.sh/"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
GPU = "koordinator.sh/gpu"


def node(name="n", **labels):
    labels = {f"node.koordinator.sh/{key.replace('_', '-')}": value for key, value in labels.items()}
    return {
        "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": "8", "memory": "8Gi"}},
    }


def topology(name="n"):
    """Return two NUMA nodes of two cores with two threads each."""
    detail = [{"id": cpu, "core": cpu // 2, "socket": cpu // 4, "node": cpu // 4} for cpu in range(8)]
    return {
        "kind": "NodeResourceTopology",
        "metadata": {"name": name, "annotations": {"node.koordinator.sh/cpu-topology": json.dumps({"detail": detail})}},
        "zones": [
            {
                "name": f"node-{zone}", "type": "Node",
                "resources": [{"name": "cpu", "allocatable": "4", "capacity": "4"}],
            }
            for zone in (0, 1)
        ],
    }


def device(count, *types):
    entries = [
        {
            "type": kind, "minor": minor, "id": f"{kind}-{minor}", "health": True,
            "resources": {
                **(
                    {
                        "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
                        "koordinator.sh/gpu-memory": "8Gi",
                    } if kind == "gpu" else {f"koordinator.sh/{kind}": "100"}
                ),
            },
            "topology": {"socketID": 0, "nodeID": 0, "pcieID": "0", "busID": f"{minor}"},
        }
        for kind in types
        for minor in range(count)
    ]
    return {"kind": "Device", "metadata": {"name": "n"}, "spec": {"devices": entries}}


def pod(name="p", requests=None, labels=None, annotations=None, uid="", **spec):
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": uid or name, "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests or {}}}], **spec},
    }


def refusal(framework, name, item, row=0):
    """Return code and message of what a plugin has against a pod on a node; None for nothing."""
    framework.upsert(item)
    plugin, state, asked, snapshot = framework.make(name), CycleState(), framework.pod(
        f"default/{item['metadata']['name']}",
    ), framework.snapshot()
    found = plugin.pre_filter(state, asked, snapshot)
    if not isinstance(found, Refusal):
        answer = plugin.filter(state, asked, snapshot, np.array([row]))
        found = None if answer.passed[row] else answer.explain(row)
    return None if found is None else (found.code, found.message)


# cpus and NUMA nodes


def test_any_pod_with_cpu_wants_whole_cpus_where_the_node_binds_them():
    for labels, expected in (
        ({}, None), ({"cpu_bind_policy": "SpreadByPCPUs"}, (Code.UNRESOLVABLE, "the requested CPUs must be integer")),
    ):
        framework = FakeFramework(node(**labels), topology())
        assert refusal(framework, "NodeNUMAResource", pod(requests={"cpu": "1500m"})) == expected
        assert refusal(framework, "NodeNUMAResource", pod(requests={"memory": "1Gi"})) is None


@pytest.mark.parametrize("text", ["None", "none", "Whatever", ""])
def test_a_numa_policy_that_there_is_not_is_none(text):
    framework = FakeFramework(node(numa_topology_policy=text))
    assert refusal(framework, "NodeNUMAResource", pod(requests={"cpu": "1"})) is None
    asked = pod(
        requests={"cpu": "1"},
        annotations={"scheduling.koordinator.sh/numa-topology-spec": json.dumps({"numaTopologyPolicy": text})},
    )
    assert refusal(framework, "NodeNUMAResource", asked) is None


def test_numa_nodes_are_scored_by_the_type_of_one_strategy_and_the_resources_of_the_other():
    args = convert(check_args({
        "scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": "memory", "weight": 3}]},
        "numaScoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]},
    }))
    assert (args.scorer.kind, args.scorer.weights, args.numa_scorer.kind, args.numa_scorer.weights) == (
        "LeastAllocated", {"memory": 3}, "MostAllocated", {"memory": 3})


@pytest.mark.parametrize(("hints", "best"), [
    ([(0b11, True, 900), (0b10, True, 0)], 0b10),  # narrower before score
    ([(0b01, False, 900), (0b11, True, 0)], 0b11),  # preferred before narrower
    ([(0b10, True, 5), (0b01, True, 5)], 0b01),  # as narrow: the smaller number
    ([(0b01, True, 1), (0b10, True, 9)], 0b10),  # unless a later one counts more
])
def test_the_best_hint_is_preferred_then_narrow_then_high(hints, best):
    found, reasons = merge([{"cpu": [TopologyHint(*each) for each in hints]}], TopologyDemand([0, 1], "BestEffort"))
    assert (found.mask, reasons) == (best, [])


# Devices


def test_devices_per_switch_are_read_and_not_kept_apart():
    hint = {HINT: json.dumps({"gpu": {"exclusivePolicy": "PCIeLevel"}})}
    held = pod(
        "q", {GPU: "50"},
        annotations={
            **hint,
            "scheduling.koordinator.sh/device-allocated": json.dumps(
                {
                    "gpu": [
                        {
                            "minor": 0,
                            "resources": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
                        },
                    ],
                },
            ),
        },
        nodeName="n",
    )
    assert refusal(
        FakeFramework(node(), device(2, "gpu"), held), "DeviceShare", pod(requests={GPU: "50"}, annotations=hint),
    ) is None


def test_scores_of_several_types_of_devices_add_up_before_they_are_normalized():
    framework = FakeFramework(node(), device(4, "gpu", "rdma"), pod(requests={GPU: "10", "koordinator.sh/rdma": "10"}))
    plugin, state, asked = framework.make("DeviceShare"), CycleState(), framework.pod("default/p")
    plugin.pre_filter(state, asked, framework.snapshot())
    scores = plugin.score(state, asked, framework.snapshot(), framework.rows)
    assert (scores.raw[""].tolist(), scores.values.tolist()) == ([195], [100])


# Quotas


def quota(name, **spec):
    return {"kind": "ElasticQuota", "metadata": {"name": name, "namespace": "x"}, "spec": spec}


def test_the_default_and_the_system_quota_limit_nobody_while_runtimes_count():
    for name in ("koordinator-default-quota", "koordinator-system-quota"):
        framework = FakeFramework(node(), pod(requests={"cpu": "999999"}, labels={QUOTA + "name": name}))
        assert framework.make("ElasticQuota").pre_filter(
            CycleState(), framework.pod("default/p"), framework.snapshot(),
        ) is None
        small = framework.make(
            "ElasticQuota", enableRuntimeQuota=False, defaultQuotaGroupMax={"cpu": "1"},
            systemQuotaGroupMax={"cpu": "1"},
        )
        found = small.pre_filter(CycleState(), framework.pod("default/p"), framework.snapshot())
        assert found.message.startswith(f"Insufficient quotas, quotaName: {name}, runtime: cpu:1, used: ")


def test_a_quota_limits_nothing_but_what_its_maximum_names():
    framework = FakeFramework(
        node(), quota("q", max={"cpu": "4"}),
        pod(requests={"cpu": "4", "memory": "99Gi", GPU: "800"}, labels={QUOTA + "name": "q"}),
    )
    assert framework.make("ElasticQuota").pre_filter(
        CycleState(), framework.pod("default/p"), framework.snapshot(),
    ) is None


# Gangs


def gang(name, least, **annotations):
    annotations = {
        f"gang.scheduling.koordinator.sh/{key.replace('_', '-')}": value for key, value in annotations.items()
    }
    return {
        "kind": "PodGroup", "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"minMember": least},
    }


def member(name, of):
    return pod(name, labels={GROUP: of})


BOTH = json.dumps(["default/b", "default/a"])


def test_a_group_that_is_short_is_named_as_a_whole():
    framework = FakeFramework(
        gang("a", 1, groups=BOTH), gang("b", 2, groups=BOTH), member("a1", "a"), member("b1", "b"),
    )
    found = framework.make("Coscheduling").pre_enqueue(framework.pod("default/a1"), framework.snapshot())
    assert (found.code, found.message) == (Code.UNRESOLVABLE, (
        "gangGroup [default/a default/b] basic check: memberGangs [default/a default/b] child pod not collect enough,"
        " current gang: default/a, podName: default/a1"))


def test_what_was_satisfied_once_stays_so_also_by_a_pod_that_was_bound_before():
    bound = {**member("a0", "a"), "spec": {**member("a0", "a")["spec"], "nodeName": "n"}}
    framework = FakeFramework(node(), gang("a", 3), bound, member("a1", "a"))
    plugin, asked, snapshot = framework.make("Coscheduling"), framework.pod("default/a1"), framework.snapshot()
    assert plugin.pre_enqueue(asked, snapshot) is None
    framework.delete("Pod", "default/a0")
    assert (plugin.pre_enqueue(asked, snapshot), plugin.permit(CycleState(), asked, snapshot, 0)) == (None, None)


def test_one_failure_sends_back_who_waits_in_all_gangs_of_the_group():
    framework = FakeFramework(
        node(), gang("a", 2, groups=BOTH), gang("b", 1, groups=BOTH),
        *(member(f"{of}{number}", of) for of in "ab" for number in (1, 2)),
    )
    plugin, snapshot = framework.make("Coscheduling"), framework.snapshot()
    for key in ("default/a1", "default/b1"):
        assert isinstance(plugin.permit(CycleState(), framework.pod(key), snapshot, 0), Wait)
        framework.waiting.held.append(key)
    plugin.give_up(framework.pod("default/a2"), lambda: "0/1 nodes are available")
    assert sorted(framework.waiting.rejected) == ["default/a1", "default/b1"]


# What is remembered of pods


def using(framework, plugin):
    return plugin.trees[""].quota("q").used["cpu"] if plugin.name == "ElasticQuota" else plugin.endpoints()[
        "nodes/{name}"
    ]("n")


@pytest.mark.parametrize("name", ["ElasticQuota", "DeviceShare", "NodeNUMAResource"])
def test_who_comes_too_late_takes_nothing_from_a_pod_that_has_its_name_by_now(name):
    fields = {
        "requests": {"cpu": "2", GPU: "100"}, "labels": {"koordinator.sh/qosClass": "LSR", QUOTA + "name": "q"},
        "priority": 9500,
    }
    framework = FakeFramework(
        node(), topology(), device(1, "gpu"), quota("q", max={"cpu": "8"}), pod(uid="old", **fields),
    )
    plugin, snapshot, old = framework.make(name), framework.snapshot(), framework.pod("default/p")
    nothing = using(framework, plugin)
    plugin.forget_pod(old)  # nobody has to be known to be forgotten
    framework.upsert(pod(uid="new", **fields))
    new, state = framework.pod("default/p"), CycleState()
    assert plugin.reserve(state, new, framework.snapshot(), 0) is None
    framework.assume(new, "n")
    held = using(framework, plugin)
    assert held != nothing
    plugin.unreserve(CycleState(), old, snapshot, 0)
    plugin.forget_pod(old)
    assert using(framework, plugin) == held
    framework.forget(new)
    plugin.unreserve(state, new, framework.snapshot(), 0)
    assert using(framework, plugin) == nothing


@pytest.mark.parametrize("name", ["ElasticQuota", "DeviceShare", "NodeNUMAResource"])
def test_a_dry_run_changes_nothing_that_is_remembered(name):
    allocated = {
        "scheduling.koordinator.sh/device-allocated": json.dumps(
            {
                "gpu": [
                    {
                        "minor": 0,
                        "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"},
                    },
                ],
            },
        ),
        "scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "0-7"}),
    }
    fields = {
        "requests": {"cpu": "8", GPU: "100"}, "labels": {"koordinator.sh/qosClass": "LSR", QUOTA + "name": "q"},
        "priority": 9500,
    }
    required = {"scheduling.koordinator.sh/resource-spec": json.dumps({"requiredCPUBindPolicy": "FullPCPUs"})}
    framework = FakeFramework(
        node(), topology(), device(1, "gpu"), quota("q", max={"cpu": "8"}, min={"cpu": "8"}),
        pod("q", annotations=allocated, nodeName="n", **fields), pod(annotations=required, **fields))
    plugin, asked, snapshot = framework.make(name), framework.pod("default/p"), framework.snapshot()
    before = using(framework, plugin)

    def passes(view):
        state = CycleState()
        if isinstance(plugin.pre_filter(state, asked, view), Refusal):
            return False
        return not hasattr(plugin, "filter") or bool(plugin.filter(state, asked, view, framework.rows).passed[0])

    emptied = snapshot.overlay({"n": NodeChange(remove=["default/q"])})
    assert [passes(snapshot), passes(emptied), passes(snapshot), passes(emptied)] == [False, True, False, True]
    assert (using(framework, plugin), holding_in(allocated).amounts["gpu"].keys()) == (before, {0})
