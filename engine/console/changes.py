"""The requests about the generations of running servers, and those that change them: promotions and rollbacks.

Generations, their differences and the shadow are for all readers. A change begins with a dry run on every server. The
request that applies it contains the hash of the plan that was shown, and each server receives its own hashes before and
after, so that nothing else is changed. Servers are called with the console's own token; the audit log names the user.
They are changed one after the other; a promotion ends at the first one that fails.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web
from msgspec.structs import replace as replaced

from koordpolicy.engine.client.server_calls import Caller, EndpointAnswer
from koordpolicy.engine.files import reason_of
from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.monitoring.addresses import UnresolvedError, addresses_of
from koordpolicy.engine.scheduler.extender.admin import DECISIONS, MOST_DIFFERENCES
from koordpolicy.engine.serving.daemons import Daemons

from .audit_file import AuditFile
from .change_plans import (
    PROMOTE,
    ROLLBACK,
    UNSETTLED,
    changes_view,
    difference_of,
    follows,
    holder_of,
    outcome_of,
    plan_of,
    result_of,
)
from .guard import NotPermitted
from .models.changes import ChangePlan, ChangeResult, ChangesView, PlannedServer, ServerResult
from .models.model import Model
from .rights import EVERYTHING
from .routes import USER, Route, json_answer

_UNKNOWN: Final = "it rejects the console's token: start the console with its `--admin-token-file`"
_COST: Final = 5.0
_THREADS: Final = 16
_SHARED_S: Final = 3.0
"""The time for which viewers share what was found of the servers, unless they are changed here."""
_FOLLOW_LOOKS: Final = 20
_FOLLOW_PAUSE_S: Final = 0.25
_LOG: Final = logging.getLogger(__name__)


class Change(Model, frozen=True, kw_only=True, rename="camel"):
    """The body of a request for a change."""

    action: str
    to: str = ""
    """The hash of the generation that a rollback activates. Empty: each server activates its previous generation."""
    decisions: int = DECISIONS
    max_differences: float = MOST_DIFFERENCES
    confirm: str = ""
    """The hash of the plan that was shown; needed to apply it."""


class DifferenceRequest(Model, frozen=True, kw_only=True, rename="camel"):
    """The body of a request for the difference of two generations: their hashes."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ChangeableServers:
    """The servers that are changed, and how they are called."""

    words: tuple[str, ...]
    """Addresses as `addresses_of` takes them."""
    reader: Callable[[], Caller]
    """Returns a reader of their status, with the present token; raises as `changer`."""
    changer: Callable[[], Caller] | None
    """Returns a client that changes them, with the token of their `--admin-token-file`; raises `OSError` or
    `ValueError`. None without such a token: then generations cannot be compared either, which takes dry runs."""


class _Callers(NamedTuple):
    """The callers that read and change the servers during one change."""

    reader: Caller
    changer: Caller


class ChangeRoutes:
    """Answers `/api/v1/changes...`. `close` ends its threads."""

    def __init__(
        self, servers: ChangeableServers, audit: AuditFile | None = None, *, now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Without `audit` nothing can be changed. `now` returns seconds since the epoch."""
        self._servers = servers
        self._audit = audit
        self._now = now
        self._sleep = sleep
        self._calls = Daemons(_THREADS, "changes")
        self._busy = False
        self._looking = asyncio.Lock()
        self._looked: tuple[float, ChangesView] | None = None

    def routes(self) -> tuple[Route, ...]:
        """Return the routes."""
        reading = (
            Route("GET", "changes", self._overview),
            Route("POST", "changes/difference", self._difference, cost=_COST),
        )
        return reading if self._audit is None else (
            *reading,
            Route("POST", "changes/plan", self._plan, EVERYTHING, _COST),
            Route("POST", "changes/apply", self._apply, EVERYTHING, _COST),
        )

    def close(self) -> None:
        """End the threads; waits for nothing."""
        self._calls.shutdown(wait=False, cancel_futures=True)

    async def _overview(self, _: web.Request) -> web.Response:
        clock = asyncio.get_running_loop().time
        async with self._looking:  # whatever the number of viewers, the servers are called once
            if self._looked is None or clock() - self._looked[0] > _SHARED_S:
                self._looked = clock(), await self._looked_at()
            return json_answer(self._looked[1])

    async def _looked_at(self) -> ChangesView:
        endpoints = await self._endpoints()
        entries: list[dict[str, Any]] = []
        if self._audit is not None:
            try:
                entries = await asyncio.get_running_loop().run_in_executor(self._calls, self._audit.latest)
            except OSError as error:  # the next change will not be made
                _LOG.error("the audit log `%s` cannot be read: %s", self._audit.path, error.strerror or error)
        answers = await self._call_all(self._caller(self._servers.reader), endpoints, "/status")
        return replaced(changes_view(answers, entries), comparable=self._servers.changer is not None)

    async def _difference(self, request: web.Request) -> web.Response:
        request_body = msgspec.json.decode(await request.read(), type=DifferenceRequest)
        answers = await self._call_all(self._caller(self._servers.reader), await self._endpoints(), "/status")
        endpoint, active = holder_of(answers, request_body.before, request_body.after)
        changer, found = self._changer(), dict[str, EndpointAnswer]()
        for each in {request_body.before, request_body.after} - {active}:
            [found[each]] = await self._ask(changer, [endpoint], "/rollback", {"to": each, "dryRun": True})
        return json_answer(difference_of(endpoint, request_body.before, request_body.after, active, found))

    async def _plan(self, request: web.Request) -> web.Response:
        return json_answer(await self._planned(await _change(request), self._changer()))

    async def _apply(self, request: web.Request) -> web.Response:
        change = await _change(request)
        if not change.confirm:
            raise NotPermitted(400, "`confirm` must be the hash of the plan that was shown")
        if self._busy:
            raise NotPermitted(409, "another change is under way: look again when it is done")
        self._busy = True
        try:
            # The tokens are read once, so that their rotation cannot end a change half-way.
            callers = _Callers(self._caller(self._servers.reader), self._changer())
            return json_answer(await self._applied(change, request, callers))
        finally:
            self._busy = False
            self._looked = None

    async def _planned(self, change: Change, changer: Caller) -> ChangePlan:
        body = {**_body(change), "dryRun": True}
        answers = await self._ask(changer, await self._endpoints(), f"/{change.action}", body)
        return plan_of(change.action, change.to, answers, _body(change) if change.action == PROMOTE else {})

    async def _applied(self, change: Change, request: web.Request, callers: _Callers) -> ChangeResult:
        plan = await self._planned(change, callers.changer)
        if plan.confirm != change.confirm:
            raise NotPermitted(409, "the servers, or what would change, are not as they were shown: nothing was "
                               "changed, look at it again")
        entry: dict[str, Any] = {
            "id": secrets.token_hex(8), "user": USER.get().name, "groups": USER.get().groups,
            "address": request.remote or "", "action": plan.action, "to": plan.to, "confirm": plan.confirm}
        if plan.action == PROMOTE:
            entry |= _body(change)
        await self._note(entry, "begin", [
            {"endpoint": each.endpoint, "before": each.before, "after": each.after} for each in plan.servers
            if each.state == "changes"])
        results = await self._changed(change, plan, callers)
        outcome, audit = outcome_of([each for each in results if each.state != "unchanged"]), ""
        _LOG.warning("%s by `%s`: %s", plan.action, USER.get().name, outcome)
        try:
            await self._note(entry | {"outcome": outcome}, "end", [
                {"endpoint": each.endpoint, "state": each.state, "message": each.message,
                 "generation": each.generation, "after": each.hash} for each in results])
        except NotPermitted as error:
            audit = str(error)
        return ChangeResult(outcome=outcome, servers=results, audit=audit)

    async def _changed(self, change: Change, plan: ChangePlan, callers: _Callers) -> list[ServerResult]:
        """Change the servers of a plan, one after the other; return the result of each."""
        results: list[ServerResult] = []
        ended = False
        for each in plan.servers:
            if each.state != "changes":
                state = "unchanged" if each.state in ("unchanged", "unconcerned") else "failed"
                results.append(ServerResult(endpoint=each.endpoint, state=state, message=each.message,
                                            hash=each.after if each.state == "unchanged" else ""))
            elif ended:
                results.append(ServerResult(endpoint=each.endpoint, state="skipped",
                                            message="not tried, since a server before it failed"))
            else:
                found = await self._change_one(change, each, callers)
                results.append(found)
                ended = found.state != "changed" and plan.action == PROMOTE
        after = next((each.hash for each in results if each.state == "changed"), "")
        if plan.action != PROMOTE or not after:
            return results
        looks = {"failed": _FOLLOW_LOOKS, "skipped": _FOLLOW_LOOKS, "unchanged": 1}
        return list(await asyncio.gather(*(
            self._followed(each, after, looks.get(each.state, 0), callers.reader) for each in results)))

    async def _change_one(self, change: Change, server: PlannedServer, callers: _Callers) -> ServerResult:
        body = _body(change) | {"active": server.before}
        body |= {"hash": server.after} if change.action == PROMOTE else {"to": server.after}
        [answer] = await self._ask(callers.changer, [server.endpoint], f"/{change.action}", body)
        found = result_of(answer, server.after)
        if found.state != "changed" and change.action == PROMOTE and answer.data.get("code") in UNSETTLED:
            return await self._followed(found, server.after, _FOLLOW_LOOKS, callers.reader)
        return found

    async def _followed(self, result: ServerResult, after: str, looks: int, reader: Caller) -> ServerResult:
        """Poll a server that reads its policies from a directory which another server has just written; return its
        result.
        """
        for look in range(looks):
            if look:
                await self._sleep(_FOLLOW_PAUSE_S)
            [answer] = await self._call_all(reader, [result.endpoint], "/status")
            followed = follows(answer, after)
            if followed is not None:
                return followed
        return result

    def _changer(self) -> Caller:
        if self._servers.changer is None:
            raise NotPermitted(404, "generations are compared by dry runs, for which the console needs the servers' "
                               "token: start it with `--admin-token-file`")
        return self._caller(self._servers.changer)

    def _caller(self, made: Callable[[], Caller]) -> Caller:
        try:
            return made()
        except (OSError, ValueError) as error:
            raise NotPermitted(503, f"the token for the servers cannot be read: {error}") from None

    async def _note(self, entry: dict[str, Any], phase: str, servers: Sequence[dict[str, Any]]) -> None:
        assert self._audit is not None  # nothing is changed without it
        line = {"time": rfc3339(int(self._now() * 1e9)), "phase": phase, **entry, "servers": servers}
        try:
            await asyncio.get_running_loop().run_in_executor(self._calls, self._audit.append, line)
        except OSError as error:
            why = reason_of(error)
            _LOG.error("the audit log `%s` cannot be written: %s", self._audit.path, why)
            what = "nothing was changed" if phase == "begin" else "the change was made"
            raise NotPermitted(503, f"the audit log cannot be written: {why}: {what}") from None

    async def _endpoints(self) -> list[str]:
        def resolve() -> list[str]:
            return list(dict.fromkeys(each for word in self._servers.words for each in addresses_of(word)))

        try:
            return await asyncio.get_running_loop().run_in_executor(self._calls, resolve)
        except UnresolvedError as error:
            raise NotPermitted(503, str(error)) from None

    async def _ask(
        self, changer: Caller, endpoints: Sequence[str], path: str, body: object,
    ) -> list[EndpointAnswer]:
        """Request a change or its dry run; a 401 is explained as a rejection of the console's token."""
        answers = await self._call_all(changer, endpoints, path, body)
        return [replace(each, error=_UNKNOWN) if each.code == 401 else each for each in answers]

    async def _call_all(
        self, caller: Caller, endpoints: Sequence[str], path: str, body: object = None,
    ) -> list[EndpointAnswer]:
        loop = asyncio.get_running_loop()
        return list(await asyncio.gather(*(
            loop.run_in_executor(self._calls, caller.ask, each, path, body) for each in endpoints)))


async def _change(request: web.Request) -> Change:
    found = msgspec.json.decode(await request.read(), type=Change)
    if found.action not in (PROMOTE, ROLLBACK):
        raise NotPermitted(400, f"`action` must be {PROMOTE} or {ROLLBACK}")
    return found


def _body(change: Change) -> dict[str, Any]:
    if change.action == ROLLBACK:
        return {"to": change.to}
    return {"decisions": change.decisions, "maxDifferences": change.max_differences}
