"""Short facts of verdicts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from koordpolicy.engine.flight_recorder.summaries import reasons_in
from koordpolicy.engine.framework.points import Enforcement


def verdict_of(reasons: int) -> Any:
    refusals = [SimpleNamespace(plugin="P", rule="", reason=f"r{number:02}", nodes=range(number + 1),
                                enforcement=Enforcement.ENFORCE) for number in range(reasons)]
    return cast("Any", SimpleNamespace(refusal=None, refusals=lambda: refusals))


def test_of_many_reasons_the_commonest_ten_are_recorded_and_the_number_of_the_others():
    assert reasons_in(verdict_of(13)) == ([("P", "", f"r{number:02}", number + 1) for number in range(12, 2, -1)], 3)
    assert reasons_in(verdict_of(1)) == ([("P", "", "r00", 1)], 0)
