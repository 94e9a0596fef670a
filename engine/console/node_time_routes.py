"""The request of a node's timeline."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from aiohttp import web

from .node_time import NodeTimes
from .past import LAST, time_of
from .routes import Route, json_answer
from .view_thread import ViewThread

_COST: Final = 2.0


class NodeTimeRoutes:
    """Answers `GET /api/v1/node-time`. `close` ends the reading of its sources."""

    def __init__(self, views: ViewThread, times: NodeTimes) -> None:
        self._views = views
        self._times = times

    def start(self) -> None:
        """Begin to read recordings and audit logs."""
        self._times.start(lambda: self._views.state.policies.registry)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes."""
        return (Route("GET", "node-time", self._view, cost=_COST),)

    def close(self) -> None:
        """End the reading; waits for nothing."""
        self._times.close()

    async def _view(self, request: web.Request) -> web.Response:
        start, end = (time_of(text) if (text := request.query.get(name, "")) else default
                      for name, default in (("start", 0), ("end", LAST)))
        view = partial(self._times.view, request.query.get("name", ""), start, end)
        return json_answer(await asyncio.get_running_loop().run_in_executor(None, view))
