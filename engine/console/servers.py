"""The requests about running servers, and those of pages that wait for changes."""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from koordpolicy.engine.monitoring.monitor import MonitorView, ServerMonitor
from koordpolicy.engine.serving.daemons import Daemons

from .guard import NotPermitted
from .models.model import Model
from .models.servers import Versions
from .rights import READING, Right
from .routes import CLIENT, Route
from .server_views import rule_rates_view, servers_view, waiting_view
from .shared_answers import SharedAnswers
from .view_thread import ViewThread

_POLL_S: Final = 25.0
MOST_POLLS: Final = 1000
"""The maximum number of requests for changes that wait at the same time."""
MOST_POLLS_OF_ONE: Final = 100
"""The maximum number of them of one user at one address."""


class ServerRoutes:
    """Answers about running servers, and the requests of pages that wait for changes."""

    def __init__(self, monitor: ServerMonitor | None, views: ViewThread, *, poll: float = _POLL_S) -> None:
        """Without a `monitor` no servers are known. A request for changes waits for `poll` seconds at most."""
        self._monitor = monitor
        self._views = views
        self._poll = poll
        self._boot = secrets.token_hex(8)
        self._cluster = 0
        self._threads = Daemons(1, "servers-view")
        self._shared = SharedAnswers()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._ended = False
        views.changed = self._state_changed
        if monitor is not None:
            monitor.on_change(self._servers_changed)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes."""
        return (
            Route("GET", "servers", partial(self._answer, lambda view, _: servers_view(view, self._interval)), READING),
            Route("GET", "waiting", partial(self._answer, lambda view, query: waiting_view(view, query.get("key", ""))),
                  frozenset({Right.PODS})),
            Route("GET", "rule-rates", partial(self._answer, lambda view, query: rule_rates_view(
                view, query.get("policy", ""))), frozenset({Right.POLICIES})),
            Route("GET", "versions", self._versions, frozenset()),
        )

    def start(self) -> None:
        """Begin to poll servers."""
        if self._monitor is not None:
            self._monitor.start()

    def close(self) -> None:
        """End the polling; waits for nothing."""
        if self._monitor is not None:
            self._monitor.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def end_polls(self, _: web.Application) -> None:
        """Answer all requests that wait, as the server ends and would wait for them."""
        self._ended = True
        self._release()

    @property
    def versions(self) -> Versions:
        """The present versions."""
        return Versions(boot=self._boot, cluster=self._cluster, servers=self._view.version)

    @property
    def _view(self) -> MonitorView:
        return MonitorView() if self._monitor is None else self._monitor.view

    @property
    def _interval(self) -> float:
        return 0.0 if self._monitor is None else self._monitor.interval

    async def _answer(self, make: Any, request: web.Request) -> web.Response:
        query = dict(request.query)

        def compute() -> bytes:
            return msgspec.json.encode(make(self._view, query))

        def submit() -> Future[bytes]:
            return self._threads.submit(compute)

        key = f"{request.path}?{sorted(query.items())}"
        body = await asyncio.shield(asyncio.wrap_future(self._shared.get(key, submit)))
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    async def _versions(self, request: web.Request) -> web.Response:
        """Return the versions, once one of them differs from the query."""
        self._loop = asyncio.get_running_loop()
        known, client = dict(request.query), CLIENT.get()
        now = self.versions
        if known.get("boot") == now.boot and known.get("cluster") == str(now.cluster) and (
                known.get("servers") == str(now.servers)) and not self._ended:
            if len(self._waiting) >= MOST_POLLS or sum(
                    each == client for each in self._waiting.values()) >= MOST_POLLS_OF_ONE:
                raise NotPermitted(503, "too many pages wait for changes: try again", **{"Retry-After": "10"})
            changed: asyncio.Future[None] = self._loop.create_future()
            self._waiting[changed] = client
            try:
                await asyncio.wait((changed,), timeout=self._poll)
            finally:
                del self._waiting[changed]
        return _json(self.versions)

    # In other threads

    def _state_changed(self) -> None:
        self._cluster += 1
        self._notify()

    def _servers_changed(self) -> None:
        self._shared.clear()
        self._notify()

    def _notify(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_result(None)


def _json(model: Model) -> web.Response:
    return web.Response(body=msgspec.json.encode(model), content_type="application/json", charset="utf-8")
