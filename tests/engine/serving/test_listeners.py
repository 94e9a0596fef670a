"""A listener answers what is not HTTP, and does not log it: any client could fill the log."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp import web

from koordpolicy.engine.serving.listeners import serving


async def raising(_request: web.Request) -> web.Response:
    raise ValueError("our own fault")


def answered(text: bytes) -> bytes:
    """The first line of the answer to some bytes."""
    async def run() -> bytes:
        application = web.Application()
        application.router.add_get("/raising", raising)
        async with serving(application, "127.0.0.1", 0, None) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(text)
            line = await reader.readline()
            writer.close()
            return line

    return asyncio.run(run())


@pytest.mark.parametrize("text", [
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % number for number in range(5000)) + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
], ids=["a long path", "TLS", "a version that does not exist", "5,000 headers", "a negative length"])
def test_a_request_that_is_not_http_is_answered_and_not_logged(text: bytes, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG):
        assert answered(text).startswith(b"HTTP/1.1 400") or answered(text).startswith(b"HTTP/1.0 400")
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_a_fault_of_our_own_is_logged(caplog: pytest.LogCaptureFixture):
    assert answered(b"GET /raising HTTP/1.1\r\nHost: a\r\n\r\n").startswith(b"HTTP/1.1 500")
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["our own fault"]
