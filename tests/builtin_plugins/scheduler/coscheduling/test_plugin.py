from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.builtin_plugins.scheduler.coscheduling.args import check_args
from koordpolicy.builtin_plugins.scheduler.coscheduling.controller import current_status, next_status, unschedulable
from koordpolicy.builtin_plugins.scheduler.coscheduling.preemption import fit_error
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.plugin import SKIP, CycleState, Plan, Wait
from koordpolicy.testing import FakeClock
from tests.fake_framework import FakeFramework

LABEL = "pod-group.scheduling.sigs.k8s.io"
DOMAIN = "gang.scheduling.koordinator.sh/"
SECOND = 1_000_000_000


def node(name, cpu="4", pods="10", **labels):
    return {"kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"allocatable": {"cpu": cpu, "pods": pods}}}


def group(name="g", least=2, seconds=30, **annotations):
    return {"kind": "PodGroup", "spec": {"minMember": least, "scheduleTimeoutSeconds": seconds},
            "metadata": {"name": name, "namespace": "default",
                         "annotations": {DOMAIN + key.replace("_", "-"): value for key, value in annotations.items()}}}


def pod(name, gang="g", cpu="1", priority=0, **spec):
    labels = {LABEL: gang} if gang else {}
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels},
            "spec": {"containers": [container], "priority": priority, **spec}}


@pytest.fixture
def clock():
    return FakeClock(1000 * SECOND)


def start(clock, *objects, **args):
    spec = ProfileSpec(enabled=(PluginChoice("Coscheduling", args=args), PluginChoice("DefaultPreBind")))
    cluster = Cluster(objects)
    loop = SchedulingLoop(cluster, Live(Registry.of(PLUGINS, generation=1)), Settings(profiles=(spec,)), clock=clock)
    return loop, cluster


def placed(cluster):
    keys = cluster.objects("Pod")
    return {found.name: found.node_name for key in keys if (found := cluster.pod(key)) is not None and found.node_name}


def test_a_gang_runs_once_all_of_it_has_come(clock):
    loop, cluster = start(clock, node("a"), group(least=3), pod("p1"), pod("p2"))
    assert [*loop.schedule_all()] == []
    cluster.upsert(pod("p3"))
    verdicts = [*loop.schedule_all()]
    assert (placed(cluster), len(verdicts)) == ({"p1": "a", "p2": "a", "p3": "a"}, 3)
    marks = cluster.object("Pod", "default/p1")["metadata"]["annotations"]
    assert marks["internal.scheduling.koordinator.sh/bind-gang-group-id"] == "default/g"
    assert loop.failures == []


def test_a_gang_that_finds_no_room_gives_back_what_it_had_and_is_tried_again_when_there_is_some(clock):
    loop, cluster = start(clock, node("a", cpu="2"), group(least=3), *(pod(f"p{each}") for each in range(3)))
    [*loop.schedule_all()]
    assert (placed(cluster), loop.scheduler.waiting.keys()) == ({}, ())
    clock.now += 60 * SECOND
    cluster.upsert(node("b"))
    for _ in range(5):
        [*loop.schedule_all()]
        clock.now += 20 * SECOND
    assert sorted(placed(cluster)) == ["p0", "p1", "p2"]


def test_gangs_of_a_group_wait_for_each_other_and_not_for_ever(clock):
    both = '["default/g", "default/h"]'
    loop, cluster = start(clock, node("a"), group(least=1, seconds=10, groups=both),
                          group("h", least=1, seconds=10, groups=both, match_policy="only-waiting"), pod("p"))
    [*loop.schedule_all()]
    assert placed(cluster) == {}
    cluster.upsert(pod("q", gang="h"))
    [*loop.schedule_all()]
    assert placed(cluster) == {"p": "a", "q": "a"}


def test_an_update_of_a_pod_that_waits_does_not_count_as_bound(clock):
    loop, cluster = start(clock, node("a"), group(least=2, mode="NonStrict"), pod("p"), pod("q", cpu="9"))
    [*loop.schedule_all()]
    cluster.upsert({**pod("p"), "status": {"phase": "Pending"}})
    plugin = next(active.instance for active in loop.scheduler.profiles[0].made if active.name == "Coscheduling")
    gang = plugin.gangs.get("default/g")
    assert (list(gang.waiting), gang.bound, plugin.gangs.group(gang).once_satisfied) == (["default/p"], {}, False)


def test_who_waits_for_too_long_gives_its_node_back(clock):
    loop, cluster = start(clock, node("a"), group(least=2, seconds=10, mode="NonStrict"), pod("p"), pod("q", cpu="9"))
    [*loop.schedule_all()]
    assert placed(cluster) == {"p": "a"}
    clock.now += 11 * SECOND
    loop.scheduler.process_bindings()
    assert placed(cluster) == {}


def test_one_pod_stands_in_the_queue_for_all():
    framework = FakeFramework(group(), pod("p1"), pod("p2"))
    plugin = framework.make("Coscheduling")
    snapshot = framework.snapshot()
    assert plugin.pre_enqueue(framework.pod("default/p1"), snapshot) is None
    assert plugin.pre_enqueue(framework.pod("default/p2"), snapshot) == Refusal(
        "gang", "representative pod default/p1 of gangGroupID default/g already exists", Code.UNRESOLVABLE)
    framework.delete("Pod", "default/p1")
    assert plugin.pre_enqueue(framework.pod("default/p2"), snapshot).message.endswith(
        "child pod not collect enough, current gang: default/g, podName: default/p2")


def test_the_others_follow_the_first_pod_and_a_failure_ends_the_cycle_of_all():
    framework = FakeFramework(node("a"), group(least=3), pod("p1"), pod("p2"), pod("p3"))
    plugin = framework.make("Coscheduling")
    snapshot = framework.snapshot()
    assert plugin.next_pod() is None
    assert plugin.before_pre_filter(CycleState(), framework.pod("default/p1"), snapshot) is None
    assert plugin.next_pod() == "default/p2"
    assert plugin.before_pre_filter(CycleState(), framework.pod("default/p2"), snapshot) is None
    assert isinstance(plugin.permit(CycleState(), framework.pod("default/p2"), snapshot, 0), Wait)
    framework.waiting.held.append("default/p2")
    plugin.give_up(framework.pod("default/p1"), lambda: "no room")
    message = ('GangGroup "default/g" gets rejected due to member Pod "default/p1" is unschedulable with reason'
               ' "no room", alreadyWaitForBound: 1')
    assert framework.waiting.rejected == {"default/p2": message}
    assert plugin.before_pre_filter(CycleState(), framework.pod("default/p3"), snapshot) == Refusal(
        "gang", message, Code.UNRESOLVABLE)
    assert (plugin.next_pod(), plugin.cycle) == (None, None)


def test_a_member_that_comes_again_after_a_failure_begins_another_cycle():
    framework = FakeFramework(group(), pod("p1"), pod("p2"))
    plugin, snapshot = framework.make("Coscheduling"), framework.snapshot()
    first, second = framework.pod("default/p1"), framework.pod("default/p2")
    plugin.before_pre_filter(CycleState(), first, snapshot)
    plugin.give_up(first, lambda: "no room")
    assert plugin.before_pre_filter(CycleState(), second, snapshot).code is Code.UNRESOLVABLE
    assert plugin.before_pre_filter(CycleState(), first, snapshot) is None
    assert plugin.before_pre_filter(CycleState(), second, snapshot) is None


def test_members_that_may_not_be_tried_are_not_the_next_pod_and_nobody_is_twice():
    gated, leaving = pod("p2", schedulingGates=[{"name": "wait"}]), pod("p3")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    framework = FakeFramework(group(least=1), pod("p1"), gated, leaving, pod("p4"), pod("p5"))
    plugin = framework.make("Coscheduling")
    plugin.before_pre_filter(CycleState(), framework.pod("default/p1"), framework.snapshot())
    assert [plugin.next_pod() for _ in range(3)] == ["default/p4", "default/p5", None]


def test_pods_that_were_not_tried_are_told_why_where_that_is_asked_for():
    framework = FakeFramework(group(), pod("p1"), pod("p2"), gates={"GangPendingPodsConditionPatch"})
    plugin = framework.make("Coscheduling")
    plugin.before_pre_filter(CycleState(), framework.pod("default/p1"), framework.snapshot())
    plugin.give_up(framework.pod("default/p1"), lambda: "no room")
    (original, modified), = framework.client.patches
    assert original["metadata"]["name"] == "p2"
    condition, = modified["status"]["conditions"]
    message = condition.pop("message")
    assert message.startswith(
        '0/0 nodes are available: GangGroup "default/g" gets rejected due to member Pod "default/p1"')
    assert condition == {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                         "lastTransitionTime": "1970-01-01T00:00:00Z"}


def test_a_condition_that_says_so_already_is_not_written_and_keeps_its_time():
    item = pod("p1")
    first = unschedulable(item, "no room", 0)
    assert unschedulable(first, "no room", SECOND) is None
    later, = unschedulable(first, "no room at all", SECOND)["status"]["conditions"]
    assert (later["message"], later["lastTransitionTime"]) == ("no room at all", "1970-01-01T00:00:00Z")


def test_members_that_have_ended_count_in_the_status_and_nowhere_else():
    framework = FakeFramework(node("a"), group(least=2), pod("p1", nodeName="a"), pod("p2", nodeName="a"))
    plugin = framework.make("Coscheduling")
    gang = plugin.gangs.get("default/g")

    def status():
        item = framework.cluster.object("PodGroup", "default/g")
        found = current_status(item, gang, 0)
        framework.upsert({**item, "status": found})
        return found["phase"], found["scheduled"], found["running"], found["succeeded"], found["failed"]

    def turn(name, phase):
        framework.upsert({**pod(name, nodeName="a"), "status": {"phase": phase}})

    assert status() == ("Scheduled", 2, 0, 0, 0)
    turn("p1", "Running")
    turn("p2", "Running")
    assert status() == ("Running", 2, 2, 0, 0)
    turn("p1", "Succeeded")
    assert (status(), sorted(gang.children)) == (("Running", 2, 1, 1, 0), ["default/p2"])
    turn("p2", "Succeeded")
    assert (status(), sorted(gang.children)) == (("Finished", 2, 0, 2, 0), [])
    framework.delete("Pod", "default/p2")
    assert list(gang.ended) == ["default/p1"]


def test_a_group_whose_pods_were_collected_long_ago_is_left_alone():
    started = {"phase": "Running", "scheduleStartTime": "1970-01-04T00:00:00Z", "scheduled": 2, "running": 0}
    item = {**group(least=2), "status": started}
    item["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z"
    framework = FakeFramework(item)
    gang = framework.make("Coscheduling").gangs.get("default/g")
    assert current_status(item, gang, 0) == started
    item["metadata"]["creationTimestamp"] = "1970-01-03T00:00:00Z"
    assert current_status(item, gang, 0)["phase"] == "Pending"


def test_a_gang_that_is_not_strict_goes_on_waiting():
    framework = FakeFramework(group(mode="NonStrict"), pod("p1"), pod("p2"))
    plugin = framework.make("Coscheduling")
    plugin.before_pre_filter(CycleState(), framework.pod("default/p1"), framework.snapshot())
    plugin.permit(CycleState(), framework.pod("default/p1"), framework.snapshot(), 0)
    framework.waiting.held.append("default/p1")
    plugin.give_up(framework.pod("default/p2"), lambda: "no room")
    plugin.next_pod()
    assert (framework.waiting.rejected, plugin.cycle) == ({}, None)


def test_unreserve_takes_a_member_back_and_a_strict_gang_with_it():
    framework = FakeFramework(group(least=3), pod("p1"), pod("p2"), pod("p3"))
    plugin = framework.make("Coscheduling")
    for name in ("p1", "p2"):
        plugin.permit(CycleState(), framework.pod(f"default/{name}"), framework.snapshot(), 0)
        framework.waiting.held.append(f"default/{name}")
    plugin.unreserve(CycleState(), framework.pod("default/p1"), framework.snapshot(), 0)
    assert framework.waiting.rejected == {
        "default/p2": 'Gang "default/g" gets rejected due to Pod "p1" in Unreserve'}
    gang = plugin.gangs.get("default/g")
    assert (sorted(gang.pending), gang.waiting) == (["default/p1", "default/p2", "default/p3"], {})


@pytest.mark.parametrize(("policy", "bound", "valid"), [
    ("once-satisfied", 1, True), ("only-waiting", 2, False), ("waiting-and-running", 1, True),
    ("waiting-and-running", 0, False),
])
def test_match_policies_count_different_members(policy, bound, valid):
    running = [pod(f"r{each}", nodeName="a") for each in range(bound)]
    framework = FakeFramework(node("a"), group(match_policy=policy), *running, pod("p1"), pod("p2"))
    plugin = framework.make("Coscheduling")
    answer = plugin.permit(CycleState(), framework.pod("default/p1"), framework.snapshot(), 0)
    assert (answer is None) is valid


def test_a_gang_may_be_said_by_its_pods_alone():
    item = pod("p1", gang="")
    item["metadata"]["annotations"] = {
        DOMAIN + "name": "own", DOMAIN + "min-available": "1", DOMAIN + "waiting-time": "5s",
    }
    framework = FakeFramework(item)
    plugin = framework.make("Coscheduling")
    spec = plugin.gangs.get("default/own").spec
    assert (spec.minimum, spec.wait, spec.group) == (1, 5 * SECOND, ("default/own",))
    framework.delete("Pod", "default/p1")
    assert plugin.gangs.get("default/own") is None


def test_a_pod_may_change_to_another_gang():
    framework = FakeFramework(group(), group("h"), pod("p1"), pod("p2"))
    plugin = framework.make("Coscheduling")
    framework.upsert(pod("p1", gang="h"))
    members = {gang.id: list(gang.children) for gang in plugin.gangs.all()}
    assert members == {"default/g": ["default/p2"], "default/h": ["default/p1"]}


def test_a_deleted_pod_group_sends_back_who_waits_for_it():
    framework = FakeFramework(group(), pod("p1"), pod("p2"))
    plugin = framework.make("Coscheduling")
    plugin.before_pre_filter(CycleState(), framework.pod("default/p1"), framework.snapshot())
    plugin.permit(CycleState(), framework.pod("default/p1"), framework.snapshot(), 0)
    framework.waiting.held.append("default/p1")
    framework.delete("PodGroup", "default/g")
    assert plugin.pre_enqueue(framework.pod("default/p1"), framework.snapshot()).message == (
        "can't find gang, gangName: default/g, podName: default/p1")
    assert plugin.cycle is None


def test_pods_of_no_gang_are_left_alone():
    framework = FakeFramework(node("a"), pod("p", gang=""))
    plugin = framework.make("Coscheduling")
    item, snapshot, state = framework.pod("default/p"), framework.snapshot(), CycleState()
    assert (plugin.pre_enqueue(item, snapshot), plugin.before_pre_filter(state, item, snapshot),
            plugin.pre_filter(state, item, snapshot), plugin.permit(state, item, snapshot, 0),
            plugin.find_one_node(state, item, snapshot, framework.rows)) == (None, None, SKIP, None, SKIP)


class Refused:
    """Nodes that have room for a pod when its requests fit."""

    def __init__(self, snapshot, item):
        self._snapshot, self._pod = snapshot, PodInfo.of(item)

    def resolvable(self):
        return np.arange(self._snapshot.size)

    def reason(self, row):
        return Refusal("fit", f"Insufficient cpu on {row % 2}")

    def passes(self, changed, rows):
        wanted = self._pod.requests["cpu"]
        return rows[[changed.row(row).allocatable["cpu"] - changed.row(row).requested["cpu"] >= wanted
                     for row in rows.tolist()]]


def test_room_is_made_for_all_members_at_once_and_for_none_if_that_does_not_help():
    victims = [pod(f"v{each}", gang="", cpu="2", priority=each, nodeName="a") for each in range(2)]
    members = [pod(f"p{each}", cpu="2", priority=9) for each in range(3)]
    framework = FakeFramework(node("a"), node("b", cpu="2"), *victims, group(least=3), *members)
    plugin = framework.make("Coscheduling", enablePreemption=True)
    item, snapshot = framework.pod("default/p0"), framework.snapshot()
    plugin.before_pre_filter(CycleState(), item, snapshot)
    found = plugin.post_filter(CycleState(), item, snapshot, Refused(snapshot, members[0]))
    assert (sorted(victim.name for victim in found.victims), found.message) == (
        ["v0", "v1"], "preempt success, alreadyWaitingForBound: 0/3")
    assert sorted({found.node, *(node for _, node in framework.nominator.nominations.values())}) == ["a", "b"]
    again = plugin.post_filter(CycleState(), item, snapshot, Refused(snapshot, members[0]))
    assert again.message == f"preemption already attempted by default/p0 with message {found.message}"
    framework.upsert(pod("p3", cpu="2", priority=9))
    plugin.cycle = None
    plugin.before_pre_filter(CycleState(), item, snapshot)
    none = plugin.post_filter(CycleState(), item, framework.snapshot(), Refused(framework.snapshot(), members[0]))
    assert (none.message, framework.nominator.nominations) == ("preemption not helpful", {})


def test_a_fit_error_counts_the_nodes_by_reason():
    snapshot = FakeFramework(*(node(str(each)) for each in range(3))).snapshot()
    assert fit_error(snapshot, Refused(snapshot, pod("p"))) == (
        "0/3 nodes are available: 1 Insufficient cpu on 1, 2 Insufficient cpu on 0.")


TOPOLOGY = {
    "kind": "ClusterNetworkTopology", "metadata": {"name": "default"},
    "spec": {"networkTopologySpec": [
        {"topologyLayer": "spine", "labelKey": ["spine"]},
        {"topologyLayer": "block", "parentTopologyLayer": "spine", "labelKey": ["block"]},
        {"topologyLayer": "node", "parentTopologyLayer": "block"},
    ]},
}


def planned(rule, members, *nodes):
    spec = json.dumps({"gatherStrategy": rule})
    pods = [pod(f"p{each}", cpu="2") for each in range(members)]
    framework = FakeFramework(*nodes, TOPOLOGY, group(least=members, network_topology_spec=spec), *pods)
    plugin = framework.make("Coscheduling", awareNetworkTopology=True)
    item, state = framework.pod("default/p0"), CycleState()
    assert plugin.before_pre_filter(state, item, framework.snapshot()) is None
    return plugin.find_one_node(state, item, framework.snapshot(), framework.rows)


def test_a_gang_is_planned_below_the_lowest_switch_that_holds_it_and_fills_the_fullest_nodes_first():
    nodes = [node("a", spine="s1", block="b1"), node("b", spine="s1", block="b1"),
             node("c", cpu="2", spine="s1", block="b2"), node("d", cpu="8", spine="s2", block="b3")]
    assert planned([{"layer": "block", "strategy": "MustGather"}], 3, *nodes) == Plan(
        {"default/p0": "d", "default/p1": "d", "default/p2": "d"})
    assert planned([{"layer": "block", "strategy": "MustGather"}], 4, *nodes[:3]) == Plan(
        {"default/p0": "a", "default/p1": "a", "default/p2": "b", "default/p3": "b"})
    assert planned([{"layer": "block", "strategy": "PreferGather"}], 5, *nodes[:3]) == Plan(
        {"default/p0": "a", "default/p1": "a", "default/p2": "b", "default/p3": "b", "default/p4": "c"})


def test_a_gang_that_must_stay_together_and_does_not_fit_is_refused_with_the_number_of_its_pods():
    nodes = [node("a", spine="s1", block="b1"), node("c", spine="s1", block="b2")]
    refusal = planned([{"layer": "block", "strategy": "MustGather"}], 3, *nodes)
    assert refusal.message.startswith(
        "no candidate topology nodes can accommodate job, desiredOfferSlot: 3, spine/s1: 4",
    )


def test_late_members_are_drawn_to_where_the_others_are():
    nodes = [node("a", spine="s1", block="b1"), node("b", spine="s1", block="b2"), node("c", spine="s2", block="b3")]
    wanted = group(
        network_topology_spec=json.dumps({"gatherStrategy": [{"layer": "block", "strategy": "PreferGather"}]}),
    )
    framework = FakeFramework(*nodes, TOPOLOGY, wanted, pod("here", nodeName="b"), pod("late"))
    plugin, state, snapshot = framework.make(
        "Coscheduling", awareNetworkTopology=True,
    ), CycleState(), framework.snapshot()
    assert plugin.pre_score(state, framework.pod("default/late"), snapshot, framework.rows) is None
    assert plugin.score(state, framework.pod("default/late"), snapshot, framework.rows).values.tolist() == [50, 100, 0]
    assert framework.make("Coscheduling").pre_score(
        state, framework.pod("default/late"), snapshot, framework.rows,
    ) is SKIP


def test_the_phase_of_a_pod_group_follows_its_pods():
    framework = FakeFramework(node("a"), group(least=2), pod("p1", nodeName="a"), pod("p2"))
    plugin = framework.make("Coscheduling")
    gang = plugin.gangs.get("default/g")
    phases, item = [], group(least=2)
    for _ in range(3):
        item = {**item, "status": next_status(item, gang, 0)}
        phases.append(item["status"]["phase"])
    assert phases == ["Pending", "PreScheduling", "Scheduling"]
    gang.bound.update(gang.children)
    assert next_status(item, gang, 0)["phase"] == "Scheduled"
    status, = plugin.controllers()
    status.run(0)
    (_, written), = framework.client.patches
    assert written["status"] == {
        "phase": "Scheduled", "scheduleStartTime": "1970-01-01T00:00:00Z", "scheduled": 2, "running": 0, "succeeded": 0,
        "failed": 0}
    framework.upsert(written)
    status.run(10**9)
    assert len(framework.client.patches) == 1


def test_endpoints_tell_of_gangs():
    framework = FakeFramework(group(), pod("p1"))
    endpoints = framework.make("Coscheduling").endpoints()
    told = endpoints["gang/{namespace}/{name}"]("default", "g")
    assert (told["minRequiredNumber"], told["children"], told["gangFrom"], list(endpoints["gangs"]())) == (
        2, ["default/p1"], "GangFromPodGroupCrd", ["default/g"])


def waits_for(framework, item):
    return [line for each in framework.make("Coscheduling").explain_waiting(PodInfo.of(item))
            for line in each.as_text().splitlines()]


def test_a_waiting_pod_says_how_many_members_its_gang_lacks():
    first = pod("p1")
    framework = FakeFramework(group(groups='["default/g", "default/h"]'), group("h"), first, pod("p2"))
    assert waits_for(framework, first) == [
        "gang default/g: 2 of at least 2 members (2 pending)",
        ("  gangGroup [default/g default/h] basic check: memberGangs [default/g default/h] child pod not collect "
         "enough, current gang: default/g, podName: default/p1"),
        "  it runs together with default/h",
    ]
    assert waits_for(FakeFramework(), first) == [
        "gang default/g: can't find gang, gangName: default/g, podName: default/p1"]
    assert waits_for(FakeFramework(group(least=1), first), first) == [
        "gang default/g: 1 of at least 1 members (1 pending)"]
    assert waits_for(FakeFramework(), pod("alone", "")) == []


@pytest.mark.parametrize(("args", "complaint"), [
    ({"controllerWorkers": 0}, "`controllerWorkers` is 0: it must be at least 1"),
    ({"defaultTimeout": "-1s"}, "`defaultTimeout`"),
    ({"defaultTimeout": 600}, "`defaultTimeout` must be a string"),
    ({"kind": "OtherArgs"}, "only `CoschedulingArgs` is known"),
])
def test_arguments_that_cannot_be_are_refused_with_their_place(args, complaint):
    with pytest.raises(ValueError, match=complaint):
        check_args(args)


@settings(max_examples=25, deadline=None)
@given(
    least=st.integers(1, 4), members=st.integers(0, 6), cpus=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    steps=st.lists(st.sampled_from(["node", "time", "member"]), max_size=5),
)
def test_a_gang_never_runs_below_its_minimum(least, members, cpus, steps):
    clock = FakeClock(1000 * SECOND)
    nodes = [node(f"n{index}", cpu=str(cpu)) for index, cpu in enumerate(cpus)]
    loop, cluster = start(clock, *nodes, group(least=least), *(pod(f"p{each}") for each in range(members)))
    room = sum(cpus)
    for number, step in enumerate(["time", *steps, "time", "time"]):
        if step == "node":
            cluster.upsert(node(f"m{number}", cpu="2"))
            room += 2
        elif step == "member":
            cluster.upsert(pod(f"p{members}"))
            members += 1
        for _ in range(3):
            [*loop.schedule_all()]
            clock.now += 40 * SECOND
        [*loop.schedule_all()]
        running = [key for key, verdict in placed(cluster).items() if f"default/{key}" not in loop.scheduler.waiting]
        assert len(running) == 0 or len(running) >= least
        assert loop.failures == []
    if members >= least and room >= members:
        assert len(placed(cluster)) == members
