"""Access to the console: host names, origins, tokens and rates; and the headers of every answer.

Without tokens the console is for the users of this machine only. A page of another site must not be able to use it
through their browsers: requests are rejected whose `Host` is not the console's own (DNS rebinding), or whose `Origin`
is another one. There are no cookies, so that no other site can send requests in a user's name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web

SHORTEST_TOKEN: Final = 16
"""The minimum length of a token, in characters."""
LOCAL_USER: Final = "local"
"""The name of users without a token."""
_LARGEST_FILE: Final = 1 << 20
_LARGEST_TOKEN: Final = 4096
_MOST_CLIENTS: Final = 1024
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_CHANGING: Final = ("POST", "PUT", "PATCH", "DELETE")

HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()", "Cache-Control": "no-store",
}
"""The headers of every answer."""


class NotPermitted(Exception):
    """A request that is rejected: the status, and a message for its sender."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


def policy_of(nonce: str) -> str:
    """Return the content security policy of the page: scripts are files, styles files or those of the nonce."""
    return ("default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; font-src 'self'; "
            f"style-src 'self' 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only; a name other than `localhost` never is."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class UserTokens:
    """The users' tokens: lines `TOKEN,USER`, as in a static token file of kube-apiserver; further columns are ignored.

    Blank lines and lines that begin with `#` are skipped. Only digests are held in memory.
    """

    def __init__(self, path: Path) -> None:
        """Read a file; raises `ValueError` if a line is malformed or there is none, `OSError` if it is unreadable."""
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise ValueError(f"`{path}` is larger than {_LARGEST_FILE:,} bytes")
        try:
            lines = content.decode("utf-8").splitlines()
        except UnicodeDecodeError:
            raise ValueError(f"`{path}` is not UTF-8 text") from None
        self._users: dict[bytes, str] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.startswith("#"):
                continue
            token, _, rest = line.partition(",")
            token, user = token.strip().strip('"'), rest.partition(",")[0].strip().strip('"')
            if not SHORTEST_TOKEN <= len(token) <= _LARGEST_TOKEN or not user:
                raise ValueError(f"`{path}`, line {number}: write TOKEN,USER with a token of {SHORTEST_TOKEN} to "
                                 f"{_LARGEST_TOKEN} characters")
            self._users[hashlib.sha256(token.encode()).digest()] = user
        if not self._users:
            raise ValueError(f"`{path}` holds no token: write lines TOKEN,USER")

    def user_of(self, header: str) -> str | None:
        """Return the user whose token an Authorization header contains; None if nobody's."""
        kind, _, given = header.partition(" ")
        if kind.lower() != "bearer":
            return None
        shown = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for digest, user in self._users.items():  # all, so that the time says nothing
            if hmac.compare_digest(digest, shown):
                found = user
        return found


@dataclass(slots=True)
class _Bucket:
    level: float
    at: float


@dataclass(slots=True)
class RateLimit:
    """Requests per client: `burst` at once, and `per_second` in the long run. `clock` returns seconds."""

    per_second: float = 40.0
    burst: float = 120.0
    clock: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)

    def take(self, client: str, cost: float = 1.0) -> float:
        """Count a request; return 0, or the number of seconds after which it would be permitted."""
        now = self.clock()
        bucket = self._buckets.pop(client, None) or _Bucket(self.burst, now)
        level = min(self.burst, bucket.level + (now - bucket.at) * self.per_second)
        wait = max(0.0, (cost - level) / self.per_second)
        self._buckets[client] = _Bucket(level - cost if not wait else level, now)
        while len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return wait


class Guard:
    """Decides whether a request is permitted, and whose it is."""

    def __init__(self, *, hosts: Collection[str] = (), tokens: UserTokens | None = None,
                 rate: RateLimit | None = None) -> None:
        """`hosts` are further names under which the console is reached, such as `console.example.org`."""
        self._hosts = frozenset(host.lower() for host in (*_LOOPBACK, *hosts))
        self._tokens = tokens
        self._rate = rate or RateLimit()

    @property
    def protected(self) -> bool:
        """True if a token is needed."""
        return self._tokens is not None

    def check_address(self, request: web.Request) -> None:
        """Raise `NotPermitted` if a request is addressed to another site, or comes from another site's page."""
        host = _host_of(request.headers.get("Host", ""))
        if host not in self._hosts:
            raise NotPermitted(421, f"this is not `{host[:100]}`: name that host with `--host-name`")
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() != f"{request.scheme}://{request.headers['Host'].lower()}":
            forwarded = origin.lower() == f"https://{request.headers['Host'].lower()}"  # a proxy ends TLS
            if not forwarded:
                raise NotPermitted(403, "pages of other sites may not use the console")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and (
                request.path.startswith("/api/") or request.method in _CHANGING):
            raise NotPermitted(403, "pages of other sites may not use the console")

    def user(self, request: web.Request) -> str:
        """Return the user of a request.

        Raises:
            NotPermitted: it has no valid token.
        """
        if self._tokens is None:
            return LOCAL_USER
        found = self._tokens.user_of(request.headers.get("Authorization", ""))
        if found is None:
            raise NotPermitted(401, "a token is needed: `Authorization: Bearer TOKEN`",
                               **{"WWW-Authenticate": "Bearer"})
        return found

    def count(self, request: web.Request, user: str, cost: float) -> None:
        """Count a request of a user at an address; raise `NotPermitted` if there are too many."""
        wait = self._rate.take(f"{user} {request.remote}", cost)
        if wait:
            raise NotPermitted(429, f"too many requests: try again in {wait:.1f} s",
                               **{"Retry-After": str(max(1, round(wait)))})


def _host_of(header: str) -> str:
    """Return the host of a Host header, without its port."""
    host = header.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
