"""The HTTP server of the console: the page, its scripts and styles, and the views as JSON.

Views are in the table of `views`, other requests in sets of routes such as `drafts`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from koordpolicy import __version__
from koordpolicy.engine.cel.values.deadline import OverdueError
from koordpolicy.engine.client.server_calls import Caller
from koordpolicy.engine.escaping import visible
from koordpolicy.engine.monitoring.monitor import ServerMonitor
from koordpolicy.engine.reload.vet import Vetter
from koordpolicy.engine.serving.reviews import Denied
from koordpolicy.engine.source import PolicyError

from .analysis_routes import AnalysisRoutes
from .drafts import DraftRoutes
from .faults import faults
from .guard import HEADERS, Guard, NotPermitted, client_of, policy_of
from .jobs import SECONDS as JOB_SECONDS
from .models.model import Fault, RefusalView
from .models.session import Session
from .node_time import NodeTimes
from .node_time_routes import NodeTimeRoutes
from .past import Past
from .rights import EVERYTHING, READING, Right
from .routes import CLIENT, USER, Route, RouteSet, json_answer
from .servers import ServerRoutes
from .state import ConsoleState, UnknownNameError
from .time_routes import TimeRoutes
from .view_thread import SECONDS, ViewThread
from .views import VIEWS, View

STATIC: Final = Path(__file__).parent / "static"
"""The built front end; `make console` and the wheel have it."""
PAGE: Final = "index.html"
LONGEST_LINE: Final = 64 * 1024
"""The length of a request's first line that a listener must let through, in bytes."""
_API: Final = "/api/v1/"
_NONCE: Final = b"{{nonce}}"
_LARGEST_BODY: Final = 512 * 1024
_LONGEST_QUERY: Final = 16 * 1024
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html",
                 ".map": "application/json", ".woff2": "font/woff2"}
_OF_USERS: Final = (409,)
"""The statuses of rejections that two users cause who change the same."""
_LOG: Final = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Static:
    """The files of the front end, read once."""

    def __init__(self, directory: Path = STATIC) -> None:
        """Raises `FileNotFoundError` if it is not built."""
        if not (directory / PAGE).is_file():
            raise FileNotFoundError(directory / PAGE)
        self._files = {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.suffix in _TYPES}

    def response(self, name: str) -> web.Response:
        """Return a file as an answer; 404 if there is none."""
        content = self._files.get(name)
        if content is None:
            return _refusal(f"there is no `{name[:100]}` here", 404)
        headers = {}
        if name == PAGE:
            nonce = secrets.token_urlsafe(16)
            content = content.replace(_NONCE, nonce.encode())
            headers["Content-Security-Policy"] = policy_of(nonce)
        return web.Response(body=content, content_type=_TYPES[Path(name).suffix], charset="utf-8", headers=headers)


class ConsoleServer:
    """Answers the requests of pages. `close` ends its threads and its process."""

    def __init__(self, state: ConsoleState, guard: Guard, static: Static, *, vetter: Vetter | None = None,
                 seconds: float = SECONDS, past: Past | None = None, replay_seconds: float = JOB_SECONDS,
                 analysis_seconds: float = JOB_SECONDS,
                 node_times: NodeTimes | None = None, monitor: ServerMonitor | None = None,
                 more: Sequence[RouteSet] = ()) -> None:
        """`vetter` None means that drafts are compiled without a process of their own, for tests. `past` is the flight
        recording to show, `node_times` are the recordings of node agents, `monitor` polls the running servers.

        `more` are further routes; they are closed with the server.
        """
        self._guard = guard
        self._static = static
        self._views = ViewThread(state, seconds=seconds, past=past)
        self._drafts = DraftRoutes(self._views, vetter)
        self._node_times = NodeTimeRoutes(self._views, node_times or NodeTimes((), (), Caller))
        self._times = TimeRoutes(self._views, past, self._drafts.vet, limit=replay_seconds)
        self._servers = ServerRoutes(monitor, self._views)
        analyses = AnalysisRoutes(self._views, self._drafts.vet, limit=analysis_seconds)
        self._sets: tuple[RouteSet, ...] = (self._drafts, self._times, self._node_times, self._servers, analyses,
                                            *more)
        all_routes = [each for routes in self._sets for each in routes.routes()]
        self._changing = any(Right.CHANGES in each.rights for each in all_routes)
        self._has_generations = any(each.path == "changes" for each in all_routes)

    def start(self) -> None:
        """Start the process and the imports that drafts need, the reading of the recording, and the calls of servers.

        Waits for nothing.
        """
        self._drafts.start()
        self._times.start()
        self._node_times.start()
        self._servers.start()

    @property
    def views(self) -> ViewThread:
        """The thread that owns the state."""
        return self._views

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._protected], client_max_size=_LARGEST_BODY)
        app.router.add_get("/", self._page)
        app.router.add_get("/static/{name}", self._file)
        app.router.add_get(f"{_API}session", self._session)
        for view in VIEWS:
            for method in ("GET", "POST") if view.typed else ("GET",):
                self._add(app, Route(method, view.name, partial(self._view, view), view.rights, view.cost))
        for routes in self._sets:
            for each in routes.routes():
                self._add(app, each)
        app.on_shutdown.append(self._servers.end_polls)
        if self._guard.users is not None:
            app.cleanup_ctx.append(self._guard.users.connected)
        return app

    def close(self) -> None:
        """End the threads and the process; waits for nothing."""
        self._views.close()
        for routes in self._sets:
            routes.close()

    def _add(self, app: web.Application, route: Route) -> None:
        async def permitted(request: web.Request) -> web.StreamResponse:
            user = USER.get()
            self._guard.count(CLIENT.get(), route.cost)
            await self._guard.check_rights(request, user, route.rights)
            return await route.handler(request)

        app.router.add_route(route.method, f"{_API}{route.path}", permitted)

    @web.middleware
    async def _protected(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            self._guard.check_address(request)
            if request.path.startswith("/api/"):
                user = await self._guard.user(request)
                USER.set(user)
                CLIENT.set(client_of(request, user))
                _check_form(request)
            response = await handler(request)
        except Denied as error:
            response = _refusal(str(error), error.status, shown=error.status in _OF_USERS)
            response.headers.update(error.headers)
        except web.HTTPException as error:
            response = _refusal(error.reason.lower(), error.status)
        except PolicyError as error:
            response = _refusal(visible(error.problems[0].message), 422, faults(error.problems), shown=True)
        except UnknownNameError as error:
            response = _refusal(str(error), 404, shown=True)
        except OverdueError as error:
            response = _refusal(str(error), 503)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            response = _refusal(str(error), 400)
        except ValueError as error:
            response = _refusal(str(error), 400, shown=True)
        except Exception:
            _LOG.exception("a request failed: %s", request.path)
            response = _refusal("the console failed to answer; its log says why", 500)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
        return response

    async def _page(self, _: web.Request) -> web.Response:
        return self._static.response(PAGE)

    async def _file(self, request: web.Request) -> web.Response:
        return self._static.response(request.match_info["name"])

    async def _session(self, request: web.Request) -> web.Response:
        user = USER.get()
        self._guard.count(CLIENT.get(), 1.0)
        refused = await self._guard.refusals(request, user, EVERYTHING)
        return json_answer(Session(
            version=__version__, protected=self._guard.users is not None, user=user.name, seconds=self._views.seconds,
            may_change=self._changing and not refused,
            may_look_at_changes=self._has_generations and READING.isdisjoint(refused),
            refused={right.name.lower(): why for right, why in refused.items()}))

    async def _view(self, view: View, request: web.Request) -> web.Response:
        query = dict(request.query)
        if request.method == "POST":
            query |= msgspec.json.decode(await request.read(), type=dict[str, str])
        view.check(query)
        at = query.get("at", "")  # a recording may grow
        return await self._views.answer(
            lambda state: view.of(state, query), at=at, times=view.times, key="" if at else _key(view.name, query),
            kind=view.name, movable=True, typed=view.typed)


def _refusal(error: str, status: int, found: Sequence[Fault] = (), *, shown: bool = False) -> web.Response:
    """Return a refusal; with `shown` a page shows it to the user who caused it, and HTTP's status is 200."""
    return json_answer(RefusalView(error=error, status=status, faults=list(found)), 200 if shown else status)


def _key(name: str, query: Mapping[str, str]) -> str:
    """Return the key of equal requests; rights were checked before, and change no answer."""
    return hashlib.sha256(json.dumps([name, sorted(query.items())]).encode()).hexdigest()


def _check_form(request: web.Request) -> None:
    if request.method == "POST" and request.content_type != "application/json":
        raise NotPermitted(415, "the body must be JSON (`Content-Type: application/json`)")
    if len(request.query_string) > _LONGEST_QUERY:
        raise NotPermitted(414, f"the query has more than {_LONGEST_QUERY} characters")
