"""The fast yes of a schema must never be said where jsonschema says no, and be said of every valid document."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.documents import Document, Kind, load, read, read_file, schema, to_plain
from koordpolicy.engine.documents.schema_predicate import predicate

CASES = Path(__file__).parents[2] / "cases"
VALID = load([read_file(CASES / "the-three-kinds" / "policy.yaml")]).documents

values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([0.5, 1.0, "", "a", "b", "5s"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abc"), below, max_size=3),
    max_leaves=8,
)
schemas = st.recursive(
    st.booleans() | st.fixed_dictionaries({}, optional={
        "type": st.sampled_from(
            ["string", "integer", "number", "boolean", "array", "object", "null", ["string", "null"]],
        ),
        "enum": st.sampled_from([["a", "b"], [1, "a"]]), "const": st.sampled_from(["a", 1]),
        "pattern": st.sampled_from(["^a", "^[0-9]+s$"]),
        "minLength": st.integers(0, 2), "maxLength": st.integers(0, 2), "minimum": st.integers(-1, 2),
        "maximum": st.integers(-1, 2),
        "minItems": st.integers(0, 2), "maxItems": st.integers(0, 2), "uniqueItems": st.booleans(),
        "minProperties": st.integers(0, 2), "maxProperties": st.integers(0, 2),
        "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
    }),
    lambda below: st.fixed_dictionaries({}, optional={
        "properties": st.dictionaries(st.sampled_from("abc"), below, max_size=3), "additionalProperties": below,
        "items": below,
        "anyOf": st.lists(below, min_size=1, max_size=2), "allOf": st.lists(below, min_size=1, max_size=2),
        "oneOf": st.lists(below, min_size=1, max_size=2),
        "not": below, "then": below, "else": below,
        "if": st.just({"properties": {"a": {"enum": ["a", "b"]}}, "required": ["a"]}) | below,
    }),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(schemas, values)
def test_yes_is_never_said_of_what_does_not_hold(declared: object, data: object) -> None:
    if predicate(declared)(data):
        assert list(jsonschema.Draft202012Validator(declared).iter_errors(data)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("document", VALID, ids=lambda document: document.kind.value)
def test_yes_is_said_of_every_valid_document(document: Document) -> None:
    assert predicate(schema(document.kind.value, "internal"))(document.plain)
    text = read_file(CASES / "the-three-kinds" / "policy.yaml")
    (node,) = [each for each in read(text) if each.fields["kind"].text == document.kind.value]
    assert predicate(schema(document.kind.value))(to_plain(node))


@pytest.mark.parametrize("version", ["v1alpha2", "internal"])
@pytest.mark.parametrize("kind", list(Kind))
def test_every_schema_of_ours_is_understood(kind: Kind, version: str) -> None:
    assert predicate(schema(kind.value, version)).__name__ != "_never"
