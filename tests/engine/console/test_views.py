"""Views: pure functions of the cluster and the policies."""

from __future__ import annotations

import pytest

from koordpolicy.engine.cel.values.deadline import Deadline, OverdueError
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.console.colours import MOST_CLASSES, OTHERS, colour
from koordpolicy.engine.console.models.map import Amount, ColourView, Group, Opinion, PodLine
from koordpolicy.engine.console.models.model import Fault
from koordpolicy.engine.console.models.policies import RuleView
from koordpolicy.engine.console.models.search import SearchResult, SearchView
from koordpolicy.engine.console.nodes import cluster_map, node_view
from koordpolicy.engine.console.pods import pod_node_view, pod_view, search
from koordpolicy.engine.console.policies import file_view, overview, policies_view
from koordpolicy.engine.console.state import ConsoleState, UnknownNameError
from koordpolicy.engine.source import PolicyError

from .conftest import HOT, MARKUP, NOW, OBJECTS, TEST, pod

UNMEASURED = "no metric of the node, or an expired one"


def test_the_map_groups_nodes_by_zone_or_by_a_label_with_those_without_it_last(state):
    view = cluster_map(state)
    assert (view.nodes, view.groups, view.group_of) == (
        ["cool", "hot", "unmeasured"], [Group(name="a", nodes=1), Group(name="b", nodes=2)], [0, 1, 1])
    assert view.groupings == ["zone", "region", "none", "pool"]
    view = cluster_map(state, "pool")
    assert (view.groups, view.group_of) == (
        [Group(name=MARKUP, nodes=1), Group(name="x", nodes=1), Group(name="", nodes=1)], [0, 1, 2])
    assert [group.nodes for group in cluster_map(state, "none").groups] == [3]
    with pytest.raises(UnknownNameError, match="nodes cannot be grouped by `nothing`"):
        cluster_map(state, "nothing")


def test_a_number_colours_nodes_on_a_scale_and_an_error_leaves_them_without_a_value(state):
    expression = "usage.cpu * 100 / allocatable.cpu"
    assert colour(state, expression) == ColourView(
        expression=expression, type="int", layout=cluster_map(state, "none").layout, numbers=[25, 75, None], lowest=25,
        highest=75, failed=1, failure=UNMEASURED)
    assert colour(state, "9223372036854775807").numbers == [float(2**63)] * 3  # as JavaScript reads it


def test_texts_and_truths_colour_nodes_by_class(state):
    view = colour(state, "nodeInfo.zone")
    assert (view.classes, view.codes) == (["a", "b"], [0, 1, 1])
    view = colour(state, "requests.cpu <= allocatable.cpu - requested.cpu", "shop/web-2")
    assert (view.type, view.classes, view.codes) == ("bool", ["false", "true"], [1, 1, 0])
    view = colour(state, f"string(allocatable.cpu * {MOST_CLASSES}) + nodeInfo.name")
    assert len(view.classes) == 3
    assert OTHERS not in view.classes


@pytest.mark.parametrize("expression", ["1.0 / 0.0", "-1.0 / 0.0", "0.0 / 0.0"])
def test_a_number_that_json_does_not_have_is_no_value_and_the_reason_is_given(state, expression: str):
    view = colour(state, f"nodeInfo.name == 'hot' ? {expression} : 2.0")
    assert (view.numbers, view.lowest, view.highest) == ([2.0, None, 2.0], 2.0, 2.0)
    assert (view.failed, view.failure) == (1, "the value is infinite, or not a number")
    view = colour(state, expression)
    assert (view.numbers, view.lowest, view.failed) == ([None] * 3, None, 3)


def test_values_with_the_same_beginning_are_different_classes(state):
    long = "x" * 80
    view = colour(state, f"'{long}' + nodeInfo.zone")
    assert view.codes == [0, 1, 1] or view.codes == [1, 0, 0]
    assert [each[:50] for each in view.classes] == [long[:50]] * 2
    assert len(set(view.classes)) == 2
    assert len(set(colour(state, f"{{'k': '{long}', 'n': nodeInfo.name}}").codes)) == 3
    assert len(set(colour(state, "nodeInfo.name == 'hot' ? 'a  b' : 'a b'").classes)) == 2  # shown on one line each


def test_a_value_that_reads_like_that_of_all_others_is_told_apart(state):
    assert OTHERS not in colour(state, f"'{OTHERS}'").classes


@pytest.mark.parametrize(("expression", "shown"), [
    ("null", "null"), ("[dyn(1), dyn(true), dyn(null)]", "[1, true, null]"), ("{'a': 'b'}", '{"a": "b"}'), ("'b'", "b"),
    ("{'a': {'b': [1.5]}}", '{"a": {"b": [1.5]}}'), ("[duration('90s')]", '["90s"]'),
])
def test_values_of_classes_are_written_as_json_and_texts_as_they_are(state, expression: str, shown: str):
    assert colour(state, expression).classes == [shown]


def test_an_invalid_expression_is_refused_with_its_place(state):
    with pytest.raises(PolicyError, match=r"no field `cpux`|cpux"):
        colour(state, "usage.cpux > 1")
    with pytest.raises(PolicyError, match="reads `requests`, and no pod is chosen"):
        colour(state, "requests.cpu > 1")
    with pytest.raises(UnknownNameError, match=r"there is no pod `shop/web-9` in the cluster: did you mean"):
        colour(state, "requests.cpu > 1", "shop/web-9")


def test_a_node_has_its_amounts_its_pods_and_what_plugins_say_about_pending_pods(state):
    view = node_view(state, "hot")
    assert view.amounts[:2] == [
        Amount(resource="cpu", unit="milli-cores", allocatable=4000, requested=0, used=3000),
        Amount(resource="memory", unit="bytes", allocatable=8 << 30, requested=0),
    ]
    assert view.opinions == [
        Opinion(pod="shop/web-2", passed=False, plugin="keep-off-hot-nodes", rule="below-watermark",
                reason="cpu at 75%"),
        Opinion(pod="shop/web-3", passed=False, plugin="NodeResourcesFit", rule="resources",
                reason="Insufficient cpu"),
    ]
    assert (view.zone, view.measured, view.metric_age, view.labels["pool"]) == ("b", True, 0.0, "x")
    assert node_view(state, "cool").pods == [
        PodLine(key="shop/web-1", node="cool", qos_class="LS", priority_band="koord-prod",
                requests={"cpu": 1000, "memory": 0})]
    with pytest.raises(UnknownNameError, match="did you mean `hot`"):
        node_view(state, "hott")


def test_the_matrix_has_nodes_that_pass_first_and_names_who_refused_the_others(state):
    view = pod_view(state, "shop/web-2")
    names = [column.name for column in view.filters]
    fit, hot = names.index("NodeResourcesFit"), names.index("keep-off-hot-nodes")
    assert (view.chosen, view.passed, view.message, view.refused_whole) == ("cool", 1, "", "")
    assert [(row.node, row.refused) for row in view.rows] == [("cool", []), ("hot", [hot]), ("unmeasured", [fit, hot])]
    assert view.filters[hot].refused == 2
    assert view.filters[hot].document
    assert view.explanation["kind"] == "decision"
    hot_score = [column.name for column in view.scorers].index("keep-off-hot-nodes")
    best = view.rows[0]
    assert best.scores[hot_score] == 75
    assert best.total == sum(score * column.weight for score, column in zip(best.scores, view.scorers, strict=True))
    running = pod_view(state, "shop/web-1")
    assert (running.node, running.chosen) == ("cool", "cool")
    pending = pod_view(state, "shop/web-3")
    assert (pending.chosen, pending.passed) == (None, 0)
    assert pending.message.startswith("0/3 nodes are available: ")


def test_one_node_of_the_matrix_is_explained_plugin_by_plugin(state):
    view = pod_node_view(state, "shop/web-2", "hot")
    assert not view.passed
    refused = [part["text"] for filters in view.explanation["parts"] if filters["kind"] == "filters"
               for part in filters["parts"] if part.get("outcome") == "refused"]
    assert refused == ["keep-off-hot-nodes (below-watermark): cpu at 75%"]


def test_a_decision_ends_at_its_deadline(state):
    with Deadline(0), pytest.raises(OverdueError):
        pod_view(state, "shop/web-3")
    state.forget()


def test_policies_have_their_rules_and_what_they_read(state):
    view = policies_view(state)
    [policy] = view.policies
    assert (policy.name, policy.kind, policy.file, policy.line, policy.active, policy.params) == (
        "keep-off-hot-nodes", "SchedulerPlugin", "0.yaml", 4, True, {"percent": 65})
    assert {"usage.cpu", "allocatable.cpu"} <= set(policy.reads)
    assert policy.rules[1] == RuleView(point="filter", name="below-watermark",
                                   expression="variables.cpu < params.percent", line=12, column=17,
                                   reads=["allocatable.cpu", "params.percent", "usage.cpu"])
    # Pending are web-2 and web-3: of web-2 it refuses `hot` first, of web-3 NodeResourcesFit refuses all.
    assert (policy.refuses, view.pending, view.pairs) == (1, 2, 6)


def test_a_file_has_its_text_and_its_findings_and_no_other_file_is_read(state):
    assert (file_view(state, "0.yaml").text, file_view(state, "0.yaml").faults) == (HOT, list(state.faults))
    for name in ("/etc/passwd", "../0.yaml", ""):
        with pytest.raises(UnknownNameError, match="is not one of the 1 policy files"):
            file_view(state, name)


def test_invalid_policies_do_not_decide_and_have_their_problems(policies_of):
    other = HOT.replace("keep-off-hot-nodes", "other").replace("usage.cpu", "usage.cpux")
    policies = policies_of(HOT, other, "kind: [")
    assert [plugin.name for plugin in policies.plugins] == ["keep-off-hot-nodes"]
    assert {problem.span.place[:2] for problem in policies.problems} == {("1.yaml", 9), ("2.yaml", 1)}


def test_the_overview_counts_and_names_the_reason_of_each_pending_pod(state):
    view = overview(state)
    assert (view.nodes, view.measured, view.running, view.pending, view.policies, view.errors) == (
        3, 2, 1, 2, {"SchedulerPlugin": 1}, 0)
    assert [(gauge.allocatable, gauge.requested, gauge.used) for gauge in view.gauges[:1]] == [(9000, 1000, 4000)]
    assert [(each.pod, each.node) for each in view.waiting] == [("shop/web-3", None), ("shop/web-2", "cool")]
    assert (view.pending, view.decided) == (2, 2)


def test_the_overview_says_how_many_of_many_pending_pods_were_decided_about(policies_of):
    cluster = Cluster([*OBJECTS, *(pod(f"many-{number}", "1") for number in range(200))])
    view = overview(ConsoleState(cluster, policies_of(HOT), now=NOW, name="many"))
    assert (view.pending, view.decided, len(view.waiting), view.waiting_left_out) == (202, 100, 50, 152)


def test_a_search_finds_parts_of_names_those_that_begin_with_it_first(state):
    assert search(state, "HOT").found == [SearchResult(kind="node", name="hot"),
                                          SearchResult(kind="policy", name="keep-off-hot-nodes",
                                                       document="SchedulerPlugin")]
    assert search(state, "web-2").found == [SearchResult(kind="pod", name="shop/web-2")]
    assert search(state, "nobody") == SearchView(found=[], left_out=0, near=[])
    assert search(state, "shop/web-9").near == [SearchResult(kind="pod", name=f"shop/web-{each}") for each in (1, 2, 3)]


def test_a_search_tells_kinds_of_policies_with_one_name_apart_and_leaves_their_tests_out(policies_of):
    params = HOT.replace("SchedulerPlugin", "PolicyParams").partition("spec:")[0] + "spec: {params: {percent: 1}}\n"
    same = ConsoleState(Cluster(), policies_of(HOT + TEST, params), now=NOW, name="dump")
    assert {each.kind.value for each in same.policies.documents} == {"SchedulerPlugin", "PolicyParams", "PolicyTest"}
    for view in (search(same, "hot").found, search(same, "keep-off-cold").near):
        assert [(each.kind, each.name, each.document) for each in view] == [
            ("policy", "keep-off-hot-nodes", "PolicyParams"), ("policy", "keep-off-hot-nodes", "SchedulerPlugin")]


def test_a_fault_without_a_place_has_none(state):
    assert Fault(severity="error", code="", message="x").line == 0
