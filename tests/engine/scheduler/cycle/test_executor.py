from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time

import pytest

from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.scheduler.cycle.executor import InlineExecutor, WorkerExecutor

WAIT_S = 60


class Workers(WorkerExecutor):
    """Workers whose completions a test can wait for."""

    def __init__(self, workers=1, **options):
        self.signal = threading.Semaphore(0)
        super().__init__(workers, wake=self.signal.release, **options)

    def results(self, count):
        for _ in range(count):
            assert self.signal.acquire(timeout=WAIT_S)
        return [job.result for job in self.completed()]


class Hangs:
    """A call that returns when it is released."""

    def __init__(self):
        self.entered, self.gate = threading.Event(), threading.Event()

    def __call__(self):
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        return "late"


def hanging(executor):
    """Return a job that a worker hangs in, and what releases it."""
    call = Hangs()
    job = executor.submit(call)
    assert call.entered.wait(WAIT_S)
    return job, call.gate


def test_the_inline_executor_makes_a_call_at_once_and_raises_what_it_raises():
    executor = InlineExecutor()
    assert (executor.submit(threading.current_thread), list(executor.completed())) == (threading.current_thread(), [])
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 // 0)


def test_no_more_workers_start_than_are_needed_or_allowed():
    executor, gates = Workers(2), []
    executor.submit(lambda: "one")
    assert executor.results(1) == ["one"]
    executor.submit(lambda: "two")
    assert (executor.results(1), executor._threads) == (["two"], 1)
    gates = [hanging(executor)[1] for _ in range(2)]
    executor.submit(lambda: "queued")
    assert executor._threads == 2
    for gate in gates:
        gate.set()
    assert sorted(executor.results(3)) == ["late", "late", "queued"]


def test_a_job_that_raises_keeps_its_error_and_ends_no_worker():
    executor = Workers()
    job = executor.submit(sys.exit)
    executor.submit(lambda: "next")
    assert (executor.results(2), type(job.error)) == ([None, "next"], SystemExit)


def test_a_queued_job_that_is_abandoned_never_runs():
    executor, ran = Workers(), []
    _, gate = hanging(executor)
    job = executor.submit(lambda: ran.append(True))
    assert executor.abandon(job) is False
    executor.submit(lambda: "next")
    gate.set()
    assert (executor.results(2), ran, job.done) == (["late", "next"], [], False)


def test_a_worker_that_hangs_is_replaced_until_its_job_ends():
    executor = Workers()
    job, gate = hanging(executor)
    executor.submit(lambda: "next")
    assert executor.abandon(job) is True
    assert (executor.results(1), executor.hanging, executor._threads) == (["next"], 1, 2)
    gate.set()
    assert (executor.results(1), executor.hanging, executor._threads) == (["late"], 0, 1)
    executor.submit(lambda: "after")
    assert executor.results(1) == ["after"]


def test_a_job_that_is_abandoned_when_it_is_done_is_still_yielded():
    executor = Workers()
    job = executor.submit(lambda: "done")
    assert executor.signal.acquire(timeout=WAIT_S)
    assert (executor.abandon(job), executor.hanging) == (True, 0)
    assert [each.result for each in executor.completed()] == ["done"]


def test_a_worker_that_was_replaced_ends_with_its_job():
    executor = Workers()
    entered, gate, threads = threading.Event(), threading.Event(), []

    def hang():
        threads.append(threading.current_thread())
        entered.set()
        assert gate.wait(WAIT_S)

    job = executor.submit(hang)
    assert entered.wait(WAIT_S)
    assert executor.abandon(job) is True
    executor.submit(lambda: threads.append(threading.current_thread()))
    assert executor.results(1) == [None]
    gate.set()
    assert executor.results(1) == [None]
    replaced, replacement = threads
    replaced.join(WAIT_S)
    assert (replaced.is_alive(), replacement.is_alive()) == (False, True)


def test_the_number_of_workers_that_hang_is_bounded():
    executor = Workers(most_hanging=1)
    gates = []
    for _ in range(2):
        job, gate = hanging(executor)
        executor.abandon(job)
        gates.append(gate)
    executor.submit(lambda: "next")
    assert (executor.hanging, executor._threads, list(executor.completed())) == (2, 2, [])
    for gate in gates:
        gate.set()
    assert sorted(executor.results(3)) == ["late", "late", "next"]


def test_a_failure_to_wake_the_owner_is_logged_and_ends_no_worker(caplog):
    woken = threading.Semaphore(0)

    def wake():
        woken.release()
        raise RuntimeError("the event loop is closed")

    executor = WorkerExecutor(1, wake=wake)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            executor.submit(lambda: None)
            assert woken.acquire(timeout=WAIT_S)
    assert "waking up the scheduler failed" in caplog.text


def test_a_closed_executor_takes_no_job_and_ends_its_workers():
    executor = Workers()
    executor.submit(threading.current_thread)
    worker, = executor.results(1)
    executor.close()
    worker.join(WAIT_S)
    assert not worker.is_alive()
    with pytest.raises(RuntimeError, match="the executor is closed"):
        executor.submit(lambda: None)


def test_a_process_ends_though_a_worker_hangs():
    program = (
        "import threading\n"
        "from koordpolicy.engine.scheduler.cycle.executor import WorkerExecutor\n"
        "entered = threading.Event()\n"
        "WorkerExecutor(1).submit(lambda: (entered.set(), threading.Event().wait()))\n"
        "entered.wait()\n"
        "print('ended')\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "ended\n"


def completed(executor, count):
    """Return so many results, in the order of their completion."""
    found = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline
        found += [job.error or job.result for job in executor.completed()]
    return found


def test_coroutines_run_in_the_event_loop_and_come_back_by_completed():
    async def fail():
        raise OSError("down")

    async def name():
        return threading.current_thread().name

    with IoThread("loop") as io:
        executor = WorkerExecutor(io=io)
        executor.submit_async(name)
        assert completed(executor, 1) == ["loop"]
        executor.submit_async(fail)
        assert [str(each) for each in completed(executor, 1)] == ["down"]
        executor.close()
        with pytest.raises(RuntimeError, match="the executor is closed"):
            executor.submit_async(name)


def test_executors_without_an_event_loop_refuse_coroutines():
    with pytest.raises(RuntimeError, match="the executor has no event loop"):
        WorkerExecutor().submit_async(None)
    with pytest.raises(RuntimeError, match="needs an executor that has one"):
        InlineExecutor().submit_async(None)


def test_many_coroutines_under_way_begin_the_next_one_when_one_ends_or_the_owner_is_about_to_wait():
    gates = [asyncio.Event() for _ in range(10)]
    begun = []

    def coroutine(number):
        async def run():
            begun.append(number)
            await gates[number].wait()
            return number

        return run

    with IoThread("loop") as io:
        executor = WorkerExecutor(io=io)
        for number in range(8):
            executor.submit_async(coroutine(number))
        executor.hand_over()
        io.submit(asyncio.sleep(0)).result(WAIT_S)
        executor.submit_async(coroutine(8))
        io.submit(asyncio.sleep(0.02)).result(WAIT_S)
        assert begun == list(range(8))
        io.call_soon(gates[0].set)
        assert completed(executor, 1) == [0]
        io.submit(asyncio.sleep(0)).result(WAIT_S)
        assert begun == list(range(9))
        executor.submit_async(coroutine(9))
        executor.hand_over()
        io.submit(asyncio.sleep(0)).result(WAIT_S)
        assert begun == list(range(10))
        for gate in gates:
            io.call_soon(gate.set)
        assert sorted(completed(executor, 9)) == list(range(1, 10))


def test_coroutines_that_wait_when_the_executor_is_closed_never_begin():
    begun = []

    def coroutine(number):
        async def run():
            begun.append(number)
            await asyncio.sleep(3600)

        return run

    with IoThread() as io:
        executor = WorkerExecutor(io=io)
        for number in range(8):
            executor.submit_async(coroutine(number))
        io.submit(asyncio.sleep(0.02)).result(WAIT_S)
        executor.submit_async(coroutine(8))
        executor.close()
    assert begun == list(range(8))  # not even when the others were cancelled


def test_a_coroutine_that_is_abandoned_runs_to_its_end_and_a_queued_one_never():
    gate = asyncio.Event()

    async def wait():
        await gate.wait()
        return "done"

    with IoThread("loop") as io:
        executor = WorkerExecutor(io=io)
        running = executor.submit_async(wait)
        io.submit(asyncio.sleep(0)).result(WAIT_S)
        assert executor.abandon(running) is True

        async def abandon_at_once():  # in the loop's own thread: it cannot have begun
            return executor.abandon(executor.submit_async(wait))

        assert io.submit(abandon_at_once()).result(WAIT_S) is False
        io.call_soon(gate.set)
        assert completed(executor, 1) == ["done"]
        io.submit(asyncio.sleep(0.01)).result(WAIT_S)
        assert list(executor.completed()) == []
