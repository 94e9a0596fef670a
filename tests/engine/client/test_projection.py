"""Projections hold the fields that are read, as the whole object has them, and no others."""

from __future__ import annotations

import gc
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.client.projection import PartPool, Projection, _decoder
from koordpolicy.engine.kubernetes.objects import check_object

NAMES = ("a", "b", "c", "x.y/z")
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=3)
OBJECTS = st.deferred(lambda: st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3))
JSON = st.deferred(lambda: SCALARS | OBJECTS | st.lists(SCALARS | OBJECTS, max_size=3))  # never a list in a list
FIELDS = st.frozensets(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple), max_size=5)


def pruned(value: Any, paths: frozenset[tuple[str, ...]]) -> Any:
    """Return the expected result of a projection, by the words of its contract and not by its code."""
    if () in paths:
        return value
    if isinstance(value, list):
        return [pruned(each, paths) for each in value]
    if not isinstance(value, dict):
        return value
    names = {path[0] for path in paths}
    return {name: pruned(each, frozenset(path[1:] for path in paths if path[0] == name))
            for name, each in value.items() if name in names}


@given(OBJECTS, FIELDS)
def test_a_projection_is_the_object_without_the_fields_that_nobody_reads(item: Any, fields: Any):
    decoded = Projection(fields).decode(json.dumps(item).encode())
    assert decoded == pruned(item, fields)
    assert type(decoded) is dict


@given(FIELDS, FIELDS, OBJECTS)
def test_a_projection_that_covers_another_has_all_of_its_fields(one: Any, other: Any, item: Any):
    wide, narrow = Projection(one), Projection(other)
    if wide.covers(narrow):
        assert pruned(wide.decode(json.dumps(item).encode()), other) == pruned(item, other)
    both = wide | narrow
    assert both.covers(wide)
    assert both.covers(narrow)
    assert Projection().covers(both)
    assert not both.covers(Projection())


def test_absent_null_and_zero_stay_distinct():
    projection = Projection(frozenset({("spec", "replicas"), ("spec", "paused")}))
    texts = [b'{"spec":{}}', b'{"spec":{"replicas":null}}', b'{"spec":{"replicas":0}}', b'{"spec":null}', b"{}"]
    assert [projection.decode(text) for text in texts] == [
        {"spec": {}}, {"spec": {"replicas": None}}, {"spec": {"replicas": 0}}, {"spec": None}, {}]


def test_a_whole_object_comes_without_managed_fields():
    text = b'{"metadata":{"name":"a","managedFields":[{"manager":"x"}]},"spec":{"env":[1]}}'
    assert Projection().decode(text) == {"metadata": {"name": "a"}, "spec": {"env": [1]}}


@pytest.mark.parametrize("text", [b"7", b"[]", b"null", b'{"spec":', b'{"spec":{"a":01}}', b"\xff"])
@pytest.mark.parametrize("projection", [Projection(), Projection(frozenset({("spec", "a")}))])
def test_what_is_not_an_object_is_refused(text: bytes, projection: Projection):
    with pytest.raises(ValueError, match=r"\w"):
        projection.decode(text)


def test_a_thousand_sets_of_fields_leave_a_bounded_number_of_types(small_heap: None):
    def types() -> int:
        gc.collect()
        return sum(getattr(each, "__name__", "") == "Projected" for each in gc.get_objects() if isinstance(each, type))

    def use(numbers: range) -> None:
        for number in numbers:
            Projection(frozenset({("spec", f"field{number}", "a")})).decode(b'{"spec":{}}')

    use(range(200))
    before = types()
    use(range(200, 1200))
    assert types() <= before


def test_equal_sets_of_fields_share_a_decoder():
    one, other = (Projection(frozenset({("metadata", "name"), ("spec", "a")})) for _ in range(2))
    assert one == other
    assert _decoder(one.fields or frozenset()) == _decoder(other.fields or frozenset())


def test_equal_parts_of_objects_become_one_and_the_objects_stay_equal():
    def item(name: str, image: str = "x") -> dict[str, Any]:
        return {"kind": "Pod", "metadata": {"name": name, "labels": {"app": "a"}, "uid": name},
                "spec": {"nodeName": "n" + name[:0] + "ode", "containers": [{"image": image}], "tolerations": []}}

    pool = PartPool()
    one, two, three = (pool.share(json.loads(json.dumps(each))) for each in (item("1"), item("2"), item("3", "y")))
    assert (one, two, three) == (item("1"), item("2"), item("3", "y"))
    assert one["metadata"]["labels"] is two["metadata"]["labels"] is three["metadata"]["labels"]
    assert one["spec"]["containers"] is two["spec"]["containers"]
    assert one["spec"]["nodeName"] is two["spec"]["nodeName"]
    assert three["spec"]["containers"] == [{"image": "y"}]


@given(st.lists(st.fixed_dictionaries({"spec": OBJECTS}), max_size=20), st.integers(0, 5))
def test_sharing_changes_no_object_and_types_stay_distinct(items: list[Any], most: int):
    pool = PartPool(most)
    before = [repr(item) for item in items]
    assert [repr(pool.share(item)) for item in items] == before
    assert len(pool._parts) <= most + 100


_OF_PODS = frozenset({
    ("kind",), ("metadata", "name"), ("metadata", "labels"), ("metadata", "ownerReferences"),
    ("metadata", "creationTimestamp"), ("spec", "nodeName"), ("spec", "tolerations"), ("spec", "containers", "name"),
    ("spec", "containers", "resources"), ("spec", "volumes", "name"), ("spec", "priority"), ("status", "conditions"),
})
_ODD = st.sampled_from([None, 5, "text", [], {}, [5], [{}], {"a": 5}, {"a": "é"}, "\ud800", {"a": "\ud800"}])


_TIMES = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", "later", "", None, 5, "1900-01-01T00:00:00.000000Z")


def _mostly(*good: Any) -> Any:
    return st.one_of(*[st.sampled_from(good)] * 4, _ODD)


_PODS = st.fixed_dictionaries({
    "kind": st.just("Pod"),
    "metadata": _mostly({}) | st.fixed_dictionaries({}, optional={
        "name": _mostly("a", "b"), "labels": _mostly({"app": "a"}, {"app": "b"}), "unread": _ODD,
        "ownerReferences": _mostly([{"kind": "ReplicaSet", "controller": True}]),
        "creationTimestamp": _mostly("2026-01-01T00:00:00Z", "yesterday"),
    }),
}, optional={
    "spec": st.fixed_dictionaries({}, optional={
        "nodeName": _mostly("n", "m", 'a"b', "a\\b", "é", "\n"), "priority": _mostly(7),
        "tolerations": _mostly([{"operator": "Exists"}], [{"nodeName": "n"}], [{'"nodeName': "n"}]),
        "volumes": _mostly([{"name": "kube-api-access-1"}], [{"name": "kube-api-access-2"}, {"name": "data"}]),
        "containers": _mostly([{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
                              [{"name": "c", "resources": {"requests": {"cpu": "-1"}}}]),
    }) | _ODD,
    "status": st.fixed_dictionaries({}, optional={
        "conditions": _mostly(*([{"type": "Ready", "lastTransitionTime": each}, {"lastTransitionTime": other}]
                                for each in _TIMES for other in _TIMES)),
    }) | _ODD,
})


_WHOLE_SECTIONS = frozenset({("metadata",), ("spec",), ("status", "conditions")})


@given(st.lists(_PODS, max_size=12), st.sampled_from(["Pod", "Unheard"]), st.integers(0, 40),
       st.sampled_from([_OF_PODS, _WHOLE_SECTIONS, None]))
def test_a_pool_decodes_what_a_projection_does_and_knows_what_is_malformed(
    items: list[Any], kind: str, most: int, fields: Any,
):
    def is_sound(item: Any) -> bool:
        try:
            check_object(item, kind)
        except ValueError:
            return False
        return True

    pool, projection = PartPool(most), Projection(fields)
    for item in items:
        raw = json.dumps(item, separators=(",", ":")).encode()
        try:
            whole = projection.decode(raw)
        except ValueError as error:
            with pytest.raises(ValueError, match=re.escape(str(error))):
                pool.decode(raw, projection, kind)
            continue
        assert pool.decode(raw, projection, kind) == (whole, is_sound(whole))


def test_a_part_that_passed_the_check_of_one_kind_is_checked_for_another():
    raw = json.dumps({"metadata": {"name": "a"}, "spec": {"nodeSelector": {"matchLabels": {"disk": "ssd"}}}}).encode()
    pool = PartPool()
    projection = Projection(frozenset({("metadata", "name"), ("spec", "nodeSelector")}))
    assert [pool.decode(raw, projection, kind)[1] for kind in ("Unheard", "Pod", "Unheard", "Pod")] == [
        True, False, True, False]


@pytest.mark.parametrize("odd", ['"nodeName": 5', '"nodeName": {}', '"hostNetwork": "yes"', '"hostNetwork": []'])
def test_a_section_that_is_read_as_a_whole_is_checked_like_single_fields(odd: str):
    raw = f'{{"metadata": {{"name": "a"}}, "spec": {{{odd}}}}}'.encode()
    known = PartPool()
    for fields in (("spec",), ("spec", "nodeName"), ("spec", "hostNetwork")):
        projection = Projection(frozenset({("metadata", "name"), fields}))
        item = projection.decode(raw)
        assert known.decode(raw, projection, "Pod") == (item, not item["spec"])


def test_parts_of_equal_json_are_decoded_once():
    def raw(name: str) -> bytes:
        return json.dumps({"metadata": {"name": name, "labels": {"app": "a"}}, "spec": {"tolerations": []}}).encode()

    pool, projection = PartPool(), Projection(_OF_PODS)
    (one, _), (two, _) = (pool.decode(raw(name), projection, "Pod") for name in ("1", "2"))
    assert one["metadata"]["labels"] is two["metadata"]["labels"]
    assert one["spec"]["tolerations"] is two["spec"]["tolerations"]


def test_conditions_without_times_become_one():
    def raw(second: int) -> bytes:
        return json.dumps({"metadata": {"name": "a"}, "status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": f"2026-01-01T00:00:0{second}Z"}]}}).encode()

    pool, projection = PartPool(), Projection(frozenset({
        ("metadata", "name"), ("status", "conditions", "type"), ("status", "conditions", "status")}))
    (one, _), (two, _) = (pool.decode(raw(second), projection, "Pod") for second in (1, 2))
    assert one["status"]["conditions"] is two["status"]["conditions"]
    assert one["status"]["conditions"] == [{"type": "Ready", "status": "True"}]
