"""Nominated nodes of pending pods: set by their status or by the scheduler, and cleared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.framework.points import Answer, Code, Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.queue.nominator import Nominations
from koordpolicy.plugin import NO_CANDIDATE, SKIP, Nomination
from koordpolicy.testing import FakeClock


def node(name):
    return {
        "kind": "Node", "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    }


def pod(name="p", named="", priority=0, cpu="1", **spec):
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    status = {"nominatedNodeName": named} if named else {}
    return {"kind": "Pod", "metadata": {"name": name, "uid": f"uid-{name}"}, "status": status,
            "spec": {"containers": [container], "priority": priority, **spec}}


def plugin(name, instance, *points):
    return Plugin(name, Framework.SCHEDULER, points, lambda args, handle: instance, name, name)


class Fits:
    def filter(self, state, pod, snapshot, rows):
        free = snapshot.allocatable("cpu") - snapshot.requested("cpu")
        return Answer(free >= pod.requests["cpu"], lambda row: Refusal("", "Insufficient cpu"))

    def may_help(self, event, pod):
        return event.kind == "Pod" and event.old_pod is not None and bool(event.old_pod.node_name)


class Says:
    def __init__(self, answer):
        self.answer = answer

    def post_filter(self, state, pod, snapshot, refused):
        return self.answer


def loop_of(*objects, post_filter=None):
    plugins = [plugin("Fits", Fits(), Point.FILTER)]
    if post_filter is not None:
        plugins.append(plugin("Preempts", Says(post_filter), Point.POST_FILTER))
    return SchedulingLoop(Cluster(objects), Live(Registry.of(plugins, generation=1)), Settings(), clock=lambda: 0)


def nominated(loop, name="a"):
    return [each.name for each in loop.scheduler.nominations.nominated(name)]


def test_what_a_pods_status_says_holds_from_the_beginning_and_from_a_later_pod_on():
    loop = loop_of(node("a"), node("b"), pod("first", "a"))
    assert nominated(loop) == ["first"]
    loop.scheduler.cluster.upsert(pod("second", "a"))
    assert nominated(loop) == ["first", "second"]


def test_a_later_update_of_the_status_nominates_moves_and_clears():
    loop = loop_of(node("a"), node("b"), pod())
    found = []
    for named in ("", "a", "b", "", "a"):
        loop.scheduler.cluster.upsert(pod(named=named))
        found.append((nominated(loop, "a"), nominated(loop, "b")))
    assert found == [([], []), (["p"], []), ([], ["p"]), ([], []), (["p"], [])]


@pytest.mark.parametrize("change", [
    lambda cluster: cluster.delete("Pod", "default/p"),
    lambda cluster: cluster.upsert(pod(named="a", nodeName="b")),
    lambda cluster: cluster.upsert({**pod(), "metadata": {"name": "p", "uid": "another"}}),
])
def test_a_pod_that_is_gone_bound_or_made_anew_is_nominated_no_more(change):
    loop = loop_of(node("a"), node("b"), pod(named="a"))
    change(loop.scheduler.cluster)
    assert (nominated(loop, "a"), nominated(loop, "b")) == ([], [])


def test_a_pod_that_was_deleted_may_come_again_under_its_name():
    loop = loop_of(node("a"), pod(named="a", cpu="9"), post_filter=Refusal(NO_CANDIDATE, "nothing helps"))
    loop.schedule_one()
    assert nominated(loop) == []
    loop.scheduler.cluster.delete("Pod", "default/p")
    loop.scheduler.cluster.upsert(pod(named="a"))
    assert nominated(loop) == ["p"]


class KeepsBigOut:
    def pre_enqueue(self, pod, snapshot):
        return Refusal("", "big") if pod.name == "big" else None

    def may_help(self, event, pod):
        return False


@pytest.mark.parametrize("later", ["b", ""])
def test_lesser_pods_are_tried_again_when_a_nomination_moves_or_is_cleared(later):
    clock = FakeClock(0)
    plugins = [plugin("Fits", Fits(), Point.FILTER), plugin("Gate", KeepsBigOut(), Point.PRE_ENQUEUE)]
    objects = [node("a"), pod("big", "a", priority=9, cpu="4"), pod("small")]
    loop = SchedulingLoop(Cluster(objects), Live(Registry.of(plugins, generation=1)), Settings(), clock=clock)
    assert loop.schedule_one().message() == "0/1 nodes are available: 1 Insufficient cpu."
    clock.advance(20)
    loop.scheduler.cluster.upsert(pod("big", "a", priority=9, cpu="4", hostname="the-same-nomination"))
    assert loop.schedule_one() is None
    loop.scheduler.cluster.upsert(pod("big", later, priority=9, cpu="4"))
    assert loop.schedule_one().node == "a"


def test_preemption_that_finds_no_node_takes_the_nomination_back():
    loop = loop_of(node("a"), node("b"), pod(named="a", cpu="9"), post_filter=Refusal(NO_CANDIDATE, "nothing helps"))
    loop.schedule_one()
    assert (nominated(loop), loop.scheduler.nominations.node_of(PodInfo.of(pod(named="a")))) == ([], None)
    # The status still says so until somebody writes it: what has not changed is not news.
    loop.scheduler.cluster.upsert(
        {**pod(named="a", cpu="9"), "metadata": {"name": "p", "uid": "uid-p", "labels": {"new": "label"}}},
    )
    assert nominated(loop) == []
    loop.scheduler.cluster.upsert(pod(named="b", cpu="9"))
    assert nominated(loop, "b") == ["p"]


@pytest.mark.parametrize("refusal", [Refusal("eligible", "not eligible"), Refusal("", "broken", Code.ERROR)])
def test_preemption_that_was_not_tried_leaves_the_nomination(refusal):
    loop = loop_of(node("a"), pod(named="a", cpu="9"), post_filter=refusal)
    loop.schedule_one()
    assert nominated(loop) == ["p"]


def test_lesser_pods_lose_the_node_that_a_greater_one_is_nominated_for():
    lesser = pod("lesser", "a", priority=1, cpu="3")
    loop = loop_of(node("a"), lesser, pod("greater", priority=9, cpu="9"), post_filter=Nomination("a"))
    assert loop.schedule_one().nomination == Nomination("a")
    assert nominated(loop) == ["greater"]
    assert loop.scheduler.nominations.node_of(PodInfo.of(lesser)) is None


NAMES = st.sampled_from(["", "a", "b"])


@given(st.lists(st.tuples(st.sampled_from(["status", "scheduler"]), NAMES), max_size=12))
def test_the_last_one_to_say_something_new_is_heard(course):
    nominations, current, expected = Nominations(), PodInfo.of(pod()), ""
    for who, name in course:
        if who == "scheduler":
            nominations.nominate(current, name)
            expected = name
        else:
            before, current = current, PodInfo.of(pod(named=name))
            nominations.update(before, current)
            if name != before.object["status"].get("nominatedNodeName", ""):
                expected = name
        held = {each: [one.key for one in nominations.nominated(each)] for each in ("", "a", "b")}
        assert held == {each: ["default/p"] if each and each == expected else [] for each in ("", "a", "b")}
        assert nominations.recorded_node_of(current) == (expected or None)


class Together:
    """Allows two pods in the whole cluster, and looks at them before any node."""

    def pre_filter(self, state, pod, snapshot):
        state[Together] = sum(len(snapshot.pods(row)) for row in range(snapshot.size))

    def filter(self, state, pod, snapshot, rows):
        return Answer(np.full(snapshot.size, state[Together] < 2), lambda row: Refusal("", f"{state[Together]} pods"))


def decide_beside(kit, *plugins, pod=None):
    scheduler = Scheduler(kit.cluster(*"abc"), kit.live(*plugins))
    for name in "ab":
        scheduler.nominations.nominate(kit.pod(f"rival-{name}", priority=9), name)
    return scheduler.decide(pod or kit.pod("new"))


def test_each_node_is_judged_as_if_it_were_the_only_one_with_nominated_pods(kit):
    verdict = decide_beside(kit, plugin("Together", Together(), Point.PRE_FILTER, Point.FILTER))
    # With both rivals in view no node would pass.
    assert [verdict.names[row] for row in verdict.passed] == ["a", "b", "c"]


def test_where_no_pre_filter_has_to_do_with_the_pod_all_nominated_nodes_are_looked_at_once(kit):
    class Skips(Fits):
        def pre_filter(self, state, pod, snapshot):
            return SKIP

    class Counts(Fits):
        views = 0

        def filter(self, state, pod, snapshot, rows):
            self.views += bool(snapshot.overridden)
            return super().filter(state, pod, snapshot, rows)

    counts = Counts()
    verdict = decide_beside(
        kit, plugin("Skips", Skips(), Point.PRE_FILTER, Point.FILTER), plugin("Counts", counts, Point.FILTER),
        pod=kit.pod("new", cpu="4"),
    )
    assert ([verdict.names[row] for row in verdict.passed], counts.views) == (["c"], 1)


def test_who_skipped_the_pod_is_not_asked_again_in_a_what_if(kit):
    class Skips:
        asked = 0

        def pre_filter(self, state, pod, snapshot):
            self.asked += 1
            return SKIP

        def filter(self, state, pod, snapshot, rows):
            raise AssertionError("it has nothing to do with the pod")

    class Looks:
        def post_filter(self, state, pod, snapshot, refused):
            view = snapshot.overlay({"a": NodeChange(remove=["default/low"])})
            return Refusal(
                "",
                f"{refused.why_not(view, 0)} {refused.why_not(snapshot, 0)} "
                f"{refused.passes(view, np.array([0])).tolist()}",
            )

    skips = Skips()
    plugins = [
        plugin("Skips", skips, Point.PRE_FILTER, Point.FILTER), plugin("Fits", Fits(), Point.FILTER),
        plugin("Looks", Looks(), Point.POST_FILTER),
    ]
    running = kit.pod("low", cpu="4", nodeName="a").object
    scheduler = Scheduler(Cluster([node("a"), running]), kit.live(*plugins))
    assert scheduler.decide(kit.pod()).post_filter_refusals == (("Looks", Refusal("", "() ('Insufficient cpu',) [0]")),)
    assert skips.asked == 1


def test_only_other_pods_of_equal_or_higher_priority_must_fit_together_with_a_pod():
    cluster = Cluster([node("a"), node("b")])
    nominations = Nominations()
    named = {name: PodInfo.of(pod(name, priority=priority))
             for name, priority in (("lower", 4), ("equal", 5), ("higher", 6), ("own", 5), ("there", 7), ("gone", 9))}
    for name, on in (("lower", "a"), ("equal", "a"), ("higher", "b"), ("own", "a"), ("there", "a"), ("gone", "c")):
        nominations.nominate(named[name], on)
    cluster.assume(named["there"], "a")
    snapshot = cluster.snapshot()
    assert nominations.rivals(named["own"], snapshot) == {
        "a": NodeChange(add=[named["equal"]]), "b": NodeChange(add=[named["higher"]]),
    }
    assert nominations.rivals(named["own"], snapshot, {"uid-higher"}) == {"a": NodeChange(add=[named["equal"]])}
    assert nominations.rivals(named["gone"], snapshot) == {}
    assert nominations.rivals(named["lower"], snapshot) == {
        "a": NodeChange(add=[named["equal"], named["own"]]), "b": NodeChange(add=[named["higher"]]),
    }
