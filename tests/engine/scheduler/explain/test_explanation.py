"""Decisions as trees of findings."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cel.values.deadline import Deadline, OverdueError
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.points import Answer, Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.explain import explanation
from koordpolicy.engine.scheduler.explain.explanation import explain_pod
from koordpolicy.engine.source import Source
from tests.output_schemas import check_part

NOW = 1_767_355_200_000_000_000


def node(name, cpu="4", labels=None, **spec):
    return {"kind": "Node", "metadata": {"name": name, "labels": labels or {}}, "spec": spec,
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}}}


def pod(cpu="1", **spec):
    return PodInfo.of({"kind": "Pod", "metadata": {"name": "p", "namespace": "shop"}, "spec": {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], **spec}})


def plugins(**spec):
    text = json.dumps({"apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "SchedulerPlugin",
                       "metadata": {"name": "rules"}, "spec": spec})
    return compile_documents(load([Source("p.yaml", text)]))


def held(found):
    """Return a finding, which must be as its schema says."""
    check_part("explain", "finding", json.loads(json.dumps(found.to_json())))
    return found


def explain_decision(*arguments, **options):
    return held(explanation.explain_decision(*arguments, **options))


def explain_node(*arguments, **options):
    return held(explanation.explain_node(*arguments, **options))


def looked_into(objects, *entries, asked=None, own=True):
    cluster = Cluster(objects)
    registry = Registry.of((*(builtins() if own else ()), *entries), generation=1)
    asked = asked or pod()
    return explain_pod(
        Scheduler(cluster, Live(registry), clock=lambda: NOW).profile_of(asked), asked, cluster.snapshot(NOW),
    )


class Impatient:
    """A filter whose explanation of waiting pods fails."""

    def filter(self, state, pod, snapshot, rows):
        return None

    def explain_waiting(self, pod):
        raise RuntimeError("not today")


def test_a_pod_without_a_node_names_its_gates_and_what_plugins_let_it_wait_for():
    failing = Plugin("Impatient", Framework.SCHEDULER, (Point.FILTER,), lambda args, handle: Impatient(), "", "1")
    gates = [{"name": "example.org/quota"}]
    found = explain_decision(looked_into([node("a")], failing, asked=pod(schedulingGates=gates), own=False))
    [waiting] = found.find("waiting")
    assert waiting.as_text().splitlines() == [
        "", "it waits for", "  its scheduling gates: example.org/quota",
        "  error    Impatient: RuntimeError: not today",
    ]
    assert "it waits for" not in explain_decision(looked_into([node("a")])).as_text()


def test_a_pod_that_a_preenqueue_plugin_does_not_queue_says_so_though_a_node_would_take_it():
    claims = [{"name": "gpu", "resourceClaimName": "one"}]
    found = explain_decision(looked_into([node("a")], asked=pod(resourceClaims=claims)))
    [waiting] = found.find("waiting")
    [gate] = waiting.find("gate")
    assert gate.text.startswith("ResourceClaims: resource claims (spec.resourceClaims) are not supported: ")
    assert gate.facts["plugin"] == "ResourceClaims"
    assert "would run on a" in found.as_text()


def test_items_are_shown_before_and_after_normalisation_with_their_weights():
    entries = plugins(score=[
        {"name": "big", "expression": "allocatable.cpu", "weight": 3, "normalize": "MinMax"},
        {"name": "flat", "expression": "50"},
    ])
    found = explain_decision(looked_into([node("a", "2"), node("b", "4"), node("c", "8")], *entries, own=False))
    assert found.as_text().splitlines()[3:] == [
        "scores",
        "  plugin           weight            c           b          a",
        "  rules                 1           87          37         12",
        "    big (MinMax)        3  8000 -> 100  4000 -> 33  2000 -> 0",
        "    flat                1           50          50         50",
        "  total, weighted       1           87          37         12",
    ]


def test_equal_nodes_say_how_one_was_taken():
    entries = plugins(score=[{"name": "flat", "expression": "50"}])
    explained = looked_into([node("a"), node("b")], *entries, own=False)
    assert explain_decision(explained).as_text().splitlines()[1] == (
        "shop/p would run on a: 2 of 2 nodes pass, 2 of them share the best score and the first by name is taken"
    )
    assert explain_node(explained, "b").as_text().splitlines()[-1] == "as good as a, which comes first by name"


def test_nodes_of_one_rule_are_told_together_with_the_nearest_of_them():
    entries = plugins(
        filter=[
            {"name": "small", "expression": "allocatable.cpu <= 1000", "messageExpression": "string(allocatable.cpu)"},
        ],
    )
    nodes = [node(f"n{number:02}", str(20 - number)) for number in range(8)]
    refusal = next(explain_decision(looked_into(nodes, *entries), trials=0).find("refusal"))
    assert refusal.as_text() == (
        "  8  rules (small): `allocatable.cpu <= 1000` is false\n"
        "     all nodes\n"
        "     nearest is n07: allocatable.cpu 13 cores, must be at most 1 core: over by 12 cores"
    )
    assert (refusal.facts["count"], refusal.facts["nearest"], refusal.facts["nodes"][0]) == (8, "n07", "n00")


def test_what_is_only_watched_is_told_as_that():
    entries = plugins(enforcement="Audit", filter=[{"name": "never", "expression": "requests.cpu < 1"}])
    explained = looked_into([node("a")], *entries)
    assert "not enforced\n    1  rules (never) [audit only]: " in explain_decision(explained).as_text()
    assert "  would refuse  rules (never) [audit only]: " in explain_node(explained, "a").as_text()


def test_a_pod_that_is_refused_as_a_whole_says_why_and_what_would_help():
    entries = plugins(preFilter=[{"name": "small", "expression": "requests.cpu <= 500", "message": "too large"}])
    assert explain_decision(looked_into([node("a"), node("b")], *entries)).as_text().splitlines()[1:] == [
        "no node fits shop/p: 0 of 2 nodes pass",
        (
            "  0/2 nodes are available: too large. preemption: 0/2 nodes are available: 2 No preemption victims found "
            "for incoming pod."
        ),
        "",
        "2 of 2 nodes refused",
        "  rules (small) refuses the pod at preFilter: too large",
        "    requests.cpu 1 core, must be at most 0.5 cores: over by 0.5 cores",
        "",
        "it would run if",
        "  - the pod requested 0.5 cores less cpu (0.5 instead of 1 core): then on 2 nodes, a, b",
    ]


def test_a_node_that_is_not_there_cannot_be_explained():
    with pytest.raises(KeyError):
        explain_node(looked_into([node("a")]), "b")


def test_without_nodes_nothing_fits():
    assert "no node fits shop/p: 0 of 0 nodes pass" in explain_decision(looked_into([])).as_text()


def test_a_metric_that_is_missing_or_too_old_is_told_with_its_age():
    metric = {"kind": "NodeMetric", "metadata": {"name": "b"}, "status": {
        "updateTime": "2026-01-02T11:56:40Z", "nodeMetric": {"nodeUsage": {"resources": {"memory": "2"}}}}}
    fresh = {**metric, "metadata": {"name": "c"}, "status": {**metric["status"], "updateTime": "2026-01-02T12:00:00Z"}}
    entries = plugins(filter=[{"name": "cool", "expression": "usage.cpu < 1000"}])
    explained = looked_into([node("a"), node("b"), node("c"), metric, fresh], *entries)
    assert [explain_node(explained, name, trials=0).as_text().splitlines()[6] for name in "abc"] == [
        "           it has no NodeMetric",
        "           its NodeMetric is 200 s old, and counts below 180 s: over by 20 s",
        "           its NodeMetric does not say that",
    ]


class Mute:
    """Refuses all nodes, and cannot say why."""

    def filter(self, state, pod, snapshot, rows):
        def explain(row):
            raise RuntimeError("lost for words")

        return Answer(np.zeros(snapshot.size, np.bool_), explain, reasons=explain)


class Odd:
    """Tells values that no built-in tells."""

    def filter(self, state, pod, snapshot, rows):
        values = (("cpu", {"requested": "much", "used": None, "capacity": []}), ("x", {"percent": "a", "threshold": 1}),
                  ("\x1b[2J", object()), ("deep", {"a": [float("nan"), b"x"]}))
        return Answer(np.zeros(snapshot.size, np.bool_), lambda row: Refusal("odd", "no\x07", values=values))


@pytest.mark.parametrize("plugin", [Mute(), Odd()])
def test_what_a_plugin_says_cannot_break_an_explanation(kit, plugin):
    explained = looked_into([node("a"), node("b")], kit.plugin("Foreign", plugin), own=False)
    for found in (explain_decision(explained), explain_node(explained, "a")):
        json.dumps(found.to_json(), allow_nan=False)
        assert "Foreign" in found.as_text()
        assert not {"\x1b", "\x07"} & set(found.as_text())


def test_fewer_changes_are_tried_where_there_is_little_time_and_that_is_said():
    expression = "allocatable.cpu > 5000 && 'a' in node.metadata.labels && pod.spec.priority > 5"
    entries = plugins(filter=[{"name": "r", "expression": expression}], failurePolicy="Ignore")
    explained = looked_into([node(name) for name in "abcdef"], *entries, own=False)
    for explain in (explain_decision, lambda each: explain_node(each, "a")):
        whole = [part.text for part in next(explain(explained).find("changes")).parts]
        told = []
        for polls in range(0, 60, 3):
            clock = itertools.count()
            with Deadline(polls, lambda clock=clock: next(clock)), suppress(OverdueError):
                told.append([part.text for part in next(explain(explained).find("changes")).parts])
        cut = "(no more changes were tried: the time was up)"
        assert {texts[-1] for texts in told} == {whole[-1], cut}
        assert all(set(texts) <= {*whole, cut} for texts in told)


def test_an_explanation_whose_time_is_up_is_none():
    entries = plugins(filter=[{"name": "r", "expression": "allocatable.cpu > 5000"}])
    explained = looked_into([node(name) for name in "abc"], *entries)
    with Deadline(0.0), pytest.raises(OverdueError):
        explain_decision(explained)


OPERAND = st.sampled_from([
    "usage.cpu", "requests.cpu", "allocatable.memory", "node.metadata.labels['a']", "pod.metadata.labels", "1.5", "0u",
    "'x'", "[1]",
    "nodeInfo.images", "metricAge", "now", "null", "size(node.metadata.labels)", "usage.p90.cpu",
    "allocatable['nvidia.com/gpu']",
])
LEAF = st.builds("dyn({}) {} dyn({})".format, OPERAND, st.sampled_from(["<", "==", "!=", ">=", "in"]), OPERAND)
EXPRESSION = st.recursive(LEAF, lambda inner: st.one_of(
    st.builds("({}) && ({})".format, inner, inner), st.builds("({}) || ({})".format, inner, inner),
    st.builds("!({})".format, inner),
    st.builds("({}) ? ({}) : ({})".format, inner, inner, inner),
    st.builds("[1, 2].exists(x, x > 1 && ({}))".format, inner),
), max_leaves=5)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=EXPRESSION, measured=st.booleans(), policy=st.sampled_from(["Fail", "Ignore"]))
def test_whatever_an_expression_does_its_decision_can_be_explained(text, measured, policy):
    metric = {"kind": "NodeMetric", "metadata": {"name": "a"}, "status": {
        "updateTime": "2026-01-02T12:00:00Z", "nodeMetric": {"nodeUsage": {"resources": {"cpu": "2"}}}}}
    entries = plugins(filter=[{"name": "r", "expression": text}], failurePolicy=policy)
    explained = looked_into([node("a"), node("b", labels={"a": "x"}), *([metric] if measured else [])], *entries)
    for found in (explain_decision(explained, trials=8), explain_node(explained, "a", trials=8)):
        json.dumps(found.to_json(), allow_nan=False)
        assert found.as_text()


def test_lists_that_are_cut_say_how_much_is_left_out():
    tests = [f"allocatable.cpu > {number}0000" for number in range(1, 6)]
    entries = plugins(filter=[{"name": "huge", "expression": " && ".join(tests)}],
                      score=[{"name": "flat", "expression": "50"}])
    refused = explain_decision(looked_into([node("a")], *entries, own=False), trials=0)
    told = list(next(refused.find("refusal")).find("more"))
    assert [(each.text, each.to_json()) for each in told] == [
        ("and 2 more clauses", {"kind": "more", "text": "and 2 more clauses", "leftOut": 2})]
    passing = explain_decision(looked_into([node("a"), node("b"), node("c")], *plugins(score=[
        {"name": "flat", "expression": "50"}]), own=False), best=1)
    assert [each.facts for each in passing.find("more")] == [{"leftOut": 2}]
