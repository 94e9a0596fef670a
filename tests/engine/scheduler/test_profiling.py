from __future__ import annotations

import itertools

import numpy as np

from koordpolicy.engine.framework.points import Answer, Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.profiling import OTHER_REASONS, Blame, DecisionMeter, Unplaced
from koordpolicy.plugin import CacheKey


def meter():
    """Each look at the clock is a second later."""
    return DecisionMeter(itertools.count().__next__)


def test_calls_and_seconds_are_those_of_decisions(kit):
    scheduler = Scheduler(
        kit.cluster("a", "b", "c"),
        kit.live(kit.plugin("Refuses", kit.refuses("c")), kit.plugin("Gives", kit.gives(a=5))),
    )
    measuring = meter()
    assert [measuring.schedule(scheduler, kit.pod(name)).node for name in ("p", "q")] == ["a", "a"]
    found = measuring.measured()
    assert {name: (dict(cost.calls), cost.seconds, cost.refused) for name, cost in found.plugins.items()} == {
        "Gives": ({"score": 2}, 2, 0), "Refuses": ({"filter": 2}, 2, 2)}
    assert (found.decisions, found.seconds, found.unplaced) == (2, 10, ())


def test_reading_why_a_pod_was_refused_costs_no_decision_anything(kit):
    scheduler = Scheduler(kit.cluster("a", "b"), kit.live(kit.plugin("Refuses", kit.refuses("a", "b"))))
    measuring = meter()
    verdict = measuring.schedule(scheduler, kit.pod())
    before = measuring.measured().plugins["Refuses"].calls.copy()
    assert verdict.reasons() == {"no a": 1, "no b": 1}
    assert measuring.measured().plugins["Refuses"].calls == before


def test_who_refused_is_told_by_rule_and_reason_with_the_nodes(kit):
    class Both:
        def filter(self, state, pod, snapshot, rows):
            reasons = {
                0: Refusal("left", "too far left"), 1: Refusal("", "too far right"), 2: Refusal("left", "too far left"),
            }
            return Answer(np.zeros(snapshot.size, np.bool_), reasons.__getitem__)

    scheduler = Scheduler(kit.cluster("a", "b", "c"), kit.live(kit.plugin("Both", Both())))
    measuring = meter()
    measuring.schedule(scheduler, kit.pod())
    assert measuring.measured().unplaced == (
        Unplaced(0, {Blame("Both", "left", "too far left"): 2, Blame("Both", "", "too far right"): 1}),)


def test_a_pod_that_is_refused_as_a_whole_counts_for_its_rule_whatever_the_words(kit):
    class Whole:
        def pre_filter(self, state, pod, snapshot):
            return Refusal("quota", f"{pod.name} is too much")

    plugin = Plugin("Whole", Framework.SCHEDULER, (Point.PRE_FILTER,), lambda args, handle: Whole(), "", "1")
    scheduler = Scheduler(kit.cluster("a", "b"), kit.live(plugin))
    measuring = meter()
    for name in ("p", "q"):
        measuring.schedule(scheduler, kit.pod(name))
    blame = Blame("Whole", "quota", "p is too much")
    assert measuring.measured().unplaced == (Unplaced(0, {blame: 2}), Unplaced(1, {blame: 2}))


def test_answers_that_are_kept_are_kept_where_decisions_are_measured(kit):
    class Keeps(kit.refuses):
        def cache_key(self, point, pod, snapshot):
            return CacheKey("same", frozenset(), vectorized=lambda snapshot, rows: np.ones(len(rows), np.bool_))

    cluster = kit.cluster(*(f"n{number:03}" for number in range(100)))
    cluster.cache_results_from = 0
    scheduler = Scheduler(cluster, kit.live(kit.plugin("Keeps", Keeps())))
    measuring = meter()
    for name in ("p", "q", "r"):
        measuring.schedule(scheduler, kit.pod(name))
    calls = measuring.measured().plugins["Keeps"].calls
    assert (calls["filter"], calls["cache_key"]) == (1, 3)


def test_kept_answers_tell_who_refused_too(kit):
    class Keeps:
        def cache_key(self, point, pod, snapshot):
            return CacheKey("same", frozenset())

        def filter(self, state, pod, snapshot, rows):
            return Answer(
                np.zeros(snapshot.size, np.bool_),
                lambda row: Refusal("even" if row % 2 == 0 else "odd", "no"[: 1 + row % 2]),
            )

    cluster = kit.cluster(*(f"n{number:03}" for number in range(100)))
    cluster.cache_results_from = 0
    scheduler = Scheduler(cluster, kit.live(kit.plugin("Keeps", Keeps())))
    measuring = meter()
    for name in ("p", "q"):
        measuring.schedule(scheduler, kit.pod(name))
    nodes = {Blame("Keeps", "even", "n"): 50, Blame("Keeps", "odd", "no"): 50}
    assert measuring.measured().unplaced == (Unplaced(0, nodes), Unplaced(1, nodes))


def test_a_plugin_with_a_reason_per_node_does_not_fill_the_memory(kit):
    cluster = kit.cluster(*(f"n{number:03}" for number in range(70)))
    scheduler = Scheduler(cluster, kit.live(kit.plugin("Refuses", kit.refuses(*cluster.names))))
    measuring = meter()
    measuring.schedule(scheduler, kit.pod())
    (unplaced,) = measuring.measured().unplaced
    assert (
        len(unplaced.nodes), unplaced.nodes[Blame("Refuses", "", OTHER_REASONS)], sum(unplaced.nodes.values()),
    ) == (51, 20, 70)
