from __future__ import annotations

import pytest

from koordpolicy.engine.cel.values.types import INT, STRING, TIMESTAMP, Type, list_of, map_of, parse_type


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("int", INT),
        (" google.protobuf.Timestamp ", TIMESTAMP),
        ("list(string)", list_of(STRING)),
        ("map(string, list( kubernetes.Taint ))", map_of(STRING, list_of(Type("kubernetes.Taint")))),
        ("optional_type(map(string,int))", Type("optional_type", (map_of(STRING, INT),))),
    ],
)
def test_a_type_is_read_as_it_is_spelled(text, want):
    assert parse_type(text) == want
    assert parse_type(str(want)) == want


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a name is expected, not `the end`"),
        ("list(", "a name is expected, not `the end`"),
        ("list()", "a name is expected, not `)`"),
        ("list(int", "`,` or `)` is expected, not `the end`"),
        ("map(string,)", "a name is expected, not `)`"),
        ("list(int))", "nothing is expected before `)`"),
        ("int int", "nothing is expected before `int`"),
        ("list<int>", "nothing is expected before `<`"),
        ("7", "a name is expected, not `7`"),
    ],
)
def test_what_spells_no_type_is_refused_with_the_reason(text, why):
    with pytest.raises(ValueError, match="is not a type") as caught:
        parse_type(text)
    assert str(caught.value) == f"`{text}` is not a type: {why}"
