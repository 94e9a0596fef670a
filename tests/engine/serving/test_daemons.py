from __future__ import annotations

import threading

import pytest

from koordpolicy.engine.serving.daemons import Daemons


def test_work_is_done_at_once_by_as_many_threads_as_there_may_be():
    meeting, threads = threading.Barrier(3), Daemons(3, "work")
    jobs = [threads.submit(meeting.wait, 60) for _ in range(6)]
    assert sorted(job.result(60) for job in jobs) == [0, 0, 1, 1, 2, 2]
    threads.shutdown()
    assert not threads.busy


def test_work_that_has_not_returned_has_an_age_from_its_submission_on():
    now, go_on = [100.0], [threading.Event(), threading.Event()]
    threads = Daemons(1, "work", clock=lambda: now[0])
    first = threads.submit(go_on[0].wait, 60)
    now[0] = 103.0
    second = threads.submit(go_on[1].wait, 60)
    now[0] = 110.0
    assert threads.seconds_unfinished() == (10.0, 7.0)
    go_on[0].set()
    first.result(60)
    threads.submit(int).cancel()
    go_on[1].set()
    second.result(60)
    threads.shutdown()
    assert threads.seconds_unfinished() == ()


def test_who_waits_is_told_what_work_raises():
    threads = Daemons(1, "work")
    failing = threads.submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(60)
    assert threads.submit(int, "7").result(60) == 7
    threads.shutdown()


def test_work_that_never_returns_neither_keeps_the_end_waiting_nor_the_process():
    begun, go_on, threads = threading.Event(), threading.Event(), Daemons(1, "work")

    def hang():
        begun.set()
        go_on.wait(60)
        return threading.current_thread().daemon

    hanging, waiting = threads.submit(hang), threads.submit(int)
    assert begun.wait(60)
    threads.shutdown(wait=False, cancel_futures=True)
    assert (waiting.cancelled(), hanging.running(), threads.busy) == (True, True, True)
    with pytest.raises(RuntimeError, match="no work is taken any more by `work`"):
        threads.submit(int)
    go_on.set()
    assert hanging.result(60) is True
    threads.shutdown()
    assert not threads.busy
