from __future__ import annotations

from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Live, Plugin
from koordpolicy.engine.reload.probation import Probation


def activate(live: Live, digest: str) -> None:
    live.replace(lambda: [Plugin("p", Framework.SCHEDULER, (Point.FILTER,), lambda args, handle: None, "p", digest)])


def probation_of(live: Live, max_error_rate: float | None) -> Probation:
    activate(live, "1")
    return Probation(live, max_error_rate=max_error_rate, first_decisions=10)


def state(probation: Probation) -> tuple[bool, bool]:
    return probation.passed, probation.failed


def test_a_generation_fails_once_no_later_decision_could_make_it_good_again() -> None:
    probation = probation_of(live := Live(), 0.2)
    probation.count(1, 2, 2)
    assert state(probation) == (False, False)
    probation.count(1, 1, 1)
    assert state(probation) == (False, True)
    assert probation.end() == "3 of the first 3 decisions under generation 1 had failing expressions"
    assert (state(probation), live.registry.generation) == ((False, False), 1)


def test_a_generation_passes_after_its_first_decisions_and_is_not_counted_any_more() -> None:
    probation = probation_of(Live(), 0.2)
    probation.count(1, 10, 2)
    probation.count(1, 10, 10)
    assert state(probation) == (True, False)


def test_decisions_under_other_generations_do_not_count() -> None:
    probation = probation_of(live := Live(), 0.2)
    probation.count(1, 5, 5)
    activate(live, "2")
    probation.count(1, 5, 5)
    assert state(probation) == (False, False)


def test_without_a_rate_each_generation_has_passed() -> None:
    probation = probation_of(Live(), None)
    probation.count(1, 100, 100)
    assert (state(probation), probation.limited) == ((True, False), False)
