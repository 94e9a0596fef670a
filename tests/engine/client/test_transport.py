"""The transport retries what client-go retries, reports what went wrong, and limits the pace of requests."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from koordpolicy.engine.client.connection import Connection, FixedCredentials, TokenFile
from koordpolicy.engine.client.pacing import Backoff, TokenBucket
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport

from ...ports import reserved_port
from .fake_api_server import api_server, json_answer, never, pods, recorded, refusal, refused, text_answer, watched

PATH = "/api/v1/pods"
BIND = "/api/v1/namespaces/default/pods/a/binding"


def attempts(answers: list[Any], method: str = "GET", **options: Any) -> tuple[bytes | Exception, list[float], int]:
    """The outcome of one request, the delays within it, and the number of attempts."""

    async def run() -> tuple[bytes | Exception, list[float], int]:
        delays, sleep = recorded()
        async with api_server(*answers) as fake, Transport(fake.connection, rate=0, sleep=sleep) as transport:
            outcome: bytes | Exception
            try:
                outcome = await transport.request(method, PATH if method == "GET" else BIND, **options)
            except (ApiError, ConnectionFailed) as error:
                outcome = error
            return outcome, delays, len(fake.requests)

    return asyncio.run(run())


@pytest.mark.parametrize("code", [429, 500, 503, 504])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_l8_a_refusal_with_retry_after_is_repeated_after_that_time(code: int, method: str):
    outcome, delays, count = attempts([refused(code, headers={"Retry-After": "2"}), json_answer({"fine": 1})], method)
    assert (outcome, delays, count) == (b'{"fine": 1}', [2.0], 2)


@pytest.mark.parametrize("code", [429, 500, 503])
def test_l8_without_retry_after_it_is_returned_at_once(code: int):
    outcome, delays, count = attempts([refused(code, "Why")])
    assert isinstance(outcome, ApiError)
    assert (outcome.code, outcome.reason, outcome.retry_after, delays, count) == (code, "Why", None, [], 1)


def test_l8_it_is_repeated_ten_times_at_most():
    outcome, delays, count = attempts([refused(429, headers={"Retry-After": "1"})])
    assert isinstance(outcome, ApiError)
    assert (delays, count) == ([1.0] * 10, 11)


def test_a_caller_may_forbid_repeats():
    outcome, delays, count = attempts([refused(429, headers={"Retry-After": "10"})], "POST", retries=0)
    assert isinstance(outcome, ApiError)
    assert (outcome.retry_after, delays, count) == (10.0, [], 1)


@pytest.mark.parametrize("value", ["soon", "-1", "1e9", "99999999", ""])
def test_an_odd_retry_after_is_none(value: str):
    outcome, _, count = attempts([refused(429, headers={"Retry-After": value})])
    assert isinstance(outcome, ApiError)
    assert (outcome.retry_after, count) == (None, 1)


@pytest.mark.parametrize("body", ["Too many requests, please try again later.", "", "<html>", "[1]", '{"code": "x"}'])
def test_l9_a_refusal_without_a_status_object_is_read_as_text(body: str):
    outcome, _, _ = attempts([text_answer(body, 429)])
    assert isinstance(outcome, ApiError)
    assert (outcome.code, outcome.reason, outcome.message) == (429, "", body)


def test_a_failure_in_the_body_of_a_success_is_a_refusal():
    body = {**refusal(500, "", "This pod has more than one PodDisruptionBudget"), "details": None}
    outcome, _, count = attempts([json_answer(body, 201)], "POST")
    assert isinstance(outcome, ApiError)
    assert (outcome.code, outcome.message, count) == (500, "This pod has more than one PodDisruptionBudget", 1)


async def reset(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def test_a_get_is_repeated_after_a_connection_broke():
    # aiohttp's own second attempt comes before ours.
    outcome, delays, count = attempts([reset, reset, reset, json_answer({})])
    assert (outcome, delays, count) == (b"{}", [1.0], 4)


def test_a_write_whose_outcome_is_unknown_is_not_repeated():
    outcome, delays, count = attempts([reset, json_answer({})], "POST")
    assert isinstance(outcome, ConnectionFailed)
    assert (outcome.broken, outcome.refused, delays, count) == (True, False, [], 1)


def test_a_request_that_is_not_answered_ends_after_its_time():
    outcome, _, count = attempts([never], "POST")
    assert isinstance(outcome, ConnectionFailed)
    assert outcome.fault.message == "it does not answer in time"
    assert (outcome.refused, outcome.broken, count) == (False, False, 1)


def test_a_refused_connection_says_so():
    async def run() -> None:
        with reserved_port() as port:
            async with Transport(Connection(f"http://127.0.0.1:{port}")) as transport:
                with pytest.raises(ConnectionFailed) as caught:
                    await transport.request("GET", PATH)
        assert (caught.value.refused, caught.value.broken) == (True, False)
        assert caught.value.fault.message == "nobody listens there"

    asyncio.run(run())


def test_redirects_are_refused_since_credentials_must_not_follow_them():
    async def run() -> None:
        async with api_server(text_answer("", 302, {"Location": "http://127.0.0.1:1/"})) as fake:
            credentials = FixedCredentials("Bearer secret")
            async with Transport(dataclasses.replace(fake.connection, credentials=credentials)) as transport:
                with pytest.raises(ApiError, match="302"):
                    await transport.request("GET", PATH)
            assert len(fake.requests) == 1

    asyncio.run(run())


def test_l13_a_replaced_token_is_used_within_a_minute_and_at_once_after_a_401(tmp_path: Path):
    async def run() -> None:
        now = 0.0
        file = tmp_path / "token"
        file.write_text("one\n")
        async with api_server(json_answer({}), json_answer({}), json_answer({}), refused(401), json_answer({})) as fake:
            credentials = TokenFile(file, lambda: now)
            async with Transport(dataclasses.replace(fake.connection, credentials=credentials)) as transport:
                await transport.request("GET", PATH)
                file.write_text("two")
                await transport.request("GET", PATH)
                now = 55.0
                await transport.request("GET", PATH)
                file.write_text("three")
                with pytest.raises(ApiError, match="401"):
                    await transport.request("GET", PATH)
                await transport.request("GET", PATH)
        assert [headers["Authorization"] for headers in fake.headers] == [
            "Bearer one", "Bearer one", "Bearer two", "Bearer two", "Bearer three"]

    asyncio.run(run())


@pytest.mark.parametrize("broken", [b"", b"\xff\xfe", None], ids=["empty", "not UTF-8", "absent"])
def test_a_token_file_that_cannot_be_read_leaves_the_last_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: bytes | None,
):
    async def run() -> None:
        now = 0.0
        file = tmp_path / "token"
        file.write_text("one")
        credentials = TokenFile(file, lambda: now)
        assert await credentials.header() == "Bearer one"
        if broken is None:
            file.unlink()
        else:
            file.write_bytes(broken)
        now = 60.0
        with caplog.at_level(logging.WARNING):
            assert await credentials.header() == "Bearer one"
        assert len(caplog.records) == 1

    asyncio.run(run())


def test_l14_watches_do_not_wait_for_the_limit_of_requests():
    async def run() -> None:
        delays, sleep = recorded()
        async with (api_server(watched(("ADDED", {}))) as fake,
                    Transport(fake.connection, rate=5, burst=1, sleep=sleep) as transport):
            async def first_frame() -> bytes:
                stream = transport.stream(PATH, query={"watch": "1"})
                try:
                    (frame,) = await anext(stream)
                    return frame
                finally:
                    await stream.aclose()

            frames = await asyncio.gather(*(first_frame() for _ in range(200)))
            assert (len(frames), delays) == (200, [])

    asyncio.run(run())


def test_requests_beyond_the_burst_wait_in_turn():
    async def run() -> None:
        now = 100.0
        delays, sleep = recorded()
        bucket = TokenBucket(5.0, 2, clock=lambda: now, sleep=sleep)
        waits = [await bucket.take() for _ in range(4)]
        assert waits == pytest.approx([0.0, 0.0, 0.2, 0.4])
        now += 10.0
        assert await bucket.take() == 0.0
        assert delays == pytest.approx([0.2, 0.4])

    asyncio.run(run())


def test_a_rate_of_zero_is_no_limit():
    async def run() -> None:
        bucket = TokenBucket(0.0, 1)
        assert [await bucket.take() for _ in range(1000)] == [0.0] * 1000

    asyncio.run(run())


def test_delays_double_up_to_half_a_minute_with_jitter_and_start_anew_after_two_quiet_minutes():
    now = 0.0
    backoff = Backoff(clock=lambda: now, jitter=lambda: 0.5)
    assert [backoff.next() for _ in range(7)] == pytest.approx([1.2, 2.4, 4.8, 9.6, 19.2, 38.4, 45.0])
    now = 121.0
    assert backoff.next() == pytest.approx(1.2)


def test_a_server_certificate_of_an_unknown_authority_is_refused_and_a_replaced_authority_is_noticed(tmp_path: Path):
    async def run() -> None:
        wrong, right = trustme.CA(), trustme.CA()
        file = tmp_path / "ca.crt"
        wrong.cert_pem.write_to_path(str(file))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        right.issue_cert("127.0.0.1").configure_cert(context)
        application = web.Application()
        application.router.add_get(PATH, pods(1))
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        now = 0.0
        connection = Connection(
            f"https://127.0.0.1:{runner.addresses[0][1]}", certificate_authority=str(file))
        async with Transport(connection, clock=lambda: now) as transport:
            with pytest.raises(ConnectionFailed, match="authority that is not known here"):
                await transport.request("GET", PATH, retries=0)
            right.cert_pem.write_to_path(str(file))
            now = 61.0
            assert await transport.request("GET", PATH)
        await runner.cleanup()

    asyncio.run(run())


def test_a_frame_without_end_is_refused():
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(65):
            await response.write(b"x" * (1 << 20))
        return response

    async def run() -> None:
        async with api_server(endless) as fake, Transport(fake.connection) as transport:
            with pytest.raises(ConnectionFailed, match="longer than 64 MiB"):
                await anext(transport.stream(PATH, query={}))

    asyncio.run(run())


class Observed:
    """Records what a transport reports."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, int]] = []
        self.repeats: list[tuple[str, int]] = []
        self.limits: list[float] = []

    def limited(self, _method: str, _host: str, seconds: float) -> None:
        self.limits.append(seconds)

    def answered(self, method: str, host: str, code: int, seconds: float) -> None:
        assert host.startswith("127.0.0.1:")
        assert seconds >= 0
        self.answers.append((method, code))

    def repeated(self, method: str, _host: str, code: int) -> None:
        self.repeats.append((method, code))


def test_requests_watches_and_repeats_are_reported():
    async def run() -> Observed:
        _, sleep = recorded()
        observed = Observed()
        answers = refused(503, headers={"Retry-After": "1"}), json_answer({}), watched(("ADDED", {}), then="close")
        async with api_server(*answers) as fake, Transport(
                fake.connection, rate=0, sleep=sleep, observer=observed) as transport:
            await transport.request("GET", PATH)
            async for _ in transport.stream(PATH, query={}):
                pass
        return observed

    observed = asyncio.run(run())
    assert observed.answers == [("GET", 503), ("GET", 200), ("GET", 200)]
    assert (observed.repeats, observed.limits) == ([("GET", 503)], [0.0, 0.0])


def test_a_request_without_an_answer_is_reported_too():
    async def run() -> Observed:
        observed = Observed()
        with reserved_port() as port:
            async with Transport(Connection(f"http://127.0.0.1:{port}"), observer=observed) as transport:
                with pytest.raises(ConnectionFailed):
                    await transport.request("POST", BIND)
                with pytest.raises(ConnectionFailed):
                    async for _ in transport.stream(PATH, query={}):
                        pass
        return observed

    assert asyncio.run(run()).answers == [("POST", 0), ("GET", 0)]


def test_a_connection_does_not_show_its_token():
    assert "secret" not in repr(Connection("https://one", FixedCredentials("Bearer secret")))
