"""The HTTP server of the console: the page, its scripts and styles, and the views as JSON.

One thread owns the state and computes views; each has a deadline. Drafts are vetted in a process of their own before
that thread sees them, within the limits that servers have (see `reload.vet`).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from koordpolicy import __version__
from koordpolicy.engine.cel.values.deadline import Deadline, OverdueError
from koordpolicy.engine.escaping import visible
from koordpolicy.engine.reload.status import UNAVAILABLE
from koordpolicy.engine.reload.vet import VETTING, Vetter
from koordpolicy.engine.serving.daemons import Daemons
from koordpolicy.engine.source import PolicyError, Source

from . import nodes, pods, policies
from .colours import colour
from .faults import faults
from .guard import HEADERS, Guard, NotPermitted, policy_of
from .models import CheckView, Model, RefusalView, Session
from .policy_set import DRAFT
from .state import ConsoleState, UnknownNameError

if TYPE_CHECKING:
    from koordpolicy.engine.comparison.outcome import Outcome  # it takes a quarter of a second

STATIC: Final = Path(__file__).parent / "static"
"""The built front end; `make console` and the wheel have it."""
PAGE: Final = "index.html"
SECONDS: Final = 5.0
"""The default of the time that a view may take."""
_NONCE: Final = b"{{nonce}}"
_LARGEST_BODY: Final = 512 * 1024
_LONGEST_QUERY: Final = 16 * 1024
_MOST_QUEUED: Final = 32
_HEAVY: Final = 20.0
"""The cost of the effect of a draft in requests."""
_EFFECT_TIMES: Final = 4
"""The time that the effect of a draft may take, in times of another view's."""
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html",
                 ".map": "application/json", ".woff2": "font/woff2"}
_LOG: Final = logging.getLogger(__name__)
_View = Callable[[ConsoleState, Mapping[str, str]], Model]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Draft(Model, frozen=True, kw_only=True, rename="camel"):
    """The body of a request about a draft. `offset` is in code points."""

    text: str
    pod: str = ""
    offset: int = 0
    budgets: dict[str, str] = msgspec.field(default_factory=dict)


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
            return _json(RefusalView(error=f"there is no `{name[:100]}` here"), 404)
        headers = {}
        if name == PAGE:
            nonce = secrets.token_urlsafe(16)
            content = content.replace(_NONCE, nonce.encode())
            headers["Content-Security-Policy"] = policy_of(nonce)
        return web.Response(body=content, content_type=_TYPES[Path(name).suffix], charset="utf-8", headers=headers)


class ConsoleServer:
    """Answers the requests of pages. `close` ends its thread and its process."""

    def __init__(self, state: ConsoleState, guard: Guard, static: Static, *, vetter: Vetter | None = None,
                 seconds: float = SECONDS) -> None:
        """`vetter` None means that drafts are compiled without a process of their own, for tests."""
        self._state = state
        self._guard = guard
        self._static = static
        self._vetter = vetter
        self._seconds = seconds
        self._owner = Daemons(1, "console")
        self._checks = Daemons(2, "vetting")
        self._before: Outcome | None = None

    def start(self) -> None:
        """Start the process and the imports that drafts need, without waiting for them."""
        if self._vetter is not None:
            self._vetter.start()
        self._checks.submit(importlib.import_module, ".playground", __package__)

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._protected], client_max_size=_LARGEST_BODY)
        app.router.add_get("/", self._page)
        app.router.add_get("/static/{name}", self._file)
        views: Mapping[str, _View] = {
            "overview": lambda state, _: policies.overview(state),
            "map": lambda state, query: nodes.cluster_map(state, query.get("group", "zone")),
            "colour": lambda state, query: colour(state, query.get("expression", ""), query.get("pod", "")),
            "node": lambda state, query: nodes.node_view(state, query.get("name", "")),
            "pod": lambda state, query: pods.pod_view(state, query.get("key", "")),
            "pod-node": lambda state, query: pods.pod_node_view(state, query.get("key", ""), query.get("node", "")),
            "policies": lambda state, _: policies.policies_view(state),
            "file": lambda state, query: policies.file_view(state, query.get("name", "")),
            "search": lambda state, query: pods.search(state, query.get("text", "")),
        }
        app.router.add_get("/api/v1/session", self._session)
        for name, view in views.items():
            app.router.add_get(f"/api/v1/{name}", partial(self._view, view))
        for path, handler in (("check", self._check), ("evaluate", self._evaluate), ("effect", self._effect),
                              ("tests", self._tests), ("complete", self._complete), ("describe", self._describe)):
            app.router.add_post(f"/api/v1/draft/{path}", handler)
        return app

    def close(self) -> None:
        """End the thread and the process; waits for nothing."""
        self._owner.shutdown(wait=False, cancel_futures=True)
        self._checks.shutdown(wait=False, cancel_futures=True)
        if self._vetter is not None:
            self._vetter.close()

    @web.middleware
    async def _protected(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            self._guard.check_address(request)
            if request.path.startswith("/api/"):
                user = self._guard.user(request)
                self._guard.count(request, user, _HEAVY if request.path.endswith("/effect") else 1.0)
                _check_form(request)
            response = await handler(request)
        except NotPermitted as error:
            response = _json(RefusalView(error=str(error)), error.status)
            response.headers.update(error.headers)
        except web.HTTPException as error:
            response = _json(RefusalView(error=error.reason.lower()), error.status)
        except PolicyError as error:
            found = faults(error.problems)
            # An invalid expression is an answer: a browser would log any other status as an error, at every key.
            response = _json(RefusalView(error=visible(error.problems[0].message), faults=found))
        except UnknownNameError as error:
            response = _json(RefusalView(error=str(error)), 404)
        except OverdueError:
            response = _json(RefusalView(error=f"it takes more than {self._seconds:g} s"), 503)
        except (ValueError, msgspec.DecodeError) as error:
            response = _json(RefusalView(error=str(error)), 400)
        except Exception:
            _LOG.exception("a request failed: %s", request.path)
            response = _json(RefusalView(error="the console failed to answer; its log says why"), 500)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
        return response

    async def _page(self, _: web.Request) -> web.Response:
        return self._static.response(PAGE)

    async def _file(self, request: web.Request) -> web.Response:
        return self._static.response(request.match_info["name"])

    async def _session(self, request: web.Request) -> web.Response:
        return _json(Session(version=__version__, protected=self._guard.protected, user=self._guard.user(request),
                             seconds=self._seconds))

    async def _view(self, view: _View, request: web.Request) -> web.Response:
        query = dict(request.query)
        return await self._answer(lambda state: view(state, query))

    async def _check(self, request: web.Request) -> web.Response:
        from .playground import check_draft  # noqa: PLC0415 - a second of imports that the first page does not need

        draft = await _draft(request)
        try:
            await self._vet(draft)
        except PolicyError as error:
            return _json(CheckView(faults=faults(error.problems), policies=[], tests=0))
        return await self._answer(lambda state: check_draft(state.policies, draft.text))

    async def _evaluate(self, request: web.Request) -> web.Response:
        from .playground import evaluate_draft  # noqa: PLC0415 - as above

        draft = await _draft(request)
        await self._vet(draft)
        return await self._answer(lambda state: evaluate_draft(state, draft.text, draft.pod, draft.offset))

    async def _effect(self, request: web.Request) -> web.Response:
        from .playground import effect_of  # noqa: PLC0415 - as above

        draft = await _draft(request)
        await self._vet(draft)

        def effect(state: ConsoleState) -> Model:
            view, self._before = effect_of(state, draft.text, draft.budgets, self._before)
            return view

        return await self._answer(effect, times=_EFFECT_TIMES)

    async def _tests(self, request: web.Request) -> web.Response:
        from .playground import test_draft  # noqa: PLC0415 - as above

        draft = await _draft(request)
        await self._vet(draft)
        return await self._answer(lambda state: test_draft(state.policies, draft.text))

    async def _complete(self, request: web.Request) -> web.Response:
        from .authoring import complete  # noqa: PLC0415 - as above

        draft = await _draft(request)
        return await self._answer(lambda state: complete(state.policies, draft.text, draft.offset))

    async def _describe(self, request: web.Request) -> web.Response:
        from .authoring import describe  # noqa: PLC0415 - as above

        draft = await _draft(request)
        return await self._answer(lambda state: describe(state.policies, draft.text, draft.offset))

    async def _vet(self, draft: Draft) -> None:
        """Raise `PolicyError` if the worker process does not survive a draft.

        All other problems are found again, with the other policies, by the thread that owns the state.
        """
        if self._vetter is None:
            return
        sources = [Source(DRAFT, draft.text), *self._state.policies.params_files]
        try:
            await asyncio.get_running_loop().run_in_executor(self._checks, partial(self._vetter.vet, sources))
        except PolicyError as error:
            if any(each.code in (VETTING, UNAVAILABLE) for each in error.problems):
                raise

    async def _answer(self, view: Callable[[ConsoleState], Model], *, times: float = 1.0) -> web.Response:
        if len(self._owner.seconds_unfinished()) >= _MOST_QUEUED:
            raise NotPermitted(503, "too many views are being computed: try again", **{"Retry-After": "1"})

        def compute() -> bytes:
            with Deadline(self._seconds * times) as deadline:
                try:
                    found = msgspec.json.encode(view(self._state))
                finally:
                    if late := deadline.passed:
                        self._state.forget()
            if late:
                raise OverdueError
            return found

        body = await asyncio.get_running_loop().run_in_executor(self._owner, compute)
        return web.Response(body=body, content_type="application/json", charset="utf-8")


def _check_form(request: web.Request) -> None:
    if request.method == "POST" and request.content_type != "application/json":
        raise NotPermitted(415, "the body must be JSON (`Content-Type: application/json`)")
    if len(request.query_string) > _LONGEST_QUERY:
        raise NotPermitted(414, f"the query has more than {_LONGEST_QUERY} characters")


async def _draft(request: web.Request) -> Draft:
    return msgspec.json.decode(await request.read(), type=Draft)


def _json(model: Model, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(model), status=status, content_type="application/json",
                        charset="utf-8")
