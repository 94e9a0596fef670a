from __future__ import annotations

import pytest

from koordpolicy.engine.cel.library import regex


def test_results_for_short_texts_are_cached_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex, "_MOST_RESULTS", 3)
    cached = regex._RESULTS
    cached.by_pattern.clear()
    cached.count = 0
    long = "x" * 300
    asked = [("web-1", "^web"), ("db-1", "^web"), ("web-1", "^web"), (long, "x"), ("web-1", "1$")]
    assert [regex.matches(*each) for each in asked] == [True, False, True, True, True]
    assert cached.by_pattern == {"^web": {"web-1": True, "db-1": False}, "1$": {"web-1": True}}
    assert regex.matches("web-2", "1$") is False
    assert cached.by_pattern == {"1$": {"web-2": False}}
