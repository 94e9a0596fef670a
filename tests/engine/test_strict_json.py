"""Constants that Python takes for JSON are refused at their place."""

from __future__ import annotations

import json

import pytest

from koordpolicy.engine.strict_json import ConstantError, decode


@pytest.mark.parametrize(("text", "constant", "place"), [
    ("NaN", "NaN", (1, 1)),
    ('{"NaN": "a \\" NaN",\n "b": [1, NaN]}', "NaN", (2, 11)),
    ("[1, Infinity]", "Infinity", (1, 5)),
    ('["Infinity", -Infinity]', "-Infinity", (1, 14)),
])
def test_a_constant_is_a_fault_at_its_place(text: str, constant: str, place: tuple[int, int]):
    with pytest.raises(ConstantError, match=f"^`{constant}` is not a number: line") as caught:
        decode(text)
    assert (caught.value.constant, (caught.value.lineno, caught.value.colno)) == (constant, place)


def test_all_else_is_as_python_decodes_it():
    assert decode('{"a": [1, 1.5, true, null, "NaN"]}') == {"a": [1, 1.5, True, None, "NaN"]}
    assert decode("[1, 1.5]", parse_int=str, parse_float=repr) == ["1", "'1.5'"]
    with pytest.raises(json.JSONDecodeError):
        decode("{")
