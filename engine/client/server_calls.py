"""Calls of running koord-policy servers: the requests of commands and of the console.

Every server is called separately, without proxies and without following redirects, so that a token reaches only the
server that was named.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from koordpolicy.engine.files import reason_of

if TYPE_CHECKING:
    import http.client

LARGEST: Final = 64 * 1024 * 1024
"""The default of the size of an answer, in bytes."""
_CHUNK: Final = 256 * 1024
_OTHER_NAMES: Final = frozenset((62, 64))
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_NO_TLS: Final = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"))


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    """The response of one server; `error` is the reason why there is none, or why it refused."""

    endpoint: str
    code: int = 0
    """The HTTP status; 0 without a response."""
    data: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def ok(self) -> bool:
        """Return whether the request succeeded."""
        return self.code == 200


class _NoAnswer(Exception):
    """The reason why a server gave no answer that can be read."""


@dataclass(frozen=True, slots=True)
class _Response:
    code: int
    type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Caller:
    """A client of servers: its token, its TLS settings, the timeout of a request in seconds, and a limit of bytes."""

    token: str = field(default="", repr=False)
    context: ssl.SSLContext | None = None
    seconds: float = 10.0
    largest: int = LARGEST
    server_name: str = ""
    """The name for which certificates of servers must be; empty for the host of each URL."""
    what: str = "koord-policy"
    """The kind of the servers, for messages."""

    def ask(self, endpoint: str, path: str, body: object = None) -> EndpointAnswer:
        """Call one server: with a body by POST, else by GET. Never raises for failures of the server or the network."""
        try:
            response = self._respond(endpoint, path, body)
            if response.code == 404 and "json" not in response.type:
                return EndpointAnswer(endpoint, 404, error=f"it has no {path}")
        except _NoAnswer as error:
            return EndpointAnswer(endpoint, error=str(error))
        try:
            data = dict(json.loads(response.body))
        except (ValueError, TypeError, RecursionError):
            code = "" if response.code == 200 else f": it answered {response.code}"
            return EndpointAnswer(endpoint, error=f"{self._no_server}{code}")
        return EndpointAnswer(endpoint, response.code, data,
                              self._refused(response.code, data, changes=body is not None))

    def text(self, endpoint: str, path: str) -> tuple[str, str]:
        """Get a text of one server; return it, or an empty text, and the error, if there is one."""
        try:
            response = self._respond(endpoint, path, None)
        except _NoAnswer as error:
            return "", str(error)
        if response.code == 200:
            return response.body.decode("utf-8", "replace"), ""
        return "", self._refused(response.code, {}, changes=False)

    def ask_all(self, endpoints: Sequence[str], path: str, body: object = None) -> list[EndpointAnswer]:
        """Call several servers concurrently; the responses are in the order of the servers."""
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - 15 ms that only commands with servers pay

        with ThreadPoolExecutor(min(32, len(endpoints))) as pool:
            return list(pool.map(lambda endpoint: self.ask(endpoint, path, body), endpoints))

    @property
    def _no_server(self) -> str:
        return f"what answers there is no {self.what}"

    def _refused(self, code: int, data: dict[str, Any], *, changes: bool) -> str:
        """Return why a server refused; empty if it did not."""
        if code == 401:
            wants = "it has another token" if self.token else "it wants a token"
            which = "the one of `--admin-token-file`" if changes else "one that may read there"
            return f"{wants}: name the file with {which} by `--token-file`"
        return "" if code == 200 else str(data.get("error", f"answered {code}"))

    def _respond(self, endpoint: str, path: str, body: object) -> _Response:
        import http.client  # noqa: PLC0415 - as above

        url = urlsplit(endpoint)
        assert url.hostname is not None
        named = self.server_name if url.scheme == "https" else ""
        connection = (
            http.client.HTTPSConnection(url.hostname, url.port, timeout=self.seconds, context=self.context)
            if url.scheme == "https" and not named
            else http.client.HTTPConnection(url.hostname, url.port or (443 if named else 80), timeout=self.seconds))
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        until = time.monotonic() + self.seconds
        late = f"no answer within {self.seconds:g} s"
        timer: threading.Timer | None = None
        try:
            connection.connect()
            if named:
                context = self.context or ssl.create_default_context()
                connection.sock = context.wrap_socket(connection.sock, server_hostname=named)
            # The timeout of a socket is that of each read: one byte a second would hold the request for ever.
            timer = threading.Timer(max(0.0, until - time.monotonic()), _cut, (connection.sock,))
            timer.daemon = True
            timer.start()
            connection.request("GET" if body is None else "POST", url.path.rstrip("/") + path,
                               None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            found = _Response(response.status, response.getheader("Content-Type") or "", self._read(response))
        except TimeoutError:
            raise _NoAnswer(late) from None
        except OSError as fault:
            raise _NoAnswer(late if time.monotonic() >= until else
                            f"cannot be reached: {_why(fault)}") from None
        except http.client.HTTPException:
            raise _NoAnswer(late if time.monotonic() >= until else self._no_server) from None
        finally:
            if timer is not None:
                timer.cancel()
            connection.close()
        if time.monotonic() >= until:
            raise _NoAnswer(late)  # what was read may be a part
        return found

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        while part := response.read(_CHUNK):
            parts.append(part)
            size += len(part)
            if size > self.largest:
                raise _NoAnswer(f"its answer has more than {self.largest:,} bytes")
        return b"".join(parts)


def _why(fault: OSError) -> str:
    if isinstance(fault, ssl.SSLCertVerificationError):
        if fault.verify_code in _OTHER_NAMES:
            return f"its certificate is for other names: {fault.verify_message.rstrip('.')} (see `--server-name`)"
        return f"its certificate is not trusted: {fault.verify_message} (`--ca` names the file of its authority)"
    if isinstance(fault, ssl.SSLError):
        if fault.reason in _NO_TLS:
            return "it speaks no TLS (write http:// if it should not)"
        return f"the TLS handshake failed: {(fault.reason or str(fault)).lower().replace('_', ' ')}"
    return reason_of(fault)


def _cut(connected: socket.socket | None) -> None:
    """End all reads of a connection."""
    if connected is not None:
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)
