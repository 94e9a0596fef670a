"""The time of one thread, shared by clients."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest

from koordpolicy.engine.console.fair_thread import FairThread, UsedTime
from tests.waiting import PATIENCE_S


class Turns:
    """A fair thread that begins when `run` is called, and whose jobs take the time that they are said to take."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.used = UsedTime(drain=0.0)
        self._worked = 0.0
        self._thread = FairThread("turns", self.used, timer=lambda: self._worked)
        self._begun = threading.Event()
        self._thread.submit("", lambda: self._begun.wait(PATIENCE_S))

    def add(self, client: str, name: str, seconds: float, kind: str = "") -> None:
        def job() -> None:
            self._worked += seconds
            self.done.append(name)

        self._thread.submit(client, job, kind)

    def run(self) -> list[str]:
        self._begun.set()
        ended = self._thread.submit("zzz", lambda: None)
        self.used.charge("zzz", 1e9)  # the last of all
        ended.result(PATIENCE_S)
        self._thread.close()
        return self.done


def test_clients_have_turns_and_what_one_sent_is_done_in_its_order():
    turns = Turns()
    for number in range(3):
        turns.add("ana", f"a{number}", 0.0)
    turns.add("ben", "b0", 0.0)
    turns.add("eve", "e0", 0.0)
    turns.add("ben", "b1", 0.0)
    assert turns.run() == ["a0", "b0", "e0", "a1", "b1", "a2"]


def test_the_client_whose_jobs_took_least_is_next():
    turns = Turns()
    for number in range(3):
        turns.add("ana", f"a{number}", 5.0)
    for number in range(6):
        turns.add("ben", f"b{number}", 1.0)
    assert turns.run() == ["a0", "b0", "b1", "b2", "b3", "b4", "a1", "b5", "a2"]
    assert [turns.used.of("ana"), turns.used.of("ben")] == [15.0, 6.0]


def test_of_one_client_the_kind_that_took_least_is_next():
    turns = Turns()
    for number in range(3):
        turns.add("ana", f"slow{number}", 5.0, "colour")
    for number in range(2):
        turns.add("ana", f"fast{number}", 0.1, "map")
    turns.add("ben", "other", 1.0, "colour")
    assert turns.run() == ["slow0", "other", "fast0", "fast1", "slow1", "slow2"]


def test_kinds_of_clients_with_the_same_time_have_turns():
    turns = Turns()
    for kind in ("map", "pod"):
        turns.add("ana", f"ana {kind}", 0.0, kind)
    turns.add("ben", "ben map", 0.0, "map")
    assert turns.run() == ["ana map", "ben map", "ana pod"]


def test_a_job_that_fails_is_charged_and_the_next_one_is_done():
    worked = [0.0]
    used = UsedTime(drain=0.0)
    thread = FairThread("failing", used, timer=lambda: worked[0])

    def fail() -> None:
        worked[0] += 2.0
        raise KeyError("x")

    with pytest.raises(KeyError):
        thread.submit("ana", fail).result(PATIENCE_S)
    assert used.of("ana") == 2.0
    assert thread.submit("ana", lambda: 7).result(PATIENCE_S) == 7
    thread.close()


def test_jobs_that_have_not_begun_are_cancelled_at_the_end_and_none_is_taken_any_more():
    begun, end = threading.Event(), threading.Event()
    thread = FairThread("ending", UsedTime())

    def first() -> int:
        begun.set()
        end.wait(PATIENCE_S)
        return 1

    running = thread.submit("ana", first)
    waiting = thread.submit("ana", lambda: 2)
    assert begun.wait(PATIENCE_S)
    assert [thread.waiting(), thread.waiting("ana"), thread.waiting("ben")] == [1, 1, 0]
    thread.close()
    end.set()
    assert running.result(PATIENCE_S) == 1
    with pytest.raises(CancelledError):
        waiting.result(PATIENCE_S)
    with pytest.raises(RuntimeError, match="no work is taken any more by `ending`"):
        thread.submit("ana", lambda: 3)


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def used(now: list[float]) -> UsedTime:
    return UsedTime(drain=0.5, clock=lambda: now[0])


def test_used_time_drains_away(now: list[float], used: UsedTime):
    used.charge("ana", 4.0)
    now[0] += 2.0
    used.charge("ana", 1.0)
    assert [used.of("ana"), used.of("ben")] == [4.0, 0.0]
    now[0] += 100.0
    assert used.of("ana") == 0.0


def test_a_client_is_alone_unless_another_one_was_there_lately(now: list[float], used: UsedTime):
    found: Callable[[], bool] = lambda: used.has_others("ana", 60.0)  # noqa: E731 - short
    used.charge("ana", 1.0)
    used.charge("", 1.0)
    assert not found()
    used.charge("ben", 0.0)
    now[0] += 60.0
    assert found()
    now[0] += 1.0
    assert not found()


def test_clients_are_bounded_in_number_and_the_least_recent_is_forgotten(used: UsedTime):
    for number in range(1025):
        used.charge(str(number), 1.0)
    assert [used.of("0"), used.of("1"), used.of("1024")] == [0.0, 1.0, 1.0]
