"""Administrative changes of a running server over HTTP: who may make them, and the rollback to an earlier generation.

A rejected change has a reason and a machine-readable code, and has changed nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from koordpolicy.engine.source import PolicyError

from .file_changes import file_changes, files_of, to_json
from .history import GenerationRecord
from .reloader import Reloader

SHORTEST_TOKEN: Final = 16
"""The minimum length of a token, in characters."""
DENIED: Final = "nothing can be changed over HTTP: start the server with `--admin-token-file`"
UNAUTHORIZED: Final = "show the token of `--admin-token-file` as `Authorization: Bearer TOKEN`"

_LARGEST_TOKEN: Final = 4096
_ADMIN_SECONDS: Final = 60.0
_LOG: Final = logging.getLogger(__name__)


class AdminRefusal(Exception):
    """A rejected change: the reason, a machine-readable code, and facts."""

    def __init__(self, reason: str, code: str, facts: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.facts = facts or {}


class AdminToken:
    """The secret that authorizes changes; its file is read each time, so it may be replaced."""

    def __init__(self, path: Path) -> None:
        """Raises `ValueError` or `OSError` if the file holds no valid token."""
        self._path = path
        self._read()

    def _read(self) -> bytes:
        with self._path.open("rb") as file:
            token = file.read(_LARGEST_TOKEN + 1).strip()
        if not SHORTEST_TOKEN <= len(token) <= _LARGEST_TOKEN:
            raise ValueError(f"`{self._path}` must hold a token of {SHORTEST_TOKEN} to {_LARGEST_TOKEN} characters")
        return token

    def fits(self, header: str) -> bool:
        """Return whether an Authorization header contains the token; the comparison takes constant time."""
        kind, _, given = header.partition(" ")
        try:
            held = self._read()
        except (OSError, ValueError):
            return False  # the file was removed: no request is authorized
        shown = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(shown, hashlib.sha256(held).digest()) and kind.lower() == "bearer"


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    """The requirements of a rollback."""

    to: str = ""
    """A generation or the beginning of a hash; empty for the generation before."""
    active: str = ""
    """The hash of the registry that is expected to be active; empty for any."""
    dry_run: bool = False
    """True to return the effect of a rollback, and change nothing."""

    @classmethod
    def of(cls, data: object) -> RollbackRequest:
        """Read a request; raises `ValueError` with what is wrong with it."""
        if isinstance(data, dict) and data.keys() <= {"to", "active", "dryRun"}:
            to, active, dry_run = data.get("to", ""), data.get("active", ""), data.get("dryRun", False)
            if isinstance(to, str) and isinstance(active, str) and isinstance(dry_run, bool):
                return cls(to, active, dry_run)
        raise ValueError('the body must be {} or {"to": "GENERATION or HASH"}, with "active": "HASH" and '
                         '"dryRun": true if you like')


class RollbackEndpoint:
    """`POST /rollback` with the token: activates an earlier generation of a server's policies again.

    The body is `{}` for the generation before, or has fields of a `RollbackRequest`.
    """

    def __init__(self, reloader: Callable[[], Reloader | None], token: AdminToken | None) -> None:
        """`reloader` returns None until policies are loaded; without a `token` nobody may roll back."""
        self._reloader = reloader
        self._token = token

    def add_to(self, app: web.Application) -> None:
        """Add the route to an application."""
        app.router.add_post("/rollback", self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        if self._token is None:
            return web.json_response({"error": DENIED}, status=403)
        if not await asyncio.to_thread(self._token.fits, request.headers.get("Authorization", "")):
            return web.json_response({"error": UNAUTHORIZED}, status=401, headers={"WWW-Authenticate": "Bearer"})
        reloader = self._reloader()
        if reloader is None:
            return web.json_response({"error": "policies are not loaded yet"}, status=503)
        try:
            data = json.loads(await request.read() or b"{}")
        except (ValueError, RecursionError):
            return web.json_response({"error": "the body is not JSON"}, status=400)
        return await roll_back(reloader, data)


async def roll_back(reloader: Reloader, data: object) -> web.Response:
    """Activate the generation that a request's body names, and return the response."""
    try:
        required = RollbackRequest.of(data)
    except ValueError as error:
        return web.json_response({"error": str(error)}, status=400)
    try:
        if required.dry_run:
            return web.json_response(await asyncio.to_thread(_outlook, reloader, required))
        record = await completed(reloader.restore(required.to, active=required.active))
    except AdminRefusal as refused:
        return declined(refused)
    _LOG.warning("rolled back on request: generation %d is %s again", record.generation, record.restored)
    return web.json_response({"restored": record.restored, "generation": record.generation, "hash": record.digest})


def _outlook(reloader: Reloader, required: RollbackRequest) -> dict[str, Any]:
    """Return the generation that a rollback would activate, and the files that it would change."""
    status = reloader.status()
    try:
        record = reloader.earlier(required.to)
    except PolicyError as error:
        raise _refused(error) from None
    if required.active and required.active != status.digest:
        raise AdminRefusal(f"`{status.digest}` is active, not `{required.active[:80]}`", "other-active",
                           {"active": status.digest})
    changes = file_changes(files_of(status.history[-1]), files_of(record))
    return {"dryRun": True, "restored": record.generation, "hash": record.digest, "active": status.digest,
            **to_json(changes)}


async def completed(pending: Future[GenerationRecord]) -> GenerationRecord:
    """Return the result of a change by the reloading thread; raises `AdminRefusal`."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(pending), _ADMIN_SECONDS)
    except PolicyError as error:
        raise _refused(error) from None
    except TimeoutError:
        raise AdminRefusal(f"it was not done within {_ADMIN_SECONDS:g} s: the status tells what came of it",
                           "timeout") from None


def _refused(error: PolicyError) -> AdminRefusal:
    texts = [problem.message + (f" ({problem.help})" if problem.help else "") for problem in error.problems]
    return AdminRefusal("; ".join(texts[:5]), error.problems[0].code or "invalid")


def declined(refused: AdminRefusal, facts: Mapping[str, Any] | None = None) -> web.Response:
    """Return the response to a change that is rejected."""
    data = {**(facts or {}), **refused.facts, "error": str(refused), "code": refused.code}
    return web.json_response(data, status=409)
