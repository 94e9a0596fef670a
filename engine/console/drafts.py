"""The requests about a draft of the playground.

A draft is vetted in a process of its own before the thread that owns the state sees it, within the limits that servers
have (see `reload.vet`).
"""

from __future__ import annotations

import asyncio
import importlib
from functools import partial

import msgspec
from aiohttp import web

from koordpolicy.engine.reload.status import UNAVAILABLE
from koordpolicy.engine.reload.vet import VETTING, Vetter
from koordpolicy.engine.serving.daemons import Daemons
from koordpolicy.engine.source import PolicyError, Source

from .faults import faults
from .models.model import Model
from .models.playground import CheckView
from .policy_set import DRAFT
from .routes import Route, json_answer
from .view_thread import ViewThread


class Draft(Model, frozen=True, kw_only=True, rename="camel"):
    """The body of a request about a draft. `offset` is in code points."""

    text: str
    file: str = ""
    """The policy file that it was opened from, and that it replaces; empty for a new one."""
    pod: str = ""
    offset: int = 0
    name: str = ""
    """The new name, for a renaming of the name at the offset."""
    budgets: dict[str, str] = msgspec.field(default_factory=dict)
    at: str = ""
    """A time of the recording at which the draft is evaluated, RFC 3339; empty for the console's cluster."""


class DraftRoutes:
    """Answers `POST /api/v1/draft/...`. `close` ends its threads and its process."""

    def __init__(self, views: ViewThread, vetter: Vetter | None) -> None:
        """`vetter` None means that drafts are compiled without a process of their own, for tests."""
        self._views = views
        self._vetter = vetter
        self._checks = Daemons(2, "vetting")

    def start(self) -> None:
        """Start the process and the imports that drafts need, without waiting for them."""
        if self._vetter is not None:
            self._vetter.start()
        self._checks.submit(importlib.import_module, ".playground", __package__)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes."""
        return (
            Route("POST", "draft/check", self._check),
            Route("POST", "draft/evaluate", self._evaluate),
            Route("POST", "draft/tests", self._tests),
            Route("POST", "draft/complete", self._complete),
            Route("POST", "draft/describe", self._describe),
            Route("POST", "draft/rename", self._rename),
        )

    def close(self) -> None:
        """End the threads and the process; waits for nothing."""
        self._checks.shutdown(wait=False, cancel_futures=True)
        if self._vetter is not None:
            self._vetter.close()

    async def _check(self, request: web.Request) -> web.Response:
        from .playground import check_draft  # noqa: PLC0415 - a second of imports that the first page does not need

        draft = await draft_in(request)
        try:
            await self.vet(draft.text, draft.file)
        except PolicyError as error:
            return json_answer(CheckView(faults=faults(error.problems), policies=[], tests=0))
        return await self._views.answer(lambda state: check_draft(state.policies, draft.text, draft.file),
                                         kind="draft", movable=True, typed=True)

    async def _evaluate(self, request: web.Request) -> web.Response:
        from .playground import evaluate_draft  # noqa: PLC0415 - as above

        draft = await draft_in(request)
        await self.vet(draft.text, draft.file)
        return await self._views.answer(
            lambda state: evaluate_draft(state, draft.text, draft.pod, draft.offset, draft.file), at=draft.at,
            kind="draft", movable=True, typed=True)

    async def _tests(self, request: web.Request) -> web.Response:
        from .playground import run_tests  # noqa: PLC0415 - as above

        draft = await draft_in(request)
        await self.vet(draft.text, draft.file)
        return await self._views.answer(lambda state: run_tests(state.policies, draft.text, draft.file),
                                         kind="draft", movable=True, typed=True)

    async def _complete(self, request: web.Request) -> web.Response:
        from .authoring import complete  # noqa: PLC0415 - as above

        draft = await draft_in(request)
        return await self._views.answer(lambda state: complete(state.policies, draft.text, draft.offset))

    async def _describe(self, request: web.Request) -> web.Response:
        from .authoring import describe  # noqa: PLC0415 - as above

        draft = await draft_in(request)
        return await self._views.answer(lambda state: describe(state.policies, draft.text, draft.offset))

    async def _rename(self, request: web.Request) -> web.Response:
        from .authoring import rename  # noqa: PLC0415 - as above

        draft = await draft_in(request)
        return await self._views.answer(lambda _: rename(draft.text, draft.offset, draft.name))

    async def vet(self, text: str, file: str = "") -> None:
        """Raise `PolicyError` if the worker process does not survive a draft, which replaces a policy file.

        All other problems are found again, with the other policies, by the thread that owns the state.
        """
        if self._vetter is None:
            return
        beside = self._views.state.policies.params_files
        sources = [Source(DRAFT, text), *(each for each in beside if each.name != file)]
        try:
            await asyncio.get_running_loop().run_in_executor(self._checks, partial(self._vetter.vet, sources))
        except PolicyError as error:
            if any(each.code in (VETTING, UNAVAILABLE) for each in error.problems):
                raise


async def draft_in(request: web.Request) -> Draft:
    """Return the body of a request about a draft; raises `msgspec.DecodeError`."""
    return msgspec.json.decode(await request.read(), type=Draft)
