"""Access to the console: host names, origins, users, rights and rates; and the headers of every answer.

Without users the console is for the users of this machine only. A page of another site must not be able to use it
through their browsers: requests are rejected whose `Host` is not the console's own (DNS rebinding), or whose `Origin`
is another one. There are no cookies, so that no other site can send requests in a user's name.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from koordpolicy.engine.escaping import visible
from koordpolicy.engine.serving.reviews import Denied, User, bearer_token

from .rights import READING, Right
from .users import Users, refusals

LOCAL: Final = User("local")
"""The user of requests where no token is needed."""
_MOST_CLIENTS: Final = 1024
_FAILED_PER_SECOND: Final = 0.5
_MOST_FAILED: Final = 20.0
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_CHANGING: Final = ("POST", "PUT", "PATCH", "DELETE")

HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()", "Cache-Control": "no-store",
}
"""The headers of every answer."""


class NotPermitted(Denied):
    """A request that is rejected here: the status, and a message for its sender."""


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

    def __init__(self, *, hosts: Collection[str] = (), users: Users | None = None, rate: RateLimit | None = None,
                 failed: RateLimit | None = None) -> None:
        """`hosts` are further names under which the console is reached, such as `console.example.org`.

        `users` None lets everybody in who reaches the console, to read. `failed` limits the invalid tokens of an
        address.
        """
        self._hosts = frozenset(host.lower() for host in (*_LOOPBACK, *hosts))
        self._users = users
        self._rate = rate or RateLimit()
        self._failed = failed or RateLimit(per_second=_FAILED_PER_SECOND, burst=_MOST_FAILED)

    @property
    def users(self) -> Users | None:
        """The users who are let in; None if no token is needed."""
        return self._users

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

    async def user(self, request: web.Request) -> User:
        """Return the user of a request.

        Raises:
            Denied: it has no valid token (401), its address has sent too many invalid ones (429), or the API server
                that knows tokens does not answer (503).
        """
        if self._users is None:
            return LOCAL
        token = bearer_token(request.headers.get("Authorization", ""))
        if not token:
            raise NotPermitted(401, f"a token is needed (`Authorization: Bearer TOKEN`): {self._users.hint}",
                               **{"WWW-Authenticate": "Bearer"})
        if self._users.known(token):
            return await self._users.user(request, token)
        address = str(request.remote)
        if wait := self._failed.take(address):
            raise NotPermitted(429, f"too many invalid tokens: try again in {wait:.1f} s", **retry_after(wait))
        try:
            user = await self._users.user(request, token)
        except Denied as error:
            if error.status != 401:
                self._failed.take(address, -1.0)
            raise
        self._failed.take(address, -1.0)  # it was none of those that are limited
        return user

    async def refusals(self, request: web.Request, user: User, rights: Collection[Right]) -> Mapping[Right, str]:
        """Return the reasons why a user does not have some rights, by right.

        Raises:
            Denied: the API server that knows them does not answer (503).
        """
        if self._users is None:
            return {right: "has no token" for right in rights if right not in READING}
        return await refusals(self._users, request, user, rights)

    async def check_rights(self, request: web.Request, user: User, rights: Collection[Right]) -> None:
        """Raise `Denied` unless a user has all of the rights."""
        found = await self.refusals(request, user, rights)
        if found:
            raise NotPermitted(403, f"user `{visible(user.name)[:100]}` {next(iter(found.values()))}")

    def count(self, client: str, cost: float) -> None:
        """Count a request of a client (`client_of`); raise `NotPermitted` if there are too many."""
        wait = self._rate.take(client, cost)
        if wait:
            raise NotPermitted(429, f"too many requests: try again in {wait:.1f} s", **retry_after(wait))


def client_of(request: web.Request, user: User) -> str:
    """Return the words for a user at an address, by which requests are limited and views have their turns."""
    return f"{request.remote} {user.name}"


def retry_after(seconds: float) -> dict[str, str]:
    """Return the header that says when a request may be sent again."""
    return {"Retry-After": str(max(1, round(seconds)))}


def _host_of(header: str) -> str:
    """Return the host of a Host header, without its port."""
    host = header.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
