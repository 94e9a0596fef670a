from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.kubernetes import types
from koordpolicy.engine.kubernetes.objects import _KINDS, LATEST, check_object, nanoseconds, parse_fault

NAME = {"metadata": {"name": "a"}}


def fault(item, kind="Pod"):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what is compared
        check_object(item, kind)
    return str(caught.value)


@pytest.mark.parametrize(("kind", "item", "message"), [
    ("Pod", {"status": {"phase": {}}}, "`status.phase` must be a string, not an object"),
    ("Pod", {"spec": []}, "`spec` must be an object, not a list"),
    ("Pod", {"spec": {"containers": {}}}, "`spec.containers` must be a list, not an object"),
    ("Pod", {"spec": {"containers": [{}, None]}}, "`spec.containers[1]` must be an object, not null"),
    ("Pod", {"spec": {"hostNetwork": 1}}, "`spec.hostNetwork` must be true or false, not a number"),
    ("Pod", {"spec": {"priority": 2**63}}, "`spec.priority`: the number does not fit into 64 bits"),
    ("Pod", {"spec": {"priority": 1.5}}, "`spec.priority` must be a whole number"),
    ("Pod", {"metadata": {"labels": ["a"]}}, "`metadata.labels` must be an object, not a list"),
    ("Pod", {"metadata": {"labels": {"a": None}}}, "`metadata.labels.a` must be a string, not null"),
    ("Pod", {"metadata": {"name": "\ud800"}}, "`metadata.name` holds half of a character (a lone surrogate)"),
    (
        "Pod", {"metadata": {"creationTimestamp": "x"}},
        "`metadata.creationTimestamp`: `x` is not a time like 2026-01-31T12:00:00Z",
    ),
    ("Pod", {"spec": {"containers": [{"resources": {"requests": {"cpu": []}}}]}},
     "`spec.containers[0].resources.requests.cpu` must be a quantity, not a list"),
    (
        "Pod", {"spec": {"overhead": {"cpu": "1e999999999"}}},
        "`spec.overhead.cpu`: `1e999999999` is not a quantity: its exponent is out of range",
    ),
    ("Pod", {"spec": {"overhead": {"cpu": "-1"}}}, "`spec.overhead.cpu` is `-1`: it must not be negative"),
    ("ElasticQuota", {"spec": {"max": {"memory": "8Ei"}}}, None),
    ("ElasticQuota", {"spec": {"max": {"memory": "9e30"}}}, "`spec.max.memory`: the amount does not fit into 64 bits"),
    (
        "Reservation", {"spec": {"ttl": "soon"}},
        "`spec.ttl`: `soon` is not a duration: write it as 1h30m, 1.5s or 250ms (a day is 24h)",
    ),
    ("PodDisruptionBudget", {"spec": {"minAvailable": []}}, "`spec.minAvailable` must be a number, not a list"),
    ("StorageClass", {"allowedTopologies": [{"matchLabelExpressions": {}}]},
     "`allowedTopologies[0].matchLabelExpressions` must be a list, not an object"),
    ("Widget", {"metadata": {"labels": 5}, "spec": 5}, "`metadata.labels` must be an object, not a number"),
    ("Widget", {"spec": 5}, None),
])
def test_a_field_that_is_not_as_declared_is_named(kind, item, message):
    if message is None:
        check_object(item, kind)
    else:
        assert fault(item, kind) == message


def test_every_kind_that_is_read_is_declared():
    assert {name for name in _KINDS.values() if name not in types.load()} == set()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["metadata", "spec", "status", "labels", "containers", "name", "template"]), inner, max_size=4,
    ),
    max_leaves=12)


@given(
    st.sampled_from([*_KINDS, "Widget"]),
    st.dictionaries(st.sampled_from(["metadata", "spec", "status", "value"]), JSON),
)
def test_any_json_is_taken_or_named_with_its_path(kind, item):
    found = ""
    try:
        check_object(item, kind)
    except ValueError as error:
        found = str(error)
    assert found[:1] in ("", "`")


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:01Z", 10**9), ("0001-01-01T00:00:00Z", -LATEST),
        ("9999-12-31T23:59:59.999999+00:00", LATEST), ("2026-01-01T01:00:00+01:00", 1_767_225_600 * 10**9),
    ],
)
def test_times_saturate(text, ns):
    assert nanoseconds(text, "") == ns


@pytest.mark.parametrize(("parse", "text", "fault"), [
    (json.loads, "9" * 4301, "a number has more than 4300 digits; shorten it, or write it as a string"),
    (yaml.safe_load, "9" * 4301, "a number has more than 4300 digits; shorten it, or write it as a string"),
    (json.loads, "{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
])
def test_a_fault_of_a_parser_names_no_function_of_the_interpreter(parse, text, fault):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is compared
        parse(text)
    assert parse_fault(caught.value) == fault
