"""AdmissionReviews: hostile bodies, answers, and JSON patches."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.manager.admission import AdmissionRefusal, MalformedReview, answer, json_patch, read_review

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a/~b", max_size=2), inner, max_size=3),
    max_leaves=10)


def body(**request: Any) -> bytes:
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", **request}}).encode()


def apply(value: Any, patch: list[dict[str, Any]]) -> Any:
    """Apply a JSON patch: the reference for `json_patch`."""
    value = json.loads(json.dumps(value))
    for step in patch:
        path = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        if not path:
            value = step["value"]
            continue
        held = value
        for part in path[:-1]:
            held = held[int(part)] if isinstance(held, list) else held[part]
        key: Any = int(path[-1]) if isinstance(held, list) else path[-1]
        if step["op"] == "remove":
            del held[key]
        else:
            held[key] = step["value"]
    return value


@given(JSON, JSON)
def test_a_patch_leads_from_one_value_to_the_other(before: Any, after: Any):
    assert apply(before, json_patch(before, after)) == after
    assert json_patch(before, before) == []


def test_true_and_one_differ():
    assert json_patch({"a": 1}, {"a": True}) == [{"op": "replace", "path": "/a", "value": True}]


@pytest.mark.parametrize(("content", "message"), [
    (b"", "the body is not JSON"), (b"\xff", "the body is not JSON"), (b"[" * 100_000, "the body is not JSON"),
    (b"[]", "the body must be an AdmissionReview"), (b'{"kind": "Pod"}', "the body must be an AdmissionReview"),
    (b'{"kind": "AdmissionReview", "apiVersion": "v1"}', ("`apiVersion` must be one of admission.k8s.io/v1, "
     "admission.k8s.io/v1beta1")),
    (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}', "`request` must be an object, not null"),
    (body(uid=""), "`request.uid` must be a string that is not empty"),
    (body(operation=3), "`request.operation` must be a string that is not empty"),
    (body(object=[1]), "`request.object` must be an object, not a list"),
    (body(oldObject={"a": json.loads("[" * 150 + "]" * 150)}), "`request.oldObject` is nested too deeply"),
])
def test_a_body_that_is_no_review_is_refused_with_the_reason(content: bytes, message: str):
    with pytest.raises(MalformedReview) as caught:
        read_review(content)
    assert str(caught.value) == message


@given(st.binary(max_size=50) | JSON.map(lambda value: json.dumps(value).encode()) | st.dictionaries(
    st.sampled_from(["uid", "operation", "object", "name"]), JSON).map(lambda request: body(**request)))
def test_no_body_leads_to_another_error(content: bytes):
    with contextlib.suppress(MalformedReview):
        read_review(content)


def test_answers_carry_uid_and_version_and_a_patch_where_something_changed():
    review = read_review(body(object={"a": 1}, namespace="shop", name="web"))
    assert json.loads(answer(review, patched={"a": 1}))["response"] == {"uid": "u", "allowed": True}
    changed = json.loads(answer(review, patched={"a": 2}))
    assert (changed["apiVersion"], changed["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert json.loads(base64.b64decode(changed["response"]["patch"])) == [{"op": "replace", "path": "/a", "value": 2}]
    assert json.loads(answer(review, refusal=AdmissionRefusal("no", 400)))["response"] == {
        "uid": "u", "allowed": False, "status": {"code": 400, "message": "no"}}
