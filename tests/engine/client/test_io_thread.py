"""The thread of an API client's event loop, used from other threads."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import CancelledError

import pytest

from koordpolicy.engine.client.io_thread import IoThread


async def _thread_name() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


def test_coroutines_run_on_the_named_daemon_thread() -> None:
    with IoThread("io-test") as io:
        assert io.submit(_thread_name()).result(60) == "io-test"
        assert [thread.daemon for thread in threading.enumerate() if thread.name == "io-test"] == [True]
    assert not io.running


def test_an_exception_of_a_coroutine_is_that_of_its_future() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with IoThread() as io:
        assert str(io.submit(fail()).exception(60)) == "no"


def test_an_exception_of_a_call_is_logged_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("no")

    with IoThread("io-test") as io, caplog.at_level(logging.ERROR):
        io.call_soon(fail)
        assert io.submit(_thread_name()).result(60) == "io-test"
    assert [record.message for record in caplog.records] == ["a call on the event loop failed"]


def test_close_cancels_tasks_first_and_then_closes_the_last_registered_first() -> None:
    seen: list[str] = []
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            seen.append("task")

    def closer(name: str) -> None:
        async def close() -> None:
            await asyncio.sleep(0)
            seen.append(name)

        io.on_close(close)

    io = IoThread()
    io.start()
    closer("first")
    closer("second")
    future = io.submit(wait())
    assert begun.wait(60)
    assert io.close(60)
    assert seen == ["task", "second", "first"]
    with pytest.raises(CancelledError):
        future.result(0)


def test_a_closer_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    closed = threading.Event()

    async def close() -> None:
        closed.set()

    async def fail() -> None:
        raise OSError("no")

    with caplog.at_level(logging.ERROR), IoThread() as io:
        io.on_close(close)
        io.on_close(fail)
    assert closed.is_set()
    assert [record.message for record in caplog.records] == ["a connection could not be closed"]


def test_a_failure_that_nobody_awaits_is_logged_with_its_purpose(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise LookupError("no")

    async def wait() -> None:
        await asyncio.sleep(60)

    with caplog.at_level(logging.ERROR), IoThread() as io:
        cancelled = io.spawn(wait(), "to wait")
        cancelled.cancel()
        with pytest.raises(LookupError):
            io.spawn(fail(), "to read the node of default/web").result(60)
    assert [(record.message, str(record.exc_info[1])) for record in caplog.records if record.exc_info] == [
        ("to read the node of default/web failed", "no")]


def test_close_gives_up_after_its_time_limit_and_succeeds_later() -> None:
    begun, release = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        release.wait(60)

    io = IoThread()
    io.start()
    io.call_soon(block)
    assert begun.wait(60)
    assert not io.close(0.01)
    release.set()
    assert io.close(60)


def test_work_is_refused_before_the_start_and_after_the_close() -> None:
    io = IoThread("io-test")
    assert io.close()
    with pytest.raises(RuntimeError, match="`io-test` is not running"):
        io.submit(_thread_name())
    io.start()
    assert io.close(60)
    assert io.close(60)
    with pytest.raises(RuntimeError, match="`io-test` is not running"):
        io.submit(_thread_name())
    with pytest.raises(RuntimeError, match="`io-test` is not running"):
        io.call_soon(print)
