"""Messages about a pod without a node, in kube-scheduler's words."""

from __future__ import annotations

import pytest

from koordpolicy.engine.framework.points import Answer, Code, Enforcement, Point, Refusal
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.explain.explanation import explain_decision, explain_pod
from koordpolicy.engine.scheduler.verdict.messages import refused_whole, unavailable, with_post_filters
from koordpolicy.plugin import Nomination, OnlyNodes


class Answers:
    """A plugin that answers at one point, always the same."""

    def __init__(self, method, answer):
        setattr(self, method, lambda *arguments: answer)


def at(kit, name, point, method, answer):
    return kit.plugin(name, lambda args, handle: Answers(method, answer), points=(point,))


def says(kit, name, answer):
    return at(kit, name, Point.POST_FILTER, "post_filter", answer)


def decide(kit, *plugins, nodes="abc"):
    return Scheduler(kit.cluster(*nodes), kit.live(*plugins)).decide(kit.pod())


def test_reasons_are_sorted_as_texts_with_their_numbers():
    reasons = {"Too many pods": 2, "Insufficient memory": 1, "Insufficient cpu": 10}
    assert unavailable(
        12, reasons,
    ) == "0/12 nodes are available: 1 Insufficient memory, 10 Insufficient cpu, 2 Too many pods."


def test_a_message_without_reasons_ends_where_they_would_begin():
    assert unavailable(3, {}) == "0/3 nodes are available:"


@pytest.mark.parametrize(("point", "code", "message"), [
    (Point.PRE_FILTER, Code.UNSCHEDULABLE, "0/5 nodes are available: broken."),
    (Point.PRE_FILTER, Code.UNRESOLVABLE, "0/5 nodes are available: broken."),
    (Point.PRE_FILTER, Code.ERROR, 'running PreFilter plugin "P": broken'),
    (Point.RESERVE, Code.UNSCHEDULABLE, "0/1 nodes are available: 1 broken."),
    (Point.RESERVE, Code.ERROR, 'running Reserve plugin "P": broken'),
    (Point.PERMIT, Code.UNRESOLVABLE, "0/1 nodes are available: 1 broken."),
    (Point.PRE_BIND, Code.ERROR, 'running PreBind plugin "P": broken'),
    (Point.PRE_ENQUEUE, Code.UNRESOLVABLE, "broken"),
])
def test_who_refuses_the_pod_as_a_whole_says_it_of_all_nodes_of_one_or_of_itself(point, code, message):
    assert refused_whole(5, "P", point, Refusal("", "broken", code)) == message


@pytest.mark.parametrize(("refusals", "suffix"), [
    ([], ""),
    ([Refusal("", "no claims"), Refusal("", "preemption: nothing helps.")], " no claims, preemption: nothing helps."),
    ([Refusal("", ""), Refusal("", "preemption: nothing helps.")], " preemption: nothing helps."),
    ([Refusal("", "no claims"), Refusal("", "not found", Code.ERROR), Refusal("", "more")], " not found"),
    ([Refusal("", "no claims"), Refusal("", "never", Code.UNRESOLVABLE), Refusal("", "more")], " never"),
])
def test_what_post_filters_say_follows_and_the_one_that_ends_the_asking_speaks_alone(refusals, suffix):
    assert with_post_filters("0/1 nodes are available: 1 no.", refusals) == "0/1 nodes are available: 1 no." + suffix


def test_a_node_counts_under_the_first_filter_that_refuses_it_whether_all_were_asked_or_not(kit):
    class Same(kit.refuses):
        def filter(self, state, pod, snapshot, rows):
            return Answer(super().filter(state, pod, snapshot, rows).passed, lambda row: Refusal("", self.message))

    plugins = [kit.plugin("A", Same("a", "b", message="too hot")), kit.plugin("B", Same("b", "c", message="too full"))]
    scheduler = Scheduler(kit.cluster(*"abc"), kit.live(*plugins))
    expected = "0/3 nodes are available: 1 too full, 2 too hot."
    assert scheduler.decide(kit.pod()).message() == expected
    explained = explain_pod(scheduler.profiles[0], kit.pod(), scheduler.cluster.snapshot())
    assert explained.verdict.message() == expected
    choice = next(explain_decision(explained).find("choice"))
    assert (choice.facts["message"], [each.text for each in choice.parts]) == (expected, [expected])


def test_a_filter_that_is_only_watched_says_nothing(kit):
    watched = kit.plugin("W", kit.refuses("a"), enforcement=Enforcement.WARN)
    assert decide(
        kit, watched, kit.plugin("F", kit.refuses("a")), nodes="a",
    ).message() == "0/1 nodes are available: 1 no a."


def test_without_nodes_nothing_else_is_said(kit):
    broken = at(kit, "P", Point.PRE_FILTER, "pre_filter", Refusal("", "broken"))
    assert decide(kit, broken, nodes="").message() == "no nodes available to schedule pods"


def test_preemption_that_finds_a_node_is_not_mentioned(kit):
    plugins = [
        kit.plugin("F", kit.refuses("a", "b")), says(kit, "X", Refusal("", "nothing to do")),
        says(kit, "Y", Nomination("a")),
    ]
    assert decide(kit, *plugins, nodes="ab").message() == "0/2 nodes are available: 1 no a, 1 no b."
    plugins[2] = says(kit, "Y", Refusal("", "preemption: no"))
    assert decide(
        kit, *plugins, nodes="ab",
    ).message() == "0/2 nodes are available: 1 no a, 1 no b. nothing to do, preemption: no"


def test_a_post_filter_that_says_that_nothing_resolves_it_ends_the_asking(kit):
    plugins = [
        kit.plugin("F", kit.refuses("a")), says(kit, "X", Refusal("", "never", Code.UNRESOLVABLE)),
        says(kit, "Y", Nomination("a")),
    ]
    verdict = decide(kit, *plugins, nodes="a")
    assert (verdict.nomination, verdict.message()) == (None, "0/1 nodes are available: 1 no a. never")


def test_nodes_that_several_plugins_leave_out_have_all_of_them_as_their_reason(kit):
    plugins = [
        at(kit, name, Point.PRE_FILTER, "pre_filter", OnlyNodes(frozenset(names)))
        for name, names in (("P", "abx"), ("Q", "bc"))
    ]
    plugins.append(kit.plugin("F", kit.refuses("b")))
    assert decide(kit, *plugins, nodes="abcd").message() == (
        "0/4 nodes are available: 1 no b, 3 node(s) didn't satisfy plugin(s) [P Q].")


@pytest.mark.parametrize(("left", "right", "message"), [
    ("a", "b", "0/2 nodes are available: node(s) didn't satisfy plugin(s) [P Q] simultaneously."),
    ("", "ab", "0/2 nodes are available: node(s) didn't satisfy plugin P."),
    # Nodes that do not exist are as good as any others until they are looked for.
    ("x", "x", "0/2 nodes are available: 2 node(s) didn't satisfy plugin(s) [P Q]."),
])
def test_plugins_that_together_leave_no_node_are_named(kit, left, right, message):
    plugins = [
        at(kit, name, Point.PRE_FILTER, "pre_filter", OnlyNodes(frozenset(names)))
        for name, names in (("P", left), ("Q", right))
    ]
    assert decide(kit, *plugins, nodes="ab").message() == message


def test_a_message_that_is_kept_does_not_change_with_the_cluster(kit):
    class Names(kit.refuses):
        def filter(self, state, pod, snapshot, rows):
            cluster = snapshot.cluster
            return Answer(
                super().filter(state, pod, snapshot, rows).passed,
                lambda row: Refusal("", f"{len(cluster.names)} nodes"),
            )

    scheduler = Scheduler(kit.cluster("a"), kit.live(kit.plugin("F", Names("a"))))
    verdict = scheduler.decide(kit.pod()).explained()
    scheduler.cluster.upsert(kit.node("b"))
    assert verdict.message() == "0/1 nodes are available: 1 1 nodes."


def test_a_verdict_shows_the_message_of_a_pod_without_a_node_only(kit):
    assert decide(
        kit, kit.plugin("F", kit.refuses("a")), nodes="a",
    ).to_json()["message"] == "0/1 nodes are available: 1 no a."
    placed = decide(kit, kit.plugin("F", kit.refuses("a")), nodes="ab")
    assert (placed.message(), "message" in placed.to_json()) == ("", False)
