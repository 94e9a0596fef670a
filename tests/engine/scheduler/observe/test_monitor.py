from __future__ import annotations

import pytest

from koordpolicy.engine.scheduler.observe.monitor import Monitor
from koordpolicy.plugin import CycleState


class Timer:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def watching():
    timer, counted = Timer(), []
    return timer, counted, Monitor(
        timer, timeout=30, count=lambda name, amount=1, **labels: counted.append((name, labels)),
    )


def test_an_attempt_that_hangs_is_told_once_while_it_hangs(watching, caplog):
    timer, counted, monitor = watching
    monitor.start("shop/p", "batch")
    timer.now = 30
    assert (monitor.check(), counted) == ({}, [])
    timer.now = 31
    assert (monitor.check(), monitor.check(), counted) == (
        {"shop/p": 31}, {"shop/p": 31}, [("scheduler_scheduling_timeout", {"profile": "batch"})],
    )
    monitor.complete("shop/p")
    assert (monitor.check(), len(counted), caplog.messages) == (
        {}, 1, ["the decision about shop/p takes 31.0 s, more than 30.0 s"],
    )


def test_an_attempt_that_nobody_checked_is_told_when_it_ends(watching):
    timer, counted, monitor = watching
    monitor.start("shop/p")
    timer.now = 40
    monitor.complete("shop/p")
    monitor.complete("shop/unknown")
    assert counted == [("scheduler_scheduling_timeout", {"profile": ""})]


class Taken:
    def __init__(self, amounts):
        self.amounts = amounts

    def clone(self):
        return Taken(dict(self.amounts))


def test_a_cycle_state_is_read_by_kind_and_cloned_value_by_value():
    state = CycleState({Taken: Taken({"gpu": 1}), "other": 7})
    other = state.clone()
    other[Taken].amounts["gpu"] = 2
    kept = state.of(Taken)
    assert kept is not None
    assert (kept.amounts, other["other"], state.of(Timer), CycleState({Taken: 7}).of(Taken)) == (
        {"gpu": 1}, 7, None, None,
    )
