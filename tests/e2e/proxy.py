"""A proxy in front of an API server that injects faults, for tests and the soak of the API client's users."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Self

import aiohttp
import trustme
from aiohttp import web

_OF_ONE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "date", "server"}
_BUSY = "Too many requests, please try again later."  # the server's fairness answers in plain text
_EXPIRED = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired",
            "message": "too old resource version"}


@dataclass(slots=True)
class Faults:
    """The faults of a proxy; they may be changed while it runs. Shares are of the requests, from 0 to 1."""

    throttled: float = 0.0
    """Answered 429 with Retry-After."""
    unavailable: float = 0.0
    """Answered 503."""
    reset_before: float = 0.0
    """The connection is reset before the server sees the request."""
    reset_after: float = 0.0
    """The server carries the request out, and the connection is reset instead of its answer."""
    expired: float = 0.0
    """Of watches: answered 410."""
    delay_s: float = 0.0
    """The longest delay of a request, and of each frame of a watch."""
    pod_lag_s: float = 0.0
    """Of watches of pods: the time by which each frame comes later."""
    down: bool = False
    """True if all connections are reset."""


class FaultProxy:
    """A TLS proxy on a thread of its own; runs inside of the context. `counts` has the number of each fault."""

    def __init__(self, target: str, target_authority: Path, directory: Path, *, seed: int = 0) -> None:
        """`target_authority` is the certificate that the API server at the URL `target` is verified with."""
        self.faults = Faults()
        self.counts: Counter[str] = Counter()
        self.observe: Callable[[str, str, bytes, int], None] = lambda *_: None
        """Called in the proxy's thread with method, path, body and status of each request that the server answered."""
        self.url = ""
        self.certificate_authority = directory / "proxy-authority.pem"
        self._target = target
        self._target_authority = target_authority
        self._random = Random(seed)
        self._ready = threading.Event()
        self._watches: list[web.Request] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def cut_watches(self) -> None:
        """Reset the connections of all watches that run."""

        def cut() -> None:
            for request in tuple(self._watches):
                self._reset(request, "cut")

        self._loop.call_soon_threadsafe(cut)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.certificate_authority))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1, auto_decompress=False)
        await runner.setup()
        verified = ssl.create_default_context(cafile=str(self._target_authority))
        connector = aiohttp.TCPConnector(ssl=verified, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self._session:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            self._ready.set()
            await self._stop.wait()
            self.cut_watches()
            await runner.cleanup()
        await asyncio.sleep(0.25)  # connections with TLS end later than their session

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        faults, watch = self.faults, "watch" in request.query
        if faults.down or self._happens(faults.reset_before):
            return self._reset(request, "reset before")
        await self._delay()
        if self._happens(faults.throttled):
            self.counts["throttled"] += 1
            return web.Response(text=_BUSY, status=429, headers={"Retry-After": "1"})
        if self._happens(faults.unavailable):
            self.counts["unavailable"] += 1
            return web.Response(text="apiserver not ready", status=503)
        if watch and self._happens(faults.expired):
            self.counts["expired"] += 1
            return web.json_response(_EXPIRED, status=410)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        sent = await request.read()
        try:
            async with self._session.request(
                    request.method, self._target + request.raw_path, data=sent, headers=headers) as answer:
                self.observe(request.method, request.path, sent, answer.status)
                back = {name: value for name, value in answer.headers.items()
                        if name.lower() not in _OF_ONE_CONNECTION}
                if watch and answer.status == 200:
                    return await self._stream(request, answer, back)
                body = await answer.read()
        except aiohttp.ClientError:
            return self._reset(request, "target gone")
        if self.faults.down or self._happens(faults.reset_after):
            return self._reset(request, "reset after")
        return web.Response(body=body, status=answer.status, headers=back)

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, headers: dict[str, str],
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        self._watches.append(request)
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()
        lag_s = self.faults.pod_lag_s if request.path.endswith("/pods") else 0.0

        async def read() -> None:
            try:
                with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                    async for piece in answer.content.iter_any():
                        pieces.put_nowait((loop.time() + lag_s, piece))
            finally:
                pieces.put_nowait((loop.time(), b""))

        reading = asyncio.create_task(read())
        try:
            with contextlib.suppress(ConnectionError):
                while True:
                    due, piece = await pieces.get()
                    await asyncio.sleep(max(0.0, due - loop.time()))
                    if not piece:
                        break
                    await self._delay()
                    await response.write(piece)
        finally:
            reading.cancel()
            self._watches.remove(request)
        return response

    def _happens(self, share: float) -> bool:
        return share > 0 and self._random.random() < share

    async def _delay(self) -> None:
        if self.faults.delay_s:
            await asyncio.sleep(self._random.uniform(0, self.faults.delay_s))

    def _reset(self, request: web.Request, fault: str) -> web.Response:
        self.counts[fault] += 1
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)  # never arrives
