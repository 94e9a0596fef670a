"""The endpoints that change a running extender: `/promote`, `/rollback` and `/debug/flags`. They require the token."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from koordpolicy.engine.reload.admin import (
    DENIED,
    UNAUTHORIZED,
    AdminRefusal,
    AdminToken,
    completed,
    declined,
    roll_back,
)

from .admin import PromotionRequest, changes_of, judge
from .intake import SMALL_BODY, DeclinedError, Intake
from .loaded_extender import Loaded
from .responses import refuse
from .services import FLAGS, UnknownPathError, switched

_LOG: Final = logging.getLogger(__name__)


class AdminEndpoints:
    """Promotes the shadow, rolls back to earlier generations and switches the log; without a `token` it does none of
    these.

    `loaded` returns the policies and the cluster, None until they are loaded.
    """

    def __init__(self, token: AdminToken | None, intake: Intake, loaded: Callable[[], Loaded | None]) -> None:
        self._token = token
        self._intake = intake
        self._loaded = loaded

    def add_to(self, app: web.Application) -> None:
        """Serve the endpoints."""
        app.router.add_put("/debug/flags/{flag}", self._switch)
        app.router.add_post("/promote", self._promote)
        app.router.add_post("/rollback", self._roll_back)

    async def _promote(self, request: web.Request) -> web.Response:
        loaded, data = await self._admitted(request)
        try:
            required = PromotionRequest.of(data)
        except ValueError as error:
            return refuse(400, str(error))
        shadow, facts = loaded.extender.shadow, dict[str, Any]()
        try:
            if required.dry_run:
                facts = await asyncio.to_thread(changes_of, shadow, loaded.reloader)
            promotion = await asyncio.to_thread(judge, shadow, loaded.reloader, required)
            facts |= promotion.facts
            if required.dry_run:
                return web.json_response({"dryRun": True, "path": promotion.path} | facts)
            record = await completed(promotion.begin(loaded.reloader))
        except AdminRefusal as refused:
            if not required.dry_run:
                _LOG.info("not promoted: %s", refused)
            return declined(refused, facts)
        _LOG.warning("promoted from the shadow: generation %d, %s", record.generation, record.digest)
        return web.json_response({"promoted": True, "generation": record.generation, "hash": record.digest,
                                  "path": promotion.path})

    async def _roll_back(self, request: web.Request) -> web.Response:
        loaded, data = await self._admitted(request)
        return await roll_back(loaded.reloader, data)

    async def _switch(self, request: web.Request) -> web.Response:
        loaded, value = await self._admitted(request)
        scheduler = loaded.extender.scheduler
        try:
            scheduler.debug = switched(scheduler.debug, request.match_info["flag"], json.dumps(value).strip('"'))
        except UnknownPathError as error:
            return refuse(404, str(error))
        except ValueError as error:
            return refuse(400, str(error))
        _LOG.warning("switched on request: %s", scheduler.debug)
        return web.json_response({letter: getattr(scheduler.debug, name) for letter, (name, _) in FLAGS.items()})

    async def _admitted(self, request: web.Request) -> tuple[Loaded, Any]:
        """Return the target of an authorized change, and the body."""
        if self._token is None:
            raise DeclinedError(403, DENIED)
        if not await asyncio.to_thread(self._token.fits, request.headers.get("Authorization", "")):
            raise DeclinedError(401, UNAUTHORIZED, **{"WWW-Authenticate": "Bearer"})
        loaded = self._loaded()
        if loaded is None:
            raise DeclinedError(503, "policies and cluster are not loaded yet")
        async with self._intake.small_body(request, SMALL_BODY) as body:
            try:
                return loaded, json.loads(body or b"{}")
            except (ValueError, RecursionError):
                raise DeclinedError(400, "the body is not JSON") from None
