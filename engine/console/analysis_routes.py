"""The requests for analyses: an audit or the effect of a draft is started, and then looked after by its number."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web

from .analyses import AnalysisJobs
from .drafts import draft_in
from .jobs import SECONDS, JobNumber
from .models.model import Model
from .routes import Route, json_answer
from .view_thread import ViewThread

_COST: Final = 20.0
"""The cost of an analysis in requests."""


class AuditRequest(Model, frozen=True, kw_only=True, rename="camel"):
    """The body of a request for an audit."""

    at: str = ""
    """A time of the recording, RFC 3339; empty for the console's cluster."""


class AnalysisRoutes:
    """Answers `POST /api/v1/audit/start`, `/effect/start` and the requests about both. `close` ends all analyses."""

    def __init__(self, views: ViewThread, vet: Callable[[str, str], Awaitable[None]], *,
                 limit: float = SECONDS) -> None:
        """`vet` raises `PolicyError` for a draft that must not be compiled; `limit` is the time that an analysis may
        take, in seconds.
        """
        self._views = views
        self._vet = vet
        self._analyses = AnalysisJobs(limit=limit)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes."""
        return (
            Route("POST", "audit/start", self._audit, cost=_COST),
            Route("POST", "effect/start", self._effect, cost=_COST),
            Route("GET", "analysis", self._state),
            Route("POST", "analysis/cancel", self._cancel),
        )

    def close(self) -> None:
        """End all analyses; waits for nothing."""
        self._analyses.close()

    async def _audit(self, request: web.Request) -> web.Response:
        at = msgspec.json.decode(await request.read(), type=AuditRequest).at
        return await self._views.answer(lambda state: self._analyses.audit(state, at), at=at)

    async def _effect(self, request: web.Request) -> web.Response:
        draft = await draft_in(request)
        await self._vet(draft.text, draft.file)
        return await self._views.answer(
            lambda state: self._analyses.effect(state, draft.text, draft.budgets, draft.file))

    async def _state(self, request: web.Request) -> web.Response:
        return json_answer(self._analyses.jobs.state_of(request))

    async def _cancel(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read(), type=JobNumber)
        return json_answer(self._analyses.jobs.cancel(body.number))
