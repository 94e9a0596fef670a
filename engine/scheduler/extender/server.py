"""The extender over HTTP: /filter and /prioritize for kube-scheduler, and /healthz, /readyz, /metrics and /status.

The border to aiohttp and prometheus_client. A separate thread makes all decisions and owns the cluster; the event loop
only moves bytes, so that health checks are answered while decisions are made.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from aiohttp import web

from koordpolicy.engine.cluster.kinds import Lack, describe
from koordpolicy.engine.cluster.sources.changes import KindView
from koordpolicy.engine.cluster.sources.comparer import dump
from koordpolicy.engine.cluster.sources.watched_cluster import WatchedCluster
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.reload.admin import AdminToken
from koordpolicy.engine.serving.access import Access
from koordpolicy.engine.serving.daemons import Daemons
from koordpolicy.engine.serving.endpoints import JSON, OperationEndpoints, in_turns
from koordpolicy.engine.serving.garbage_collection import ShortCollections
from koordpolicy.engine.serving.health import Health, HealthCheck
from koordpolicy.engine.serving.listeners import serving, serving_apart
from koordpolicy.engine.serving.long_texts import json_blocks
from koordpolicy.engine.source import PolicyError

from ..status import lacks_of
from .admin_endpoints import AdminEndpoints
from .blocks import Blocks
from .bodies import ExcessiveError, MalformedBody, read_binding
from .decider import Decider, Stopped
from .decision_record import Verb
from .explain_endpoint import (
    ExplainRequest,
    TooLongError,
    UnknownSubjectError,
    answer_explain_request,
    read_explain_request,
)
from .intake import SMALL_BODY, DeclinedError, Intake
from .loaded_extender import Loaded
from .metrics import Metrics
from .responses import LATER, explain_errors, later, refuse, send
from .services import UnknownPathError
from .services import answer as answer_service
from .status import status_of
from .watchdog import Overdue, Watchdog, document_of

T = TypeVar("T")

DEFAULT_MAX_BODY: Final = 64 * 1024 * 1024
"""The default of the maximum size of a body, in bytes."""

DECISION_SECONDS: Final = 3.0
"""The default timeout of calls and decisions."""
STUCK_SECONDS: Final = 30.0
"""The time after a stuck decision until /healthz fails."""

_LOG: Final = logging.getLogger(__name__)
_APPLY_BUDGETS: Final = 10
"""The time to apply some changes of the cluster, as a multiple of a decision's time."""
_SLICE_SECONDS: Final = 0.002
"""The time for changes between two decisions."""
_GATHER_SECONDS: Final = 0.005
_LOOK_SECONDS: Final = 1.0
_MARGIN_SECONDS: Final = 1.0
"""The time that a change may take from the API server's storage to its watches."""
_EXPLAIN_SHARE: Final = 1 / 3
"""The part of a decision's time that an explanation may take; the rest remains for a call that arrives meanwhile."""
_LOOKS_PER_BUDGET: Final = 10
_CLOSE_SECONDS: Final = 5.0
_MOST_WAITING: Final = 32
_BINDINGS_AT_ONCE: Final = 8
_LACKS_SECONDS: Final = 1.0
_FREEZE_SECONDS: Final = 60.0
_COMPARE_SECONDS: Final = 300.0
"""The time between two comparisons of a watched cluster with what the API server delivered, as of a live scheduler."""


class Server:
    """Serves until it is stopped.

    `load` is called in the deciding thread, which then owns its result; while it runs, /healthz succeeds
    and /readyz fails.
    """

    def __init__(
        self, load: Callable[[], Loaded], *, max_body: int = DEFAULT_MAX_BODY, tls: ssl.SSLContext | None = None,
        health: tuple[str, int] | None = None, token: AdminToken | None = None,
        decision_seconds: float = DECISION_SECONDS, stuck_seconds: float = STUCK_SECONDS,
        close_seconds: float = _CLOSE_SECONDS, binds: bool = False,
        collections: ShortCollections | None = None, access: Access | None = None,
        configuration: Mapping[str, Any] | None = None,
    ) -> None:
        """`health` is an address that serves probes and Prometheus without TLS, and nothing else.

        `binds` is whether /bind is served, by `Loaded.bind`. `collections` freeze the objects of a cluster that is
        listed periodically once it is loaded, and once the changes of a listing are applied; they are closed at the
        end. `access` decides who may read metrics and the `configuration`, plain data that /configz returns; None lets
        everybody.

        The `token` authorizes promotions of the shadow and rollbacks to earlier generations; without one both are
        disabled. A call is answered within `decision_seconds` of its body, and a decision that takes longer makes the
        server not ready; `stuck_seconds` after that it is not healthy either. At the end the loaded parts have
        `close_seconds` to close.
        """
        self.metrics = Metrics()
        self._load = load
        self._tls = tls
        self._health = health
        self._loaded: Loaded | None = None
        self._intake = Intake(max_body, most=2 * max_body)
        self._admin = AdminEndpoints(token, self._intake, lambda: self._loaded)
        self._waiting = 0
        self._explaining = False
        # Responses for display are built beside the event loop, which moves the bytes of calls; Prometheus
        # never waits for requests of users.
        self._explainer = Daemons(2, "explain")
        self._status_threads = Daemons(1, "status")
        self._started = time.time()
        """In seconds since the epoch."""
        self._binds = binds
        self._collections = collections
        self._binder = Daemons(_BINDINGS_AT_ONCE, "bind")
        self._decision_seconds = decision_seconds
        self._close_seconds = close_seconds
        self._decider = Decider(stopped=self._stopped)
        self._watchdog = Watchdog(self._decider, last=stuck_seconds, report=self._report)
        self.metrics.watchdog, self.metrics.binder = self._watchdog, self._binder
        alive = HealthCheck("decisions", self._lost)
        self._dumping: set[asyncio.Task[None]] = set()
        self._operations = OperationEndpoints(
            Health({
                "healthz": [alive], "livez": [alive],
                "readyz": [HealthCheck("loaded", self._not_loaded), HealthCheck("policies", self._emptied),
                           HealthCheck("decisions", self._overdue)],
            }), self.metrics.registry, access=access,
            configuration=None if configuration is None else lambda: configuration)
        self.abandoned = ""
        """The task that did not return when the server ended, in a thread that still runs; empty if all returned."""

    @property
    def generation(self) -> int | None:
        """The generation of the active policies; None until they are loaded."""
        loaded = self._loaded
        return None if loaded is None else loaded.extender.scheduler.profiles[0].generation

    def request_dump(self) -> None:
        """Compare a watched cluster with what the API server delivered, and log nodes and pods; in the event loop."""
        dumping = asyncio.get_running_loop().create_task(self._log_dump())
        self._dumping.add(dumping)
        dumping.add_done_callback(self._dumping.discard)

    async def _log_dump(self) -> None:
        loaded = self._loaded
        if loaded is None:
            _LOG.info("policies and cluster are not loaded yet: there is nothing to compare")
            return
        try:
            if loaded.watched is not None:
                loaded.watched.compare()
            lines = await self._in_turn_to_the_end(
                "listing nodes and pods", lambda: list(dump(loaded.extender.cluster, None)))
        except Exception as error:  # calls are answered whatever an operator wants to know
            _LOG.warning("nodes and pods cannot be listed now: %s", error)
            return
        for line in lines:
            _LOG.info("%s", line)

    async def run(
        self, host: str, port: int, stop: asyncio.Event, *, bound: Callable[[str], None] = lambda _: None,
        ready: Callable[[Loaded], None] = lambda _: None,
    ) -> None:
        """Serve on that address until `stop` is set; port 0 takes a free one.

        `bound` is called with the URL once the port is open, `ready` with the result of `load`. Raises the exceptions
        of `load`, and `OSError` if the address is not available.
        """
        watching = asyncio.create_task(self._watch())
        try:
            await self._serve(host, port, stop, bound, ready)
        finally:
            await _ended(watching)
            for threads in (self._explainer, self._status_threads):
                threads.shutdown(wait=False, cancel_futures=True)
            self._operations.close()
            if self._binder.busy:
                self.abandoned = self.abandoned or "binding a pod"

    async def _serve(
        self, host: str, port: int, stop: asyncio.Event, bound: Callable[[str], None], ready: Callable[[Loaded], None],
    ) -> None:
        loaded: Loaded | None = None
        tasks: list[asyncio.Task[None]] = []
        async with self._listening(host, port) as url:
            bound(url)
            try:
                found = await self._load_until(stop)
                if found is None:
                    return
                loaded = self._loaded = self.metrics.loaded = found
                ready(found)
                tasks.append(asyncio.create_task(self._warn_of_lacks(found)))
                tasks.append(asyncio.create_task(
                    self._freeze_repeatedly() if found.watched is None else self._follow(found, found.watched)))
                await stop.wait()
            finally:
                self._loaded = self.metrics.loaded = None
                for task in (*tasks, *self._dumping):
                    await _ended(task)
                if loaded is not None:
                    await self._close(loaded)
                self._decider.shutdown(wait=False, cancel_futures=True)
                self._binder.shutdown(wait=False, cancel_futures=True)
                if self._collections is not None:
                    await asyncio.to_thread(self._collections.close)

    async def _load_until(self, stop: asyncio.Event) -> Loaded | None:
        """Return the loaded parts; None if the server is stopped before."""
        loading = asyncio.wrap_future(self._decider.assign("loading", math.inf, self._load))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _ended(stopping)
        if loading.done():
            return loading.result()
        loading.cancel()
        self.abandoned = "loading policies and cluster"
        return None

    async def _close(self, loaded: Loaded) -> None:
        """Close the loaded parts; those that do not return in time are abandoned."""
        # Not the loop's own executor, which waits for its threads without a limit.
        closer = Decider()
        for what, thread, close in (
            ("reloading", closer, loaded.stop_reloading),
            ("the last decision", self._decider, partial(_close, loaded)),
        ):
            closing = asyncio.wrap_future(thread.assign("closing", self._close_seconds, close))
            try:
                async with asyncio.timeout(self._close_seconds):
                    await closing
            except TimeoutError:
                self.abandoned = what
                _LOG.error("%s did not end within %g s: the server ends without waiting", what, self._close_seconds)
                return
        closer.shutdown(wait=False)

    # Overdue tasks

    async def _watch(self) -> None:
        """Check the deciding thread a few times per decision budget."""
        before: Overdue | None = None
        while True:
            await asyncio.sleep(self._decision_seconds / _LOOKS_PER_BUDGET)
            overdue = self._watchdog.look()
            if before is not None and overdue is not before:
                _LOG.warning("%s has returned after all: decisions go on", before.what)
            before = overdue

    def _report(self, overdue: Overdue) -> None:
        now = self._decider.clock()
        _LOG.error("not ready: %s (at %s)", overdue.describe(now), overdue.trace)
        self._blame(overdue.plugin, overdue.describe(now), shadow=overdue.shadow,
                    point="" if overdue.point is None else overdue.point.value)

    def _stopped(self, stopped: Stopped) -> None:
        loaded = self._loaded
        if loaded is None:
            return
        shadow = loaded.extender.shadow
        plugin = document_of(loaded.reloader.registry, stopped.text)
        in_shadow = plugin is None and shadow is not None
        if in_shadow and shadow is not None:
            plugin = document_of(shadow.reloader.registry, stopped.text)
        name = f"the document `{plugin.name}` ({plugin.origin})" if plugin is not None else f"`{stopped.text.name}`"
        why = f"an expression of {name} was stopped: {stopped.what} had taken {stopped.budget:g} s"
        _LOG.error("%s", why)
        self._blame(plugin, why, shadow=in_shadow)

    def _blame(self, plugin: Plugin | None, why: str, *, shadow: bool, point: str = "") -> None:
        self.metrics.overdue("" if plugin is None else plugin.name, point)
        loaded = self._loaded
        if loaded is None or plugin is None or plugin.span is None:
            return
        policies_in_shadow = loaded.extender.shadow
        if shadow and policies_in_shadow is not None:
            policies_in_shadow.reloader.report_overdue(plugin, why)
        elif not shadow:
            loaded.reloader.report_overdue(plugin, why)

    def _refuse_late(self) -> web.Response | None:
        """Return the response to a call while a decision is overdue; None if the call may wait for its turn."""
        late = self._overdue()
        return later(late) if late else None

    async def _in_turn(self, what: str, fn: Callable[..., T], *arguments: object) -> T:
        """Run `fn` in the deciding thread and return its result; decline if that takes longer than a decision may."""
        self._decline_late()
        budget = self._decision_seconds
        try:
            async with asyncio.timeout(budget):
                return await asyncio.wrap_future(self._decider.assign(what, budget, fn, *arguments))
        except TimeoutError:
            raise DeclinedError(503, f"no answer within {budget:g} s", **LATER) from None

    async def _in_turn_to_the_end(self, what: str, fn: Callable[..., T], *arguments: object) -> T:
        """Run `fn` in the deciding thread and return its result; decline if it does not begin in time.

        Once begun, its end is awaited: no other code may use its data before.
        """
        self._decline_late()
        budget = self._decision_seconds * _APPLY_BUDGETS
        job = self._decider.assign(what, budget, fn, *arguments)
        result = asyncio.wrap_future(job)
        done, _ = await asyncio.wait((result,), timeout=budget)
        if not done and job.cancel():
            raise DeclinedError(503, f"no turn within {budget:g} s", **LATER)
        return await result

    def _decline_late(self) -> None:
        if late := self._overdue():
            raise DeclinedError(503, late, **LATER)

    def _note(self, what: str, fn: Callable[..., None], *arguments: object) -> None:
        """Queue a call of `fn` before all later decisions, without waiting: it records an event that already
        happened.
        """

        def noted(done: Future[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                _LOG.error("recording `%s` failed: %s", what, error or type(error).__name__, exc_info=error)

        with suppress(RuntimeError):  # the server ends and makes no more decisions
            self._decider.assign(what, self._decision_seconds, fn, *arguments).add_done_callback(noted)

    @asynccontextmanager
    async def _listening(self, host: str, port: int) -> AsyncIterator[str]:
        app = web.Application(middlewares=[explain_errors])
        app.router.add_post("/filter", self._filter)
        app.router.add_post("/prioritize", self._prioritize)
        if self._binds:
            app.router.add_post("/bind", self._bind)
        app.router.add_get("/status", self._status)
        app.router.add_get("/explain", self._explain)
        app.router.add_post("/explain", self._explain)
        app.router.add_get("/apis/v1/{path:.*}", self._services)
        self._admin.add_to(app)
        async with AsyncExitStack() as open_ports:
            if self._health is not None:
                probes = web.Application(middlewares=[explain_errors])
                self._operations.add_to(probes)
                await open_ports.enter_async_context(serving_apart(probes, *self._health))
            self._operations.add_to(app)
            yield await open_ports.enter_async_context(serving(app, host, port, self._tls))

    async def _freeze_repeatedly(self) -> None:
        """Collect and freeze every minute where no listing is applied, which also finds garbage in reference cycles."""
        while True:
            await self._freeze()
            await asyncio.sleep(_FREEZE_SECONDS)

    async def _follow(self, loaded: Loaded, watched: WatchedCluster) -> None:
        """Apply the changes of the cluster, some at a time, so that decisions run in between."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nothing is decided any more
                loop.call_soon_threadsafe(arrived.set)

        watched.listen(wake)
        frozen_at, compared, views = -math.inf, loop.time(), watched.views
        while True:
            if loop.time() - compared >= _COMPARE_SECONDS:
                watched.compare()
                compared = loop.time()
            if loop.time() - frozen_at >= _FREEZE_SECONDS:
                await self._freeze()
                frozen_at = loop.time()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await arrived.wait()
            arrived.clear()
            try:
                while await self._in_turn_to_the_end("applying changes of the cluster", watched.apply, _SLICE_SECONDS):
                    pass
                await self._in_turn_to_the_end("comparing placements with the cluster", _compare, loaded, watched)
            except Exception as error:
                _LOG.warning("changes of %s are applied later: %s", loaded.source, error)
                await asyncio.sleep(_LOOK_SECONDS)
                arrived.set()
            before, views = views, watched.views
            self._report_views(before, views)
            # Changes that follow each other closely are applied together.
            await asyncio.sleep(_GATHER_SECONDS)

    def _report_views(self, before: Mapping[str, KindView], views: Mapping[str, KindView]) -> None:
        for kind, view in views.items():
            known = before.get(kind, KindView())
            if view.stale and not known.fault:
                self.metrics.refreshed("failure")
            elif known.fault and not view.fault:
                self.metrics.refreshed("success")
                _LOG.warning("%s: is watched again", kind)

    async def _warn_of_lacks(self, loaded: Loaded) -> None:
        """Log the kinds that plugins read and the source lacks, whenever policies or a listing change them."""
        extender, key = loaded.extender, None
        known: frozenset[Lack] | None = None  # the first ones are reported when the server starts
        while True:
            before, key = key, (extender.scheduler.profiles[0].generation, extender.cluster.kinds)
            if key != before:
                lacks = frozenset(await self._made(self._status_threads, lacks_of, extender.scheduler))
                if known is not None and lacks - known:
                    _LOG.warning("%s: add them to it, or do not rely on what these plugins say",
                                 describe(lacks - known))
                known = lacks
            await asyncio.sleep(_LACKS_SECONDS)

    async def _freeze(self) -> None:
        if self._collections is not None:
            await asyncio.to_thread(self._collections.freeze)

    # kube-scheduler's calls

    async def _filter(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(Verb.FILTER, request)

    async def _prioritize(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(Verb.PRIORITIZE, request)

    async def _answer(self, verb: Verb, request: web.Request) -> web.StreamResponse:
        loaded = self._loaded
        if loaded is None:
            return refuse(503, "policies and cluster are not loaded yet")
        if (late := self._refuse_late()) is not None:
            return late
        async with self._intake.body(request, option="--max-body") as body:
            if self._loaded is not loaded:  # the server began to stop while the body arrived
                return refuse(503, "the server ends")
            if self._waiting >= _MOST_WAITING:
                return later(f"{self._waiting} calls are waiting already")
            self._waiting += 1
            try:
                answer = await self._decided(loaded, verb, body)
            finally:
                self._waiting -= 1
                if isinstance(body, Blocks):
                    body.clear()
        if answer is None:
            return later(f"no decision within {self._decision_seconds:g} s")
        if isinstance(answer, MalformedBody):
            self.metrics.malformed(verb)
            return refuse(413 if isinstance(answer, ExcessiveError) else 400, str(answer))
        if isinstance(answer, Exception):
            raise answer
        if len(answer) == 1:
            return web.Response(body=answer[0], content_type="application/json")
        return await send(request, answer)

    async def _decided(
        self, loaded: Loaded, verb: Verb, body: bytearray | Blocks,
    ) -> list[bytes] | Exception | None:
        """Return the response or the exception; None if it is not ready in time."""
        loop = asyncio.get_running_loop()
        answering: asyncio.Future[list[bytes] | Exception] = loop.create_future()
        job = self._decider.assign(verb.value, self._decision_seconds, self._decide, loaded, verb, body,
                                   partial(_pass_on, loop, answering))
        try:
            async with asyncio.timeout(self._decision_seconds):
                return await answering
        except TimeoutError:
            return None
        finally:
            job.cancel()  # no client waits for it any more, so its task is skipped

    def _decide(
        self, loaded: Loaded, verb: Verb, body: bytearray | Blocks, respond: Callable[[list[bytes] | Exception], None],
    ) -> None:
        started = time.perf_counter()
        try:
            reply = loaded.extender.answer(verb, body)
        except MalformedBody as error:
            # Its frames hold the body, which would stay in memory until the next garbage collection.
            respond(_bare(error))
            return
        except Exception as error:  # the caller gets the error
            respond(error)
            return
        record = reply.record
        self.metrics.observe(record, time.perf_counter() - started)
        loaded.reloader.observe(record.generation, 1, 1 if record.errors else 0)
        respond(reply.parts)
        loaded.extender.review()  # the response is already sent: this delays only the next request

    async def _bind(self, request: web.Request) -> web.Response:
        """Bind a pod, for an extender with a `bindVerb`."""
        loaded = self._loaded
        if loaded is None or loaded.bind is None:
            return refuse(503, "policies and cluster are not loaded yet")
        async with self._intake.small_body(request, SMALL_BODY) as body:
            try:
                binding = read_binding(body)
            except MalformedBody as error:
                return refuse(413 if isinstance(error, ExcessiveError) else 400, str(error))
        placements, fault = loaded.extender.placements, ""
        pod = f"{binding.namespace}/{binding.name}"
        try:
            await asyncio.get_running_loop().run_in_executor(self._binder, loaded.bind, binding)
        except PolicyError as error:
            fault = "; ".join(problem.message for problem in error.problems)
        except Exception:  # the error is returned to kube-scheduler, which retries
            _LOG.exception("binding %s failed", pod, extra={"pod": pod})
            fault = "an unexpected error, which is in the log of koord-policy"
        if fault:
            _LOG.warning("not bound: %s to %s: %s", pod, binding.node, fault, extra={"pod": pod})
            self._note("bind", placements.refused, binding.uid)
        else:
            self._note("bind", placements.bound, binding.namespace, binding.name, binding.uid, binding.node)
        self.metrics.bound("error" if fault else "ok")
        return web.json_response({"Error": f"koord-policy: {fault}" if fault else ""})

    # Administrative changes

    # Status, explanations and probes

    def _lost(self) -> str:
        lost = self._watchdog.lost
        return "" if lost is None else f"only a restart helps: {lost.describe(self._decider.clock())}"

    def _not_loaded(self) -> str:
        return "policies and cluster are not loaded yet" if self._loaded is None else ""

    def _emptied(self) -> str:
        loaded = self._loaded
        emptied = () if loaded is None else loaded.reloader.status().emptied
        if not emptied:
            return ""
        paths = ", ".join(f"`{path}`" for path in emptied)
        return (f"{paths} holds no policy, and the last good set decides: put the policies back, or start with "
                "`--allow-empty`")

    def _overdue(self) -> str:
        overdue = self._watchdog.look()
        if overdue is None:
            return ""
        return f"no decision can be made now: {overdue.describe(self._decider.clock())}"

    @staticmethod
    async def _made(threads: Daemons, make: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, make, *arguments)

    async def _explain(self, request: web.Request) -> web.Response:
        loaded = self._loaded
        if loaded is None:
            return refuse(503, "policies and cluster are not loaded yet")
        try:
            if request.method != "POST":
                return await self._explained(loaded, await self._made(self._explainer, _read, request.query, None))
            async with self._intake.body(request, option="--max-body") as body:
                target = await self._made(self._explainer, _read, request.query, body)
            return await self._explained(loaded, target)
        except RecursionError:
            return refuse(400, "the pod is nested too deeply")
        except UnknownSubjectError as error:
            return refuse(404, str(error))
        except TooLongError as error:
            return refuse(503, str(error))

    async def _explained(self, loaded: Loaded, target: ExplainRequest | MalformedBody) -> web.Response:
        if isinstance(target, MalformedBody):
            return refuse(413 if isinstance(target, ExcessiveError) else 400, str(target))
        if self._explaining:
            # Decisions wait for each explanation, so only one may run at a time.
            return refuse(503, "another explanation is under way: ask again")
        self._explaining = True
        try:
            finding = await self._in_turn("explain", partial(
                answer_explain_request, seconds=self._decision_seconds * _EXPLAIN_SHARE), loaded.extender, target)
        finally:
            self._explaining = False
        if target.text:
            return web.Response(text=await self._made(self._explainer, finding.as_text) + "\n")
        return in_turns(await self._made(self._explainer, lambda: [*json_blocks(finding.to_json())]), JSON)

    async def _services(self, request: web.Request) -> web.Response:
        loaded = self._loaded
        if loaded is None:
            return refuse(503, "policies and cluster are not loaded yet")
        try:
            found = await self._in_turn(
                "a service of a plugin", answer_service, loaded.extender.scheduler, request.path.rstrip("/"),
                dict(request.query),
            )
        except UnknownPathError as error:
            return refuse(404, str(error))
        except ValueError as error:
            return refuse(400, str(error))
        return in_turns(await self._made(self._explainer, lambda: [*json_blocks(found)]), JSON)

    async def _status(self, request: web.Request) -> web.Response:
        loaded = self._loaded
        if loaded is None:
            return web.json_response({"ready": False})
        overdue, pod = self._watchdog.look(), request.query.get("pod")
        late: dict[str, Any] = {"overdue": None} if overdue is None else {
            "ready": False, "overdue": overdue.to_json(self._decider.clock())}
        late["started"] = self._started
        found = await self._made(
            self._status_threads, lambda: [*json_blocks(status_of(loaded, pod, binder=self._binder) | late)])
        return in_turns(found, JSON)


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and return when it has ended."""
    task.cancel()
    await asyncio.wait((task,))


def _compare(loaded: Loaded, watched: WatchedCluster) -> None:
    """Compare the assumed placements with the pods as the API server was last heard of them."""
    placements = loaded.extender.placements
    placements.listed(placements.now - watched.heard_ago("Pod") - _MARGIN_SECONDS)


def _close(loaded: Loaded) -> None:
    loaded.extender.close()
    loaded.extender.scheduler.close()
    loaded.close_binder()
    if loaded.watched is not None:
        loaded.watched.close()


def _bare(error: MalformedBody) -> MalformedBody:
    return type(error)(*error.args)


def _read(query: Mapping[str, str], body: bytes | bytearray | Blocks | None) -> ExplainRequest | MalformedBody:
    try:
        return read_explain_request(query, body)
    except MalformedBody as error:
        return _bare(error)


def _pass_on(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[list[bytes] | Exception], answer: list[bytes] | Exception,
) -> None:
    """Pass a response to its waiter in the event loop; called from the deciding thread."""

    def set_result() -> None:
        if not future.done():  # else the client went away
            future.set_result(answer)

    with suppress(RuntimeError):  # the loop is closed: there is no waiter any more
        loop.call_soon_threadsafe(set_result)
