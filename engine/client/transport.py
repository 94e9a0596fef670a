"""Requests to an API server over kept-alive connections, with the retries, limits and errors of a Kubernetes client.

One `Transport` belongs to one event loop; a lease has a transport of its own, so that nothing delays it. The contract
of retries is client-go's: a request is repeated only where the server says when (Retry-After), and a GET also after a
connection that broke; a POST or PATCH whose outcome is unknown is never repeated. (aiohttp itself repeats a GET, PUT or
DELETE once if a kept-alive connection turns out to be closed.)
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol, Self
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec
from yarl import URL

from .connection import Connection
from .faults import ApiFault, of_exception
from .pacing import TokenBucket
from .recovery import ServerRecovery
from .server_clock import ServerClock

_LOG: Final = logging.getLogger(__name__)

REQUEST_S: Final = 65.0
"""The server ends every request but a watch after 60 s."""
WATCH_SILENCE_S: Final = 150.0
"""A watch on which nothing arrives for this long is dead: bookmarks come about once a minute."""
MERGE_PATCH: Final = "application/merge-patch+json"
RETRIES: Final = 10
"""Repeats of a request at most."""
_DIAL_S: Final = 30.0
_SLOW_WAIT_S: Final = 1.0
_TLS_CLOSE_S: Final = 0.1
_CERTIFICATES_S: Final = 60.0
_LONGEST_FRAME: Final = 64 << 20


class _Details(msgspec.Struct):
    causes: list[dict[str, Any]] | None = None
    retry_after: int | None = msgspec.field(default=None, name="retryAfterSeconds")


class Status(msgspec.Struct):
    """The body of a refusal, and of a watch's ERROR frame."""

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_STATUS: Final = msgspec.json.Decoder(Status)


class ApiError(Exception):
    """An answer that is not a success.

    `code` is the HTTP status, or the code in a `Status` that says Failure, whatever the HTTP status was: an eviction
    that several budgets forbid is answered with 201 and such a body.
    """

    def __init__(self, code: int, status: Status, *, retry_after: float | None = None) -> None:
        super().__init__(f"{code} {status.reason}: {status.message}" if status.reason else f"{code}: {status.message}")
        self.code = code
        self.reason = status.reason
        self.message = status.message
        causes = (status.details.causes if status.details else None) or ()
        self.causes: tuple[str, ...] = tuple(str(cause.get("reason", "")) for cause in causes)
        self.cause_messages: tuple[str, ...] = tuple(str(cause.get("message", "")) for cause in causes)
        self.retry_after = retry_after
        """Seconds that the server asks to wait; None if it names none."""

    @property
    def expired(self) -> bool:
        """True if the resourceVersion of the request is too old (410)."""
        return self.code == 410 or self.reason in {"Expired", "Gone"}

    @property
    def too_large_version(self) -> bool:
        """True if the server's cache has not reached the resourceVersion of the request."""
        return "ResourceVersionTooLarge" in self.causes or "Too large resource version" in self.message


class ConnectionFailed(Exception):
    """No complete answer arrived; whether the server carried the request out is unknown unless `refused`."""

    def __init__(self, fault: ApiFault, *, refused: bool, broken: bool) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.refused = refused
        """True if there was no connection: the server has not seen the request."""
        self.broken = broken
        """True if a connection ended before the answer did."""


class RequestObserver(Protocol):
    """Receives measurements of requests, in the event loop of each transport. Durations are in seconds."""

    def limited(self, method: str, host: str, seconds: float) -> None:
        """Note how long the client's own limit delayed a request."""
        ...

    def answered(self, method: str, host: str, code: int, seconds: float) -> None:
        """Note an answer, of a watch its beginning; the code is 0 if there was none."""
        ...

    def repeated(self, method: str, host: str, code: int) -> None:
        """Note that a request is repeated after an answer of that code; 0 if there was none."""
        ...


class Transport:
    """Connections to one API server. Use as an async context manager, or call `close`."""

    def __init__(
        self, connection: Connection, *, user_agent: str = "koord-policy", rate: float = 50.0, burst: int = 100,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.time, server_clock: ServerClock | None = None,
        observer: RequestObserver | None = None,
    ) -> None:
        """`rate` and `burst` limit requests per second, watches aside; a rate of 0 means no limit.

        `now` returns seconds since the epoch; the Date of each answer is noted in `server_clock`.
        """
        self.connection = connection
        self.server_clock = server_clock or ServerClock(now)
        self.recovery = ServerRecovery(clock=clock)
        """Of the paths that are listed and watched."""
        self._now = now
        self._observer = observer
        self._host = urlsplit(connection.server).netloc
        # As kube-scheduler: to compress a list costs the server, and this process, more than loopback or a LAN.
        self._headers = {"User-Agent": user_agent, "Accept": "application/json", "Accept-Encoding": "identity"}
        self._bucket = TokenBucket(rate, burst, clock=clock, sleep=sleep)
        self._clock = clock
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None
        self._tls_state: tuple[object, ...] = ()
        self._tls_checked = float("-inf")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            if self.connection.server.startswith("https:"):
                # aiohttp does not wait for the last messages of TLS connections, which need the event loop.
                await asyncio.sleep(_TLS_CLOSE_S)

    def lift_limit(self) -> None:
        """Let requests wait for the client's own limit no longer, as right before the end of the process."""
        self._bucket.lift()

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: bytes | None = None,
        content_type: str = "application/json", timeout: float = REQUEST_S, retries: int = RETRIES,
    ) -> bytes:
        """Return the body of a successful answer.

        A refusal with Retry-After and the code 429 or 5xx is repeated after that time, and a GET whose connection broke
        after a second, together `retries` times at most. `timeout` is of one attempt, in seconds.

        Raises `ApiError` if the server refuses, `ConnectionFailed` if no answer arrives, and `PolicyError` if an exec
        plugin returns no credentials.
        """
        retries_left = retries
        while True:
            waited = await self._bucket.take()
            if self._observer is not None:
                self._observer.limited(method, self._host, waited)
            if waited > _SLOW_WAIT_S:
                _LOG.warning("%s %s waited %.1f s for the client's own limit of requests", method, path, waited)
            try:
                return await self._once(
                    method, path, query=query, body=body, content_type=content_type, timeout=timeout)
            except (ApiError, ConnectionFailed) as error:
                delay = None if retries_left <= 0 else _repeat_after(error, method)
                if delay is None:
                    raise
                error_code = error.code if isinstance(error, ApiError) else 0
            retries_left -= 1
            if self._observer is not None:
                self._observer.repeated(method, self._host, error_code)
            await self._sleep(delay)

    async def stream(
        self, path: str, *, query: Mapping[str, str], silence: float = WATCH_SILENCE_S,
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield the frames of a watch, one JSON text each, until the server ends it; those that arrive together in one
        list, which is never empty.

        Does not count against the limit of requests, and repeats nothing. Raises as `request` does, and
        `ConnectionFailed` if nothing arrives for `silence` seconds, or a frame is longer than 64 MiB.
        """
        pieces: list[bytes] = []
        size = 0
        async with aclosing(self._chunks(path, query, silence)) as chunks:
            async for chunk in chunks:
                first, *others = chunk.split(b"\n")
                pieces.append(first)
                size += len(first)
                if size > _LONGEST_FRAME:
                    raise ConnectionFailed(
                        ApiFault(f"a frame of a watch is longer than {_LONGEST_FRAME >> 20} MiB",
                                 "is this a Kubernetes API server?"), refused=False, broken=False)
                if others:
                    last = others.pop()
                    frames = [frame for frame in (b"".join(pieces), *others) if frame]
                    pieces, size = [last], len(last)
                    if frames:
                        yield frames

    async def chunks(
        self, path: str, *, query: Mapping[str, str], silence: float = REQUEST_S, retries: int = RETRIES,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the body of a GET in the pieces in which it arrives, so that a large one is never held as a whole.

        Limits, retries and errors are those of `request`, but nothing is repeated once a piece was yielded, and
        `silence` limits the seconds without any byte.
        """
        left = retries
        while True:
            await self._bucket.take()
            begun = False
            try:
                async with aclosing(self._chunks(path, query, silence)) as chunks:
                    async for chunk in chunks:
                        begun = True
                        yield chunk
            except (ApiError, ConnectionFailed) as error:
                delay = None if begun or left <= 0 else _repeat_after(error, "GET")
                if delay is None:
                    raise
            else:
                return
            left -= 1
            await self._sleep(delay)

    async def _chunks(self, path: str, query: Mapping[str, str], silence: float) -> AsyncGenerator[bytes, None]:
        header = await self.connection.credentials.header()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_DIAL_S, sock_read=silence)
        sent, begun, code = self._now(), self._clock(), 0
        try:
            async with (await self._open()).get(
                self._url(path, query), headers=_authorization(header), timeout=timeout,
                server_hostname=self.connection.server_name, proxy=self.connection.proxy, allow_redirects=False,
            ) as response:
                self.server_clock.note(response.headers.get("Date", ""), sent, self._now())
                code = response.status
                self._observe("GET", code, begun)
                if response.status >= 300:
                    raise self._refusal(response, await response.read(), header)
                self.recovery.answered(path)
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if not code:
                self._observe("GET", code, begun)
            raise _failed(error) from error

    async def _once(
        self, method: str, path: str, *, query: Mapping[str, str] | None, body: bytes | None, content_type: str,
        timeout: float,
    ) -> bytes:
        header = await self.connection.credentials.header()
        headers = _authorization(header)
        if body is not None:
            headers["Content-Type"] = content_type
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=_DIAL_S)
        sent, begun, code = self._now(), self._clock(), 0
        try:
            async with (await self._open()).request(
                method, self._url(path, query), data=body, headers=headers, timeout=limits,
                server_hostname=self.connection.server_name, proxy=self.connection.proxy, allow_redirects=False,
            ) as response:
                self.server_clock.note(response.headers.get("Date", ""), sent, self._now())
                content = await response.read()
                code = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _failed(error) from error
        finally:
            self._observe(method, code, begun)
        if response.status >= 300:
            raise self._refusal(response, content, header)
        if method != "GET" and b'"Failure"' in content:
            status = _status(content)
            if status.status == "Failure":
                raise ApiError(status.code, status, retry_after=_retry_after(response))
        return content

    def _observe(self, method: str, code: int, begun: float) -> None:
        if self._observer is not None:
            self._observer.answered(method, self._host, code, self._clock() - begun)

    def _refusal(self, response: aiohttp.ClientResponse, body: bytes, header: str | None) -> ApiError:
        if response.status == 401:
            self.connection.credentials.refused(header)
        return ApiError(response.status, _status(body), retry_after=_retry_after(response))

    def _url(self, path: str, query: Mapping[str, str] | None) -> URL:
        # As it is: yarl would decode escapes of names and selectors.
        return URL(f"{self.connection.server}{path}{f'?{urlencode(query)}' if query else ''}", encoded=True)

    async def _open(self) -> aiohttp.ClientSession:
        """Return the session; a new one if the files of certificates changed, which are looked at once a minute."""
        now = self._clock()
        if now - self._tls_checked >= _CERTIFICATES_S:
            self._tls_checked = now
            state = self.connection.tls_state()
            if self._session is not None and state != self._tls_state:
                await self.close()
            self._tls_state = state
        if self._session is None:
            try:
                tls = self.connection.tls()
            except (OSError, ssl.SSLError) as error:
                self._tls_checked = float("-inf")
                raise ConnectionFailed(
                    ApiFault(f"its certificates cannot be read: {error}", "look at the files of the kubeconfig"),
                    refused=True, broken=False) from error
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls, limit=0, keepalive_timeout=90.0),
                headers=self._headers, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=True)
        return self._session


def _repeat_after(error: ApiError | ConnectionFailed, method: str) -> float | None:
    """Return after how many seconds a request is repeated; None if it is not."""
    if isinstance(error, ConnectionFailed):
        return 1.0 if method == "GET" and error.broken else None
    return error.retry_after if error.code == 429 or error.code >= 500 else None


def _authorization(header: str | None) -> dict[str, str]:
    return {} if header is None else {"Authorization": header}


def _status(body: bytes) -> Status:
    """Return the `Status` of a body; one with the text as the message for anything else, as API priority answers."""
    try:
        return _STATUS.decode(body)
    except (ValueError, RecursionError):
        return Status(message=" ".join(body[:1000].decode("utf-8", "replace").split()))


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 6 else None


def _failed(error: BaseException) -> ConnectionFailed:
    refused = isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ServerConnectionError)
    broken = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError,
                                ConnectionResetError)) and not refused
    return ConnectionFailed(of_exception(error), refused=refused, broken=broken)
