from __future__ import annotations

import numpy as np
import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.handle import Nothing
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.plugin import NO_CANDIDATE, CycleState, Nomination


def node(name, cpu=4):
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": str(cpu), "pods": "99"}}}


def pod(name, cpu, priority, node="", started="", labels=None, **rest):
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": str(cpu)}}}], "priority": priority,
            **({"nodeName": node} if node else {}), **rest.pop("spec", {})}
    status = {**({"startTime": f"2026-01-01T00:00:{started:02}Z"} if started else {}), **rest.pop("status", {})}
    return {"kind": "Pod", "metadata": {"name": name, "labels": labels or {}, **rest}, "spec": spec, "status": status}


def budget(name, allowed, labels, **status):
    return {"kind": "PodDisruptionBudget", "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"matchLabels": labels}}, "status": {"disruptionsAllowed": allowed, **status}}


class CpuRefused:
    """Nodes that refused a pod because there is too little cpu; `never` names those that nothing helps."""

    def __init__(self, pod, snapshot, never=()):
        self.pod, self.snapshot, self.never = pod, snapshot, never

    def code(self, row):
        return Code.UNRESOLVABLE if self.snapshot.names[row] in self.never else Code.UNSCHEDULABLE

    def reason(self, row):
        return Refusal("cpu", "Insufficient cpu", self.code(row))

    def resolvable(self):
        return np.array([row for row, name in enumerate(self.snapshot.names) if name not in self.never], np.intp)

    def passes(self, changed, rows):
        free = changed.allocatable("cpu") - changed.requested("cpu")
        return rows[free[rows] >= self.pod.requests["cpu"]]

    def why_not(self, changed, row):
        return () if len(self.passes(changed, np.array([row], np.intp))) else ("Insufficient cpu",)


@pytest.fixture
def preempt(kit):
    def ask(new, *objects, never=(), seed=0, **args):
        snapshot = Cluster(objects).snapshot()
        info = PodInfo.of(new)
        found = kit.make("DefaultPreemption", seed=seed, **args).post_filter(
            CycleState(), info, snapshot, CpuRefused(info, snapshot, never))
        return (found.node, [each.name for each in found.victims]) if isinstance(found, Nomination) else found.message

    return ask


NEW = pod("new", 3, 10)


def test_as_many_victims_as_possible_are_spared_the_more_important_first(preempt):
    there = [pod("low", 1, 1, "a"), pod("high", 1, 5, "a"), pod("mid", 1, 3, "a"), pod("higher", 1, 20, "a")]
    assert preempt(NEW, node("a", 4), *there) == ("a", ["high", "mid", "low"])
    assert preempt(pod("new", 2, 10), node("a", 4), *there) == ("a", ["mid", "low"])


def test_of_equal_priority_those_go_first_that_started_last(preempt):
    there = [pod("old", 1, 1, "a", 10), pod("young", 1, 1, "a", 40), pod("middle", 1, 1, "a", 20)]
    assert preempt(pod("new", 1, 10), node("a", 3), *there) == ("a", ["young"])


def test_pods_of_the_same_priority_are_no_victims(preempt):
    assert preempt(NEW, node("a"), pod("equal", 4, 10, "a")) == (
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.")


def test_why_nothing_helps_is_told_by_node(preempt):
    there = [pod("low", 1, 1, "a"), pod("high", 3, 20, "a"), pod("only-high", 4, 20, "b")]
    assert preempt(NEW, node("a"), node("b"), node("c"), *there, never=("c",)) == (
        "preemption: 0/3 nodes are available: 1 Insufficient cpu, 1 No preemption victims found for incoming pod, "
        "1 Preemption is not helpful for scheduling.")
    assert preempt(NEW, node("a"), never=("a",)) == (
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")


class Because(CpuRefused):
    """Nodes that refuse the pod for these reasons by their names once the victims are gone."""

    def __init__(self, reasons, snapshot):
        self.reasons, self.snapshot = reasons, snapshot

    def resolvable(self):
        return np.array([row for row, name in enumerate(self.snapshot.names) if name in self.reasons], np.intp)

    def code(self, row):
        return Code.UNSCHEDULABLE

    def passes(self, changed, rows):
        return rows

    def why_not(self, changed, row):
        return self.reasons[self.snapshot.names[row]]


@pytest.fixture
def why_nothing_helps(kit):
    def ask(objects, reasons):
        snapshot = Cluster(objects).snapshot()
        found = kit.make("DefaultPreemption").post_filter(
            CycleState(), PodInfo.of(NEW), snapshot, Because(reasons, snapshot),
        )
        return found.rule, found.code, found.message

    return ask


def test_each_reason_of_a_node_counts_and_nodes_without_a_try_are_counted_by_themselves(why_nothing_helps):
    objects = [node("a"), node("b"), node("c"), node("d"), pod("low", 1, 1, "a"), pod("lower", 1, 0, "b")]
    assert why_nothing_helps(
        objects,
        {"a": ("Insufficient cpu", "Insufficient memory"), "b": ("Insufficient cpu",), "c": ("nobody reads this",)},
    ) == (
        NO_CANDIDATE, Code.UNSCHEDULABLE,
        ("preemption: 0/4 nodes are available: 1 Insufficient memory, 1 No preemption victims found for incoming pod, "
         "1 Preemption is not helpful for scheduling, 2 Insufficient cpu."))


def test_a_node_that_would_take_the_pod_with_everybody_on_it_is_an_error_unless_another_one_is_found(why_nothing_helps):
    objects = [node("a"), node("b"), pod("low", 1, 1, "a"), pod("lower", 1, 0, "b")]
    assert why_nothing_helps(objects, {"a": ()}) == (
        "victims", Code.ERROR, 'preemption: expected at least one victim pod on node "a"')
    both = why_nothing_helps(objects, {"a": (), "b": ()})[2]  # from a node on that the seed chooses
    assert (both[:13], both[-1]) == ("preemption: [", "]")
    assert sorted(both[len("preemption: ["):-1].split(", ")) == [
        f'expected at least one victim pod on node "{name}"' for name in "ab"
    ]


def decided(*objects, new=NEW):
    """The decision of kube-scheduler's default plugins about a pod."""
    profile = ProfileSpec(enabled=tuple(PluginChoice(name) for name in ("NodePorts", "DefaultPreemption")))
    loop = SchedulingLoop(
        Cluster([*objects, new]), Live(Registry.of(PLUGINS, generation=1)), Settings((profile,)), clock=lambda: 0,
    )
    return loop.scheduler.decide(PodInfo.of(new))


def port(number):
    return {"containers": [{"name": "main", "ports": [{"hostPort": number}], "resources": {"requests": {"cpu": "3"}}}]}


def test_what_would_refuse_the_pod_without_the_victims_is_the_reason_and_not_what_refused_it_first():
    holds_port = pod("low", 0, 1, "a", spec=port(80))
    greater = pod("greater", 2, 20, "a")
    verdict = decided(node("a"), holds_port, greater, new=pod("new", 3, 10, spec=port(80)))
    assert verdict.message() == (
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports. "
        "preemption: 0/1 nodes are available: 1 Insufficient cpu.")


def test_pods_that_are_nominated_for_the_node_are_in_when_the_victims_are_gone():
    rival = pod("rival", 3, 10, status={"nominatedNodeName": "a"})
    there = pod("low", 4, 1, "a", deletionTimestamp="2026-01-01T00:00:00Z")
    assert decided(node("a"), there, rival).message() == (
        "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Insufficient cpu.")
    lesser = pod("rival", 3, 9, status={"nominatedNodeName": "a"})
    assert decided(node("a"), there, lesser).nomination.node == "a"


@pytest.mark.parametrize(("left", "right", "chosen"), [
    # Each is what runs on one of two nodes of four cores: (priority, cpu, started).
    ([(5, 4, 0)], [(4, 4, 0)], "b"),
    ([(4, 2, 0), (2, 2, 0)], [(4, 2, 0), (3, 2, 0)], "a"),
    ([(4, 2, 0), (4, 2, 0)], [(4, 4, 0)], "b"),
    ([(4, 4, 10)], [(4, 4, 20)], "b"),
    ([(4, 4, 30)], [(4, 4, 20)], "a"),
    ([(4, 4, 0)], [(4, 4, 0)], "a"),
    ([(-5, 2, 0), (-5, 2, 0)], [(-5, 4, 0)], "b"),
])
def test_the_node_is_chosen_by_one_criterion_after_the_other(preempt, left, right, chosen):
    there = [pod(f"{name}{place}", cpu, priority, name, started) for name, pods in (("a", left), ("b", right))
             for place, (priority, cpu, started) in enumerate(pods)]
    for seed in range(3):
        found = preempt(pod("new", 3, 10), node("a"), node("b"), *there, seed=seed)
        assert found[0] == chosen or left == right


def test_budgets_that_would_break_decide_before_all_else(preempt):
    there = [pod("guarded", 4, 1, "a", labels={"app": "web"}), pod("free", 4, 5, "b", labels={"app": "db"})]
    assert preempt(NEW, node("a"), node("b"), *there, budget("web", 0, {"app": "web"})) == ("b", ["free"])
    assert preempt(NEW, node("a"), node("b"), *there, budget("web", 1, {"app": "web"})) == ("a", ["guarded"])
    spent = budget("web", 0, {"app": "web"}, disruptedPods={"guarded": "2026-01-01T00:00:00Z"})
    assert preempt(NEW, node("a"), node("b"), *there, spent) == ("a", ["guarded"])


def test_pods_whose_budgets_would_break_are_spared_first(preempt):
    web = {"app": "web"}
    there = [pod("one", 2, 5, "a", labels=web), pod("two", 1, 4, "a", labels=web), pod("plain", 1, 6, "a")]
    # The budget allows one disruption: of the two that it covers, the less important one would break it.
    assert preempt(pod("new", 3, 10), node("a"), *there, budget("web", 1, web)) == ("a", ["plain", "one"])


def test_victims_go_also_where_that_breaks_their_budgets():
    class Api(Nothing):
        def __init__(self):
            self.gone = {}

        def evict(self, pod, reason):
            raise OSError("429: the budget allows no disruption")

        def preempt(self, pod, preemptor, node):
            self.gone[pod.key] = (preemptor.key, node)

    guarded = pod("guarded", 4, 1, "a", labels={"app": "web"})
    cluster = Cluster([node("a"), guarded, budget("web", 0, {"app": "web"}), NEW])
    profile = ProfileSpec(enabled=(PluginChoice("DefaultPreemption"),))
    loop = SchedulingLoop(
        cluster, Live(Registry.of(PLUGINS, generation=1)), Settings((profile,)), clock=lambda: 0, client=Api(),
    )
    assert loop.schedule_one().nomination == Nomination("a", tuple(cluster.snapshot().pods(0)))
    assert loop.scheduler.client.gone == {"default/guarded": ("default/new", "a")}


def test_an_empty_selector_guards_nothing(preempt):
    there = [pod("any", 4, 1, "a", labels={"app": "web"}), pod("other", 4, 5, "b", labels={"app": "web"})]
    assert preempt(NEW, node("a"), node("b"), *there, budget("all", 0, {})) == ("a", ["any"])


def test_a_pod_may_be_told_never_to_preempt(preempt):
    assert preempt(pod("new", 3, 10, spec={"preemptionPolicy": "Never"}), node("a"), pod("low", 4, 1, "a")) == (
        "preemption: not eligible due to preemptionPolicy=Never.")


def test_a_pod_waits_for_those_that_leave_its_nominated_node(preempt):
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    leaving = pod("low", 4, 1, "a", deletionTimestamp="2026-01-01T00:00:00Z", status={"conditions": conditions})
    new = pod("new", 3, 10, status={"nominatedNodeName": "a"})
    assert preempt(
        new, node("a"), leaving,
    ) == "preemption: not eligible due to a terminating pod on the nominated node."
    assert preempt(new, node("a"), pod("low", 4, 1, "a", deletionTimestamp="2026-01-01T00:00:00Z")) == ("a", ["low"])
    assert preempt(new, node("a"), leaving, node("b"), pod("lower", 4, 1, "b"), never=("a",)) == ("b", ["lower"])


def test_only_as_many_nodes_are_tried_as_the_arguments_say(preempt):
    nodes = [node(f"n{place}") for place in range(20)]
    there = [pod(f"p{place}", 4, place + 1, f"n{place}") for place in range(20)]
    new = pod("new", 3, 100)
    assert preempt(new, *nodes, *there) == ("n0", ["p0"])
    found = {
        preempt(new, *nodes, *there, seed=seed, minCandidateNodesPercentage=10, minCandidateNodesAbsolute=1)[0]
        for seed in range(8)
    }
    assert len(found) > 3


@pytest.mark.parametrize(("args", "message"), [
    ({"minCandidateNodesPercentage": 101}, "not in valid range [0, 100]"),
    ({"minCandidateNodesAbsolute": -1}, "not in valid range [0, inf)"),
    ({"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0}, "cannot be zero at the same time"),
])
def test_arguments_out_of_range_are_refused(kit, args, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared
        kit.make("DefaultPreemption", **args)
    assert message in str(error.value)
