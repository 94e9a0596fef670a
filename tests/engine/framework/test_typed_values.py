"""Types of params: as their schema declares them, else as the values are."""

from __future__ import annotations

import pytest

from koordpolicy.engine.cel.scalar.program import compile  # noqa: A004 - the name of our function
from koordpolicy.engine.cel.values.types import BOOL, DOUBLE, DYN, INT, STRING, list_of, map_of
from koordpolicy.engine.framework.slots import Slot, environment
from koordpolicy.engine.framework.typed_values import typed
from koordpolicy.engine.source import PolicyError


def test_params_have_the_types_of_their_values() -> None:
    found = typed({
        "i": 1, "f": 1.5, "b": True, "s": "x", "n": None, "l": [1, 2], "mixed": [1, "x"], "none": [],
        "map": {"a": 1, "b": 2}, "object": {"a": 1, "b": "x"},
    })
    declared = {name: field.type for name, field in found.types[0].fields.items()}
    assert {name: type_ for name, type_ in declared.items() if name != "object"} == {
        "i": INT, "f": DOUBLE, "b": BOOL, "s": STRING, "n": DYN, "l": list_of(INT), "mixed": list_of(DYN),
        "none": list_of(DYN),
        "map": map_of(STRING, INT),
    }
    inner = {each.name: each for each in found.types}[declared["object"].name]
    assert {name: field.type for name, field in inner.fields.items()} == {"a": INT, "b": STRING}


def test_params_have_the_types_of_their_schema_where_there_is_one() -> None:
    schema = {
        "properties": {
            "ratio": {"type": "number"}, "zone": {"type": "string"},
            "names": {"type": "array", "items": {"type": "string"}},
        },
    }
    found = typed({"ratio": 1}, schema)
    assert {name: field.type for name, field in found.types[0].fields.items()} == {
        "ratio": DOUBLE, "zone": STRING, "names": list_of(STRING),
    }


def test_texts_of_a_schema_are_read_as_what_their_format_says() -> None:
    schema = {"properties": {
        "since": {"type": "string", "format": "date-time"}, "grace": {"type": "string", "format": "duration"},
        "port": {"x-kubernetes-int-or-string": True},
        "weights": {"type": "object", "additionalProperties": {"type": "integer"}},
        "zones": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "closed": {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
    }}
    params = {"since": "2026-01-01T00:00:00Z", "grace": "90s", "port": 80, "zones": ["a", "b"], "closed": {"a": 1}}
    scope = environment(Slot.FILTER, params=typed(params, schema))
    assert {name: str(field.type) for name, field in scope.types["Params"].fields.items()} == {
        "since": "google.protobuf.Timestamp", "grace": "google.protobuf.Duration", "port": "dyn",
        "weights": "map(string, int)",
        "zones": "list(string)", "closed": "Params.closed",
    }
    program = compile(
        "params.since + params.grace == timestamp('2026-01-01T00:01:30Z') && params.zones == ['b', 'a']", scope,
    )
    assert (program.evaluate({"params": params}), program.metered({"params": params})[0]) == (True, True)
    with pytest.raises(PolicyError, match=r"`Params.closed` cannot be indexed"):
        compile("params.closed['b'] == 1", scope)
