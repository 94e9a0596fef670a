"""A coroutine on a thread of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.lease_thread import LeaseThread
from koordpolicy.engine.client.transport import Transport


class Closing(Transport):
    """A transport that says that it was closed."""

    def __init__(self) -> None:
        super().__init__(Connection("http://127.0.0.1:9"))
        self.closed = False

    async def close(self) -> None:
        self.closed = True


def test_a_coroutine_runs_on_its_thread_until_it_is_stopped_and_the_transport_is_closed():
    transport, seen, ended = Closing(), threading.Event(), []

    async def run() -> None:
        seen.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append((threading.current_thread().name, transport.closed))

    thread = LeaseThread("mine", transport, run)
    assert thread.stop(0)  # not started
    thread.start()
    assert seen.wait(60)
    assert thread.stop(60)
    assert (ended, transport.closed, thread.stop(60)) == ([("mine", False)], True, True)


def test_a_coroutine_that_ends_slowly_is_waited_for_no_longer_than_the_timeout():
    release = threading.Event()

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.to_thread(release.wait, 60)

    thread = LeaseThread("mine", Closing(), run)
    thread.start()
    assert not thread.stop(0.01)
    release.set()
    assert thread.stop(60)


def test_an_exception_is_logged_with_the_name(caplog: pytest.LogCaptureFixture):
    async def run() -> None:
        raise KeyError("odd")

    thread = LeaseThread("mine", Closing(), run)
    thread.start()
    assert thread.stop(60)
    assert "the thread of the mine failed" in caplog.text
