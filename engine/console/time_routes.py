"""The requests of the view Time: the timeline of the recording, its moments, and replays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web

from koordpolicy.engine.flight_recorder.segments import segments_in

from .jobs import SECONDS, JobNumber
from .models.model import Model
from .models.time import TimelineView
from .past import LAST, PAST_TIMES, Past, recorded, time_of
from .replays import ReplayJobs
from .routes import Route, json_answer
from .state import ConsoleState
from .time_views import NO_RECORDING, moment_view, recorded_decision_view, timeline_view
from .view_thread import ViewThread

_REPLAY_COST: Final = 20.0
"""The cost of a replay in requests."""
_MOMENT_COST: Final = 4.0


class ReplayRequest(Model, frozen=True, kw_only=True, rename="camel"):
    """The body of a request for a replay: from and until when, and a draft of policies or an empty text."""

    start: str
    end: str
    text: str = ""
    file: str = ""
    """The policy file that the draft replaces."""


class TimeRoutes:
    """Answers the requests of Time. `close` ends the reading of the recording, and all replays."""

    def __init__(self, views: ViewThread, past: Past | None, vet: Callable[[str, str], Awaitable[None]], *,
                 limit: float = SECONDS) -> None:
        """`past` is None for a console without a recording; `vet` raises `PolicyError` for a draft that must not be
        compiled. `limit` is the time that a replay may take, in seconds.
        """
        self._views = views
        self._past = past
        self._replays = ReplayJobs(past, limit=limit) if past is not None else None
        self._vet = vet

    def start(self) -> None:
        """Begin to read the recording."""
        if self._past is not None:
            self._past.start()

    def routes(self) -> tuple[Route, ...]:
        """Return the routes."""
        return (
            Route("GET", "timeline", self._timeline),
            Route("GET", "moment", self._moment, cost=_MOMENT_COST),
            Route("GET", "recorded-decision", self._decision, cost=_MOMENT_COST),
            Route("POST", "replay/start", self._start, cost=_REPLAY_COST),
            Route("GET", "replay/state", self._state),
            Route("POST", "replay/cancel", self._cancel),
        )

    def close(self) -> None:
        """End threads; waits for nothing."""
        if self._past is not None:
            self._past.close()
        if self._replays is not None:
            self._replays.close()

    def _started(self) -> ReplayJobs:
        recorded(self._past)
        assert self._replays is not None  # together with the recording
        return self._replays

    async def _timeline(self, request: web.Request) -> web.Response:
        past = self._past
        if past is None:
            return json_answer(NO_RECORDING)
        start, end = (time_of(text) if (text := request.query.get(name, "")) else default
                      for name, default in (("start", 0), ("end", LAST)))

        def view() -> TimelineView:
            with past.timeline() as (timeline, recording, complete):
                return timeline_view(timeline, recording, start=start, end=end, complete=complete,
                                     segments=len(segments_in(past.directory)))

        return json_answer(await asyncio.get_running_loop().run_in_executor(None, view))

    async def _moment(self, request: web.Request) -> web.Response:
        past = recorded(self._past)
        time = time_of(request.query.get("at", ""))
        return await self._views.answer(
            lambda state: moment_view(past.moment(time), time, state.policies.registry), times=PAST_TIMES)

    async def _decision(self, request: web.Request) -> web.Response:
        past = recorded(self._past)
        time = time_of(request.query.get("at", ""))
        key = request.query.get("key", "")

        def view(_: ConsoleState) -> Model:
            return recorded_decision_view(key, past.decision_about(key, time), past.moment(time))

        return await self._views.answer(view, times=PAST_TIMES)

    async def _start(self, request: web.Request) -> web.Response:
        replays = self._started()
        body = msgspec.json.decode(await request.read(), type=ReplayRequest)
        start, end = time_of(body.start), time_of(body.end)
        if body.text:
            await self._vet(body.text, body.file)
        return json_answer(replays.start(self._views.state.policies, start, end, body.text, body.file))

    async def _state(self, request: web.Request) -> web.Response:
        return json_answer(self._started().jobs.state_of(request))

    async def _cancel(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read(), type=JobNumber)
        return json_answer(self._started().jobs.cancel(body.number))
