from __future__ import annotations

from concurrent.futures import Future

import pytest

from koordpolicy.engine.console.shared_answers import SharedAnswers


class Made:
    """Submits computations that tests end."""

    def __init__(self) -> None:
        self.futures: list[Future[bytes]] = []

    def __call__(self) -> Future[bytes]:
        self.futures.append(Future())
        return self.futures[-1]


def test_equal_requests_share_one_answer_also_while_it_is_computed():
    shared, made = SharedAnswers(), Made()
    first, second = shared.get("a", made), shared.get("a", made)
    made.futures[0].set_result(b"x")
    assert first is second is shared.get("a", made)
    assert len(made.futures) == 1
    shared.get("b", made)
    assert len(made.futures) == 2


def test_after_a_change_all_are_computed_again_and_late_answers_are_not_stored():
    shared, made = SharedAnswers(), Made()
    late = shared.get("a", made)
    shared.clear()
    made.futures[0].set_result(b"old")
    assert late.result() == b"old"
    assert (len(shared), shared.get("a", made) is late) == (0, False)


def test_a_failure_is_not_stored():
    shared, made = SharedAnswers(), Made()
    failed = shared.get("a", made)
    made.futures[0].set_exception(ValueError("x"))
    assert isinstance(failed.exception(), ValueError)
    assert shared.get("a", made) is not failed
    made.futures[1].cancel()
    assert len(shared) == 0

    def refuse() -> Future[bytes]:
        raise ValueError("too many")

    with pytest.raises(ValueError, match="too many"):
        shared.get("b", refuse)
    assert len(shared) == 0


def test_the_number_and_the_size_of_answers_are_bounded():
    shared, made = SharedAnswers(most=3, largest=10), Made()
    for key in "abcd":
        shared.get(key, made)
    assert len(shared) == 3
    for future in made.futures:
        future.set_result(b"four")
    assert len(shared) == 2
    shared.get("huge", made)
    made.futures[-1].set_result(b"x" * 11)
    assert len(shared) == 0
