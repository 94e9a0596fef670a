"""Elements that a list may lack are found where nothing guarantees them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .conftest import absent, filtering, findings, scheduler_policy


def document(expression: str) -> str:
    return scheduler_policy(
        "params: {list: [1, 2]}\n"
        "variables:\n"
        "- {name: hot, expression: 'devices.filter(d, d.free > 10)'}\n"
        "- {name: count, expression: 'size(variables.hot)'}\n"
        "- {name: some, expression: 'variables.hot.size() > 0'}\n"
        "- {name: highest, expression: 'devices.filter(d, d.free > 10).map(d, d.free).max()'}\n"
        "- {name: second, expression: \"pod.metadata.name.split('-')[1]\"}\n"
        f"filter:\n- name: it\n  expression: >-\n    {expression}",
    )


@pytest.mark.parametrize("expression", [
    "devices.filter(d, d.free > 10)[0].free > 5",
    "devices.map(d, d.free > 5, d.free).min() > 5",
    "devices.map(d, d.free).max() > 5",
    "devices[0].free > 5",
    "devices.map(d, d.free).sort()[0] > 5",
    "devices.map(d, d.free)[0] > 5",
    "math.greatest(devices.map(d, d.free)) > 5",
    "devices.filter(d, d.free > 10).first().value().free > 5",
    "devices.filter(d, d.free > 10)[?0].value().free > 5",
    "pod.spec.containers[1].name != node.metadata.name",
    "pod.metadata.name.split('-')[1] != node.metadata.name",
    "cel.bind(f, devices.filter(d, d.free > 10), f[0].free > 5)",
    "variables.hot[0].free > 5",
    "devices.size() > 0 && variables.hot[0].free > 5",
    "devices.exists(d, d.free > 1) && devices.filter(d, d.free > 10)[0].free > 5",
    "size(devices) > 0 ? devices[1].free > 5 : false",
    "devices[devices.size() - 1].free > 5",
    "pod.metadata.?ownerReferences.orValue([])[0].kind != node.metadata.name",
    "node.status.conditions.filter(c, c.type == 'Ready')[0].status == 'True'",
    "pod.metadata.name.find('a') != 'b' && pod.metadata.name.findAll('[0-9]+')[0] != node.metadata.name",
    "devices.size() > double('-Infinity') && devices[0].free > 5",
    "variables.highest > 5",
    "pod.metadata.name != 'a' && variables.second != node.metadata.name",
])
def test_an_element_that_nothing_guarantees_is_found(expression: str):
    assert len(absent(document(expression))) == 1


@pytest.mark.parametrize("expression", [
    "devices.filter(d, d.free > 10)[?0].hasValue() && devices.filter(d, d.free > 10)[0].free > 5",
    "size(devices.filter(d, d.free > 10)) > 0 && devices.filter(x, x.free > 10)[0].free > 5",
    "devices.exists(d, d.free > 10) && devices.filter(x, x.free > 10)[0].free > 5",
    "devices.exists(d, d.free > 10 && d.free > 5) && devices.filter(x, x.free > 10).map(y, y.free).max() > 4",
    "variables.hot.size() > 0 && variables.hot[0].free > 5",
    "variables.count > 0 ? variables.hot[0].free > 5 : false",
    "variables.count == 0 || variables.hot[0].free > 5",
    "variables.some && variables.hot[0].free > 5",
    "variables.hot != [] && variables.hot[0].free > 5",
    "cel.bind(f, devices.filter(d, d.free > 10), f.size() == 0 || f[0].free > 5)",
    "size(devices) > 1 && devices[1].free > 5 && devices[0].free > 4",
    "devices.size() >= 2 ? devices[1].free > 5 : false",
    "devices.size() > 0 && devices[devices.size() - 1].free > 5",
    "devices.filter(d, d.free > 10).first().hasValue() && devices.filter(d, d.free > 10)[0].free > 1",
    "pod.spec.containers[0].name != node.metadata.name",
    "pod.metadata.name.split('-')[0] != node.metadata.name",
    "pod.metadata.name.contains('-') && pod.metadata.name.split('-')[1] != node.metadata.name",
    "pod.metadata.name.matches('.*-.*') ? pod.metadata.name.split('-')[1] != node.metadata.name : true",
    "cel.bind(p, pod.metadata.name.split('-'), size(p) > 2 && p[2] != node.metadata.name)",
    "pod.spec.containers.map(c, c.name).sort()[0] != node.metadata.name",
    "has(node.spec.taints) && node.spec.taints[0].key != 'a'",
    "devices.all(d, d.free >= devices[0].free)",
    "devices.all(d, d.free >= devices.map(x, x.free).min())",
    "!devices.all(d, !(d.free > 10)) && devices.filter(d, d.free > 10)[0].free > 5",
    "lists.range(devices.size()).all(i, devices[i].free > 1)",
    "[requests.cpu, requests.memory].max() < allocatable.memory",
    "math.greatest([requests.cpu, 5]) < allocatable.cpu",
    "lists.range(8).map(i, i < nodeInfo.pods ? 1 : 0)[7] == 1",
    "devices.filter(d, d.free > 10)[?0].?free.orValue(0) > 5",
    "'x' in pod.spec.containers.map(c, c.name) && pod.spec.containers.map(c, c.name)[0] != node.metadata.name",
    "params.list[1] < nodeInfo.pods",
    "pod.metadata.name.contains('-') && variables.second != node.metadata.name",
    "pod.metadata.name.startsWith('a-') && variables.second != node.metadata.name",
    "variables.hot.size() != 0 && variables.highest > 5",
    "devices.size() > nodeInfo.pods || nodeInfo.pods in [1, 2, 3]",
])
def test_an_element_that_is_there_or_is_guarded_is_not_found(expression: str):
    assert absent(document(expression)) == []


_NAME = "pod.metadata.name"


@pytest.mark.parametrize("guard", [
    "{0}.contains('-')", "{0}.startsWith('a-')", "{0}.endsWith('-b')", "{0}.matches('^[a-z]+-[0-9]+$')",
    "{0}.matches('a[-]b')", "{0}.matches('x\\\\-y')", "{0}.matches('^(a-b|c-d)$')", "{0}.matches('(?:a-)+b')",
    "{0}.matches('(?P<kind>web|db)-')", "{0}.indexOf('-') >= 0", "{0}.indexOf('-') != -1", "{0}.lastIndexOf('-') > 0",
    "{0}.indexOf('-') == 3", "!({0}.indexOf('-') < 0)", "{0} == 'web-1'", "{0} in ['web-1', 'web-2']",
    "{0}.split('-').size() > 1", "size({0}.split('-')) == 2", "{0}.contains('a-b')",
])
@pytest.mark.parametrize("place", [
    "{0} && {1}.split('-')[1] != node.metadata.name", "{0} ? {1}.split('-')[1] == node.metadata.name : true",
    "!({0}) || {1}.split('-', 2)[1] != node.metadata.name", "{0} && {1}.split('-').reverse()[1] != node.metadata.name",
    "cel.bind(p, {1}.split('-'), {0} && p[1] != node.metadata.name)", "{0} && variables.second != node.metadata.name",
])
def test_a_test_of_the_text_guards_the_parts_that_it_proves(guard: str, place: str):
    assert absent(document(place.format(guard.format(_NAME), _NAME))) == []


@pytest.mark.parametrize(("guard", "read"), [
    ("{0}.contains('-')", "{0}.split('-')[2]"),
    ("{0}.contains('-')", "{0}.split('.')[1]"),
    ("{0}.contains('-')", "pod.metadata.namespace.split('-')[1]"),
    ("{0}.contains('-')", "{0}.split('--')[1]"),
    ("!{0}.contains('-')", "{0}.split('-')[1]"),
    ("{0}.startsWith('web')", "{0}.split('-')[1]"),
    ("{0}.startsWith('a-')", "{0}.split('-')[2]"),
    ("{0}.matches('^[a-z]+$')", "{0}.split('-')[1]"),
    ("{0}.matches('^[a-z]+-?[0-9]*$')", "{0}.split('-')[1]"),
    ("{0}.matches('^[-_a-z]+$')", "{0}.split('-')[1]"),
    ("{0}.matches('^(a-b|c)$')", "{0}.split('-')[1]"),
    ("{0}.matches('^(a-){{0,3}}b$')", "{0}.split('-')[1]"),
    ("{0}.matches('a-.*')", "{0}.split('-')[2]"),
    ("{0}.indexOf('-') >= -1", "{0}.split('-')[1]"),
    ("{0}.indexOf('-') < 5", "{0}.split('-')[1]"),
    ("{0}.indexOf('-') > 0", "{0}.split('.')[1]"),
    ("{0}.indexOf('-') > 0", "{0}.split('-')[2]"),
    ("{0} in ['web-1', 'web']", "{0}.split('-')[1]"),
    ("{0} != 'web-1'", "{0}.split('-')[1]"),
    ("size({0}.split('-')) > 1", "{0}.split('-')[2]"),
    ("{0}.contains('-')", "{0}.split('-', 1)[1]"),
])
def test_a_test_of_the_text_guards_no_part_that_it_does_not_prove(guard: str, read: str):
    assert len(absent(document(f"{guard.format(_NAME)} && {read.format(_NAME)} != node.metadata.name"))) == 1


@pytest.mark.parametrize("guard", [
    "{0}.matches(node.metadata.name)", "{0}.contains(node.metadata.name)", "{0}.matches('(?i)^a-b$')",
    "{0}.indexOf(node.metadata.name) >= 0",
])
def test_a_test_with_an_unknown_text_or_pattern_may_guard_any_part(guard: str):
    assert absent(document(f"{guard.format(_NAME)} && {_NAME}.split('-')[1] != node.metadata.name")) == []


_GUARDS = st.sampled_from([
    "{0}.size() > 0", "size({0}) >= 1", "0 < size({0})", "size({0}) != 0", "!({0}.size() == 0)", "{0} != []",
    "{0}.exists(x, x.free < 3)", "!{0}.all(x, x.free < 3)", "{0}.exists_one(x, x.free < 3)",
    "{0}[?0].hasValue()", "{0}.first().hasValue()", "{0}.map(x, x.free).size() == 2",
    "{0}.filter(x, x.free < 3).size() > 0", "cel.bind(n, 1, true) && {0}.size() > 0",
])
_LISTS = st.sampled_from(["devices", "devices.filter(d, d.free > 7)", "variables.hot"])
_READS = st.sampled_from([
    "{0}[0].free > 5", "{0}.map(y, y.free).min() > 5", "{0}.map(y, y.free).sort()[0] > 5",
    "{0}[{0}.size() - 1].free > 5", "{0}.first().value().free > 5", "math.least({0}.map(y, y.free)) > 5",
])
_PLACES = st.sampled_from([
    "{0} && {1}", "{1} && {0}", "!({0}) || {1}", "{1} || !({0})", "({0}) ? {1} : nodeInfo.pods > 4",
    "!({0}) ? nodeInfo.pods > 4 : {1}", "nodeInfo.pods > 1 && {0} && (nodeInfo.pods < 9 || {1})",
])


@given(_GUARDS, _LISTS, _READS, _PLACES)
def test_every_guard_in_every_place_guards_its_own_list_and_no_shorter_one(
    guard: str, of: str, read: str, place: str,
):
    assert absent(document(place.format(guard.format(of), read.format(of)))) == []
    shorter = f"{of}.filter(z, z.free > 9)"
    assert len(absent(document(place.format(guard.format(of), read.format(shorter))))) == 1


@pytest.mark.parametrize(("expression", "message", "help_"), [
    ("devices[0].free > 5",
     "`devices[0]` is an error where the list is empty: the node is refused, reason `PolicyError`",
     "write `devices[?0].orValue(...)`, or test `size(devices) > 0`"),
    ("pod.metadata.name.split('-')[2] != 'a'",
     ("`pod.metadata.name.split('-')[2]` is an error where the list has fewer than 3 elements: "
      "the node is refused, reason `PolicyError`"),
     "write `pod.metadata.name.split('-')[?2].orValue(...)`, or test `size(pod.metadata.name.split('-')) > 2`"),
    ("devices.map(d, d.free).min() > 5",
     "`devices.map(d, d.free).min()` is an error where the list is empty: the node is refused, reason `PolicyError`",
     "test `size(devices.map(d, d.free)) > 0`"),
    ("devices.first().value().free > 5",
     "`devices.first().value()` is an error where the list is empty: the node is refused, reason `PolicyError`",
     "write `devices.first().orValue(...)`"),
])
def test_it_is_said_when_it_is_an_error_and_what_is_safe(expression: str, message: str, help_: str):
    found = [each.found for each in findings(filtering(expression)) if each.rule.id == "KP023"]
    assert [(each.message, each.help) for each in found] == [(message, help_)]


def test_a_long_list_is_not_repeated_in_the_help():
    found = [each.found for each in findings(filtering(
        "devices.filter(d, d.free > 10 && d.free < 800 && d.free != 500 && d.free != 400)[0].free > 5",
    )) if each.rule.id == "KP023"]
    assert [each.help for each in found] == [
        "write `[?0].orValue(...)` after the list, or test that its size is above 0",
    ]


def test_a_rule_before_it_and_a_condition_guarantee_an_element():
    guard, read = "{name: g, expression: devices.size() > 1}", "{name: r, expression: 'devices[1].free > 5'}"
    assert absent(scheduler_policy(f"filter:\n- {guard}\n- {read}")) == []
    assert absent(scheduler_policy(f"filter:\n- {read}\n- {guard}")) == ["devices[1]"]
    assert absent(scheduler_policy(f"matchConditions:\n- {guard}\nfilter:\n- {read}")) == []


def test_a_long_chain_of_variables_is_read_once():
    chain = "".join(
        f"- {{name: v{number}, expression: 'variables.v{number - 1}.filter(d, d.free > {number})'}}\n"
        for number in range(1, 39)
    )
    text = scheduler_policy(
        "variables:\n- {name: v0, expression: devices}\n" + chain
        + "filter:\n- {name: it, expression: 'variables.v38[0].free > 5'}",
    )
    assert absent(text) == ["variables.v38[0]"]
