"""The responses of the extender's server: large ones in parts, and errors with a reason."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from .intake import DeclinedError

_LOG: Final = logging.getLogger(__name__)
LATER: Final = {"Retry-After": "1"}
"""The headers of an answer to a request that may succeed in a second."""


async def send(request: web.Request, parts: list[bytes]) -> web.StreamResponse:
    """Send a large response, each part freed before the next is sent."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = sum(map(len, parts))
    await response.prepare(request)
    parts.reverse()
    while parts:
        await response.write(parts.pop())
    await response.write_eof()
    return response


def later(reason: str) -> web.Response:
    """Return the answer to a request that may succeed in a second."""
    return refuse(503, reason, **LATER)


def refuse(status: int, reason: str, **headers: str) -> web.Response:
    """Return an error with its reason as JSON."""
    body = json.dumps({"error": reason}).encode()
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


@web.middleware
async def explain_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    """Answer errors with a reason, without internals."""
    path = request.path[:100]
    try:
        return await handler(request)
    except web.HTTPNotFound:
        known = sorted(route.canonical for route in request.app.router.resources())
        return refuse(404, f"there is no `{path}`: ask {', '.join(known)}")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return refuse(405, f"`{path}` takes {allowed}, not {request.method[:20]}", Allow=allowed)
    except DeclinedError as error:
        return refuse(error.status, str(error), **error.headers)
    except web.HTTPException as error:
        return refuse(error.status, error.reason)
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception:
        _LOG.exception("answering %s failed", path)
        return refuse(500, "an unexpected error, which is in the log")
