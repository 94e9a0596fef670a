"""A kubelet on loopback whose answers a test sets."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

from koordpolicy.engine.client.io_thread import IoThread
from tests.servers import Listener


class FakeKubelet:
    """Answers `/pods/` with `answer`, and `/configz` with `configuration`. All methods are for the test's thread."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answer: Callable[[], Any] = pod_list
        self.configuration: Any = {"kubeletconfig": {"cpuManagerPolicy": "static"}}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.port = 0
        self._tls = tls
        self._io = IoThread("kubelet")

    def __enter__(self) -> Self:
        self._io.start()
        self._io.submit(self._start()).result(60)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._io.submit(self._listener.stop()).result(60)
        self._io.close(60)

    async def _start(self) -> None:
        application = web.Application()
        application.router.add_route("GET", "/{path:.*}", self._answer)
        self._listener = Listener(application, self._tls)
        await self._listener.start()
        self.port = self._listener.port

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path, dict(request.headers)))
        if request.path == "/configz":
            return web.json_response(self.configuration)
        found = self.answer()
        return await found if isinstance(found, Awaitable) else found


def pod_list(*pods: Any) -> web.Response:
    """The list as the kubelet writes it."""
    return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": list(pods) or None})


def text(content: str, status: int = 200) -> Callable[[], web.Response]:
    return lambda: web.Response(text=content, status=status)


def pod(name: str = "web", *, uid: str = "", namespace: str = "default", **metadata: Any) -> dict[str, Any]:
    """A running pod with two containers, one of which waits to be restarted, as the kubelet serves it."""
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", **metadata},
        "spec": {
            "nodeName": "node", "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"{name}-data"}}],
            "containers": [
                {"name": "main", "image": "web:1", "env": [{"name": "A", "value": "x" * 100}],
                 "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
                {"name": "side", "image": "side:1", "resources": {}}]},
        "status": {"phase": "Running", "qosClass": "Burstable", "containerStatuses": [
            {"name": "main", "containerID": f"containerd://{name}-main", "state": {"running": {}}, "image": "web:1"},
            {"name": "side", "containerID": f"containerd://{name}-side", "state": {"waiting": {"reason": "Crash"}}}]}}
