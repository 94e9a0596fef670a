"""A plugin gives the answers of its point: any other is its failure, and is replaced."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from koordpolicy.engine.framework.points import Answer, Code, Point, Refusal, Scores
from koordpolicy.engine.framework.scheduler import (
    SKIP,
    AwaitObjects,
    Changed,
    Deferred,
    Nomination,
    OnlyNodes,
    Plan,
    Wait,
)
from koordpolicy.engine.scheduler.cycle.plugin_calls import call_filter, call_plugin, call_score, secured

ACTIVE = SimpleNamespace(name="p", plugin=SimpleNamespace(origin="o", span=None))
ROWS = np.array([1, 3], np.intp)
GIVEN = {"state": None, "pod": None, "snapshot": SimpleNamespace(size=4), "rows": ROWS}


def called(answer, *kinds):
    failures = []
    return call_plugin(failures, ACTIVE, Point.PERMIT, lambda: answer, kinds=kinds), [each.message for each in failures]


@pytest.mark.parametrize("answer", [
    SKIP, Wait(5), OnlyNodes(frozenset({"a"})), Plan({}), Nomination("a", ()), Changed(), Deferred(lambda: None),
    AwaitObjects(lambda: True, frozenset(), 5, "late"),
])
def test_a_valid_answer_is_returned(answer):
    assert called(answer, type(answer)) == (answer, [])


@pytest.mark.parametrize("answer", [
    Wait("5"), OnlyNodes(["a"]), OnlyNodes({1}), Plan([]), Nomination(1, ()), Nomination("a", ("pod",)),
    Nomination("a", None), Nomination("a", iter(())), Nomination("a", (), None), Changed("pod"), Deferred("call"),
    AwaitObjects(lambda: True, {"a"}, 5, "late"),
])
def test_a_field_of_another_type_is_a_failure(answer):
    message = f"the answer must be what the protocol of `permit` says, not {answer!r}"
    assert called(answer, type(answer)) == (Refusal("", message, Code.ERROR), [message])


def test_an_answer_of_another_kind_is_a_failure():
    assert called(SKIP, Wait)[1] == ["the answer must be what the protocol of `permit` says, not <Skip.SKIP: 'Skip'>"]


def test_without_kinds_any_answer_is_valid():
    assert call_plugin([], ACTIVE, Point.QUEUE_SORT, lambda: Refusal(1, 2)) == Refusal(1, 2)


def test_a_filter_answers_for_its_rows_or_for_all():
    failures = []
    for passed in (np.ones(2, np.bool_), np.ones(4, np.bool_)):
        assert call_filter(failures, ACTIVE, lambda *_, passed=passed: Answer(passed), **GIVEN).passed is passed
    refused = call_filter(failures, ACTIVE, lambda *_: Answer(np.ones(3, np.bool_)), **GIVEN)
    assert not refused.passed.any()
    assert [each.message for each in failures] == [
        "TypeError: the answer must be 2 or 4 values of bool, not bool of shape (3,)"]
    assert refused.explain(1).message == failures[0].message


def test_a_score_out_of_range_is_an_error_of_its_row():
    scores = call_score([], ACTIVE, lambda *_: Scores(np.array([101, 100])), **GIVEN)
    assert scores.values.tolist() == [0, 0, 0, 100]
    assert {row: error.message for row, error in scores.errors[""].items()} == {1: "the score 101 is outside 0..100"}


def test_a_scorer_that_fails_gives_0():
    failures = []
    assert call_score(failures, ACTIVE, lambda *_: 1 / 0, **GIVEN).values.tolist() == [0] * 4
    assert [each.message for each in failures] == ["ZeroDivisionError: division by zero"]


def test_explanations_of_a_secured_answer_never_raise():
    def fails(_):
        raise LookupError("gone")

    answer = secured(ACTIVE, Answer(np.zeros(4, np.bool_), fails, {}, fails, fails, fails, fails))
    unknown = "why is not known: LookupError: gone"
    assert (answer.explain(1).message, answer.explain(1).code) == (unknown, Code.ERROR)
    assert (answer.reasons(ROWS), answer.brief(ROWS)) == ({unknown: ROWS}, {unknown: ROWS})
    assert (answer.codes(ROWS), answer.rules(ROWS)) == ({Code.ERROR: ROWS}, frozenset())
