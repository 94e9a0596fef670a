"""The server's clock, from the Date of its answers."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.client.server_clock import ServerClock

NOW = 1_700_000_000.0


def answered(clock: ServerClock, sent: float, skew: float, trip: float = 0.01) -> None:
    """Let a server whose clock differs by `skew` seconds answer in the middle of a round trip."""
    clock.note(formatdate(sent + trip / 2 + skew, usegmt=True), sent, sent + trip)


def test_a_clock_that_agrees_within_a_second_is_used_as_it_is():
    clock = ServerClock(lambda: NOW)
    assert clock.seconds() == NOW
    for moment in (0.0, 0.3, 0.99):
        answered(clock, NOW + moment, 0.0)
    assert (clock.skew, clock.nanoseconds()) == (0.0, int(NOW) * 1_000_000_000)


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0, 3600), min_size=1, max_size=20), st.floats(0.001, 0.5))
def test_the_skew_is_known_to_a_second_and_the_round_trip_and_better_with_each_answer(
    skew: float, moments: list[float], trip: float,
):
    clock = ServerClock(lambda: NOW)
    worst = float("inf")
    for moment in moments:
        answered(clock, NOW + moment, skew, trip)
        error = abs(clock.skew - skew)
        assert error <= 1 + trip + 1e-3
        assert clock._bounds[1] - clock._bounds[0] <= worst + 1e-6
        worst = clock._bounds[1] - clock._bounds[0]


def test_a_clock_that_was_set_is_followed():
    clock = ServerClock(lambda: NOW)
    answered(clock, NOW, 3600.0)
    assert clock.skew == pytest.approx(3600, abs=1.1)
    answered(clock, NOW + 10, 0.0)
    assert clock.skew == 0.0


@pytest.mark.parametrize("date", ["", "yesterday", "Thu, 99 Foo 2026 00:00:00 GMT", "\x00"])
def test_a_date_that_is_none_is_ignored(date: str):
    clock = ServerClock(lambda: NOW)
    clock.note(date, NOW, NOW)
    assert clock.skew == 0.0
