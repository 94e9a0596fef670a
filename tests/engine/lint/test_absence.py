"""Absent keys: reads that nothing guards are found, guarded ones are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.lint.edits import apply

from .conftest import descheduler_policy, filtering, findings, marked, scheduler_policy, scoring

_RULE = "KP023"


def absent(text: str) -> list[str]:
    """Return what is marked."""
    return [marked(each) for each in findings(text) if each.rule.id == _RULE]


def outcome(text: str) -> list[str]:
    """Return what the messages say happens on absence."""
    return [each.found.message.split("the key is absent: ")[1] for each in findings(text) if each.rule.id == _RULE]


def mended(text: str) -> str:
    edits = [each.found.fix() for each in findings(text) if each.rule.id == _RULE and each.found.fix is not None]
    return apply(each for each in edits if each is not None).get("policy.yaml", text)


def document(expression: str) -> str:
    return scheduler_policy(
        "match:\n"
        "  nodes: {labelSelector: {matchLabels: {match: 'yes'}}}\n"
        "  pods: {labelSelector: {matchExpressions: [{key: app, operator: Exists}]}}\n"
        "matchConditions:\n"
        "- {name: c, expression: has(pod.metadata.labels.team)}\n"
        "params: {label: pool, matched: match, weights: {a: 1, b: 2}}\n"
        "variables:\n"
        "- {name: has, expression: has(node.metadata.labels.pool)}\n"
        "- {name: pool, expression: \"node.metadata.labels['pool']\"}\n"
        "- {name: labels, expression: node.metadata.labels}\n"
        "aggregates:\n"
        "- {name: nodes, over: nodes, groupBy: nodeInfo.zone, function: count, expression: 'true'}\n"
        "- {name: byZone, over: pods, groupBy: nodeInfo.zone, function: count, expression: 'true'}\n"
        "- {name: used, over: nodes, groupBy: nodeInfo.zone, function: sum, expression: usage.cpu}\n"
        f"filter:\n- name: it\n  expression: >-\n    {expression}",
    )


@pytest.mark.parametrize("expression", [
    "node.metadata.labels['pool'] != 'batch'",
    "node.metadata.labels['pool'] == 'a'",
    "node.metadata.labels.pool == 'a'",
    "pod.metadata.annotations['x/y'] == 'a'",
    "pod.spec.nodeSelector['pool'] == nodeInfo.zone",
    "!(pod.metadata.labels['a'] in ['x', 'y']) || nodeInfo.pods > 1",
    "pod.metadata.labels['a'].startsWith('web') && nodeInfo.pods > 1",
    "int(node.metadata.labels['tier']) > 2",
    "cel.bind(l, node.metadata.labels, l['pool'] == 'a')",
    "nodeInfo.images['x'] > 1000000000",
    "{'a': 1, 'b': 2}[nodeInfo.zone] < nodeInfo.pods",
    "node.metadata.labels['a'] == 'x' || 'b' in node.metadata.labels",
    "'b' in node.metadata.labels && node.metadata.labels['a'] == 'x'",
    "'a' in node.metadata.labels || node.metadata.labels['a'] == 'x'",
    "('a' in node.metadata.labels) == false && node.metadata.labels['a'] == 'x'",
    "('a' in node.metadata.labels) != true || 'b' in node.metadata.labels && node.metadata.labels['c'] == 'x'",
    "pod.metadata.labels.filter(k, k != 'a').all(k, node.metadata.labels[k] == 'x')",
    "nodeInfo.pods > 3 ? node.metadata.labels['a'] == 'x' : false",
    "pod.spec.containers.all(c, c.resources.requests['cpu'] == '1' && nodeInfo.pods > 1)",
    "pod.spec.containers.all(c, 'cpu' in c.resources.requests && nodeInfo.pods > 1)",
    "pod.spec.containers.all(c, has(c.resources.requests.cpu) && nodeInfo.pods > 1)",
    "!('a' in pod.metadata.annotations) && nodeInfo.pods > 1",
    "pod.metadata.annotations[?'a'].orValue('') != nodeInfo.zone",
    "pod.spec.nodeSelector.size() < nodeInfo.pods",
    "pod.spec.nodeSelector.exists(k, k == nodeInfo.zone)",
    "params.weights[nodeInfo.zone] < nodeInfo.pods",
    "aggregates.byZone[nodeInfo.zone] < nodeInfo.pods",
    "aggregates.used[nodeInfo.zone] < nodeInfo.pods",
    "variables.labels['pool'] == 'a'",
    "variables.pool == 'a'",
    "nodeInfo.pods > 3 && variables.pool != 'a'",
])
def test_a_read_that_nothing_guards_is_found(expression: str):
    assert len(absent(document(expression))) == 1


@pytest.mark.parametrize("expression", [
    "'pool' in node.metadata.labels && node.metadata.labels['pool'] != 'batch'",
    "node.metadata.labels['pool'] != 'batch' && 'pool' in node.metadata.labels",
    "!('pool' in node.metadata.labels) || node.metadata.labels['pool'] != 'batch'",
    "node.metadata.labels['pool'] != 'batch' || !('pool' in node.metadata.labels)",
    "has(node.metadata.labels.pool) && node.metadata.labels['pool'] != 'batch'",
    "has(node.metadata.labels.pool) ? node.metadata.labels.pool != 'batch' : true",
    "'pool' in node.metadata.labels ? node.metadata.labels['pool'] != 'batch' : true",
    "!has(node.metadata.labels.pool) ? true : node.metadata.labels.pool == 'a'",
    "node.metadata.labels[?'pool'].orValue('') != 'batch'",
    "node.metadata.?labels[?'pool'].orValue('') != 'batch'",
    "node.metadata.labels[?'pool'].hasValue() && node.metadata.labels['pool'] != 'batch'",
    "node.metadata.labels[?'pool'].orValue('') != '' && node.metadata.labels['pool'] != 'batch'",
    "node.metadata.labels[?'pool'].orValue('') == '' || node.metadata.labels['pool'] != 'batch'",
    "node.metadata.labels['kubernetes.io/hostname'] != 'a'",
    "node.metadata.labels['match'] == 'yes'",
    "pod.metadata.labels['app'] == nodeInfo.zone",
    "pod.metadata.labels['team'] == nodeInfo.zone",
    "node.metadata.labels.exists(k, node.metadata.labels[k] == 'a')",
    "node.metadata.labels.filter(k, k.startsWith('a')).all(k, node.metadata.labels[k] == 'x')",
    "node.metadata.labels.filter(k, k != 'a').filter(l, l != 'b').map(m, node.metadata.labels[m]).exists(v, v == 'x')",
    "has(node.metadata.labels.pool) == true && node.metadata.labels['pool'] != 'batch'",
    "has(node.metadata.labels.pool) == false || node.metadata.labels['pool'] != 'batch'",
    "false != ('pool' in node.metadata.labels) && node.metadata.labels['pool'] != 'batch'",
    "node.metadata.labels[?'pool'].orValue('') == 'a' == true && node.metadata.labels['pool'] != 'batch'",
    "['a', 'b'].filter(k, k in node.metadata.labels).exists(k, node.metadata.labels[k] == 'x')",
    "['a', 'b'].exists(k, k in node.metadata.labels && node.metadata.labels[k] == 'x')",
    "variables.has && node.metadata.labels['pool'] != 'x'",
    "variables.has && variables.pool != 'x'",
    "'pool' in variables.labels && node.metadata.labels['pool'] != 'x'",
    (
        "('a' in node.metadata.labels && 'b' in node.metadata.labels) && node.metadata.labels['a'] == "
        "node.metadata.labels['b']"
    ),
    "'a' in node.metadata.labels && (nodeInfo.pods > 1 || node.metadata.labels['a'] == 'x')",
    "!(!('a' in node.metadata.labels) || nodeInfo.pods > 3) && node.metadata.labels['a'] == 'x'",
    "params.label in node.metadata.labels && node.metadata.labels[params.label] == 'x'",
    "node.metadata.labels[params.matched] == 'x'",
    "params.weights['a'] < nodeInfo.pods",
    "['a', 'b'].all(k, params.weights[k] < nodeInfo.pods)",
    "requests['example.com/gpu'] < nodeInfo.pods",
    "usage['cpu'] < 8000",
    "aggregates.nodes[nodeInfo.zone] < nodeInfo.pods",
    "cel.bind(l, node.metadata.labels, 'pool' in l && l['pool'] == 'a')",
    "nodeInfo.zone in {'a': 1} && {'a': 1}[nodeInfo.zone] < nodeInfo.pods",
    "node.status.allocatable['cpu'] != '1'",
    (
        "pod.spec.containers.all(c, has(c.resources.requests) && has(c.resources.requests.cpu) && "
        "c.resources.requests.cpu != '1' && nodeInfo.pods > 1)"
    ),
    "has(pod.metadata.annotations) && !('a' in pod.metadata.annotations)",
    "pod.metadata.?annotations.orValue({}).exists(k, k == nodeInfo.zone)",
    "!has(pod.spec.nodeSelector) || pod.spec.nodeSelector.size() < nodeInfo.pods",
    "'team' in pod.metadata.labels && nodeInfo.pods > 1",
    "'a' in node.metadata.annotations && nodeInfo.pods > 1",
    (
        "pod.spec.containers.all(c, has(c.resources.requests) && 'cpu' in c.resources.requests && "
        "c.resources.requests['cpu'] != '1' && "
        "nodeInfo.pods > 1)"
    ),
    "pod.spec.?nodeSelector[?'pool'].optMap(p, p == nodeInfo.zone).orValue(true)",
])
def test_a_read_that_something_guards_is_not_found(expression: str):
    assert absent(document(expression)) == []


_GUARDS = st.sampled_from([
    "'{0}' in node.metadata.labels", "has(node.metadata.labels.{0})", "node.metadata.labels[?'{0}'].hasValue()",
    "node.metadata.labels[?'{0}'].orValue('') != ''", "node.metadata.?labels[?'{0}'].orValue('-') == 'x'",
    "!(!('{0}' in node.metadata.labels))", "('{0}' in node.metadata.labels && nodeInfo.pods > 1)",
    "(has(node.metadata.labels.{0}) ? nodeInfo.pods > 2 : false)",
    "(has(node.metadata.labels.{0}) || '{0}' in node.metadata.labels)",
])
_READS = st.sampled_from(["node.metadata.labels['{0}'] == 'x'", "node.metadata.labels.{0} != 'x'"])
_PLACES = st.sampled_from([
    "{0} && {1}", "{1} && {0}", "!({0}) || {1}", "{1} || !({0})", "{0} ? {1} : nodeInfo.pods > 4",
    "!({0}) ? nodeInfo.pods > 4 : {1}", "nodeInfo.pods > 1 && {0} && (nodeInfo.pods < 9 || {1})",
    "cel.bind(x, {0}, nodeInfo.pods > 3) || ({0} && {1})",
])


@given(_GUARDS, _READS, _PLACES)
def test_every_guard_in_every_place_guards_its_own_key_and_no_other(guard: str, read: str, place: str):
    assert absent(filtering(place.format(guard.format("pool"), read.format("pool")))) == []
    assert absent(filtering(place.format(guard.format("pool"), read.format("tier")))) == [
        read.format("tier").split(" ")[0],
    ]


def test_a_rule_before_it_and_a_condition_on_either_side_guard_a_read():
    guard, read = "{name: g, expression: \"'pool' in node.metadata.labels\"}", \
        "{name: r, expression: \"node.metadata.labels['pool'] != 'a'\"}"
    score = "score:\n- {name: s, expression: \"node.metadata.labels['pool'] == 'a' ? 100 : nodeInfo.pods\"}"
    assert absent(scheduler_policy(f"filter:\n- {guard}\n- {read}\n{score}")) == []
    assert absent(scheduler_policy(f"filter:\n- {read}\n- {guard}")) == ["node.metadata.labels['pool']"]
    for conditions in (f"- {guard}\n- {read}", f"- {read}\n- {guard}"):
        assert absent(scheduler_policy(f"matchConditions:\n{conditions}\n{score}")) == []
    assert absent(scheduler_policy(f"matchConditions:\n- {read}\n{score}")) == ["node.metadata.labels['pool']"] * 2


def test_a_message_need_not_guard_what_it_shows():
    assert absent(scheduler_policy(
        "filter:\n- {name: it, expression: nodeInfo.pods < 9, messageExpression: \"node.metadata.labels['pool']\"}",
    )) == []


@pytest.mark.parametrize(("policy", "filter_", "score"), [
    ("Fail", "the node is refused, reason `PolicyError`", "the item gives that node 0"),
    ("Ignore", "the check is skipped", "the item is skipped for all nodes of this decision"),
])
def test_it_is_said_what_happens_at_that_point_with_that_failure_policy(policy: str, filter_: str, score: str):
    read = "node.metadata.labels['pool'] == 'a'"
    assert outcome(filtering(read) + f"  failurePolicy: {policy}\n") == [filter_]
    assert outcome(scoring(f"{read} ? 100 : nodeInfo.pods") + f"  failurePolicy: {policy}\n") == [score]


def test_it_is_said_what_happens_in_the_other_frameworks():
    read = "pod.metadata.labels['tier'] == 'a'"
    assert outcome(descheduler_policy(f'type: Deschedule\ncriteria:\n- {{name: it, expression: "{read}"}}')) == [
        "the pod stays",
    ]
    threshold = scheduler_policy(
        "forEach: node\nthresholds:\n- {name: it, expression: \"node.metadata.labels['tier'] == 'a'\"}\n"
        "actions:\n- {name: squeeze, when: thresholds.it, suppressCPU: {target: allocatable.cpu}}",
    ).replace("SchedulerPlugin", "QoSPlugin")
    assert outcome(threshold) == [
        "nothing is done; last values stay for at most `staleAfter`, then everything is recovered",
    ]


@pytest.mark.parametrize(("before", "after"), [
    ("node.metadata.labels['pool'] != 'batch'", "node.metadata.?labels[?'pool'].orValue('') != 'batch'"),
    ('node.metadata.labels["pool"] == "a"', "node.metadata.?labels[?\"pool\"].orValue('') == \"a\""),
    ("node.metadata.labels.pool in ['a']", "node.metadata.?labels.?pool.orValue('') in ['a']"),
    ("pod.metadata.annotations['a/b'].startsWith('x') || nodeInfo.pods > 3",
     "pod.metadata.?annotations[?'a/b'].orValue('').startsWith('x') || nodeInfo.pods > 3"),
])
def test_a_read_whose_neutral_value_is_clear_is_mended(before: str, after: str):
    assert mended(filtering(before)) == filtering(after)
    assert absent(filtering(after)) == []


@pytest.mark.parametrize("expression", [
    "node.metadata.labels['pool'] == ''", "node.metadata.labels['pool'] == nodeInfo.zone",
    "int(node.metadata.labels['tier']) > 3", "node.metadata.labels['pool'] in ['', 'a']",
])
def test_a_read_whose_neutral_value_is_not_clear_is_left_alone(expression: str):
    assert mended(filtering(expression)) == filtering(expression)
    assert len(absent(filtering(expression))) == 1


def test_a_mended_read_keeps_the_quotes_of_its_yaml_scalar():
    text = scheduler_policy("filter:\n- {name: it, expression: 'node.metadata.labels[\"pool\"] != \"a\"'}")
    assert mended(text) == text.replace(
        'node.metadata.labels["pool"]', 'node.metadata.?labels[?"pool"].orValue("")',
    )
    assert absent(mended(text)) == []


def test_a_group_without_rows_is_mended_where_nothing_is_its_sum():
    text = (
        "aggregates:\n- {{name: pods, over: pods, groupBy: nodeInfo.zone, function: {}, expression: {}}}\n"
        "score:\n- {{name: it, expression: '{}', normalize: Max}}"
    )
    zone = "aggregates.pods[nodeInfo.zone]"
    for function, expression, default in (("sum", "existingPodInfo.priority", "0"), ("count", "'true'", "0")):
        before = scheduler_policy(text.format(function, expression, zone))
        assert mended(before) == before.replace(zone, f"aggregates.pods[?nodeInfo.zone].orValue({default})")
    before = scheduler_policy(text.format("max", "existingPodInfo.priority", zone))
    assert (absent(before), mended(before)) == ([zone], before)


@pytest.mark.parametrize(("expression", "marks", "safe"), [
    ("!node.spec.unschedulable", "node.spec.unschedulable", "node.spec.?unschedulable.orValue(...)"),
    ("node.spec.taints.all(t, t.key != 'a')", "node.spec.taints", "node.spec.?taints.orValue([])"),
    ("pod.spec.priorityClassName == 'a' && nodeInfo.pods > 1", "pod.spec.priorityClassName",
     "pod.spec.?priorityClassName.orValue('')"),
    ("pod.spec.containers.all(c, c.securityContext.privileged) && nodeInfo.pods > 1", "c.securityContext.privileged",
     "c.?securityContext.?privileged.orValue(...)"),
    ("has(pod.spec.affinity.nodeAffinity) && nodeInfo.pods > 1", "pod.spec.affinity",
     "pod.spec.?affinity.orValue(...)"),
    ("has(pod.spec.affinity) && pod.spec.affinity.podAffinity != pod.spec.affinity.podAffinity || nodeInfo.pods > 1",
     "pod.spec.affinity.podAffinity", "pod.spec.?affinity.?podAffinity.orValue(...)"),
    ("has(node.spec.taints) || node.spec.taints.size() > 1", "node.spec.taints", "node.spec.?taints.orValue([])"),
])
def test_an_optional_field_that_nothing_guards_is_found(expression: str, marks: str, safe: str):
    found = [each for each in findings(filtering(expression)) if each.rule.id == _RULE]
    assert [marked(each) for each in found] == [marks]
    assert found[0].found.help == f"write `{safe}`, or test that it is there"
    assert f"`{marks}` is an error where the field is absent: " in found[0].found.message


@pytest.mark.parametrize("expression", [
    "!node.spec.?unschedulable.orValue(false)",
    "!has(node.spec.unschedulable) || !node.spec.unschedulable",
    "has(node.spec.taints) ? node.spec.taints.all(t, t.key != 'a') : true",
    "has(pod.spec.affinity) && has(pod.spec.affinity.podAffinity) && nodeInfo.pods > 1",
    "pod.spec.?affinity.?podAffinity.hasValue() && pod.spec.affinity.podAffinity == pod.spec.affinity.podAffinity",
    "node.metadata.name == pod.spec.schedulerName",
    "pod.spec.containers.all(c, c.name != node.metadata.name && c.resources != c.resources)",
    "node.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')",
])
def test_a_field_that_is_guarded_or_always_there_is_not_found(expression: str):
    assert absent(filtering(expression)) == []


@pytest.mark.parametrize(("expression", "marks"), [
    ("['a', 'b'].all(k, k in node.metadata.labels) && node.metadata.labels['a'] == node.metadata.labels['b']", []),
    ("['a', 'b'].all(k, k in node.metadata.labels) && node.metadata.labels['c'] == 'x'", ["node.metadata.labels['c']"]),
    ("['a', 'b'].all(k, k in node.metadata.labels && node.metadata.labels[k] != 'x') && node.metadata.labels.a == 'y'",
     []),
    ("!['a', 'b'].exists(k, !(k in node.metadata.labels)) && node.metadata.labels['b'] == 'x'", []),
    ("['a', 'b'].exists(k, k in node.metadata.labels) && node.metadata.labels['a'] == 'x'",
     ["node.metadata.labels['a']"]),
    ("['a'].exists(k, k in node.metadata.labels) && node.metadata.labels['a'] == 'x'", []),
    ("['a', 'b'].all(k, k in node.metadata.labels) || node.metadata.labels['a'] == 'x'", ["node.metadata.labels['a']"]),
    ("pod.spec.containers.map(c, c.name).all(k, k in node.metadata.labels) && node.metadata.labels['a'] == 'x'",
     ["node.metadata.labels['a']"]),
    ("['a'].all(k, ['c', 'd'].all(j, (j in node.metadata.labels))) && node.metadata.labels['d'] == 'x'", []),
    ("params.wanted.all(k, k in node.metadata.labels) && node.metadata.labels['a'] == 'x'", []),
])
def test_a_loop_over_a_constant_list_guards_the_keys_in_it(expression: str, marks: list[str]):
    text = filtering(expression).replace("spec:\n", "spec:\n  params: {wanted: [a, b]}\n", 1)
    assert absent(text) == marks
