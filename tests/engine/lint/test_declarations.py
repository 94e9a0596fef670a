"""Misspelt keys, aggregates that nothing reads, params that no function can read, and fractions that are lost."""

from __future__ import annotations

import pytest

from koordpolicy.engine.kubernetes import well_known

from .conftest import descheduler_policy, filtering, findings, marked, mended, scheduler_policy, scoring, told


def found(rule: str, text: str) -> list[tuple[str, str, str]]:
    """Return marked text, message and help of what a rule finds."""
    return [(marked(each), each.found.message, each.found.help) for each in findings(text) if each.rule.id == rule]


# -- misspelt keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "known"), [
    ("topology.kubernetes.io/zoen", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/zones", "topology.kubernetes.io/zone"),
    ("topology.kubernates.io/zone", "topology.kubernetes.io/zone"),
    ("topology.k8s.io/zone", "topology.kubernetes.io/zone"),
    ("topolgy.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("kubernetes.io/hostnmae", "kubernetes.io/hostname"),
    ("kubernetes.io/Hostname", "kubernetes.io/hostname"),
    ("node.kubernetes.io/instance-tpye", "node.kubernetes.io/instance-type"),
    ("node-role.kubernetes.io/control-plan", "node-role.kubernetes.io/control-plane"),
    ("app.kubernetes.io/naem", "app.kubernetes.io/name"),
])
def test_a_key_that_is_nearly_one_of_kubernetes_is_found_wherever_it_stands(key: str, known: str):
    says = (f"`{key}` is not among the known labels of Kubernetes", f"did you mean `{known}`?")
    selector = scheduler_policy(
        f"match: {{nodes: {{labelSelector: {{matchLabels: {{{key}: a}}}}}}}}\n"
        "filter:\n- {name: it, expression: nodeInfo.pods < 9}",
    )
    assert found("KP020", selector) == [(key, *says)]
    assert mended("KP020", selector) == selector.replace(key, known)
    for expression in (f"'{key}' in node.metadata.labels", f"node.metadata.?labels[?'{key}'].orValue('') == 'a'"):
        assert found("KP020", filtering(expression)) == [(f"'{key}'", *says)]
        assert mended("KP020", filtering(expression)) == filtering(expression.replace(key, known))


@pytest.mark.parametrize("key", [
    *sorted(well_known.LABELS), "topology.kubernetes.io/rack", "topology.kubernetes.io/row",
    "node-role.kubernetes.io/gpu",
    "example.com/zone", "zone", "pool", "kubernetes.io/hosts", "topology.ebs.csi.aws.com/zone",
    "node.kubernetes.io/lifecycle",
    "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool", "app.kubernetes.io/owner", "topology.example.io/zone",
])
def test_a_key_of_kubernetes_and_a_key_of_ones_own_are_not_found(key: str):
    assert found("KP020", filtering(f"'{key}' in node.metadata.labels")) == []


def test_no_known_key_is_taken_for_another_one():
    text = " || ".join(f"'{key}' in node.metadata.labels" for key in sorted(well_known.KEYS) if "/" in key)
    assert found("KP020", filtering(text)) == []


def test_misspelt_annotations_taints_resources_and_params_are_found():
    assert [each[1:] for each in found("KP020", scheduler_policy(
        "params: {key: topology.kubernetes.io/zoen, keys: [{label: kubernetes.io/hostnam}], note: 'see "
        "https://a.b/c'}\n"
        "filter:\n"
        "- {name: a, expression: \"'cluster-autoscaler.kubernetes.io/safe-to-evct' in pod.metadata.annotations "
        '|| nodeInfo.pods < 4"}\n'
        "- {name: b, expression: \"!node.spec.taints.exists(t, t.key == 'node.kubernetes.io/unreachabel')\"}\n"
        "- {name: c, expression: \"!node.spec.taints.exists(t, t.key in ['node.kubernetes.io/not-redy', 'mine'])\"}\n"
        "- {name: d, expression: \"usage['memroy'] < 2000000000 && requests['example.com/memroy'] < 4\"}\n"
        '- {name: e, expression: "params.key in node.metadata.labels && params.keys.size() > 0 '
        "&& params.note != ''\"}",
    ))] == [
        ("`cluster-autoscaler.kubernetes.io/safe-to-evct` is not among the known annotations of Kubernetes",
         "did you mean `cluster-autoscaler.kubernetes.io/safe-to-evict`?"),
        ("`node.kubernetes.io/unreachabel` is not among the known taints of Kubernetes",
         "did you mean `node.kubernetes.io/unreachable`?"),
        (
            "`node.kubernetes.io/not-redy` is not among the known taints of Kubernetes",
            "did you mean `node.kubernetes.io/not-ready`?",
        ),
        ("`memroy` is not among the known resources of Kubernetes", "did you mean `memory`?"),
        ("`topology.kubernetes.io/zoen` is not among the known labels, annotations and taints of Kubernetes",
         "did you mean `topology.kubernetes.io/zone`?"),
        ("`kubernetes.io/hostnam` is not among the known labels, annotations and taints of Kubernetes",
         "did you mean `kubernetes.io/hostname`?"),
    ]


# -- aggregates that nothing reads -------------------------------------------------------------------------------------

_TWO = """
aggregates:
- {name: read, over: nodes, function: sum, expression: nodeInfo.pods}
- {name: unread, over: nodes, function: max, expression: nodeInfo.pods}
"""


def test_an_aggregate_that_nothing_reads_is_found_and_removed():
    text = scheduler_policy(_TWO + "filter:\n- {name: it, expression: nodeInfo.pods < aggregates.read}")
    assert found("KP008", text) == [("name", "nothing reads the aggregate `unread`", "remove it")]
    assert mended("KP008", text) == text.replace(
        "  - {name: unread, over: nodes, function: max, expression: nodeInfo.pods}\n", "",
    )


@pytest.mark.parametrize("rest", [
    ("variables:\n- {name: v, expression: aggregates.unread}\n"
    "filter:\n- {name: it, expression: nodeInfo.pods < aggregates.read + variables.v}"),
    "filter:\n- {name: it, expression: nodeInfo.pods < aggregates.read, messageExpression: string(aggregates.unread)}",
    ("matchConditions:\n- {name: it, expression: aggregates.unread > 4}\n"
    "score:\n- {name: it, expression: aggregates.read - nodeInfo.pods, normalize: Max}"),
])
def test_an_aggregate_that_anything_reads_is_not_found(rest: str):
    assert found("KP008", scheduler_policy(_TWO + rest)) == []


# -- params that no function can read ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("params", "expression", "place"), [
    ("{x: 7 days}", "now - node.metadata.creationTimestamp > duration(params.x)", "params.x"),
    ("{x: ''}", "now - node.metadata.creationTimestamp > duration(params.x)", "params.x"),
    ("{x: 2026-13-01}", "now > timestamp(params.x) && nodeInfo.pods > 3", "params.x"),
    ("{x: 4 GB}", "quantity(params.x).isLessThan(quantity(node.status.allocatable['memory']))", "params.x"),
    ("{x: '(a'}", "node.metadata.name.matches(params.x)", "params.x"),
    ("{x: '[z-a]'}", "node.metadata.name.find(params.x) != ''", "params.x"),
    ("{x: 10.0.0.0/33}", "cidr(params.x).containsIP('10.0.0.1') && nodeInfo.pods > 3", "params.x"),
    ("{x: 10.0.0}", "ip(params.x).isLoopback() || nodeInfo.pods > 3", "params.x"),
    ("{x: many}", "nodeInfo.pods < int(params.x)", "params.x"),
    ("{x: one.two}", "semver(params.x).major() > nodeInfo.pods", "params.x"),
    ("{x: {y: [1h, soon]}}", "params.x.y.exists(d, now - node.metadata.creationTimestamp > duration(d))", "d"),
    ("{x: 1}", "now - node.metadata.creationTimestamp > duration(string(params.x))", "string(params.x)"),
])
def test_a_param_that_a_function_cannot_read_is_found(params: str, expression: str, place: str):
    text = scheduler_policy(f"params: {params}\nfilter:\n- name: it\n  expression: >-\n    {expression}")
    assert [(each.rule.id, marked(each), each.severity.name) for each in findings(text) if each.rule.id == "KP009"] == [
        ("KP009", place, "ERROR"),
    ]


@pytest.mark.parametrize(("params", "expression"), [
    ("{x: 168h}", "now - node.metadata.creationTimestamp > duration(params.x)"),
    ("{x: '2026-01-02T03:04:05Z'}", "now > timestamp(params.x) && nodeInfo.pods > 3"),
    ("{x: 4Gi}", "quantity(params.x).isLessThan(quantity(node.status.allocatable['memory']))"),
    ("{x: '^web-[0-9]+$'}", "node.metadata.name.matches(params.x)"),
    ("{x: ''}", "params.x == '' || now - node.metadata.creationTimestamp > duration(params.x)"),
    ("{x: ''}", "params.x != '' && now - node.metadata.creationTimestamp > duration(params.x) || nodeInfo.pods > 3"),
    ("{x: ''}", "params.x == '' ? nodeInfo.pods > 3 : now - node.metadata.creationTimestamp > duration(params.x)"),
    ("{x: 4 GB}", "isQuantity(params.x) && quantity(params.x).isInteger() || nodeInfo.pods > 3"),
    ("{x: [1h, 2h]}", "params.x.exists(d, now - node.metadata.creationTimestamp > duration(d))"),
    ("{x: '12'}", "nodeInfo.pods < int(params.x)"),
])
def test_a_param_that_can_be_read_or_is_not_reached_is_not_found(params: str, expression: str):
    text = scheduler_policy(f"params: {params}\nfilter:\n- name: it\n  expression: >-\n    {expression}")
    assert found("KP009", text) == []


def test_it_is_said_what_the_param_is_and_why_it_cannot_be_read():
    text = descheduler_policy(
        "type: Deschedule\nparams: {olderThan: 7 days}\ncriteria:\n"
        "- {name: old, expression: now - timestamp(pod.metadata.creationTimestamp) > duration(params.olderThan)}",
    )
    ((place, message, _),) = found("KP009", text)
    assert (place, message.split(": ")[0]) == ("params.olderThan", "`params.olderThan` is '7 days'")


# -- 100 % -------------------------------------------------------------------------------------------------------------


def _suppressing(target: str) -> str:
    return scheduler_policy(
        "params: {percent: 100}\nvariables:\n- {name: free, expression: allocatable.cpu}\n"
        f"forEach: node\nactions:\n- name: squeeze\n  when: 'true'\n  suppressCPU: {{target: '{target}'}}",
    ).replace("SchedulerPlugin", "QoSPlugin")


@pytest.mark.parametrize(("target", "places"), [
    ("allocatable.cpu - nonBestEffortUsage.cpu", 0),
    ("math.greatest(0, allocatable.cpu - nonBestEffortUsage.cpu)", 0),
    ("variables.free - nonBestEffortUsage.cpu", 0),
    ("allocatable.cpu * 100 / 100 - nonBestEffortUsage.cpu", 1),
    ("allocatable.cpu * params.percent / 100 - nonBestEffortUsage.cpu", 1),
    ("allocatable.cpu * 65 / 100 - nonBestEffortUsage.cpu", 0),
])
def test_all_that_a_node_has_is_no_share_of_a_hundred_percent(target: str, places: int):
    assert len(found("KP033", _suppressing(target))) == places


def test_usage_below_all_that_a_node_has_is_no_share_of_a_hundred_percent_unless_it_is_written_as_one():
    assert found("KP033", filtering("usage.cpu < allocatable.cpu")) == []
    assert len(found("KP033", filtering("usage.cpu * 100 < allocatable.cpu * 100"))) == 1


# -- lost fractions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("expression", "lost"), [
    ("usage.cpu / allocatable.cpu < 0.65", "usage.cpu / allocatable.cpu < 0.65"),
    ("0.65 > usage.cpu / allocatable.cpu", "0.65 > usage.cpu / allocatable.cpu"),
    ("usage.cpu / allocatable.cpu < 1", "usage.cpu / allocatable.cpu < 1"),
    ("usage.cpu / allocatable.cpu < usage.memory / allocatable.memory",
     "usage.cpu / allocatable.cpu < usage.memory / allocatable.memory"),
    ("usage.cpu / allocatable.cpu < params.share", "usage.cpu / allocatable.cpu < params.share"),
    ("usage.cpu / allocatable.cpu * 100 < 65", "usage.cpu / allocatable.cpu"),
    ("usage.cpu / allocatable.cpu / 2 * 100 < 65", "usage.cpu / allocatable.cpu / 2"),
    ("usage.cpu / 2 / allocatable.cpu * 100 < 65", "usage.cpu / 2 / allocatable.cpu"),
])
def test_a_quotient_that_is_lost_is_found_on_either_side(expression: str, lost: str):
    text = scheduler_policy(f"params: {{share: 0.6}}\nfilter:\n- name: it\n  expression: >-\n    {expression}")
    assert [each[0] for each in found("KP016", text)] == [lost]


@pytest.mark.parametrize("expression", [
    "usage.cpu * 100 / allocatable.cpu / 2 * 3 < 65", "double(usage.cpu * 100 / allocatable.cpu / 2) < 65.0",
    "(usage.cpu * 100 / allocatable.cpu + usage.memory * 100 / allocatable.memory) / 2 * 3 < 65",
    "percent(usage.cpu, allocatable.cpu) / 2 * 3 < 65", "variables.cpu / 2 * 3 < 65",
    "(nodeInfo.pods > 2 ? variables.cpu : 4) / 2 * 3 < 65", "math.greatest(variables.cpu, 4) / 3 * 2 < 65",
    "usage.cpu * 100 / allocatable.cpu < 0.6", "1 > 100 * usage.cpu / allocatable.cpu", "variables.cpu <= 1",
    "variables.cpu < 0.6", "usage.cpu * 100 / allocatable.cpu <= usage.memory * 100 / allocatable.memory",
    "requested.cpu / allocatable.cpu < 2", "usage.cpu / requests.cpu > 3", "nodeInfo.pods / 10 < 3",
])
def test_a_quotient_of_a_percentage_loses_nothing_that_counts(expression: str):
    text = scheduler_policy(
        "variables:\n- {name: cpu, expression: usage.cpu * 100 / allocatable.cpu}\n"
        f"filter:\n- name: it\n  expression: >-\n    {expression}",
    )
    assert found("KP016", text) == []


def test_variables_that_are_read_twice_by_the_next_one_are_looked_at_once():
    chain = "\n".join(f"- {{name: v{n}, expression: variables.v{n - 1} + variables.v{n - 1}}}" for n in range(1, 24))
    text = f"variables:\n- {{name: v0, expression: nodeInfo.pods}}\n{chain}\n"
    assert told(scheduler_policy(text + "score:\n- {name: it, expression: variables.v23 / 3 * 2, normalize: Max}")) == [
        ("KP016", "variables.v23 / 3"),
    ]
    keys = "\n".join(
        f'- {{name: v{n}, expression: "node.metadata.labels[variables.v{n - 1} + variables.v{n - 1}]"}}'
        for n in range(1, 24)
    )
    text = f"variables:\n- {{name: v0, expression: nodeInfo.zone}}\n{keys}\n"
    assert len(found("KP023", scoring("variables.v23 == 'a' ? 100 : nodeInfo.pods").replace("score:", "score:").replace(
        "spec:\n", "spec:\n" + "".join(f"  {line}\n" for line in text.strip().splitlines()),
    ))) == 23
