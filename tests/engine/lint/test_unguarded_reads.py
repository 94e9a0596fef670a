"""Reads that nothing guards are found, guarded ones are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .conftest import absent, filtering, findings, marked, scheduler_policy


def document(expression: str) -> str:
    return scheduler_policy(
        "match:\n"
        "  nodes: {labelSelector: {matchLabels: {match: 'yes'}}}\n"
        "  pods: {labelSelector: {matchExpressions: [{key: app, operator: Exists}]}}\n"
        "matchConditions:\n"
        "- {name: c, expression: has(pod.metadata.labels.team)}\n"
        "params: {label: pool, matched: match, weights: {a: 1, b: 2}, key: a}\n"
        "variables:\n"
        "- {name: has, expression: has(node.metadata.labels.pool)}\n"
        "- {name: pool, expression: \"node.metadata.labels['pool']\"}\n"
        "- {name: labels, expression: node.metadata.labels}\n"
        "- {name: made, expression: \"{'a': {'b': usage.cpu}}\"}\n"
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
    "{'a': usage.cpu}.b < 8000",
    "{'a': usage.cpu, ?'b': optional.of(1)}['b'] < 8000",
    "{'a': {'b': usage.cpu}}.a['c'] < 8000",
    "cel.bind(m, {'a': usage.cpu}, m.b < 8000)",
    "{1: usage.cpu}[2] < 8000",
    "{nodeInfo.zone: usage.cpu}['a'] < 8000",
    "node.metadata.labels[?'a'].value() == 'x'",
    "node.metadata.?labels[?'a'].value() == 'x'",
    "node.metadata.?labels['a'].value() == 'x'",
    "node.spec.?providerID.value() == 'x'",
    "pod.spec.containers.all(c, c.?resources.?requests[?'cpu'].value() == '1')",
    "optional.none().value() == 1 && nodeInfo.pods > 1",
    "optional.ofNonZeroValue(nodeInfo.pods).value() == 1",
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
    "node.metadata.labels[?'a'] != optional.none() && node.metadata.labels[?'a'].value() == 'x'",
    "optional.none() != node.metadata.labels[?'a'] && node.metadata.labels['a'] == 'x'",
    "!(node.metadata.labels[?'a'] == optional.none()) && node.metadata.labels[?'a'].value() == 'x'",
    "optional.none() == node.metadata.labels[?'a'] || node.metadata.labels[?'a'].value() == 'x'",
    "node.metadata.labels[?'a'] == optional.of('x') && node.metadata.labels[?'a'].value() == 'x'",
    "cel.bind(n, optional.none(), node.metadata.labels[?'a'] != n && node.metadata.labels[?'a'].value() == 'x')",
    "pod.metadata.name != '' && optional.ofNonZeroValue(pod.metadata.name).value() == 'x'",
    "pod.metadata.name == '' || optional.ofNonZeroValue(pod.metadata.name).value() == 'x'",
    "nodeInfo.pods > 0 && optional.ofNonZeroValue(nodeInfo.pods).value() == 1",
    "nodeInfo.pods != 0 && optional.ofNonZeroValue(nodeInfo.pods).value() == 1",
    "0 < nodeInfo.pods && optional.ofNonZeroValue(nodeInfo.pods).value() == 1",
    "!(nodeInfo.pods < 1) && optional.ofNonZeroValue(nodeInfo.pods).value() == 1",
    "size(pod.metadata.name) > 0 && optional.ofNonZeroValue(pod.metadata.name).value() == 'x'",
    "pod.metadata.name.size() != 0 && optional.ofNonZeroValue(pod.metadata.name).value() == 'x'",
    "pod.metadata.labels != {} && optional.ofNonZeroValue(pod.metadata.labels).value().size() < nodeInfo.pods",
    "pod.spec.containers != [] && optional.ofNonZeroValue(pod.spec.containers).value().size() < nodeInfo.pods",
    "cel.bind(x, pod.metadata.name, x != '' && optional.ofNonZeroValue(x).value() == 'x')",
    "cel.bind(s, size(pod.metadata.name), s > 0 && optional.ofNonZeroValue(pod.metadata.name).value() == 'x')",
    "cel.bind(k, 'a', {'a': 1}[?k].value() == 1)",
    "cel.bind(k, 'a', {k: 1}['a'] == nodeInfo.pods)",
    "cel.bind(k, 'a', cel.bind(j, k, {'a': usage.cpu}[j] < 8000))",
    "cel.bind(k, \"a'b\", k in node.metadata.labels && node.metadata.labels[\"a'b\"] == 'x')",
    "optional.ofNonZeroValue(nodeInfo.pods).hasValue() && optional.ofNonZeroValue(nodeInfo.pods).value() == 1",
    "optional.ofNonZeroValue(nodeInfo.pods) != optional.none() && optional.ofNonZeroValue(nodeInfo.pods).value() == 1",
    "pod.spec.containers.all(c, c.image != '' && optional.ofNonZeroValue(c.image).value() == 'x')",
    "cel.bind(k, 'a', cel.bind(k, k, {'a': 1}[?k].value() == 1))",
    "cel.bind(m, {'a': usage.cpu}, cel.bind(m, m, m.a < 8000))",
    "cel.bind(m, {'a': usage.cpu}, cel.bind(m, {'b': 1}, m.b < 2) && m.a < 8000)",
])
def test_a_comparison_with_none_or_zero_or_a_name_of_a_constant_guards(expression: str):
    assert absent(document(expression)) == []


@pytest.mark.parametrize("expression", [
    "node.metadata.labels[?'a'] == optional.none() && node.metadata.labels[?'a'].value() == 'x'",
    "node.metadata.labels[?'a'] != optional.none() || node.metadata.labels[?'a'].value() == 'x'",
    "node.metadata.labels[?'b'] != optional.none() && node.metadata.labels[?'a'].value() == 'x'",
    "node.metadata.labels[?'a'] != optional.of('x') && node.metadata.labels[?'a'].value() == 'x'",
    "pod.metadata.name == '' && optional.ofNonZeroValue(pod.metadata.name).value() == 'x'",
    "pod.metadata.name != 'a' && optional.ofNonZeroValue(pod.metadata.name).value() == 'x'",
    "nodeInfo.pods >= 0 && optional.ofNonZeroValue(nodeInfo.pods).value() == 1",
    "nodeInfo.pods > -1 && optional.ofNonZeroValue(nodeInfo.pods).value() == 1",
    "dyn(nodeInfo.pods) != '' && optional.ofNonZeroValue(dyn(nodeInfo.pods)).value() == 1",
    "size(pod.metadata.name) >= 0 && optional.ofNonZeroValue(pod.metadata.name).value() == 'x'",
    "pod.metadata.name != '' && optional.ofNonZeroValue(pod.metadata.namespace).value() == 'x'",
    "cel.bind(k, 'b', {'a': usage.cpu}[k] < 8000)",
    (
        "pod.spec.containers.exists(c, c.image != '') && "
        "pod.spec.containers.exists(c, optional.ofNonZeroValue(c.image).value() == 'x')"
    ),
    "cel.bind(k, 'a', ['b'].all(k, {'a': usage.cpu}[k] < 8000))",
    "cel.bind(m, {'a': usage.cpu}, cel.bind(m, m, m.b < 8000))",
])
def test_a_comparison_that_proves_nothing_of_the_value_does_not_guard(expression: str):
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
    "{'a': usage.cpu}.a < 8000",
    "{'a': usage.cpu}['a'] < 8000",
    "{'a': usage.cpu}[?'a'].value() < 8000",
    "{'a': {'b': usage.cpu}}.a['b'] < 8000",
    "{1: usage.cpu}[1] < 8000",
    "cel.bind(m, {'a': usage.cpu}, m.a < 8000)",
    "variables.made.a['b'] < 8000",
    "{'a': usage.cpu}[params.key] < 8000",
    "has(node.metadata.labels.a) && node.metadata.labels[?'a'].value() == 'x'",
    "node.metadata.labels[?'a'].hasValue() && node.metadata.labels[?'a'].value() == 'x'",
    "node.metadata.labels[?'match'].value() == 'yes'",
    "optional.of(nodeInfo.pods).value() == 1",
    "node.?metadata.value().name == 'a'",
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
    found = [each for each in findings(filtering(expression)) if each.rule.id == "KP023"]
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


@pytest.mark.parametrize(("expression", "where", "advice"), [
    ("node.metadata.labels[?'a'].value() == 'x'", "where the key is absent",
     "write `node.metadata.labels[?'a'].orValue(...)`, or test `hasValue()`"),
    ("node.spec.?providerID.value() == 'x'", "where the field is absent",
     "write `node.spec.?providerID.orValue(...)`, or test `hasValue()`"),
    ("optional.none().value() == 1", "always", "write `optional.none().orValue(...)`, or test `hasValue()`"),
    ("optional.ofNonZeroValue(nodeInfo.pods).value() == 1", "where the value is empty or zero",
     "write `optional.ofNonZeroValue(nodeInfo.pods).orValue(...)`, or test `hasValue()`"),
])
def test_the_value_of_an_optional_that_may_hold_none_is_found(expression: str, where: str, advice: str):
    (found,) = (each for each in findings(filtering(expression)) if each.rule.id == "KP023")
    text = expression.partition(" ==")[0]
    assert (marked(found), found.found.message.partition(":")[0], found.found.help) \
        == (text, f"`{text}` is an error {where}", advice)


def test_a_key_that_a_literal_has_does_not_hide_its_unit():
    expressions = ("{'a': usage.cpu}.a < 8", "{'a': usage.cpu}['a'] < 8", "cel.bind(m, {'a': usage.cpu}, m.a < 8)")
    assert [[each.rule.id for each in findings(filtering(text))] for text in expressions] == [["KP022"]] * 3
