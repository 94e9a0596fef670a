from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.descheduler.document_cycle import DocumentCycle
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


def test_pods_that_request_nothing_leave_until_enough_of_what_is_counted_for_them_is_free(cycle):
    text = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: crowded}
spec:
  type: Balance
  nodes: {source: nonZeroRequested.cpu > 250}
  until: nonZeroRequested.cpu <= 250
  criteria: [{name: any, expression: "true"}]
"""
    pods = [pod(f"p{number}", "a") for number in range(4)]
    for each in pods:
        each["spec"]["containers"] = [{"name": "c"}]
    assert len(evicted(cycle([node("a"), node("b"), *pods], text))) == 2


def test_the_least_important_and_largest_pods_leave_until_the_node_is_cool(cycle):
    objects = hot(
        pod("a", "hot", priority=9000), pod("b", "hot", priority=5000), pod("c", "hot", priority=5000),
        pod("idle", "hot"),
        used={"a": "3000m", "b": "2000m", "c": "3900m", "idle": "50m"},
    )
    result = cycle(objects, drain())
    assert ([(each.pod, each.decision.rule, each.decision.reason) for each in result.evicted], kept(result)) == (
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


NODES = "  criteria:"


def balance(*fields: str, extra: str = "limits: {total: 50}") -> str:
    """`drain` without `until`, with more fields of `nodes`."""
    text = drain(extra).replace('  until: "usage.cpu * 100 / allocatable.cpu <= 70"\n', "")
    return text.replace(NODES, "".join(f"    {each}\n" for each in fields) + NODES)


def two_hot(*more: dict) -> list[dict]:
    return [
        node("hot"), node("hotter"), node("cold"), node("cool"),
        pod("a", "hot"), pod("b", "hot"), pod("c", "hotter"), pod("d", "hotter"),
        metric("hot", {"a": "4000m", "b": "4100m"}), metric("hotter", {"c": "4500m", "d": "4400m"}),
        metric("cold", {}, "0m"), metric("cool", {}, "1000m"), *more,
    ]


def room_of(expression: str) -> str:
    return f"""room: {{ofTarget: "{{'cpu': {expression}}}", ofPod: "{{'cpu': podUsage.cpu}}"}}"""


ORDER = "sort: [{expression: usage.cpu, order: Descending}]"
ROOM = """room: {ofTarget: "{'cpu': 5000 - usage.cpu}", ofPod: "{'cpu': podUsage.cpu}"}"""


def test_pods_leave_the_sources_in_their_order_and_without_one_in_that_of_names(cycle):
    assert evicted(cycle(two_hot(), balance(ORDER, extra="limits: {perNode: 1}"))) == ["c", "b"]
    assert evicted(cycle(two_hot(), balance(extra="limits: {perNode: 1}"))) == ["b", "c"]


def test_pods_leave_as_long_as_the_targets_together_have_room(cycle):
    result = cycle(two_hot(), balance(ORDER, ROOM))
    assert evicted(result) == ["c", "d", "b"]
    assert [(each.pod, each.decision.stopped_rule, each.decision.message) for each in result.staying] == [
        ("d/a", "nodes.room", "the targets have no room for more `cpu`: pods took 13000 of 9000"),
    ]


def test_a_pod_must_still_fit_on_a_target_unless_the_document_says_otherwise(cycle):
    objects = two_hot(pod("ssd", "hotter", nodeSelector={"disk": "ssd"}))
    objects = [each if each["metadata"]["name"] != "hotter" or each["kind"] != "NodeMetric"
               else metric("hotter", {"c": "4500m", "ssd": "4600m"}) for each in objects]
    assert kept(cycle(objects, balance(ORDER, ROOM)))["ssd"] == ("drain", "nodes.target")
    assert evicted(cycle(objects, balance(ORDER, ROOM, "fit: 'true'")))[0] == "ssd"


def test_a_target_that_takes_the_pod_by_the_document_is_filled_alone_without_a_room(cycle):
    fit = "fit: node.metadata.name == 'cold' && podUsage.cpu > 4200"
    result = cycle(two_hot(), balance(ORDER, fit))
    # A target is dropped when it is none any more: `cold` with one of these pods is not below 50 percent twice.
    assert (evicted(result), kept(result)) == (["c", "d"], {
        "b": ("drain", "nodes.target"), "a": ("drain", "nodes.target"),
    })


def test_pods_that_were_evicted_before_are_on_no_target_and_in_no_aggregate(cycle):
    first = """apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: first}
spec: {type: Deschedule, criteria: [{name: old, expression: podInfo.name == 'old'}]}
"""
    text = balance("fit: 'true'", """room: {ofTarget: "{'pods': 2 - nodeInfo.pods}", ofPod: "{'pods': 1}"}""", extra=(
        "aggregates: [{name: pods, over: pods, function: count}, {name: most, over: nodes, function: max, "
        "expression: nodeInfo.pods}]"
    )).replace(
        SOURCE, "nodeInfo.pods > 1 && aggregates.pods == 3 && aggregates.most == 2",
    )
    objects = hot(pod("a", "hot"), pod("b", "hot"), pod("old", "cold"), pod("young", "cold"),
                  used={"a": "300m", "b": "200m"})
    assert evicted(cycle(objects, first, text)) == ["old", "a"]
    assert evicted(cycle(objects, text)) == []


@pytest.mark.parametrize(("field", "failure", "roles"), [
    # A source without a place in the order is none; the other source goes on.
    ("sort: [{expression: \"double(usage.cpu) / (node.metadata.name == 'hot' ? 0.0 : 1.0) * 0.0\"}]",
     ("nodes.sort", "hot", "a value is not a number"), {"hotter": "source", "cold": "target", "cool": "target"}),
    ("sort: [{expression: \"node.metadata.labels['of-hotter']\"}]",
     ("nodes.sort", "hot", "no such key: of-hotter"), {"hotter": "source", "cold": "target", "cool": "target"}),
    (room_of("node.metadata.name == 'cold' ? 1.0 / 0.0 : 9000.0"),
     ("nodes.room.ofTarget", "cold", "`cpu` is inf: return a finite number"),
     {"hot": "source", "hotter": "source", "cool": "target"}),
    (room_of("node.metadata.name == 'cold' ? 0.0 / 0.0 : 9000.0"),
     ("nodes.room.ofTarget", "cold", "`cpu` is nan: return a finite number"),
     {"hot": "source", "hotter": "source", "cool": "target"}),
    (room_of("node.metadata.name == 'cold' ? 1 / 0 : 9000"),
     ("nodes.room.ofTarget", "cold", "division by zero"), {"hot": "source", "hotter": "source", "cool": "target"}),
    (room_of("node.metadata.name == 'cold' ? dyn('much') : dyn(9000)"),
     ("nodes.room.ofTarget", "cold", "`cpu` is no number: return a map of numbers"),
     {"hot": "source", "hotter": "source", "cool": "target"}),
])
def test_an_expression_that_fails_on_a_node_costs_only_that_node(cycle, field, failure, roles):
    objects = two_hot()
    objects[1]["metadata"]["labels"]["of-hotter"] = "a"
    result = cycle(objects, balance(field))
    assert {(each.rule, each.subject, each.message) for each in result.failures} == {failure}
    assert {each.node: each.role for each in result.node_notes} == roles
    assert evicted(result)


@pytest.mark.parametrize(("of_pod", "message"), [
    ("{'cpu': podInfo.name == 'c' ? 0.0 / 0.0 : 1.0}", "`cpu` is nan: return a finite number"),
    ("{'cpu': podInfo.name == 'c' ? -1 : 1}", "a pod takes -1 of `cpu`: return 0 or more"),
    ("{'cpu': int(podInfo.name == 'c' ? 'x' : '1')}", "type conversion error from 'string' to 'int'"),
])
def test_a_pod_that_takes_nobody_knows_what_stays(cycle, of_pod, message):
    room = f"""room: {{ofTarget: "{{'cpu': 9000}}", ofPod: "{of_pod}"}}"""
    result = cycle(two_hot(), balance(ORDER, room, "fit: 'true'"))
    assert [(each.rule, each.subject, each.message) for each in result.failures] == [
        ("nodes.room.ofPod", "d/c", message),
    ]
    assert (evicted(result), kept(result)) == (["d", "b", "a"], {"c": ("drain", "nodes.room.ofPod")})


def test_a_fit_that_fails_for_all_targets_keeps_the_pod_and_is_told_once(cycle):
    fit = "fit: \"node.metadata.labels[podInfo.name == 'c' ? 'x' : 'name'] != 'x'\""
    result = cycle(two_hot(), balance(ORDER, fit))
    assert [(each.rule, each.subject, each.message) for each in result.failures] == [
        ("nodes.fit", "d/c", "no such key: x"),
    ]
    assert kept(result)["c"] == ("drain", "nodes.fit")
    assert "c" not in evicted(result)


def test_a_room_that_is_less_than_nothing_keeps_all_pods(cycle):
    room = """room: {ofTarget: "{'cpu': -100, 'memory': 1000}", ofPod: requests}"""
    result = cycle(two_hot(), balance(ORDER, room))
    assert evicted(result) == []
    assert {of.message for _, _, of in result.staying} == {"the targets have no room for `cpu`: they add up to -200"}


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


@pytest.mark.parametrize(("timeout", "interval", "leaves"), [
    ("500ms", 0, []), ("500ms", 10**9, ["a"]), ("1s", 0, ["a"]), ("500ms", 10**8, []),
])
def test_cycles_an_interval_apart_are_in_a_row_though_the_timeout_is_shorter(cycle, timeout, interval, leaves):
    objects = hot(pod("a", "hot"), used={"a": "9000m"})
    text = drain().replace("  criteria:", f"    anomaly: {{consecutive: 2, timeout: {timeout}}}\n  criteria:")
    assert evicted(cycle(objects, text, cycles=2, interval=interval)) == leaves


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
    assert next(each.decision.message for each in result.staying if each.pod == "d/b") == "it is not free"


def test_a_veto_that_is_only_watched_stops_nothing_and_says_what_it_would(cycle):
    objects = hot(pod("a", "hot", metadata={"labels": {"free": "no"}}), used={"a": "9000m"})
    result = cycle(objects, drain(), VETO.replace("type: Evi", "enforcement: Audit\n  type: Evi"))
    assert (evicted(result), [each.message for each in result.failures]) == (["a"], ["would stay: it is not free"])


def test_a_document_that_is_only_watched_evicts_nothing(cycle):
    objects = hot(pod("a", "hot"), used={"a": "9000m"})
    result = cycle(objects, drain("enforcement: Audit"))
    assert [(each.decision.evicted, each.decision.stopped_by, each.decision.message) for each in result.outcomes] == [
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
    assert [(each.decision.plugin, each.pod) for each in result.evicted] == [("first", "d/a")]


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
        return ({each.pod: each.decision.mode for each in result.evicted},
                {pod: (of.stopped_by, of.stopped_rule, of.message) for pod, _, of in result.staying})

    assert modes("\"pod.metadata.name == 'x' ? 'Delete' : 'Eviction'\"") == (
        {"d/x": "Delete", "d/plain": "", "e/other": ""}, {})
    why = "`Away` is no mode of an eviction: return one of Eviction, Delete, SoftEviction, MigrationJob, or ''"
    assert modes("\"'Away'\"") == ({"d/plain": "", "e/other": ""}, {"d/x": ("evictor", "eviction", why)})
    assert modes("\"'Away'\"", "Ignore") == ({"d/x": "", "d/plain": "", "e/other": ""}, {})


def test_rules_share_the_variables_of_a_pod_of_which_only_those_are_computed_that_they_read(cycle, monkeypatch):
    read: list[str] = []
    compute = DocumentCycle._pod_value
    monkeypatch.setattr(DocumentCycle, "_pod_value", lambda self, state, pod, seen, name: (
        read.append(name) or compute(self, state, pod, seen, name)))
    text = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: heavy}
spec:
  type: Deschedule
  criteria:
  - {name: some, expression: podUsage.cpu > 100}
  - {name: much, expression: podUsage.cpu > 1000}
"""
    objects = hot(pod("a", "hot"), pod("b", "hot"), used={"a": "3000m", "b": "500m"})
    assert evicted(cycle(objects, text)) == ["a"]
    assert read.count("podUsage") == 2
    assert "placement" not in read
