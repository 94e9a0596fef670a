"""Documents as objects: their text reads back as the same values, and problems in it name fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load, read, to_plain
from koordpolicy.engine.documents.objects import object_source, text_of
from koordpolicy.engine.source import Problems, Source

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5))
def test_the_text_of_an_object_reads_back_as_the_same_values(content) -> None:
    problems = Problems()
    (node,) = read(Source("o", text_of(content)), problems)
    assert (to_plain(node), problems.found) == (content, [])


def document(**spec: object) -> dict[str, object]:
    return {"apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "SchedulerPlugin",
            "metadata": {"name": "x", "labels": {"a.b/c": "d"}}, "spec": spec}


@pytest.mark.parametrize(("spec", "field", "caret"), [
    ({"filter": [{"name": "a", "expression": "true"}, {"name": "b", "expression": "true &&"}]},
     "spec.filter[1].expression", True),
    ({"filters": []}, "spec.filters", False),
    ({"filter": [{"name": "a", "expression": 1}]}, "spec.filter[0].expression", False),
    ({"filter": [{"name": "a"}]}, "spec.filter[0]", False),
])
def test_a_problem_in_an_object_names_the_field_and_no_line(spec, field, caret) -> None:
    source = object_source("crd:SchedulerPlugin/x", text_of(document(**spec)))
    loaded = load([source])
    problems = Problems(list(loaded.problems))
    compile_documents(loaded.documents, problems)
    (problem,) = problems.found
    assert problem.span is not None
    assert str(problem.span) == f"crd:SchedulerPlugin/x: {field}"
    assert problem.to_json().keys() & {"file", "field", "line", "column"} == {"file", "field"}
    head, excerpt, *_ = problem.render().splitlines()
    assert head.startswith(f"crd:SchedulerPlugin/x: {field}: error: ")
    assert excerpt.startswith("  | ")
    assert not caret or "true &&" in excerpt


@pytest.mark.parametrize(("text", "offset_of", "field"), [
    ('{"a": {"b.c/d": [1, {"e": 2}]}}', "2", 'a["b.c/d"][1].e'),
    ('{"a": {"b.c/d": [1, {"e": 2}]}}', '"a"', "a"),
    ('{"a": 1}', "{", ""),
])
def test_the_path_of_a_field_is_written_as_in_cel(text, offset_of, field) -> None:
    assert object_source("o", text).span(text.index(offset_of)).field == field
