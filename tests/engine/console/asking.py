"""Requests to a console that is served while a test runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from koordpolicy.engine.console.server import LONGEST_LINE, ConsoleServer
from koordpolicy.engine.serving.listeners import serving
from tests.waiting import PATIENCE_S

Ask = Callable[..., Awaitable[tuple[int, Any, Mapping[str, str]]]]
"""Sends a request, by POST if it has a body (bytes or JSON); returns status, content (JSON, or a text) and headers.

`_` in the names of further headers stands for `-`.
"""
AskApi = Callable[..., Awaitable[tuple[int, Any]]]


@asynccontextmanager
async def asking(console: ConsoleServer) -> AsyncIterator[Ask]:
    """Serve a console, and close it in the end."""
    try:
        served = serving(console.application(), "127.0.0.1", 0, None, longest_line=LONGEST_LINE)
        async with served as url, aiohttp.ClientSession() as session:

            async def ask(path: str, body: Any = None, **headers: str) -> tuple[int, Any, Mapping[str, str]]:
                sent = {name.replace("_", "-"): value for name, value in headers.items()}
                if body is not None:
                    sent.setdefault("Content-Type", "application/json")
                data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
                async with session.request("GET" if body is None else "POST", url + path, data=data,
                                           headers=sent) as answer:
                    text = await answer.text()
                    found = json.loads(text) if answer.content_type == "application/json" else text
                    return answer.status, found, answer.headers

            yield ask
    finally:
        console.close()


def of_api(ask: Ask, token: str = "") -> AskApi:
    """Return a function that sends requests about names below `/api/v1/`, with a token or this one, and returns no
    headers."""

    async def ask_api(path: str, body: Any = None, token: str = token, **headers: str) -> tuple[int, Any]:
        if token:
            headers["Authorization"] = f"Bearer {token}"
        status, found, _ = await ask(f"/api/v1/{path}", body, **headers)
        return status, found

    return ask_api


async def ended(ask: AskApi, path: str) -> dict[str, Any]:
    """Wait until a job has ended; return its view."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status, view = await ask(path)
            assert status == 200, view
            if view["phase"] in ("done", "failed", "cancelled"):
                found: dict[str, Any] = view
                return found
            await asyncio.sleep(0.01)
