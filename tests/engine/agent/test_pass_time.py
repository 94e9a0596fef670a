from __future__ import annotations

from dataclasses import dataclass

from koordpolicy.engine.agent.pass_time import PassTime

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


@dataclass
class Clocks:
    seconds: float = 100.0
    ahead: float = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def wall(self) -> int:
        return START + round((self.seconds - 100.0 + self.ahead) * SECOND)


def test_a_late_pass_has_the_time_at_which_it_was_due():
    clocks = Clocks()
    times = PassTime(clocks)
    found = []
    for number in range(3):
        clocks.seconds = 100.0 + number + 0.007 * number
        found.append(times.of(100.0 + number))
    assert found == [START, START + SECOND, START + 2 * SECOND]


def test_a_pass_that_comes_early_has_its_own_time():
    clocks = Clocks()
    times = PassTime(clocks)
    clocks.seconds = 100.25
    assert times.of(101.0) == START + SECOND // 4


def test_a_wall_clock_that_is_set_is_followed_and_one_that_drifts_is_not():
    clocks = Clocks()
    times = PassTime(clocks)
    clocks.ahead = 1.5
    assert times.of(100.0) == START
    clocks.ahead = -3600.0
    assert times.of(100.0) == START - 3600 * SECOND
    clocks.seconds = 101.0
    assert times.of(101.0) == START - 3599 * SECOND
