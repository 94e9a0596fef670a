from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.agent.rounds import Rounds


def logging(rounds: Rounds, *names: tuple[str, float, int]) -> list[str]:
    log: list[str] = []
    for name, interval, priority in names:
        rounds.add(name, interval, lambda name=name: log.append(name), now=0, priority=priority)
    return log


def test_each_function_is_called_at_once_and_then_at_its_interval():
    rounds = Rounds()
    log = logging(rounds, ("a", 1, 0), ("b", 2, 0))
    dues = [rounds.run_due(now) for now in (0, 0.5, 1, 2)]
    assert (log, dues) == (["a", "b", "a", "a", "b"], [1, 1, 2, 3])


def test_collectors_come_before_strategies_also_when_they_are_due_later():
    rounds = Rounds()
    log = logging(rounds, ("strategy", 1, 1))
    rounds.run_due(0)
    rounds.add("collector", 1, lambda: log.append("collector"), now=0.5, priority=0)
    rounds.run_due(1)
    assert log == ["strategy", "collector", "strategy"]


def test_a_late_round_is_called_once_and_nothing_is_made_up_for():
    rounds = Rounds()
    log = logging(rounds, ("a", 1, 0))
    rounds.run_due(0)
    assert rounds.run_due(100.25) == 101.25
    assert rounds.run_due(100.5) == 101.25
    assert log == ["a", "a"]


def test_a_short_delay_does_not_shift_the_rounds():
    rounds = Rounds()
    logging(rounds, ("a", 1, 0))
    assert [rounds.run_due(now) for now in (0, 1.1, 2.2, 3.05)] == [1, 2, 3, 4]


def test_a_round_that_is_removed_by_another_one_is_not_called():
    rounds = Rounds()
    log = logging(rounds, ("z", 1, 1))
    rounds.add("a", 1, lambda: rounds.remove("z"), now=0)
    assert rounds.run_due(0) == 1
    assert (log, rounds.names) == ([], {"a"})


def test_a_round_is_brought_forward():
    rounds = Rounds()
    log = logging(rounds, ("slow", 60, 0))
    rounds.run_due(0)
    rounds.bring_forward("slow", 5)
    rounds.bring_forward("unknown", 5)
    assert rounds.run_due(5) == 65
    assert log == ["slow", "slow"]


def test_replacing_a_round_changes_its_interval():
    rounds = Rounds()
    log = logging(rounds, ("a", 60, 0))
    rounds.run_due(0)
    rounds.add("a", 1, lambda: log.append("new"), now=2)
    assert rounds.run_due(2) == 3
    assert log == ["a", "new"]


def test_without_rounds_nothing_is_due():
    assert Rounds().run_due(0) == math.inf


@pytest.mark.parametrize("interval", [0, -1, math.nan])
def test_an_interval_of_nothing_is_refused(interval):
    with pytest.raises(ValueError, match="the interval of `a` must be above 0"):
        Rounds().add("a", interval, lambda: None, now=0)


def test_a_failing_round_is_called_again():
    rounds = Rounds()
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError

    rounds.add("a", 1, fail, now=0)
    for now in (0, 1):
        with pytest.raises(RuntimeError):
            rounds.run_due(now)
    assert len(calls) == 2


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=30))
def test_two_rounds_of_a_function_are_never_closer_than_its_interval_allows(steps):
    rounds, now, times = Rounds(), 0.0, []
    rounds.add("a", 1, lambda: times.append(now), now=0)
    for step in steps:
        rounds.run_due(now)
        now += step
    # In step: of n whole intervals that passed, at most n + 1 rounds began.
    assert len(times) <= int(now) + 1
