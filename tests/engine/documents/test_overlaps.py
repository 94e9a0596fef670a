"""Two matches that may, or certainly do not, have a pod in common."""

from __future__ import annotations

import pytest

from koordpolicy.engine.documents.overlaps import pods_meet
from koordpolicy.engine.documents.specs import LabelRequirement, LabelSelector, PodMatch, SelectorOperator

IN, NOT_IN = SelectorOperator.IN, SelectorOperator.NOT_IN
EXISTS, ABSENT = SelectorOperator.EXISTS, SelectorOperator.DOES_NOT_EXIST


def match(*requirements: tuple[SelectorOperator, str], key: str = "tier") -> PodMatch:
    return PodMatch(label_selector=LabelSelector(match_labels={}, match_expressions=tuple(
        LabelRequirement(key, operator, frozenset(values)) for operator, values in requirements)))


@pytest.mark.parametrize(("first", "second", "meet"), [
    (match((IN, "ab")), match((IN, "bc")), True),
    (match((IN, "ab")), match((IN, "cd")), False),
    (match((IN, "a")), match((NOT_IN, "ab")), False),
    (match((IN, "ac")), match((NOT_IN, "ab")), True),
    (match((IN, "ab")), match((NOT_IN, "a"), (NOT_IN, "b")), False),
    (match((NOT_IN, "a")), match((NOT_IN, "b")), True),
    (match((IN, "a")), match((ABSENT, "")), False),
    (match((EXISTS, "")), match((NOT_IN, "a")), True),
    (match((IN, "a")), match((NOT_IN, "a"), key="other"), True),
    (match((IN, "ab")), match((IN, "bc"), (NOT_IN, "b")), False),
])
def test_selectors_of_a_label_may_exclude_each_other(first: PodMatch, second: PodMatch, meet: bool):
    assert (pods_meet(first, second), pods_meet(second, first)) == (meet, meet)
