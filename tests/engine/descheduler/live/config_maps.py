"""An API server that has ConfigMaps with versions, and requests that run at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from koordpolicy.engine.client.transport import ApiError, Status, Transport
from koordpolicy.engine.client.writes import ClusterWriter
from koordpolicy.engine.descheduler.live.config_map import ConfigMapKey

T = TypeVar("T")
PATH = "/api/v1/namespaces/n/configmaps/m"


class InlineIo:
    """Runs coroutines at once."""

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(asyncio.run(coroutine))
        except Exception as error:
            future.set_exception(error)
        return future


class ConfigMaps:
    """A transport to an API server that has ConfigMaps, or refuses with a code."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.code = 0
        self.answer: bytes | None = None
        """The answer in place of each object; None for the object."""
        self.version = 0

    async def request(self, method: str, path: str, *, body: bytes | None = None, **_: object) -> bytes:
        if self.code:
            raise ApiError(self.code, Status(message="no"))
        given: dict[str, Any] = json.loads(body) if body else {}
        if method == "POST":
            path = f"{path}/{given['metadata']['name']}"
            if path in self.objects:
                raise ApiError(409, Status(message="it exists"))
            self.objects[path] = {}
        if path not in self.objects:
            raise ApiError(404, Status(message="not found"))
        known = self.objects[path]
        if method != "GET":
            wanted = (given.get("metadata") or {}).get("resourceVersion")
            if wanted is not None and wanted != known["metadata"]["resourceVersion"]:
                raise ApiError(409, Status(message="the object has been modified"))
            self.write(path, given.get("data", {}))
        return json.dumps(known).encode() if self.answer is None else self.answer

    def write(self, path: str, data: dict[str, str]) -> None:
        """Changes a ConfigMap, as anybody may."""
        self.version += 1
        known = self.objects.setdefault(path, {})
        known.setdefault("data", {}).update(data)
        known["metadata"] = {"resourceVersion": str(self.version)}

    def key(self, name: str) -> ConfigMapKey:
        transport = cast("Transport", self)
        return ConfigMapKey(InlineIo(), transport, ClusterWriter(transport), namespace="n", name="m", key=name)
