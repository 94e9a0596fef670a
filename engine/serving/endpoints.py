"""The endpoints that every server has: health, metrics, the configuration in use, and the status of policies.

Paths and formats are kube-scheduler's: /healthz, /livez and /readyz with `?verbose`, `?exclude=CHECK` and a path for
each check, /metrics, /metrics/slis, and /configz.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from .access import Access
from .daemons import Daemons
from .health import Health, HealthReport, UnknownCheckError
from .instruments import MetricsRegistry
from .long_texts import json_blocks
from .process_metrics import ProcessMetrics
from .reviews import Denied

JSON: Final = "application/json; charset=utf-8"
"""The content type of plain data."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CONFIGZ_KEY: Final = "componentconfig"
"""The key of the configuration in the answer of /configz, as kube-scheduler's."""


class OperationEndpoints:
    """Answers for operators and monitoring; `close` ends its threads.

    Metrics are written in a thread, so that a long text does not delay the event loop.
    """

    def __init__(
        self, health: Health, metrics: MetricsRegistry, *, configuration: Callable[[], Mapping[str, Any]] | None = None,
        status: Callable[[], Mapping[str, Any]] | None = None, access: Access | None = None,
        texts: Mapping[str, Callable[[], Iterable[bytes]]] | None = None,
        pages: Mapping[str, Callable[[Mapping[str, str]], Mapping[str, Any]]] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`configuration` returns plain data: the completed configuration, without secrets; None for no /configz.

        With `metrics` come those of the process.

        `status` returns the plain data of /status, in a thread; None for none here. `access` decides who may read
        what; None lets everybody read everything. `texts` are further metrics by path, in blocks, `pages`
        further plain data by path, of a query. `/status` has as `started` when this was made, by `now` in seconds
        since the epoch.
        """
        self._health = health
        self._configuration = configuration
        self._status = status
        self._pages = dict(pages or {})
        self._started = now()
        self._access = access
        self._texts: dict[str, Callable[[], Iterable[bytes]]] = {
            "/metrics": MetricsRegistry(metrics, ProcessMetrics()).blocks,
            "/metrics/slis": MetricsRegistry(health).blocks, **(texts or {})}
        self._scraper = Daemons(1, "metrics")

    def add_to(self, app: web.Application) -> None:
        """Add the routes to an application, which gets its own connections to authorize requests."""
        for endpoint in self._health.endpoints:
            self.add(app, f"/{endpoint}", partial(self._report, endpoint))
            self.add(app, f"/{endpoint}/{{check}}", partial(self._report_one, endpoint))
        for path, text in self._texts.items():
            self.add(app, path, partial(self._metrics, text))
        if self._configuration is not None:
            self.add(app, "/configz", self._configz)
        if self._status is not None:
            self.add(app, "/status", partial(self._page, self._with_start(self._status)))
        for path, page in self._pages.items():
            self.add(app, path, partial(self._page, page))
        if self._access is not None:
            app.cleanup_ctx.append(self._access.connected)

    @property
    def protected(self) -> bool:
        """True if reads are authorized."""
        return self._access is not None

    def close(self) -> None:
        """Answer no more metrics; waits for nothing."""
        self._scraper.shutdown(wait=False, cancel_futures=True)

    def add(self, app: web.Application, path: str, handler: _Handler) -> None:
        """Add a route for those who may read it."""
        async def permitted(request: web.Request) -> web.StreamResponse:
            if self._access is not None:
                try:
                    await self._access.check(request)
                except Denied as denied:
                    return web.json_response({"error": str(denied)}, status=denied.status, headers=denied.headers)
            return await handler(request)

        app.router.add_get(path, permitted)

    async def _report(self, endpoint: str, request: web.Request) -> web.Response:
        return _answer(self._health.report(
            endpoint, verbose="verbose" in request.query, excluded=request.query.getall("exclude", [])))

    async def _report_one(self, endpoint: str, request: web.Request) -> web.Response:
        try:
            return _answer(self._health.report_one(endpoint, request.match_info["check"]))
        except UnknownCheckError as error:
            return web.json_response({"error": str(error)}, status=404)

    async def _metrics(self, blocks: Callable[[], Iterable[bytes]], _: web.Request) -> web.Response:
        made = await asyncio.get_running_loop().run_in_executor(self._scraper, lambda: [*blocks()])
        return in_turns(made, CONTENT_TYPE_LATEST)

    def _with_start(self, status: Callable[[], Mapping[str, Any]]) -> Callable[[Mapping[str, str]], Mapping[str, Any]]:
        return lambda _: {**status(), "started": self._started}

    async def _page(
        self, page: Callable[[Mapping[str, str]], Mapping[str, Any]], request: web.Request,
    ) -> web.Response:
        query = dict(request.query)

        made = await asyncio.get_running_loop().run_in_executor(self._scraper, lambda: [*json_blocks(page(query))])
        return in_turns(made, JSON)

    async def _configz(self, _: web.Request) -> web.Response:
        assert self._configuration is not None
        body = json.dumps({CONFIGZ_KEY: self._configuration()}, default=str)
        return web.Response(text=body, content_type="application/json")


def in_turns(blocks: Sequence[bytes], content_type: str) -> web.Response:
    """Return a response that is sent block by block: other requests have their turn in between."""

    async def sent() -> AsyncIterator[bytes]:
        for block in blocks:
            yield block
            await asyncio.sleep(0)  # while the client reads as fast as it is written, the writer never waits

    length = str(sum(map(len, blocks)))
    return web.Response(body=sent(), headers={"Content-Type": content_type, "Content-Length": length})


def _answer(report: HealthReport) -> web.Response:
    return web.Response(text=report.text, status=200 if report.healthy else 503,
                        headers={"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache, private"})
