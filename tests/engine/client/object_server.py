"""An API server on loopback that holds objects, with versions, lists and watches as Kubernetes has them.

It runs on a thread of its own: a test changes its objects from the thread in which it owns the cluster.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Iterable
from typing import Any, Final, Self
from urllib.parse import unquote

from aiohttp import web

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.resources import BY_KIND
from tests.servers import Listener

from .fake_api_server import bookmark, refusal

Json = dict[str, Any]
_OF_NAMESPACE: Final = re.compile(r"/.*/namespaces/([^/]+)/[^/]+")


class ObjectServer:
    """Objects by kind. All methods are for the test's thread."""

    def __init__(self, *, absent: Iterable[str] = (), streaming: bool = True, page: int = 500) -> None:
        self.server = ""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.writes: list[tuple[str, str, Json]] = []
        self.refusals: list[int] = []
        """Codes with which the next writes are refused."""
        self.lost: list[str] = []
        """Of the next writes: `before` if the connection breaks before the server sees it, `after` if it breaks instead
        of the answer, empty for neither."""
        self.absent = set(absent)
        self.streaming = streaming
        self.bookmarks = True
        self.delay_s = 0.0
        """Seconds by which watches lag behind."""
        self.date: str | None = None
        self._page = page
        self._version = 1
        self._compacted = 0
        self._objects: dict[str, dict[str, Json]] = {}
        self._log: list[tuple[int, str, str, Json, Json | None]] = []
        self._watches: dict[asyncio.Event, web.StreamResponse] = {}
        self._io = IoThread("object-server")

    def __enter__(self) -> Self:
        self._io.start()
        self._io.submit(self._start()).result(60)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._io.submit(self._listener.stop()).result(60)
        self._io.close(60)

    @property
    def connection(self) -> Connection:
        return Connection(self.server)

    # Changes

    def put(self, item: Json) -> Json:
        """Create an object or replace it; return it with its version."""
        return self._io.submit(self._put(copy.deepcopy(item))).result(60)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object by `namespace/name` or `name`."""
        self._io.submit(self._delete(kind, name)).result(60)

    def break_watches(self, *, compact: bool = False) -> None:
        """End all watches; with `compact` they cannot go on where they were."""
        self._io.submit(self._break(compact)).result(60)

    def objects(self, kind: str) -> dict[str, Json]:
        """Return all objects of a kind by `namespace/name` or `name`."""
        return dict(self._objects.get(kind, {}))

    def requested(self, kind: str, *, watch: bool) -> list[dict[str, str]]:
        """Return the queries of lists or watches of a kind."""
        path = BY_KIND[kind].path()
        return [query for _, each, query in self.requests if each == path and ("watch" in query) == watch]

    # In the loop

    async def _start(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._listener = Listener(application)
        await self._listener.start()
        self.server = f"http://127.0.0.1:{self._listener.port}"

    async def _put(self, item: Json) -> Json:
        kind, key = item["kind"], _key(item)
        known = self._objects.setdefault(kind, {}).get(key)
        self._version += 1
        item["metadata"].setdefault("uid", known["metadata"]["uid"] if known else f"uid-{self._version}")
        item["metadata"]["resourceVersion"] = str(self._version)
        self._objects[kind][key] = item
        self._note(kind, "MODIFIED" if known else "ADDED", item, known)
        return copy.deepcopy(item)

    async def _delete(self, kind: str, key: str) -> None:
        item = self._objects[kind].pop(key)
        self._version += 1
        last = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._version)}}
        self._note(kind, "DELETED", last, item)

    def _note(self, kind: str, change: str, item: Json, before: Json | None) -> None:
        self._log.append((self._version, kind, change, item, before))
        for event in self._watches:
            event.set()

    async def _break(self, compact: bool) -> None:
        if compact:
            self._version += 1
            self._compacted = self._version
        for response in list(self._watches.values()):
            if response._req is not None and response._req.transport is not None:
                response._req.transport.abort()
        self._watches.clear()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.requests.append((request.method, request.path, query))
        if request.method != "GET":
            lost = self.lost.pop(0) if self.lost else ""
            answer = web.Response() if lost == "before" else await self._write(request)
            if lost and request.transport is not None:
                request.transport.abort()
            return answer
        namespace = unquote(found[1]) if (found := _OF_NAMESPACE.fullmatch(request.path)) else None
        kind = next((kind for kind, each in BY_KIND.items() if each.path(namespace) == request.path), None)
        if kind is None:
            return self._one(request.path)
        if namespace is not None:
            query["fieldSelector"] = ",".join(filter(None, (
                query.get("fieldSelector"), f"metadata.namespace={namespace}")))
        if kind in self.absent:
            return web.Response(status=404, text="404 page not found")
        return await self._watch(request, kind, query) if "watch" in query else self._list(kind, query)

    def _one(self, path: str) -> web.Response:
        for kind, objects in self._objects.items():
            for item in objects.values():
                namespace = item["metadata"].get("namespace")
                if BY_KIND[kind].path(namespace, item["metadata"]["name"]) == path:
                    return web.json_response(item)
        return web.json_response(refusal(404, "NotFound"), status=404)

    async def _write(self, request: web.Request) -> web.Response:
        """Answer a write, of an object or a status; with the next one of `refusals`, if there are some."""
        body = await request.json()
        self.writes.append((request.method, request.path, body))
        if self.refusals:
            code = self.refusals.pop(0)
            return web.json_response(refusal(code), status=code)
        path = request.path.removesuffix("/status")
        for kind, resource in BY_KIND.items():
            if request.method == "POST" and resource.path(body["metadata"].get("namespace")) == path:
                return web.json_response(await self._put(body), status=201)
            for item in list(self._objects.get(kind, {}).values()):
                if resource.path(item["metadata"].get("namespace"), item["metadata"]["name"]) == path:
                    if request.method == "DELETE":
                        if body.get("preconditions", {}).get("uid", item["metadata"]["uid"]) != item["metadata"]["uid"]:
                            return web.json_response(refusal(409, "Conflict", "UID in precondition"), status=409)
                        await self._delete(kind, _key(item))
                        return web.json_response({"kind": "Status", "status": "Success"})
                    version = body.get("metadata", {}).pop("resourceVersion", None)
                    if version is not None and version != item["metadata"]["resourceVersion"]:
                        return web.json_response(refusal(409, "Conflict"), status=409)
                    if request.method == "PUT":
                        of_status = path != request.path
                        body = {**(item if of_status else body), "status": (body if of_status else item).get("status")}
                        return web.json_response(await self._put(copy.deepcopy(body)))
                    return web.json_response(await self._put(_merged(item, body)))
        return web.json_response(refusal(404, "NotFound"), status=404)

    def _list(self, kind: str, query: Json) -> web.Response:
        items = [_bare(item) for _, item in sorted(self._objects.get(kind, {}).items()) if _selected(item, query)]
        start = int(query.get("continue", "0"))
        end = start + min(int(query["limit"]), self._page) if "limit" in query else len(items)
        more = str(end) if end < len(items) else ""
        body = {"kind": f"{kind}List", "metadata": {"resourceVersion": str(self._version), "continue": more},
                "items": items[start:end]}
        headers = {} if self.date is None else {"Date": self.date}
        return web.json_response(body, headers=headers)

    async def _watch(self, request: web.Request, kind: str, query: Json) -> web.StreamResponse:
        initial = "sendInitialEvents" in query
        if initial and not self.streaming:
            return web.json_response(refusal(422, "Invalid"), status=422)
        place = int(query["resourceVersion"] or 0)
        if not initial and place < self._compacted:
            return web.json_response(refusal(410, "Expired"), status=410)
        response = web.StreamResponse(headers={} if self.date is None else {"Date": self.date})
        await response.prepare(request)
        event = asyncio.Event()
        self._watches[event] = response
        try:
            if initial:
                place = self._version
                for item in list(self._objects.get(kind, {}).values()):
                    if _selected(item, query):
                        await _send(response, "ADDED", item)
                await _send(response, *bookmark(place, initial_end=True))
            while True:
                event.clear()
                for version, of_kind, change, item, before in [each for each in self._log if each[0] > place]:
                    seen = _seen(change, item, before, query) if of_kind == kind else None
                    if seen is not None:
                        await asyncio.sleep(self.delay_s)
                        await _send(response, *seen)
                    place = version
                if int(query["timeoutSeconds"]) < 10 and self.bookmarks:
                    await _send(response, *bookmark(max(place, self._version)))
                    await asyncio.sleep(0.05)
                    return response
                await event.wait()
        except ConnectionError:
            return response
        finally:
            self._watches.pop(event, None)


async def _send(response: web.StreamResponse, change: str, item: Any) -> None:
    await response.write(json.dumps({"type": change, "object": item}).encode() + b"\n")


def _seen(change: str, item: Json, before: Json | None, query: Json) -> tuple[str, Json] | None:
    """Return a change as a watcher with selectors sees it, if it does: a pod that is no longer selected is deleted."""
    was = before is not None and _selected(before, query)
    if change == "DELETED":
        return (change, item) if was else None
    if _selected(item, query):
        return ("MODIFIED" if was else "ADDED"), item
    if not was or before is None:
        return None
    version = item["metadata"]["resourceVersion"]
    return "DELETED", {**before, "metadata": {**before["metadata"], "resourceVersion": version}}


def _selected(item: Json, query: Json) -> bool:
    """Return whether an object has the fields of a field selector, and the label of a label selector."""
    for part in query.get("fieldSelector", "").split(","):
        field, operator, value = part.partition("!=" if "!=" in part else "=")
        section, _, name = field.partition(".")
        has = item.get(section, {}).get(name, "Pending" if field == "status.phase" else None)
        if field and (has == value) == (operator == "!="):
            return False
    label = query.get("labelSelector", "")
    return not label or label in item["metadata"].get("labels", {})


def _merged(item: Any, patch: Any) -> Any:
    """Return an object after a JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    found = dict(item) if isinstance(item, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found


def _bare(item: Json) -> Json:
    """Return an item of a list, which has no kind, as servers write it."""
    return {key: value for key, value in item.items() if key not in ("apiVersion", "kind")}


def _key(item: Json) -> str:
    metadata = item["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])
