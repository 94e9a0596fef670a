"""Keys of `usage.over` that are no durations are found, with what to write instead."""

from __future__ import annotations

import pytest

from koordpolicy.engine.lint.expressions import window_fault

from .conftest import filtering, findings


@pytest.mark.parametrize(("written", "better"), [
    ("7 minutes", "7m"), ("5minutes", "5m"), ("1 hour 30 min", "1h30m"), ("1d", "24h"), ("10M", "10m"),
    ("500ms", "5m"), ("", "5m"), ("300", "5m"), ("7 months", "5m"), ("9" * 5000, "5m"),
])
def test_what_is_no_duration_is_found_with_the_duration_that_was_meant(written: str, better: str):
    found = findings(filtering(f"usage.over['{written}'].p95.cpu < 5000"))
    assert [(each.rule.id, each.found.help) for each in found if each.rule.id == "KP044"] == [
        ("KP044", f"did you mean `'{better}'`? Durations are such as `30s`, `5m` and `1h30m`"),
    ]


@pytest.mark.parametrize("written", ["5m", "300s", "1h30m", "5m0s", "0.5h"])
def test_durations_are_not_found(written: str):
    assert window_fault(written) == ""
    assert [each for each in findings(filtering(f"usage.over['{written}'].p95.cpu < 5000"))
            if each.rule.id == "KP044"] == []
