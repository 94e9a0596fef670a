"""An OCI registry on loopback, with what its tests need of the distribution specification, and with faults."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

ROUTE = re.compile(r"/v2/(?P<repository>.+)/(?P<kind>manifests|blobs)/(?P<name>[^/]+|uploads/\w*)")
TOKEN = "t0ken"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True)
class Reply:
    status: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int = 0
    """So many bytes of the content are announced and not sent."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class OciRegistry:
    """The contents and the settings of a registry. `fault` may answer a request in place of it."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        """Manifests by `REPOSITORY:TAG` and `REPOSITORY@DIGEST`."""
        self.requests: list[Request] = []
        self.fault: Callable[[Request], Reply | None] = lambda _: None
        self.login: tuple[str, str] | None = None
        """User and password; without them everybody may do everything."""
        self.bearer = True
        """True if a login leads to a token, false if it goes with each request."""
        self.storage = ""
        """The URL at which blobs are, where they are not here."""
        self.digest_header = True
        self.host = ""

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def answer(self, request: Request) -> Reply:
        self.requests.append(request)
        return self.fault(request) or self._refused(request) or self._answer(request)

    def _refused(self, request: Request) -> Reply | None:
        given = request.headers.get("Authorization", "")
        if urlsplit(request.path).path == "/token":
            fits = self.login is None or given == self._basic() or b"refresh_token=" + TOKEN.encode() in request.body
            return Reply(200, json.dumps({"token": TOKEN}).encode()) if fits else Reply(401)
        if self.login is None or not request.path.startswith("/v2/"):
            return None
        if given == (f"Bearer {TOKEN}" if self.bearer else self._basic()):
            return None
        challenge = f'Bearer realm="{self.url}/token",service="tests"' if self.bearer else 'Basic realm="tests"'
        return Reply(401, headers={"WWW-Authenticate": challenge})

    def _basic(self) -> str:
        assert self.login is not None
        return f"Basic {base64.b64encode(':'.join(self.login).encode()).decode()}"

    def _answer(self, request: Request) -> Reply:
        url = urlsplit(request.path)
        route = ROUTE.fullmatch(url.path)
        if route is None:
            content = self.blobs.get(url.path.removeprefix("/storage/"))
            return Reply(404) if content is None else Reply(200, content)
        if route["kind"] == "manifests":
            return self._manifest(request, route["repository"], route["name"])
        if request.method == "POST":
            return Reply(202, headers={"Location": f"/v2/{route['repository']}/blobs/uploads/u1?state=x"})
        if request.method == "PUT":
            digest = parse_qs(url.query)["digest"][0]
            assert digest == digest_of(request.body)
            self.blobs[digest] = request.body
            return Reply(201)
        if route["name"] not in self.blobs:
            return Reply(404)
        if self.storage and request.method == "GET":
            return Reply(307, headers={"Location": f"{self.storage}/storage/{route['name']}"})
        return Reply(200, self.blobs[route["name"]])

    def _manifest(self, request: Request, repository: str, name: str) -> Reply:
        at = f"{repository}{'@' if ':' in name else ':'}{name}"
        if request.method == "PUT":
            self.manifests[at] = request.body
            self.manifests[f"{repository}@{digest_of(request.body)}"] = request.body
            return Reply(201)
        if at not in self.manifests:
            return Reply(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}')
        content = self.manifests[at]
        return Reply(200, content, {"Docker-Content-Digest": digest_of(content)} if self.digest_header else {})


class _Server(ThreadingHTTPServer):
    registry: OciRegistry

    def handle_error(self, *_: object) -> None:
        """Ignore clients that went away, as some tests do."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        reply = self.server.registry.answer(Request(self.command, self.path, dict(self.headers), body))
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.content) + reply.cut), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.content)

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815 - the names that http.server calls

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def oci_registry(tls: ssl.SSLContext | None = None) -> Iterator[OciRegistry]:
    """Run a registry in a thread; with `tls` it is to be called by the name of its certificate, localhost."""
    registry = OciRegistry()
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.registry = registry
        registry.host = f"{'localhost' if tls else '127.0.0.1'}:{server.server_port}"
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
