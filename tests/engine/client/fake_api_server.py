"""An API server on loopback whose answers a test writes, and which records what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from koordpolicy.engine.client.connection import Connection

Json = Mapping[str, Any]


@dataclass
class FakeApiServer:
    """Answers each request by the next of `answers`; the last one stays."""

    answers: list[Callable[[web.Request], Awaitable[web.StreamResponse]]]
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    server: str = ""
    runner: web.AppRunner | None = None

    @property
    def connection(self) -> Connection:
        return Connection(self.server)

    @property
    def queries(self) -> list[dict[str, str]]:
        return [query for _, _, query in self.requests]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path, dict(request.query)))
        self.headers.append(dict(request.headers))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)

    async def refuse_connections(self) -> None:
        """Refuse new connections from now on; those that there are stay."""
        assert self.runner is not None
        for site in tuple(self.runner.sites):
            await site.stop()

    async def take_connections(self) -> None:
        """Take connections again, at the same port."""
        assert self.runner is not None
        await web.TCPSite(self.runner, "127.0.0.1", int(self.server.rpartition(":")[2])).start()

    async def until(self, requests: int) -> None:
        """Wait until so many requests have come; a minute at most, as the machine may do a lot else."""
        async with asyncio.timeout(60):
            while len(self.requests) < requests:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def api_server(*answers: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[FakeApiServer]:
    fake = FakeApiServer(list(answers))
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", fake.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    fake.runner = runner
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        await runner.cleanup()


def pod(name: str, version: int, *, uid: str | None = None, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, **more}


def json_answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return answer


def text_answer(body: str, status: int, headers: Mapping[str, str] | None = None) -> Any:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(text=body, status=status, headers=headers)

    return answer


def pods(version: int, *items: Json, more: str = "") -> Any:
    return json_answer({"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)})


def refusal(code: int, reason: str = "", message: str = "") -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def refused(code: int, reason: str = "", headers: Mapping[str, str] | None = None) -> Any:
    return json_answer(refusal(code, reason), code, headers)


def watched(*frames: tuple[str, Json], then: str = "hang", after: float = 0.0,
            last_waits_for: asyncio.Event | None = None) -> Any:
    """The frames of a watch, which then hangs, ends ("close") or breaks ("reset")."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for i, (kind, each) in enumerate(frames, 1):
            if i == len(frames) and last_waits_for is not None:
                await last_waits_for.wait()
            await response.write(json.dumps({"type": kind, "object": each}).encode() + b"\n")
        await asyncio.sleep(after)
        if then == "hang":
            await asyncio.sleep(3600)
        elif then == "reset":
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


def skip(seconds: float) -> None:
    """Let the running loop believe that so much time has passed: what is due by then happens now."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]


async def never(_request: web.Request) -> web.StreamResponse:
    """Do not answer, and let an hour pass once the request has come."""
    skip(3600.0)
    await asyncio.sleep(3600)
    raise AssertionError


def bookmark(version: int, *, initial_end: bool = False) -> tuple[str, Json]:
    annotations = {"annotations": {"k8s.io/initial-events-end": "true"}} if initial_end else {}
    return "BOOKMARK", {"metadata": {"resourceVersion": str(version), **annotations}}


def recorded(delays: Iterable[float] = ()) -> tuple[list[float], Callable[[float], Awaitable[None]]]:
    """Return a list of delays, and a sleep that appends to it and returns at once."""
    seen = list(delays)

    async def sleep(seconds: float) -> None:
        seen.append(seconds)
        await asyncio.sleep(0)

    return seen, sleep
