from __future__ import annotations

import pytest

from koordpolicy.engine.kubernetes.selectors import (
    check_selector,
    matches_labels,
    matches_node,
    parse_selector,
    tolerates,
    untolerated,
)


def requirement(key: str, operator: str, *values: str) -> dict[str, object]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(("selector", "taken"), [
    (None, True), ({}, True), ({"matchLabels": {"a": "1"}}, True), ({"matchLabels": {"a": "2"}}, False),
    (requirement("a", "In", "1", "2"), True), (requirement("b", "In", "1"), False),
    (requirement("b", "NotIn", "1"), True), (requirement("a", "NotIn", "1"), False),
    (requirement("a", "Exists"), True), (requirement("b", "DoesNotExist"), True), (requirement("a", "Gt", "0"), True),
    (requirement("a", "Lt", "x"), False), (requirement("b", "Gt", "0"), False),
])
def test_a_selector_takes_labels_as_kubernetes_does(selector, taken):
    assert matches_labels(selector, {"a": "1"}) is taken


@pytest.mark.parametrize(("selector", "message"), [
    (requirement("a", "Is", "1"), "`Is` is not a valid label selector operator"),
    (requirement("a", "In"), "`In` on label `a` needs values"),
    (requirement("a", "Exists", "1"), "`Exists` on label `a` takes no values"),
])
def test_a_selector_that_cannot_be_read_is_refused(selector, message):
    with pytest.raises(ValueError, match=message):
        check_selector(selector)


NODE = {"metadata": {"name": "n", "labels": {"zone": "a"}}, "spec": {"taints": [
    {"key": "soft", "effect": "PreferNoSchedule"}, {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
]}}


def affine(*terms: dict[str, object]) -> dict[str, object]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"spec": {"affinity": {"nodeAffinity": required}}}


@pytest.mark.parametrize(("pod", "taken"), [
    ({"spec": {}}, True), ({"spec": {"nodeSelector": {"zone": "b"}}}, False), (affine(), False), (affine({}), False),
    (affine(requirement("zone", "In", "b"), requirement("zone", "In", "a")), True),
    (affine({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}), True),
])
def test_required_affinity_is_any_of_its_terms_and_an_empty_one_takes_no_node(pod, taken):
    assert matches_node(pod, NODE) is taken


@pytest.mark.parametrize(("toleration", "covered"), [
    ({"operator": "Exists"}, True), ({"key": "gpu", "operator": "Exists"}, True), ({"key": "gpu"}, False),
    ({"key": "gpu", "value": "yes"}, True), ({"key": "gpu", "value": "yes", "effect": "NoExecute"}, False),
])
def test_a_toleration_covers_key_value_and_effect(toleration, covered):
    assert tolerates(toleration, NODE["spec"]["taints"][1]) is covered
    assert (untolerated({"spec": {"tolerations": [toleration]}}, NODE) is None) is covered


@pytest.mark.parametrize(("text", "labels", "matches"), [
    ("", {}, True), ("a=b", {"a": "b"}, True), ("a==b", {"a": "c"}, False), ("a!=b", {}, True),
    ("a!=b", {"a": "b"}, False), ("a", {"a": ""}, True), ("a", {}, False), ("!a", {}, True), ("! a", {"a": ""}, False),
    ("a in (b, c)", {"a": "c"}, True), ("a in (b)", {}, False), ("a notin (b,c)", {}, True), ("a>1", {"a": "2"}, True),
    ("a<1", {"a": "x"}, False), ("a=b , c in (d),!e", {"a": "b", "c": "d"}, True),
    ("example.com/a=", {"example.com/a": ""}, True),
])
def test_a_selector_may_be_written_as_text(text, labels, matches):
    assert matches_labels(parse_selector(text), labels) is matches


@pytest.mark.parametrize("text", ["a b", "a in b", "a in (b", "=b", "a=b c", ",", "a(b)"])
def test_a_text_that_is_no_selector_is_refused(text):
    with pytest.raises(ValueError, match="write a label selector"):
        parse_selector(text)
