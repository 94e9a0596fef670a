from __future__ import annotations

import threading

import numpy as np
import pytest

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.points import Answer, Code, Enforcement, IgnoredErrors, Point, Refusal, Scores
from koordpolicy.engine.scheduler.cycle.schedule_one import (
    ReservedDevices,
    Scheduler,
    Settings,
    filter_only,
    score_only,
)
from koordpolicy.engine.scheduler.cycle.tie_break import tie_break
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.engine.scheduler.verdict.verdict import Failure, RefusedNodes
from koordpolicy.engine.source import PolicyError, Source


def schedule(kit, plugins, *names, settings=None, **options):
    scheduler = Scheduler(kit.cluster(*(names or "abc")), kit.live(*plugins), settings)
    return scheduler.decide(kit.pod(), **options)


def test_the_best_of_the_nodes_that_passed_is_chosen(kit):
    verdict = schedule(kit, [kit.plugin("F", kit.refuses("c")), kit.plugin("S", kit.gives(a=10, b=20, c=30))])
    assert (verdict.node, verdict.score_of("b"), verdict.score_of("c")) == ("b", {"S": 20}, {})
    assert verdict.best() == [("b", 20), ("a", 10)]


def test_filters_are_asked_about_rows_that_are_left_and_no_more_when_none_is(kit):
    first, second, third = kit.refuses("a"), kit.refuses("b", "c"), kit.refuses()
    verdict = schedule(kit, [kit.plugin("1", first), kit.plugin("2", second), kit.plugin("3", third)])
    assert (first.asked, second.asked, third.asked) == ([[0, 1, 2]], [[1, 2]], [])
    assert verdict.node is None
    assert verdict.reasons() == {"no a": 1, "no b": 1, "no c": 1}


def test_an_exhaustive_decision_asks_every_filter_about_every_node(kit):
    plugins = [kit.plugin("1", kit.refuses("a", "b", "c")), kit.plugin("2", kit.refuses("c", message="never"))]
    verdict = schedule(kit, plugins, exhaustive=True)
    assert [(plugin, refusal.message) for plugin, refusal in verdict.why_not("c")] == [("1", "no c"), ("2", "never c")]
    assert verdict.node is None


def test_a_single_node_is_taken_without_scoring(kit):
    verdict = schedule(kit, [kit.plugin("F", kit.refuses("a", "b")), kit.plugin("S", kit.gives(c=5))])
    assert (verdict.node, verdict.scores) == ("c", ())


def test_an_exhaustive_decision_scores_a_single_node_too(kit):
    verdict = schedule(kit, [kit.plugin("F", kit.refuses("a", "b")), kit.plugin("S", kit.gives(c=5))], exhaustive=True)
    assert (verdict.node, verdict.score_of("c")) == ("c", {"S": 5})


def test_weights_count(kit):
    plugins = [kit.plugin("S", kit.gives(a=60, b=50)), kit.plugin("T", kit.gives(a=0, b=20), weight=2)]
    assert schedule(kit, plugins).best(2) == [("b", 90), ("a", 60)]


def test_ties_are_broken_by_name_unless_another_rule_is_asked_for(kit):
    plugins = [kit.plugin("S", kit.gives(b=7, c=7))]
    assert (schedule(kit, plugins).node, schedule(kit, plugins).tie.among) == ("b", 2)
    drawn = {schedule(kit, plugins, settings=Settings(tie_break="random", seed=seed)).node for seed in range(20)}
    assert drawn == {"b", "c"}


def test_an_unknown_tie_break_is_refused():
    with pytest.raises(ValueError, match="the tie-break `last` does not exist: choose one of first, random"):
        tie_break("last")


class Raises:
    def filter(self, state, pod, snapshot, rows):
        raise RuntimeError("broken")

    def score(self, state, pod, snapshot, rows):
        raise RuntimeError("broken")

    def pre_filter(self, state, pod, snapshot):
        raise RuntimeError("broken")


def test_a_filter_that_raises_refuses_all_nodes_and_is_named(kit):
    verdict = schedule(kit, [kit.plugin("Bad", Raises(), points=(Point.FILTER,)), kit.plugin("S", kit.gives(a=1))])
    assert verdict.reasons() == {"RuntimeError: broken": 3}
    assert verdict.why_not("a")[0][1].code is Code.ERROR
    assert verdict.errors() == (Failure("Bad", "origin of Bad", Point.FILTER, "RuntimeError: broken"),)


def test_a_scorer_that_raises_gives_0_and_is_named(kit):
    verdict = schedule(kit, [kit.plugin("Bad", Raises(), points=(Point.SCORE,)), kit.plugin("S", kit.gives(b=1))])
    assert (verdict.node, verdict.score_of("b")) == ("b", {"Bad": 0, "S": 1})
    assert verdict.errors() == (Failure("Bad", "origin of Bad", Point.SCORE, "RuntimeError: broken"),)


def test_a_pre_filter_that_raises_lets_the_pod_wait(kit):
    verdict = schedule(kit, [kit.plugin("Bad", Raises(), points=(Point.PRE_FILTER,))])
    assert verdict.summary() == "default/p is refused by `Bad`: RuntimeError: broken"
    assert verdict.refusal[2].code is Code.ERROR


class Says:
    """A preFilter with an answer of its own, and errors that it ignored."""

    def __init__(self, refusal, *ignored):
        self.refusal, self.ignored = refusal, ignored

    def pre_filter(self, state, pod, snapshot):
        state[IgnoredErrors] += self.ignored
        return self.refusal


def test_what_fails_in_a_pre_filter_is_told_whether_it_counts_or_not(kit):
    error = EvaluationError("no such key: x")
    ignores = Says(None, ("small", error))
    fails = Says(Refusal("known", error.message, Code.ERROR, error))
    verdict = schedule(kit, [kit.plugin("A", ignores), kit.plugin("B", fails)])
    assert verdict.refusal == ("B", Point.PRE_FILTER, fails.refusal)
    assert verdict.errors() == (
        Failure("A", "origin of A", Point.PRE_FILTER, "no such key: x", rule="small"),
        Failure("B", "origin of B", Point.PRE_FILTER, "no such key: x", rule="known"),
    )


def test_a_pre_filter_that_is_only_watched_is_told_and_keeps_the_pod_from_nothing(kit):
    watched = kit.plugin("W", Says(Refusal("small", "too big")), enforcement=Enforcement.WARN)
    verdict = schedule(kit, [watched, kit.plugin("S", kit.gives(b=7))])
    assert (verdict.node, verdict.refusal, verdict.reasons()) == ("b", None, {})
    assert verdict.refusals() == (
        RefusedNodes("W", "small", "too big", Code.UNSCHEDULABLE, ("a", "b", "c"), enforcement=Enforcement.WARN),
    )


def test_a_score_outside_0_to_100_is_the_plugins_error_and_counts_0(kit):
    verdict = schedule(kit, [kit.plugin("S", kit.gives(a=101, b=-1, c=3))])
    assert (verdict.node, verdict.score_of("a")) == ("c", {"S": 0})
    assert verdict.errors() == (
        Failure("S", "origin of S", Point.SCORE, "the score 101 is outside 0..100", ("a",)),
        Failure("S", "origin of S", Point.SCORE, "the score -1 is outside 0..100", ("b",)),
    )


@pytest.mark.parametrize("answer", [None, Answer(np.ones(2, np.bool_)), Answer(np.ones(3, np.int64))])
def test_a_malformed_answer_of_a_filter_is_the_plugins_error(kit, answer):
    class Odd:
        def filter(self, state, pod, snapshot, rows):
            return answer

    verdict = schedule(kit, [kit.plugin("Odd", Odd())])
    assert verdict.node is None
    assert [failure.plugin for failure in verdict.errors()] == ["Odd"]


def test_a_malformed_answer_of_a_scorer_is_the_plugins_error(kit):
    class Odd:
        def score(self, state, pod, snapshot, rows):
            return Scores(np.ones(3) * 0.5)

    verdict = schedule(kit, [kit.plugin("Odd", Odd())])
    assert verdict.node == "a"
    assert verdict.errors()[0].message == "TypeError: the answer must be 3 values of int64, not float64 of shape (3,)"


def test_plugins_that_answer_per_node_are_asked_row_by_row(kit):
    class PerNode:
        def filter_node(self, state, pod, snapshot, row):
            if row == 1:
                raise RuntimeError("broken")
            return Refusal("rule", "first never") if row == 0 else None

        def score_node(self, state, pod, snapshot, row):
            if row == 3:
                raise RuntimeError("broken")
            return row * 10

    verdict = schedule(kit, [kit.plugin("P", PerNode())], *"abcd")
    assert (verdict.node, verdict.best()) == ("c", [("c", 20), ("d", 0)])
    assert verdict.reasons() == {"RuntimeError: broken": 1, "first never": 1}
    assert [(failure.point, failure.nodes) for failure in verdict.errors()] == [
        (Point.FILTER, ("b",)), (Point.SCORE, ("d",)),
    ]


def test_what_is_not_enforced_is_reported_and_does_not_count(kit):
    plugins = [
        kit.plugin("F", kit.refuses("a"), enforcement=Enforcement.AUDIT),
        kit.plugin("S", kit.gives(b=100), enforcement=Enforcement.WARN),
    ]
    verdict = schedule(kit, plugins)
    assert (verdict.node, verdict.reasons(), verdict.why_not("a")) == ("a", {}, ())
    assert [(each.plugin, each.nodes, each.enforcement) for each in verdict.refusals()] == [
        ("F", ("a",), Enforcement.AUDIT),
    ]
    assert verdict.score_of("b") == {"S": 100}


class Reserves:
    def __init__(self, log, name, refusal=None, devices=None):
        self.log, self.name, self.refusal, self.devices = log, name, refusal, devices

    def reserve(self, state, pod, snapshot, row):
        self.log.append(f"{self.name} takes {snapshot.names[row]}")
        if self.devices:
            state[ReservedDevices] = self.devices
        if isinstance(self.refusal, Exception):
            raise self.refusal
        return self.refusal

    def unreserve(self, state, pod, snapshot, row):
        self.log.append(f"{self.name} gives back")


def test_a_placed_pod_is_assumed_on_the_cluster(kit):
    cluster, log = kit.cluster("a", "b"), []
    verdict = Scheduler(cluster, kit.live(kit.plugin("R", Reserves(log, "R", devices=(1,))))).schedule(kit.pod())
    assert (verdict.node, verdict.devices, log) == ("a", (1,), ["R takes a"])
    snapshot = cluster.snapshot()
    assert snapshot.requested("cpu").tolist() == [1000, 0]
    assert [pod.key for pod in snapshot.pods(0)] == ["default/p"]


@pytest.mark.parametrize("refusal", [Refusal("full", "it is gone"), RuntimeError("it is gone")])
def test_a_refusal_to_reserve_gives_everything_back_and_leaves_the_cluster_alone(kit, refusal):
    cluster, log = kit.cluster("a"), []
    plugins = [
        kit.plugin("1", Reserves(log, "1")), kit.plugin("2", Reserves(log, "2", refusal)),
        kit.plugin("3", Reserves(log, "3")),
    ]
    verdict = Scheduler(cluster, kit.live(*plugins)).schedule(kit.pod())
    assert log == ["1 takes a", "2 takes a", "3 gives back", "2 gives back", "1 gives back"]
    assert verdict.node is None
    assert verdict.summary().startswith("default/p is refused by `2`: ")
    assert verdict.summary().endswith("it is gone")
    assert cluster.snapshot().pod_count.tolist() == [0]


def test_a_decision_names_the_generation_that_it_was_made_under(kit):
    live = kit.live(kit.plugin("S", kit.gives(a=1)))
    scheduler = Scheduler(kit.cluster("a", "b"), live)
    first = scheduler.decide(kit.pod())
    live.replace(lambda: [kit.plugin("T", kit.gives(b=1))])
    second = scheduler.decide(kit.pod())
    assert [(each.node, each.generation) for each in (first, second)] == [("a", 1), ("b", 2)]


def test_a_generation_whose_plugins_cannot_be_made_changes_nothing(kit):
    def fail(args, handle):
        raise OSError("no such device")

    live = kit.live(kit.plugin("S", kit.gives(a=1)))
    scheduler = Scheduler(kit.cluster("a", "b"), live)
    live.replace(lambda: [kit.plugin("T", fail, points=(Point.SCORE,))])
    assert scheduler.decide(kit.pod()).generation == 1
    assert str(scheduler.hot_swap.fault) == (
        "error: the scheduler plugin `T` cannot be made: OSError: no such device\n  = it comes from origin of T")
    live.replace(lambda: [kit.plugin("U", kit.gives(b=1))])
    assert (scheduler.decide(kit.pod()).generation, scheduler.hot_swap.fault) == (3, None)


def test_plugins_are_prepared_in_another_thread_and_taken_over_by_the_next_decision(kit):
    log = []

    class Instance(type(kit.gives())):
        def start(self):
            log.append(f"started in {threading.current_thread().name}")

        def close(self):
            log.append("closed")

    def plugin(name, **scores):
        return kit.plugin(name, lambda args, handle: Instance(**scores), points=(Point.SCORE,))

    live = kit.live(plugin("S", a=1))
    scheduler = Scheduler(kit.cluster("a", "b"), live)
    stage = scheduler.hot_swap.stage
    reload = threading.Thread(name="reload", target=lambda: live.replace(lambda: [plugin("T", b=1)], stage))
    reload.start()
    reload.join()
    assert (log, scheduler.profiles[0].plugins()) == (
        [f"started in {threading.current_thread().name}", "started in reload"], ("T",),
    )
    verdict = scheduler.decide(kit.pod())
    assert (verdict.node, verdict.generation, log[2:]) == ("b", 2, ["closed"])


def test_a_registry_that_cannot_be_prepared_is_not_put_in_force(kit):
    live = kit.live(kit.plugin("S", kit.gives(a=1)))
    scheduler = Scheduler(kit.cluster("a", "b"), live)
    with pytest.raises(PolicyError, match="the plugin `T` declares the point `score` and does not implement it"):
        live.replace(lambda: [kit.plugin("T", object(), points=(Point.SCORE,))], scheduler.hot_swap.stage)
    assert (scheduler.decide(kit.pod()).generation, scheduler.hot_swap.fault) == (1, None)


def test_of_two_registries_prepared_between_decisions_the_last_one_decides(kit):
    live = kit.live(kit.plugin("S", kit.gives(a=1)))
    scheduler = Scheduler(kit.cluster("a", "b"), live)
    live.replace(lambda: [kit.plugin("T", kit.gives(a=1))], scheduler.hot_swap.stage)

    def decide_in_between(registry):
        scheduler.hot_swap.stage(registry)
        # The third is prepared and not active yet; the instances of the second are gone already.
        assert scheduler.decide(kit.pod()).generation == 1

    live.replace(lambda: [kit.plugin("U", kit.gives(b=1))], decide_in_between)
    assert scheduler.decide(kit.pod()).generation == 3


def test_a_plugin_cannot_look_at_the_cluster_while_it_is_made(kit):
    def make(args, handle):
        handle.snapshot()

    with pytest.raises(PolicyError, match="the cluster cannot be looked at while a plugin is made or started"):
        Scheduler(kit.cluster("a"), kit.live(kit.plugin("S", make, points=(Point.SCORE,))))


def test_a_pod_is_decided_about_by_the_profile_that_it_names(kit):
    profiles = (ProfileSpec("default-scheduler"), ProfileSpec("other", disabled={None: frozenset({"S"})}))
    scheduler = Scheduler(kit.cluster("a", "b"), kit.live(kit.plugin("S", kit.gives(b=1))), Settings(profiles))
    assert scheduler.decide(kit.pod()).node == "b"
    assert scheduler.decide(kit.pod(schedulerName="other")).node == "a"
    assert scheduler.decide(kit.pod(schedulerName="unknown")).profile == "default-scheduler"


def test_instances_outlive_generations_and_are_closed_when_nobody_wants_them(kit):
    log = []

    class Instance(type(kit.gives())):
        def close(self):
            log.append("closed")

    def make(args, handle):
        log.append(f"made for {handle.profile} with {dict(args)}")
        return Instance(a=1)

    def plugin(digest="1"):
        return kit.plugin("S", make, points=(Point.SCORE,), digest=digest)

    live = kit.live(plugin())
    scheduler = Scheduler(kit.cluster("a"), live, Settings((ProfileSpec(enabled=(PluginChoice("S", args={"x": 1}),)),)))
    live.replace(lambda: [plugin(), kit.plugin("T", kit.gives())])
    scheduler.decide(kit.pod())
    assert log == ["made for default-scheduler with {'x': 1}"]
    live.replace(lambda: [plugin("2")])
    scheduler.decide(kit.pod())
    assert log[1:] == ["made for default-scheduler with {'x': 1}", "closed"]
    scheduler.close()
    assert log[3:] == ["closed"]


def test_a_cluster_without_nodes_places_nothing(kit):
    verdict = Scheduler(Cluster(), kit.live(kit.plugin("S", kit.gives()))).schedule(kit.pod())
    assert verdict.summary() == "default/p cannot be placed: no nodes available to schedule pods"


def test_filters_and_scores_can_be_asked_apart_over_some_nodes(kit):
    asked = kit.refuses("c")
    plugins = [kit.plugin("F", asked), kit.plugin("S", kit.gives(a=50, b=20, c=90, d=10))]
    scheduler = Scheduler(kit.cluster(*"abcd"), kit.live(*plugins))
    snapshot = scheduler.cluster.snapshot()
    verdict = filter_only(scheduler.profiles[0], kit.pod(), snapshot, among=np.array([1, 2, 3], np.intp))
    assert (verdict.passed.tolist(), verdict.size, asked.asked) == ([1, 3], 3, [[1, 2, 3]])
    alone = filter_only(scheduler.profiles[0], kit.pod(), snapshot, among=np.array([2], np.intp))
    assert alone.summary() == "default/p cannot be placed: 0/1 nodes are available: 1 no c."
    scored = score_only(scheduler.profiles[0], kit.pod(), snapshot, among=np.array([1, 3], np.intp))
    assert (scored.best(), scored.node) == ([("b", 20), ("d", 10)], None)


OVERDUE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: slow}
spec:
  failurePolicy: Ignore
  filter: [{name: long, expression: 'lists.range(3000).all(x, x + nodeInfo.pods >= 0)'}]
"""


@pytest.mark.parametrize("run", [Scheduler.decide, Scheduler.schedule])
def test_a_decision_that_takes_too_long_is_an_error_that_names_the_document(kit, run):
    plugins = compile_documents(load([Source("slow.yaml", OVERDUE)]))

    def verdict(seconds):
        cluster = kit.cluster("a", "b")
        return run(Scheduler(cluster, kit.live(*plugins), Settings(decision_seconds=seconds)), kit.pod())

    overdue = verdict(0.0)
    assert (overdue.node, overdue.refusal) == (None, ("slow", Point.FILTER, Refusal(
        "", "an expression of `slow.yaml` was stopped: the decision had taken 0 s", Code.ERROR)))
    assert verdict(60.0).node == "a"
