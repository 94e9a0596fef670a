from __future__ import annotations

import pytest

from .__main__ import FOUND, case_of, keep, load
from .examination import Broken, Case, check_value, examine


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_found_once_is_mended(path):
    examine(load(path))


def test_a_case_comes_back_from_its_file_as_it_was(tmp_path):
    case = case_of("a.b > 1 && b.startsWith('x')", "plain", 7)
    assert load(keep("typed", case, "why", tmp_path)) == case
    assert examine(case) == "answered"


def test_a_value_of_pythons_own_is_noticed():
    for value in (object(), [len], {"a": {1, 2}}):
        with pytest.raises(Broken):
            check_value(value)


@pytest.mark.parametrize("text", [
    "x.__class__", "''.format.__globals__", "''.__class__.__mro__", "a.__dict__", "[].append", "{}.keys()",
    "'{0.__class__}'.format([a])",
    "type(a).mro()", "__import__('os')", "a.items()", "(1).bit_length()", "b''.decode()", "a.map(x, x.__class__)",
    "dyn('').format",
])
def test_nothing_behind_a_value_can_be_reached(text):
    rows = [{"a": value} for value in ({"b": 1}, [1], "text", 1, 2.5, None, True)]
    assert examine(Case(text, "plain", rows, {"b": 1})) in ("refused", "answered")
