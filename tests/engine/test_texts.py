"""Texts of others in messages."""

from __future__ import annotations

from koordpolicy.engine.texts import beginning, quoted_list


def test_a_long_text_is_cut_and_says_so():
    assert beginning("x" * 60) == "x" * 60
    assert beginning("x" * 61) == f"{'x' * 60}..."
    assert beginning("abc", 2) == "ab..."


def test_a_long_list_of_names_is_cut_and_says_how_many_more_there_are():
    assert quoted_list(["a", "b"]) == "`a`, `b`"
    assert quoted_list([]) == ""
    names = [f"n{number}" for number in range(1030)]
    assert quoted_list(names).startswith("`n0`, `n1`")
    assert quoted_list(names).endswith("`n29` and 1,000 more")
    assert quoted_list(names[:3], most=2) == "`n0`, `n1` and 1 more"
    assert quoted_list([3, "x" * 1000], repr) == f"`3`, `'{'x' * 63}...`"
