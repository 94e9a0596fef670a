"""Routes: requests of pages that are more than views, with their handlers and costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from aiohttp import web

from koordpolicy.engine.serving.reviews import User

from .models.model import Model
from .rights import READING, Right

USER: Final[ContextVar[User]] = ContextVar("user")
"""The user of the request that is being answered."""
CLIENT: Final[ContextVar[str]] = ContextVar("client", default="")
"""The address and the user of the request that is being answered; empty outside of requests."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path below `/api/v1/`, its method and its handler.

    The handler may raise what the server turns into an answer: `NotPermitted`, `PolicyError`, `UnknownNameError`,
    `OverdueError`, `ValueError` and `msgspec.DecodeError`.
    """

    method: str
    path: str
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    rights: frozenset[Right] = READING
    """The rights that a user needs for it."""
    cost: float = 1.0
    """The number of requests that one of these counts for (`guard.RateLimit`)."""


class RouteSet(Protocol):
    """Routes that belong together, with what they use."""

    def routes(self) -> tuple[Route, ...]:
        """Return the routes; their paths are nobody else's."""
        ...

    def close(self) -> None:
        """End threads and processes; waits for nothing."""
        ...


def json_answer(model: Model, status: int = 200) -> web.Response:
    """Return a model as an answer."""
    return web.Response(body=msgspec.json.encode(model), status=status, content_type="application/json",
                        charset="utf-8")
