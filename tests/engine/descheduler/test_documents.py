from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec

from .conftest import evicted, kept, metric, node, pod

POLICIES = Path(__file__).parents[3] / "policies" / "descheduler"
DRAIN = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {{name: drain}}
spec:
  type: Balance
  nodes:
    source: "usage.cpu * 100 / allocatable.cpu > 70"
    target: "usage.cpu * 100 / allocatable.cpu < 50"
  criteria:
  - {{name: used, expression: "podUsage.cpu > 100", messageExpression: "'uses ' + string(podUsage.cpu)"}}
  sort: [{{expression: podInfo.priority}}, {{expression: podUsage.cpu, order: Descending}}]
  until: "usage.cpu * 100 / allocatable.cpu <= 70"
  {extra}
"""
SOURCE = "usage.cpu * 100 / allocatable.cpu > 70"
VETO = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: veto}
spec:
  type: EvictionFilter
  match: {pods: {namespaces: [d]}}
  criteria:
  - {name: free, expression: "pod.metadata.labels['free'] == 'yes'", message: it is not free}
"""


def drain(extra: str = "limits: {total: 50}") -> str:
    return DRAIN.format(extra=extra)


def hot(*pods: dict, used: dict[str, str], targets: dict[str, int] | None = None) -> list[dict]:
    """Node `hot` with pods; every target is a node with so many milli-cores in use."""
    cold = {"cold": 0} if targets is None else targets
    nodes = [node("hot"), *(node(name) for name in cold)]
    metrics = [metric("hot", used), *(metric(name, {}, f"{milli}m") for name, milli in cold.items())]
    return [*nodes, *pods, *metrics]


def test_the_least_important_and_largest_pods_leave_until_the_node_is_cool(cycle):
    objects = hot(
        pod("a", "hot", priority=9000), pod("b", "hot", priority=5000), pod("c", "hot", priority=5000),
        pod("idle", "hot"),
        used={"a": "3000m", "b": "2000m", "c": "3900m", "idle": "50m"},
    )
    result = cycle(objects, drain())
    assert ([(each.pod, each.rule, each.reason) for each in result.evicted], kept(result)) == (
        [("d/c", "used", "uses 3900")], {"b": ("drain", "until"), "a": ("drain", "until")},
    )


def test_a_target_that_filled_up_takes_no_more(cycle):
    objects = hot(
        pod("a", "hot"), pod("b", "hot"), pod("c", "hot"), used={"a": "3000m", "b": "2900m", "c": "2800m"},
        targets={"cool": 2100, "full": 6000},
    )
    result = cycle(objects, drain().replace("<= 70", "<= 20"))
    assert (evicted(result), kept(result)) == (["a"], {"b": ("drain", "nodes.target"), "c": ("drain", "nodes.target")})


def test_a_pod_that_no_target_takes_stays(cycle):
    objects = hot(
        pod("a", "hot", cpu="11"), pod("b", "hot", nodeSelector={"disk": "ssd"}), used={"a": "5000m", "b": "3000m"},
    )
    assert kept(cycle(objects, drain())) == {"a": ("drain", "nodes.target"), "b": ("drain", "nodes.target")}


def test_nodes_that_nobody_measured_lately_are_neither_source_nor_target(cycle):
    objects = hot(pod("a", "hot"), used={"a": "9000m"}, targets={})
    objects += [node("old"), node("never"), metric("old", {}, "0", moment="2026-01-01T11:00:00Z")]
    result = cycle(objects, drain())
    assert (evicted(result), kept(result)) == ([], {"a": ("drain", "nodes.target")})
    assert {each.node: each.role for each in result.node_notes} == {
        "hot": "source", "old": "unmeasured", "never": "unmeasured",
    }


def test_facts_of_the_whole_are_of_the_nodes_that_the_document_is_about(cycle):
    objects = hot(pod("a", "hot"), used={"a": "9000m"}, targets={"cool": 1000, "other": 9999})
    text = drain("""match: {nodes: {names: [hot, cool]}}
  aggregates: [{name: mean, over: nodes, function: avg, expression: usage.cpu}]""")
    text = text.replace(SOURCE, "aggregates.mean == 5000.0 && usage.cpu > 5000")
    assert [(each.node, each.role) for each in cycle(objects, text).node_notes] == [
        ("hot", "source"), ("cool", "target"),
    ]


def test_a_node_for_which_an_expression_fails_is_no_source_and_is_told(cycle):
    objects = hot(pod("a", "hot"), used={"a": "9000m"})
    bare = node("bare")
    del bare["metadata"]["labels"]["name"]
    text = drain().replace(SOURCE, "node.metadata.labels['name'] == 'hot'")
    result = cycle([*objects, bare], text)
    assert [(each.rule, each.subject, each.message) for each in result.failures] == [
        ("nodes.source", "bare", "no such key: name"),
    ]
    assert evicted(result) == ["a"]


def test_a_node_must_be_hot_in_as_many_cycles_in_a_row_as_asked_for(cycle):
    objects = hot(pod("a", "hot"), used={"a": "9000m"})
    text = drain().replace("  criteria:", "    anomaly: {consecutive: 3, timeout: 5m}\n  criteria:")
    waiting = cycle(objects, text, cycles=2)
    assert [(each.role, each.message) for each in waiting.node_notes if each.node == "hot"] == [
        ("waiting", "a source in 2 of 3 cycles in a row"),
    ]
    assert (evicted(waiting), evicted(cycle(objects, text, cycles=3))) == ([], ["a"])


def test_profiles_count_apart_in_how_many_cycles_a_node_was_hot(cycle):
    objects = hot(pod("a", "hot"), used={"a": "9000m"})
    text = drain().replace("  criteria:", "    anomaly: {consecutive: 3, timeout: 5m}\n  criteria:")
    # The second profile does not look at the hot node: what it finds there keeps no count, and resets none.
    profiles = [
        DeschedulerProfileSpec("p"),
        DeschedulerProfileSpec("q", {"matchLabels": {"name": "cold"}}),
        DeschedulerProfileSpec("r"),
    ]
    waiting = cycle(objects, text, cycles=2, specs=profiles)
    assert [(each.profile, each.message) for each in waiting.node_notes if each.node == "hot"] == [
        ("p", "a source in 2 of 3 cycles in a row"), ("r", "a source in 2 of 3 cycles in a row"),
    ]
    assert (evicted(waiting), evicted(cycle(objects, text, cycles=3, specs=profiles))) == ([], ["a"])


def test_limits_of_a_document_hold_beside_those_of_the_cycle(cycle):
    pods = [pod(f"p{number}", "hot") for number in range(4)]
    objects = hot(*pods, used={f"p{number}": "2200m" for number in range(4)})
    text = drain("limits: {perNode: 1}").replace("<= 70", "<= 10").replace("< 50", "< 99")
    result = cycle(objects, text)
    assert (evicted(result), set(kept(result).values())) == (["p0"], {("drain", "limits")})


def test_an_expression_that_fails_lets_the_pod_stay_and_is_told(cycle):
    objects = hot(pod("a", "hot"), pod("b", "hot", metadata={"labels": {"x": "1"}}), used={"a": "4000m", "b": "4000m"})
    text = drain().replace("podUsage.cpu > 100", "pod.metadata.labels['x'] == '1'")
    result = cycle(objects, text)
    assert (evicted(result), kept(result)) == (["b"], {"a": ("drain", "used")})
    assert [(each.rule, each.subject) for each in result.failures] == [("used", "d/a")]


def test_a_veto_holds_for_documents_and_for_the_pods_that_it_is_about_only(cycle):
    free = {"metadata": {"labels": {"free": "yes"}}}
    objects = [
        *hot(pod("a", "hot"), pod("b", "hot", metadata={"labels": {"free": "no"}}), pod("c", "hot", **free),
             used={"a": "3000m", "b": "2900m", "c": "2800m"}),
    ]
    result = cycle(objects, drain().replace("<= 70", "<= 10"), VETO)
    assert (evicted(result), kept(result)) == (["c"], {"a": ("veto", "free"), "b": ("veto", "free")})
    assert next(each.message for each in result.kept if each.pod == "d/b") == "it is not free"


def test_a_veto_that_is_only_watched_stops_nothing_and_says_what_it_would(cycle):
    objects = hot(pod("a", "hot", metadata={"labels": {"free": "no"}}), used={"a": "9000m"})
    result = cycle(objects, drain(), VETO.replace("type: Evi", "enforcement: Audit\n  type: Evi"))
    assert (evicted(result), [each.message for each in result.failures]) == (["a"], ["would stay: it is not free"])


def test_a_document_that_is_only_watched_evicts_nothing(cycle):
    objects = hot(pod("a", "hot"), used={"a": "9000m"})
    result = cycle(objects, drain("enforcement: Audit"))
    assert [(each.evicted, each.stopped_by, each.message) for each in result.outcomes] == [
        (False, "enforcement", "would be evicted: uses 9000"),
    ]


def test_a_disabled_document_takes_no_part(cycle):
    objects = hot(pod("a", "hot"), used={"a": "9000m"})
    assert cycle(objects, drain(), spec=DeschedulerProfileSpec("p", disabled=frozenset(("drain",)))).outcomes == ()


def test_aggregates_run_over_all_nodes_or_pods(cycle):
    objects = hot(pod("a", "hot"), pod("b", "hot"), used={"a": "5000m", "b": "3000m"})
    text = drain(
        "aggregates:\n"
        "  - {name: mean, over: nodes, function: avg, expression: usage.cpu}\n"
        "  - {name: largest, over: pods, function: max, groupBy: podInfo.namespace, expression: podUsage.cpu}\n",
    ).replace(
        "podUsage.cpu > 100", "podUsage.cpu == aggregates.largest[podInfo.namespace] && aggregates.mean == 4000.0",
    )
    assert evicted(cycle(objects, text)) == ["a"]


def test_what_another_plugin_evicted_relieves_the_node_already(cycle):
    objects = hot(pod("a", "hot"), pod("b", "hot"), used={"a": "2000m", "b": "6000m"})
    other = drain().replace("name: drain", "name: first").replace("podUsage.cpu > 100", "podInfo.name == 'a'")
    other = other.replace("spec:", "spec:\n  order: -1")
    result = cycle(objects, drain(), other)
    assert [(each.plugin, each.pod) for each in result.evicted] == [("first", "d/a")]


@pytest.mark.parametrize(("failed", "gone"), [("2026-01-01T10:00:00Z", ["x"]), ("2026-01-01T11:30:00Z", [])])
def test_the_shipped_policy_removes_failed_pods_after_an_hour(cycle, failed, gone):
    objects = [
        node("a"), node("b"), pod("x", "a", phase="Failed", metadata={"creationTimestamp": failed}), pod("y", "a"),
    ]
    assert evicted(cycle(objects, (POLICIES / "remove-failed-pods.yaml").read_text())) == gone


@pytest.mark.parametrize(("kept_pod", "rule"), [
    (pod("a", "hot", namespace="kube-system"), "not-of-the-system"),
    (pod("a", "hot", priority=2_000_000_000), "not-critical"),
    (
        pod("a", "hot", metadata={"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "d"}]}),
        "not-of-a-daemon-set",
    ),
    (
        pod("a", "hot", metadata={"annotations": {"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""}}),
        "not-pinned",
    ),
])
def test_the_shipped_veto_keeps_pods_of_the_system(cycle, kept_pod, rule):
    objects = hot(kept_pod, pod("b", "hot"), used={"a": "3000m", "b": "6000m"})
    text = drain().replace("podUsage.cpu > 100", "true").replace(
        ", messageExpression: \"'uses ' + string(podUsage.cpu)\"", "",
    )
    text = text.replace(
        "sort: [{expression: podInfo.priority}, {expression: podUsage.cpu, order: Descending}]", "order: 1",
    )
    result = cycle(objects, text.replace("<= 70", "<= 10"), (POLICIES / "protect-system-pods.yaml").read_text())
    assert (evicted(result), kept(result)) == (["b"], {"a": ("protect-system-pods", rule)})


def test_the_shipped_drain_waits_and_then_moves_pods_off_the_hot_node(cycle):
    objects = hot(pod("a", "hot"), pod("b", "hot"), used={"a": "3000m", "b": "6000m"})
    text = (POLICIES / "drain-hot-nodes.yaml").read_text()
    assert (evicted(cycle(objects, text, cycles=4)), evicted(cycle(objects, text, cycles=5))) == ([], ["b"])


def test_a_percentile_over_a_duration_selects_sources(cycle):
    objects = hot(pod("a", "hot"), used={"a": "3000m"})
    objects[-2]["status"]["nodeMetric"]["aggregatedNodeUsages"] = [
        {"duration": duration, "usage": {"p95": {"resources": {"cpu": cpu}}}}
        for duration, cpu in (("5m0s", "3900m"), ("30m", "1000m"))
    ]

    def evicts(source: str) -> tuple[list[str], set[str]]:
        result = cycle(objects, drain().replace(f'source: "{SOURCE}"', f'source: "{source}"').replace("<= 70", "< 0"))
        return evicted(result), {each.message for each in result.failures}

    cold = {"no metric of `over`"}
    assert [evicts(f"usage.over['{duration}'].p95.cpu > 2000") for duration in ("5m", "300s", "30m")] == [
        (["a"], cold), (["a"], cold), ([], cold)]
    assert evicts("usage.over['1h'].p95.cpu > 2000") == (
        [], {"no metric over `1h`; durations that are reported: `5m`, `30m`", *cold})


EVICTOR = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: evictor}
spec:
  type: EvictionFilter
  match: {pods: {namespaces: [d]}}
  matchConditions: [{name: of-b, expression: "pod.metadata.name != 'plain'"}]
  eviction: {mode: MODE, gracePeriodSeconds: "pod.metadata.name == 'plain' ? 1 / 0 : 30"}
"""


def test_a_document_chooses_how_pods_leave(cycle):
    objects = [node("a"), node("b"), pod("x", "a"), pod("plain", "a"), pod("other", "a", namespace="e")]
    everyone = VETO.replace("veto", "all").replace("EvictionFilter", "Deschedule").replace(
        "match: {pods: {namespaces: [d]}}", "sort: [{expression: podInfo.name}]").replace(
        "pod.metadata.labels['free'] == 'yes'", "true")

    def modes(mode, policy="Fail"):
        document = EVICTOR.replace("MODE", mode).replace("  type", f"  failurePolicy: {policy}\n  type")
        result = cycle(objects, everyone, document)
        return ({each.pod: each.mode for each in result.evicted},
                {each.pod: (each.stopped_by, each.stopped_rule, each.message) for each in result.kept})

    assert modes("\"pod.metadata.name == 'x' ? 'Delete' : 'Eviction'\"") == (
        {"d/x": "Delete", "d/plain": "", "e/other": ""}, {})
    why = "`Away` is no mode of an eviction: return one of Eviction, Delete, SoftEviction, MigrationJob, or ''"
    assert modes("\"'Away'\"") == ({"d/plain": "", "e/other": ""}, {"d/x": ("evictor", "eviction", why)})
    assert modes("\"'Away'\"", "Ignore") == ({"d/x": "", "d/plain": "", "e/other": ""}, {})
