"""The number of parts that tests of a text prove, held against texts that pass them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.lint.split_parts import parts_matching, parts_with


def test_a_text_proves_the_parts_of_each_separator_in_it() -> None:
    assert parts_with("a-b") == {"a": 2, "-": 2, "b": 2, "a-": 2, "-b": 2, "a-b": 2}


@pytest.mark.parametrize(("pattern", "parts"), [
    ("^[a-z]+-[0-9]+$", {"-": 2}),
    ("(x-){2}", {"x": 3, "-": 3, "x-": 3, "-x": 2, "x-x": 2, "-x-": 2, "x-x-": 2}),
    ("-{2,}", {"-": 3, "--": 2}),
    (r"\d\.\d\.", {".": 3}),
    ("a-|b-", {"-": 2}),
    (".*", {}),
    ("[-]", {"-": 2}),
    (r"[\-]", {"-": 2}),
    ("[^-]", {}),
    ("[-.]", {}),
])
def test_a_pattern_proves_what_every_match_contains(pattern: str, parts: dict[str, int]) -> None:
    assert parts_matching(pattern) == parts


@pytest.mark.parametrize("pattern", ["(?i)a-", "(?i:a-)", r"\pL-", "a**", "(", ")", "[", "*", "-" * 300, "(" * 40])
def test_nothing_is_known_of_a_pattern_that_is_not_simple(pattern: str) -> None:
    assert parts_matching(pattern) is None


_PIECES = st.recursive(
    st.sampled_from(["a", "-", "--", "b", "[ab]", "[-]", "[a-b]", ".", "\\-", "^", "$", ""]),
    lambda below: st.one_of(
        st.lists(below, min_size=1, max_size=3).map("".join),
        st.lists(below, min_size=1, max_size=3).map(lambda each: f"({'|'.join(each)})"),
        below.map(lambda each: f"(?:{each})"),
        st.tuples(below, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,1}", "{2,}", "+?"])).map(
            lambda each: f"(?:{each[0]}){each[1]}"),
    ), max_leaves=8,
)


@given(_PIECES, st.text("ab-", max_size=12))
def test_no_text_that_matches_has_fewer_parts(pattern: str, text: str) -> None:
    parts = parts_matching(pattern)
    if parts is not None and re.search(pattern, text):
        assert {each: number for each, number in parts.items() if len(text.split(each)) < number} == {}
