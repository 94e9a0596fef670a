"""Breakers suspend writes to files that refuse them."""

from __future__ import annotations

from koordpolicy.engine.agent.resource_executor.breaker import FAILURES, FIRST_PAUSE, LONGEST_PAUSE, WriteBreakers


def test_pauses_double_up_to_the_longest() -> None:
    breakers, now, pauses = WriteBreakers(), 0, []
    for _ in range(FAILURES - 1):
        breakers.fail("/x", now)
    assert not breakers.open("/x", now)
    for _ in range(8):
        breakers.fail("/x", now)
        opened = now
        while breakers.open("/x", now):
            now += FIRST_PAUSE
        pauses.append((now - opened) // FIRST_PAUSE)
    assert pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE // FIRST_PAUSE, 20, 20]
    assert breakers.opened == 8


def test_a_success_closes_the_breaker() -> None:
    breakers = WriteBreakers()
    for _ in range(FAILURES):
        breakers.fail("/x", 0)
    assert (breakers.open("/x", 0), breakers.open("/y", 0)) == (True, False)
    breakers.succeed("/x")
    assert not breakers.open("/x", 0)


def test_files_that_are_not_tried_again_are_forgotten() -> None:
    breakers = WriteBreakers()
    breakers.fail("/x", 0)
    breakers.fail("/y", LONGEST_PAUSE)
    breakers.sweep(2 * LONGEST_PAUSE + 1)
    for path in ("/x", "/y"):
        for _ in range(FAILURES - 1):
            breakers.fail(path, LONGEST_PAUSE)
    assert [breakers.open(path, LONGEST_PAUSE) for path in ("/x", "/y")] == [False, True]
