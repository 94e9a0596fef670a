from __future__ import annotations

import threading

import pytest

from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.scheduler.extender.decider import Decider
from koordpolicy.engine.source import Source


@pytest.fixture
def decider():
    decider = Decider(clock=lambda: 5.0)
    yield decider
    decider.shutdown()


def test_tasks_are_done_in_one_thread_in_their_order_and_their_results_returned(decider):
    found = [decider.submit(lambda number=number: (number, threading.current_thread().name)) for number in range(20)]
    assert [each.result(60) for each in found] == [(number, "decide") for number in range(20)]


def test_what_a_task_raises_is_raised_for_whoever_gave_it_and_the_next_one_is_done(decider):
    with pytest.raises(SystemExit, match="3"):
        decider.submit(lambda: (_ for _ in ()).throw(SystemExit(3))).result(60)
    assert decider.submit(lambda: "next").result(60) == "next"


def test_the_task_that_is_being_done_can_be_seen_and_no_other(decider):
    begun, go_on = threading.Event(), threading.Event()
    first = decider.assign("filter", 3.0, lambda: (begun.set(), go_on.wait(60)))
    decider.assign("prioritize", 3.0, lambda: None)
    assert begun.wait(60)
    task = decider.task
    assert (task.what, task.since, task.budget) == ("filter", 5.0, 3.0)
    assert any(frame.f_code.co_name == "_work" for frame in decider.stack())
    go_on.set()
    first.result(60)
    decider.submit(lambda: None).result(60)
    assert decider.task is None


def test_a_task_that_is_cancelled_before_its_turn_is_left_out(decider):
    go_on, done = threading.Event(), []
    decider.submit(go_on.wait, 60)
    late = decider.submit(done.append, "late")
    last = decider.submit(done.append, "last")
    assert late.cancel()
    go_on.set()
    last.result(60)
    assert done == ["last"]


def test_expressions_of_a_task_work_under_its_budget_and_what_was_stopped_is_reported():
    stopped, text = [], Source("a.yaml", "true")
    decider = Decider(clock=lambda: 5.0, stopped=stopped.append)

    def evaluate():
        assert not Deadline.current().passed
        decider.task.deadline.cancel()
        assert Deadline.current().passed
        Deadline.current().stop(text)

    decider.assign("filter", 3.0, evaluate).result(60)
    decider.submit(lambda: None).result(60)
    decider.shutdown()
    assert [(each.what, each.budget, each.text) for each in stopped] == [("filter", 3.0, text)]


def test_nothing_is_taken_after_the_end_and_what_waits_is_cancelled():
    decider, go_on = Decider(), threading.Event()
    running, waiting = decider.submit(go_on.wait, 60), decider.submit(go_on.wait, 60)
    decider.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(RuntimeError, match="takes no work any more"):
        decider.submit(go_on.wait)
    go_on.set()
    assert (running.result(60), waiting.cancelled()) == (True, True)
    decider.shutdown()


def test_a_report_that_fails_does_not_end_the_thread(caplog):
    def fail(stopped):
        raise KeyError("no such document")

    decider = Decider(stopped=fail)
    decider.submit(lambda: Deadline.current().stop(Source("a.yaml", "true"))).result(60)
    assert decider.submit(lambda: "next").result(60) == "next"
    decider.shutdown()
    assert [record.getMessage() for record in caplog.records] == [
        "what was stopped in `<lambda>` could not be reported",
    ]
