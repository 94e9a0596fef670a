"""Projections hold the fields that are read, as the whole object has them, and no others."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.client.projection import PartPool, Projection, _decoder

NAMES = ("a", "b", "c", "x.y/z")
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=3)
OBJECTS = st.deferred(lambda: st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3))
JSON = st.deferred(lambda: SCALARS | OBJECTS | st.lists(SCALARS | OBJECTS, max_size=3))  # never a list in a list
FIELDS = st.frozensets(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple), max_size=5)


def pruned(value: Any, paths: frozenset[tuple[str, ...]]) -> Any:
    """Return what a projection should: by the words of its contract, not by its code."""
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


def test_a_thousand_sets_of_fields_leave_a_bounded_number_of_types():
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
