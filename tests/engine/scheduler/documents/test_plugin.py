"""SchedulerPlugin documents, run over a small cluster."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.points import Code, Enforcement, Errors, IgnoredErrors, Point
from koordpolicy.engine.scheduler.documents.plugin import DocumentScheduler, make_instance
from koordpolicy.engine.source import PolicyError, Source
from koordpolicy.plugin import CycleState, Handle

HEAD = "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {name: under-test}\nspec:\n"


def node(name: str, *, cpu: str = "4", used: str = "", **labels: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{
        "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}},
    }]
    if used:
        usage = {"resources": {"cpu": used, "memory": "1Gi"}}
        found.append({
            "kind": "NodeMetric", "metadata": {"name": name},
            "status": {"updateTime": "1970-01-01T00:00:00Z", "nodeMetric": {"nodeUsage": usage}},
        })
    return found


def pod(
    name: str, *, cpu: str = "1", namespace: str = "default", labels: Mapping[str, str] | None = None, **spec: Any,
) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def plugin(spec: str, *, shared: str = "", args: Mapping[str, Any] | None = None) -> DocumentScheduler:
    (found,) = compile_documents(load([Source("a.yaml", f"{shared}{HEAD}{spec}")]))
    handle = Handle("under-test", lambda: Cluster().snapshot(), lambda: 0, logging.getLogger(found.name))
    made = make_instance(found, args or {}, handle)
    assert isinstance(made, DocumentScheduler)
    return made


def filtered(asked: DocumentScheduler, item: dict[str, Any], snapshot: Snapshot) -> dict[str, str]:
    answer = asked.filter(CycleState(), PodInfo.of(item), snapshot, np.arange(snapshot.size))
    return {
        name: "" if answer.passed[row]
        else f"{(refusal := answer.explain(row)).rule}: {refusal.message} ({refusal.code.value})"
        for row, name in enumerate(snapshot.names)
    }


def told(errors: Errors) -> dict[str, dict[int, str]]:
    return {rule: {row: error.message for row, error in found.items()} for rule, found in errors.items()}


def scored(
    asked: DocumentScheduler, item: dict[str, Any], snapshot: Snapshot, rows: Sequence[int] | None = None,
) -> list[int]:
    chosen = np.arange(snapshot.size) if rows is None else np.array(rows, np.intp)
    return asked.score(CycleState(), PodInfo.of(item), snapshot, chosen).values.tolist()


CLUSTER = [
    *node("a", used="1", zone="x"), *node("b", used="3", zone="x"), *node("c", zone="y"),
    *node("d", cpu="0", used="1", zone="y"),
]
HOT = """\
  params: {limit: 65}
  variables:
  - {name: cpu, expression: usage.cpu * 100 / allocatable.cpu}
  filter:
  - {name: cool, expression: variables.cpu < params.limit, messageExpression: "'cpu at ' + string(variables.cpu) + '%'"}
"""


def test_nodes_are_refused_with_the_rule_its_message_and_what_failed() -> None:
    assert filtered(plugin(HOT), pod("p"), Cluster(CLUSTER).snapshot()) == {
        "a": "",
        "b": "cool: cpu at 75% (Unschedulable)",
        "c": "cool: no metric of the node, or an expired one (PolicyError)",
        "d": "cool: division by zero (PolicyError)",
    }


COUNTED = """\
  filter:
  - {name: large, expression: allocatable.cpu >= 4000}
  - {name: cool, expression: "usage.cpu < 2000 && pod.metadata.name != 'x'"}
"""
NUMERIC = """\
  filter:
  - {name: large, expression: allocatable.cpu >= 4000}
  - {name: empty, expression: requested.cpu > 0}
"""


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_evaluations_are_counted_with_those_that_refuse_and_those_that_fail(policy: str) -> None:
    asked = plugin(f"  failurePolicy: {policy}\n{COUNTED}")
    filtered(asked, pod("p"), Cluster(CLUSTER).snapshot())
    large, cool = asked.evaluations.values()
    assert [large.refused, cool.refused] == [1, 1]  # d is small, b is hot, c is not measured
    assert [(each.evaluated, each.failed) for each in (large, cool)] == [(4, 0), (3, 1)]


def test_evaluations_of_numeric_columns_are_counted_alike() -> None:
    asked, snapshot = plugin(NUMERIC), Cluster(CLUSTER).snapshot()
    key = asked.cache_key(Point.FILTER, PodInfo.of(pod("p")), snapshot)
    assert key is not None
    assert key.vectorized is not None
    assert not key.vectorized(snapshot, np.arange(4)).any()
    assert [(each.evaluated, each.refused, each.failed) for each in asked.evaluations.values()] == [
        (4, 1, 0), (3, 3, 0)]


def test_a_rule_about_a_pod_that_refuses_it_is_counted() -> None:
    asked = plugin("  preFilter:\n  - {name: small, expression: requests.cpu <= 2000}\n")
    for each in (pod("p"), pod("p", cpu="3")):
        asked.pre_filter(CycleState(), PodInfo.of(each), Cluster(node("a")).snapshot())
    (small,) = asked.evaluations.values()
    assert (small.evaluated, small.refused, small.failed) == (2, 1, 0)


def test_ignored_errors_leave_the_check_out() -> None:
    asked = plugin("  failurePolicy: Ignore\n" + HOT)
    snapshot = Cluster(CLUSTER).snapshot()
    assert filtered(asked, pod("p"), snapshot) == {"a": "", "b": "cool: cpu at 75% (Unschedulable)", "c": "", "d": ""}
    answer = asked.filter(CycleState(), PodInfo.of(pod("p")), snapshot, np.arange(4))
    assert told(answer.errors) == {"cool": {2: "no metric of the node, or an expired one", 3: "division by zero"}}


def test_an_ignored_error_is_not_blamed_for_what_a_later_rule_refuses() -> None:
    spec = (
        "  failurePolicy: Ignore\n  filter:\n  - {name: measured, expression: usage.cpu > 0}\n"
        "  - {name: never, expression: 'false', reason: UnschedulableAndUnresolvable}\n"
    )
    asked, snapshot, rows = plugin(spec), Cluster([*node("a", used="1"), *node("b")]).snapshot(), np.arange(2)
    never = "never: `false` is false (UnschedulableAndUnresolvable)"
    assert filtered(asked, pod("p"), snapshot) == {"a": never, "b": never}
    answer = asked.filter(CycleState(), PodInfo.of(pod("p")), snapshot, rows)
    assert (answer.reasons, answer.codes) != (None, None)
    # type: ignore[misc]
    assert {reason: found.tolist() for reason, found in answer.reasons(rows).items()} == {"`false` is false": [0, 1]}
    # type: ignore[misc]
    assert {code: found.tolist() for code, found in answer.codes(rows).items()} == {Code.UNRESOLVABLE: [0, 1]}
    assert told(answer.errors) == {"measured": {1: "no metric of the node, or an expired one"}}


def test_a_refusal_shows_the_values_that_led_to_it() -> None:
    snapshot = Cluster(CLUSTER).snapshot()
    answer = plugin(HOT).filter(CycleState(), PodInfo.of(pod("p")), snapshot, np.arange(4))
    assert answer.explain(1).values == (("variables.cpu", 75), ("params.limit", 65))


def test_the_first_rule_that_is_false_is_the_reason() -> None:
    spec = (
        "  filter:\n  - {name: one, expression: 'node.metadata.name != \"a\"', message: not a}\n"
        "  - {name: two, expression: 'false', reason: UnschedulableAndUnresolvable}\n"
    )
    assert filtered(plugin(spec), pod("p"), Cluster([*node("a"), *node("b")]).snapshot()) == {
        "a": "one: not a (Unschedulable)", "b": "two: `false` is false (UnschedulableAndUnresolvable)",
    }


def test_only_the_rows_that_are_asked_for_need_an_answer() -> None:
    snapshot = Cluster(CLUSTER).snapshot()
    answer = plugin(HOT).filter(CycleState(), PodInfo.of(pod("p")), snapshot, np.array([1, 2], np.intp))
    assert (answer.passed.tolist(), set(answer.errors["cool"])) == ([False, False], {2})
    assert scored(
        plugin("  score:\n  - {name: s, expression: allocatable.cpu, normalize: Max}\n"), pod("p"), snapshot, [0, 3],
    ) == [100, 0]


@pytest.mark.parametrize(("match", "about"), [
    ("pods: {namespaces: [default]}", True), ("pods: {namespaces: [other]}", False),
    ("pods: {labelSelector: {matchLabels: {app: web}}}", True),
    ("pods: {labelSelector: {matchLabels: {app: db}}}", False),
    ("pods: {qosClasses: [LS]}", True), ("pods: {qosClasses: [BE]}", False),
    ("pods: {priorityClasses: [koord-prod]}", True), ("pods: {priorityClasses: [high]}", True),
    ("pods: {priorityClasses: [koord-batch]}", False),
    ("pods: {namespaceSelector: {matchLabels: {team: red}}}", True),
    ("pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}}", True),
    ("pods: {namespaceSelector: {matchLabels: {team: blue}}}", False),
    ("nodes: {names: [a]}", True), ("nodes: {names: [b]}", False),
    ("nodes: {labelSelector: {matchLabels: {zone: x}}}", True),
    ("nodes: {labelSelector: {matchLabels: {zone: y}}}", False),
])
def test_match_says_which_pods_and_nodes_a_document_is_about(match: str, about: bool) -> None:
    namespace = {"kind": "Namespace", "metadata": {"name": "default", "labels": {"team": "red"}}}
    cluster = Cluster([*node("a", zone="x"), namespace])
    asked = plugin(
        f"  match: {{{match}}}\n  filter:\n  - {{name: never, expression: 'false'}}\n  score:\n"
        f"  - {{name: s, expression: '7'}}\n",
    )
    item = pod("p", labels={"app": "web"}, priorityClassName="high")
    assert bool(filtered(asked, item, cluster.snapshot())["a"]) is about
    assert scored(asked, item, cluster.snapshot()) == [7 if about else 0]


def test_what_nodes_a_document_is_about_follows_their_labels_and_overlays() -> None:
    cluster = Cluster([*node("a", zone="x"), *node("b", zone="y")])
    asked = plugin(
        "  match: {nodes: {labelSelector: {matchLabels: {zone: x}}}}\n  filter:\n"
        "  - {name: never, expression: 'false'}\n",
    )

    def refused(snapshot: Snapshot) -> list[str]:
        return [name for name, reason in filtered(asked, pod("p"), snapshot).items() if reason]

    assert refused(cluster.snapshot()) == ["a"]
    cluster.upsert(node("b", zone="x")[0])
    assert refused(cluster.snapshot()) == ["a", "b"]
    over = cluster.snapshot().overlay({"a": NodeChange(node=node("a", zone="z")[0])})
    assert refused(over) == ["b"]
    assert refused(cluster.snapshot()) == ["a", "b"]


@pytest.mark.parametrize(("match", "item", "exempt"), [
    ("{}", pod("p", namespace="kube-system"), True),
    ("{pods: {namespaces: [kube-system]}}", pod("p", namespace="kube-system"), False),
    ("{pods: {labelSelector: {}}}", pod("p", namespace="kube-system"), True),
    ("{}", pod("p", priorityClassName="system-node-critical"), True),
    ("{pods: {priorityClasses: [system-node-critical]}}", pod("p", priorityClassName="system-node-critical"), False),
    ("{}", pod("p"), False),
])
def test_pods_of_the_system_are_exempt_unless_they_are_named(match: str, item: dict[str, Any], exempt: bool) -> None:
    asked = plugin(
        f"  match: {match}\n  preFilter:\n  - {{name: no, expression: 'false'}}\n  filter:\n"
        f"  - {{name: no, expression: 'false'}}\n",
    )
    snapshot = Cluster(node("a")).snapshot()
    assert (filtered(asked, item, snapshot)["a"] == "") is exempt
    assert (asked.pre_filter(CycleState(), PodInfo.of(item), snapshot) is None) is exempt


def test_match_conditions_narrow_and_their_errors_follow_the_failure_policy() -> None:
    conditions = (
        "  matchConditions:\n  - {name: zone, expression: 'node.metadata.labels[\"zone\"] == \"x\"'}\n"
        "  - {name: small, expression: requests.cpu < 2000}\n  filter:\n  - {name: never, expression: 'false'}\n"
    )
    objects = [*node("a", zone="x"), *node("b", zone="y"), *node("c")]
    snapshot = Cluster(objects).snapshot()
    never = "never: `false` is false (Unschedulable)"
    failed = "matchConditions: no such key: zone (PolicyError)"
    assert filtered(plugin(conditions), pod("p"), snapshot) == {"a": never, "b": "", "c": failed}
    assert filtered(plugin(conditions), pod("p", cpu="2"), snapshot) == {"a": "", "b": "", "c": ""}
    assert filtered(plugin("  failurePolicy: Ignore\n" + conditions), pod("p"), snapshot) == {
        "a": never, "b": "", "c": "",
    }


def test_pre_filter_sees_the_pod_and_refuses_it_as_a_whole() -> None:
    asked = plugin(
        "  preEnqueue:\n  - {name: named, expression: pod.metadata.name != 'x'}\n"
        "  preFilter:\n  - {name: small, expression: requests.cpu <= 2000, message: too big}\n",
    )
    snapshot = Cluster(node("a")).snapshot()

    def reason(item: dict[str, Any]) -> tuple[str, str, Code] | None:
        refusal = asked.pre_filter(CycleState(), PodInfo.of(item), snapshot)
        return None if refusal is None else (refusal.rule, refusal.message, refusal.code)

    assert reason(pod("p")) is None
    assert reason(pod("p", cpu="3")) == ("small", "too big", Code.UNSCHEDULABLE)
    assert reason(pod("x")) == ("named", "`pod.metadata.name != 'x'` is false", Code.UNSCHEDULABLE)


def test_items_are_weighted_and_divided_by_their_weights() -> None:
    asked = plugin("  score:\n  - {name: a, expression: '100', weight: 2}\n  - {name: b, expression: '51.9'}\n")
    snapshot = Cluster(node("a")).snapshot()
    scores = asked.score(CycleState(), PodInfo.of(pod("p")), snapshot, np.arange(1))
    assert (scores.values.tolist(), {name: each.tolist() for name, each in scores.items.items()}) == (
        [83], {"a": [100], "b": [51]},
    )


def test_scores_that_are_no_numbers_or_out_of_range_are_errors_and_give_nothing() -> None:
    spec = (
        "  score:\n  - {name: s, expression: 'node.metadata.name == \"a\" ? 0.0 / 0.0 : node.metadata.name == \"b\" ? "
        "1.0 / 0.0 : double(requested.pods) + 101.0'}\n"
    )
    snapshot = Cluster([*node("a"), *node("b"), *node("c")]).snapshot()
    scores = plugin(spec).score(CycleState(), PodInfo.of(pod("p")), snapshot, np.arange(3))
    assert scores.values.tolist() == [0, 0, 0]
    assert told(scores.errors) == {"s": {
        0: "the score is nan, not a number between -2^63 and 2^63",
        1: "the score is inf, not a number between -2^63 and 2^63",
        2: "`s` is 101, outside 0..100",
    }}


def test_every_item_and_every_ignored_rule_that_fails_at_a_node_is_told() -> None:
    snapshot, rows = Cluster(node("a")).snapshot(), np.arange(1)
    asked = plugin(
        "  failurePolicy: Ignore\n  filter:\n  - {name: one, expression: usage.cpu > 0}\n"
        "  - {name: two, expression: metricAge < 5}\n"
        "  score:\n  - {name: low, expression: '-5'}\n  - {name: high, expression: '500'}\n",
    )
    unmeasured = {0: "no metric of the node, or an expired one"}
    answer = asked.filter(CycleState(), PodInfo.of(pod("p")), snapshot, rows)
    assert list(told(answer.errors)) == ["one", "two"]
    assert told(answer.errors)["one"] == unmeasured
    scores = asked.score(CycleState(), PodInfo.of(pod("p")), snapshot, rows)
    assert told(scores.errors) == {
        "low": {0: "`low` is -5, outside 0..100"}, "high": {0: "`high` is 500, outside 0..100"},
    }


def test_nodes_at_which_an_item_fails_take_no_part_in_its_normalization() -> None:
    asked = plugin("  score:\n  - {name: usage, expression: usage.cpu, normalize: MinMax}\n")
    snapshot = Cluster([*node("a", used="1"), *node("b", used="2"), *node("c", used="3"), *node("d")]).snapshot()
    assert scored(asked, pod("p"), snapshot) == [0, 50, 100, 0]


def test_an_ignored_item_that_fails_somewhere_is_left_out_everywhere() -> None:
    spec = "  score:\n  - {name: usage, expression: usage.cpu / 100}\n  - {name: fixed, expression: '50'}\n"
    snapshot = Cluster([*node("a", used="1"), *node("b")]).snapshot()
    assert scored(plugin(spec), pod("p"), snapshot) == [30, 25]
    assert scored(plugin("  failurePolicy: Ignore\n" + spec), pod("p"), snapshot) == [50, 50]


AGGREGATES = """\
  aggregates:
  - {name: mean, over: nodes, function: avg, expression: usage.cpu}
  - {name: hottest, over: nodes, function: max, expression: usage.cpu}
  - {name: half, over: nodes, function: percentile, percentile: 50, expression: allocatable.cpu}
  - {name: total, over: nodes, function: sum, expression: allocatable.cpu}
  - {name: share, over: nodes, function: sum, expression: usage.cpu * 100 / allocatable.cpu}
  - {name: nodes, over: nodes, function: count}
  - name: peers
    over: pods
    function: count
    groupBy: node.metadata.labels['zone']
    expression: existingPod.metadata.labels['app'] == pod.metadata.labels['app']
  - {name: least, over: pods, function: min, expression: existingPodInfo.requests.cpu}
"""


def test_aggregates_are_facts_of_the_whole() -> None:
    bound = [pod("w1", labels={"app": "web"}, nodeName="a"), pod("w2", cpu="500m", labels={"app": "web"}, nodeName="b"),
             pod("d1", labels={"app": "db"}, nodeName="c")]
    snapshot = Cluster([*CLUSTER, *bound]).snapshot()
    item = pod("p", labels={"app": "web"})

    def holds(expression: str) -> set[bool]:
        asked = plugin(f"{AGGREGATES}  filter:\n  - name: x\n    expression: |\n      {expression}\n")
        return {reason == "" for reason in filtered(asked, item, snapshot).values()}

    assert holds("aggregates.mean > 1666.6 && aggregates.mean < 1666.7") == {True}  # c has no metric
    assert holds("aggregates.hottest == 3000 && aggregates.half == 4000 && aggregates.total == 12000") == {True}
    assert holds("aggregates.nodes == 4 && aggregates.least == 500") == {True}
    assert holds("aggregates.peers[node.metadata.labels['zone']] == (nodeInfo.name in ['a', 'b'] ? 2 : 0)") == {True}
    broken = plugin(f"{AGGREGATES}  filter:\n  - {{name: x, expression: aggregates.share > 0}}\n")
    assert filtered(broken, item, snapshot)["a"] == "x: aggregate `share`: division by zero (PolicyError)"


def test_an_aggregate_of_maps_has_the_value_of_each_key_over_the_rows_that_have_it() -> None:
    objects = [*node("a", used="1"), *node("b", used="3"), *node("c")]
    spec = """\
  variables:
  - {name: shares, expression: "nodeInfo.name == 'c' ? {'c': 7} : {'cpu': usage.cpu, nodeInfo.name: 1}"}
  - {name: above, expression: "double(usage.cpu) > aggregates.mean['cpu']"}
  aggregates:
  - {name: above, over: nodes, function: count, expression: variables.above}
  - {name: mean, over: nodes, function: avg, expression: variables.shares}
  - {name: most, over: nodes, function: max, expression: variables.shares}
  - {name: total, over: nodes, function: sum, expression: requested}
  - name: apart
    over: nodes
    function: sum
    groupBy: string(variables.above)
    expression: usage.cpu - aggregates.most['cpu']
  filter:
  - name: x
    expression: |
      aggregates.mean == {'cpu': 2000.0, 'a': 1.0, 'b': 1.0, 'c': 7.0}
      && aggregates.most == {'cpu': 3000, 'a': 1, 'b': 1, 'c': 7}
      && aggregates.above == 1 && aggregates.apart == {'true': 0, 'false': -2000} && aggregates.total['cpu'] == 2000
"""
    snapshot = Cluster([*objects, pod("w", cpu="2", nodeName="a")]).snapshot()
    assert filtered(plugin(spec), pod("p"), snapshot) == {"a": "", "b": "", "c": ""}


def test_rows_that_depend_on_a_failed_aggregate_fail_with_its_error() -> None:
    spec = (
        "  aggregates:\n  - {name: share, over: nodes, function: sum, expression: 1 / requested.cpu}\n"
        "  - {name: above, over: nodes, function: count, expression: aggregates.share > 0}\n"
        "  filter:\n  - {name: x, expression: aggregates.above > 0}\n"
    )
    assert filtered(plugin(spec), pod("p"), Cluster(node("a")).snapshot()) == {
        "a": "x: aggregate `above`: aggregate `share`: division by zero (PolicyError)",
    }


def test_a_plugin_says_what_its_document_says() -> None:
    text = HEAD.replace("under-test}", "under-test, annotations: {policy.koordinator.sh/description: For tests.}}") + (
        "  order: 3\n  weight: 7\n  profiles: [gpu]\n  replaces: true\n  enforcement: Warn\n"
        "  preFilter: [{name: x, expression: 'true'}]\n  score: [{name: s, expression: '1'}]\n"
    )
    (found,) = compile_documents(load([Source("a.yaml", text)], source_name="mount"))
    assert (found.name, found.points, found.origin, found.source, found.description) == (
        "under-test", (Point.PRE_FILTER, Point.SCORE), "a.yaml:3", "mount", "For tests.",
    )
    assert (found.order, found.weight, found.profiles, found.replaces, found.enforcement) == (
        3, 7, frozenset({"gpu"}), True, Enforcement.WARN,
    )


@pytest.mark.parametrize(("spec", "rule"), [
    ("  preFilter:\n  - {name: small, expression: 'int(pod.metadata.labels[\"size\"]) < 3'}\n", "small"),
    (
        (
            "  matchConditions:\n  - {name: sized, expression: 'int(pod.metadata.labels[\"size\"]) < 3'}\n"
            "  preFilter:\n  - {name: small, expression: 'false'}\n"
        ),
        "matchConditions",
    ),
])
def test_what_a_pre_filter_ignores_is_left_in_the_state(spec: str, rule: str) -> None:
    state, snapshot = CycleState(), Cluster(node("a")).snapshot()
    asked = plugin(f"  failurePolicy: Ignore\n{spec}")
    assert asked.pre_filter(state, PodInfo.of(pod("p")), snapshot) is None
    assert [(name, error.message) for name, error in state[IgnoredErrors]] == [(rule, "no such key: size")]


@pytest.mark.parametrize(("function", "expression", "holds"), [
    ("sum", "1e308", "aggregates.s == double('inf')"),
    ("avg", "1e308", "aggregates.s == double('inf')"),
    ("sum", 'nodeInfo.name == "a" ? double("inf") : double("-inf")', "aggregates.s != aggregates.s"),
    ("percentile, percentile: 50.0", "allocatable.cpu", "aggregates.s == 4000"),
])
def test_aggregates_of_the_largest_doubles_are_what_doubles_add_up_to(
    function: str, expression: str, holds: str,
) -> None:
    spec = (
        f"  aggregates:\n  - {{name: s, over: nodes, function: {function}, expression: '{expression}'}}\n"
        f'  filter:\n  - {{name: x, expression: "{holds}"}}\n'
    )
    assert filtered(plugin(spec), pod("p"), Cluster([*node("a"), *node("b")]).snapshot()) == {"a": "", "b": ""}


def test_that_a_variable_cannot_be_read_in_an_aggregate_is_told_once() -> None:
    spec = (
        "  variables:\n  - {name: many, expression: aggregates.busy > 1}\n"
        "  aggregates:\n  - {name: busy, over: nodes, function: count, expression: variables.many}\n"
        "  - {name: nodes, over: nodes, function: count}\n"
        "  filter:\n  - {name: x, expression: aggregates.nodes > 1 && variables.many}\n"
    )
    with pytest.raises(PolicyError) as caught:
        plugin(spec)
    assert [each.message for each in caught.value.problems] == [
        "`variables.many` cannot be read at aggregates over nodes: no such field `busy` in `Aggregates`",
    ]
