"""Calls of running koord-policy servers: the requests of commands and of the console.

Every server is called separately, without proxies and without following redirects, so that a token reaches only the
server that was named.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

_LARGEST: Final = 64 * 1024 * 1024


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


@dataclass(frozen=True, slots=True)
class Caller:
    """A client of servers: its token, its TLS settings, and the timeout in seconds."""

    token: str = field(default="", repr=False)
    context: ssl.SSLContext | None = None
    seconds: float = 10.0

    def ask(self, endpoint: str, path: str, body: object = None) -> EndpointAnswer:
        """Call one server: with a body by POST, else by GET. Never raises for failures of the server or the network."""
        import http.client  # noqa: PLC0415 - 15 ms that only commands with servers pay

        url = urlsplit(endpoint)
        assert url.hostname is not None
        connection = (
            http.client.HTTPSConnection(url.hostname, url.port, timeout=self.seconds, context=self.context)
            if url.scheme == "https" else http.client.HTTPConnection(url.hostname, url.port, timeout=self.seconds))
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request("GET" if body is None else "POST", url.path.rstrip("/") + path,
                               None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            if response.status == 404 and "json" not in (response.getheader("Content-Type") or ""):
                return EndpointAnswer(endpoint, 404, error=(
                    f"it has no {path}"))
            data = dict(json.loads(response.read(_LARGEST)))
        except TimeoutError:
            return EndpointAnswer(endpoint, error=f"no answer within {self.seconds:g} s")
        except OSError as fault:
            return EndpointAnswer(endpoint, error=f"cannot be reached: {(fault.strerror or str(fault)).lower()}")
        except (http.client.HTTPException, ValueError, TypeError):
            return EndpointAnswer(endpoint, error="what answers there is no koord-policy")
        finally:
            connection.close()
        why = "" if response.status == 200 else str(data.get("error", f"answered {response.status}"))
        if response.status == 401:
            wants = "it has another token" if self.token else "it wants a token"
            which = "one that may read there" if body is None else "the one of `--admin-token-file`"
            why = f"{wants}: name the file with {which} by `--token-file`"
        return EndpointAnswer(endpoint, response.status, data, why)

    def ask_all(self, endpoints: Sequence[str], path: str, body: object = None) -> list[EndpointAnswer]:
        """Call several servers concurrently; the responses are in the order of the servers."""
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - as above

        with ThreadPoolExecutor(min(32, len(endpoints))) as pool:
            return list(pool.map(lambda endpoint: self.ask(endpoint, path, body), endpoints))
