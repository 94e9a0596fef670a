from __future__ import annotations

import json

import numpy as np
import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.framework.points import Answer, Enforcement, Refusal
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler


@pytest.fixture
def verdict(kit):
    plugins = [kit.plugin("F", kit.refuses("c", "d")), kit.plugin("S", kit.gives(a=10, b=20), weight=2)]
    return Scheduler(kit.cluster(*"abcd"), kit.live(*plugins)).decide(kit.pod())


def test_a_verdict_as_json_says_everything(verdict):
    assert json.loads(json.dumps(verdict.to_json())) == {
        "pod": "default/p", "node": "b", "profile": "default-scheduler", "generation": 1, "nodes": 4, "passed": 2,
        "tieBreak": {"rule": "first", "among": 1},
        "refusals": [
            {"plugin": "F", "rule": "rule", "reason": "no c", "code": "Unschedulable", "nodes": ["c"], "count": 1},
            {"plugin": "F", "rule": "rule", "reason": "no d", "code": "Unschedulable", "nodes": ["d"], "count": 1},
        ],
        "scores": [
            {"node": "b", "total": 40, "plugins": {"S": 20}}, {"node": "a", "total": 20, "plugins": {"S": 10}},
        ],
        "weights": {"S": 2},
        "errors": [],
    }


def test_scores_can_be_limited_and_then_say_how_many_are_left_out_while_refusals_name_every_node(verdict):
    limited = verdict.to_json(nodes=1)
    assert ([each["node"] for each in limited["scores"]], limited["scoresLeftOut"]) == (["b"], 1)
    assert limited["refusals"] == verdict.to_json()["refusals"]


def test_the_summary_of_an_unplaced_pod_counts_the_reasons(kit):
    class Same(kit.refuses):
        def filter(self, state, pod, snapshot, rows):
            return Answer(super().filter(state, pod, snapshot, rows).passed, lambda row: Refusal("rule", "too hot"))

    plugins = [kit.plugin("A", Same("b", "c")), kit.plugin("B", kit.refuses("a"))]
    verdict = Scheduler(kit.cluster(*"abc"), kit.live(*plugins)).decide(kit.pod())
    assert verdict.summary() == "default/p cannot be placed: 0/3 nodes are available: 1 no a, 2 too hot."


def test_a_rule_that_says_something_else_of_every_node_is_one_reason(kit):
    class Each(kit.refuses):
        def filter(self, state, pod, snapshot, rows):
            passed = super().filter(state, pod, snapshot, rows).passed
            return Answer(
                passed, lambda row: Refusal("below", f"at {row:02}%"),
                reasons=lambda refused: {f"at {row:02}%": np.array([row]) for row in refused.tolist()},
                brief=lambda refused: {"too hot": refused},
            )

    names = [f"n{number:02}" for number in range(14)]
    verdict = Scheduler(kit.cluster(*names), kit.live(kit.plugin("A", Each(*names[2:])))).decide(kit.pod())
    assert verdict.reasons() == {"too hot": 12}
    assert [(each.rule, each.reason, each.nodes) for each in verdict.refusals()] == [
        *[("below", f"at {row:02}%", (names[row],)) for row in range(2, 12)],
        ("below", "too hot", ("n12", "n13")),
    ]


def test_a_verdict_that_is_explained_does_not_know_what_came_of_it(kit):
    class Crowded(kit.refuses):
        def filter(self, state, pod, snapshot, rows):
            passed = np.zeros(snapshot.size, np.bool_)
            return Answer(passed, lambda row: Refusal("pods", f"{snapshot.node_info(row)['pods']} pods"))

    plugin = kit.plugin("W", Crowded(), enforcement=Enforcement.WARN)
    verdict = Scheduler(kit.cluster("a"), kit.live(plugin)).schedule(kit.pod(), explained=True)
    assert (verdict.node, [each.reason for each in verdict.refusals()]) == ("a", ["0 pods"])


def test_an_explained_verdict_outlives_the_snapshot(kit):
    cluster = Cluster(kit.node(name) for name in "ab")
    kept = Scheduler(cluster, kit.live(kit.plugin("F", kit.refuses("a")))).decide(kit.pod()).explained()
    cluster.delete("Node", "a")
    assert [(each.reason, each.nodes) for each in kept.refusals()] == [("no a", ("a",))]


def test_a_node_that_there_was_not_is_a_key_error(verdict):
    with pytest.raises(KeyError):
        verdict.why_not("x")
