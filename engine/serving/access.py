"""Access to a server's endpoints: the API server authenticates and authorizes requests, as for kube-scheduler.

A bearer token is authenticated by a TokenReview, a client certificate by the listener's authority; then a
SubjectAccessReview says whether the user may `get` the path. A role for it has `nonResourceURLs: [/metrics]`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
from aiohttp import web

from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.source import PolicyError

T = TypeVar("T")

ALWAYS_ALLOWED: Final = ("/healthz", "/livez", "/readyz")
"""kube-scheduler's default of `--authorization-always-allow-paths`; the checks below these paths are included."""
CACHE_S: Final = 10.0
"""Seconds for which an answer of the API server is valid: kube-scheduler's default of all three times."""
_MOST_CACHED: Final = 4096
_LONGEST_TOKEN: Final = 16 * 1024
_REVIEW_S: Final = 10.0
_LOG: Final = logging.getLogger(__name__)
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class Denied(Exception):
    """A request that is not permitted; the message is for its sender."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class User:
    """The sender of a request."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS: Final = User("system:anonymous", ("system:unauthenticated",))
_AUTHENTICATED: Final = "system:authenticated"


class Access(Protocol):
    """Decides whether a request is permitted."""

    async def check(self, request: web.Request) -> None:
        """Raise `Denied` unless the request is permitted."""
        ...

    def connected(self, app: web.Application) -> AsyncGenerator[None, None]:
        """Connect in the application's event loop, and disconnect at its end (for `cleanup_ctx`)."""
        ...


@dataclass(frozen=True, slots=True)
class CacheTimes:
    """For how many seconds answers of the API server are valid."""

    authenticated: float = CACHE_S
    authorized: float = CACHE_S
    unauthorized: float = CACHE_S


class _UserInfo(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = msgspec.field(default_factory=list)
    extra: dict[str, list[str]] = msgspec.field(default_factory=dict)


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _UserInfo = msgspec.field(default_factory=_UserInfo)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False
    reason: str = ""


class _AccessReview(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


@dataclass(slots=True)
class _Recent(Generic[T]):
    """Answers until they expire, the least recently added dropped beyond a bound."""

    clock: Callable[[], float]
    entries: OrderedDict[Hashable, tuple[float, T]] = field(default_factory=OrderedDict)

    def find(self, key: Hashable) -> T | None:
        found = self.entries.get(key)
        return None if found is None or found[0] <= self.clock() else found[1]

    def add(self, key: Hashable, value: T, seconds: float) -> None:
        self.entries.pop(key, None)
        while len(self.entries) >= _MOST_CACHED:
            self.entries.popitem(last=False)
        self.entries[key] = self.clock() + seconds, value


class DelegatedAccess:
    """Leaves authentication and authorization to API servers.

    Tokens are cached by their digest. While the API server cannot be reached requests that need it are answered with
    503: who is not known is not let in, and a known sender is not blamed.
    """

    def __init__(
        self, authentication: Callable[[], Transport], authorization: Callable[[], Transport] | None = None, *,
        always_allowed: Collection[str] = ALWAYS_ALLOWED, times: CacheTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`authentication` and `authorization` (None: the same) make a transport in the event loop that uses it.

        A path of `always_allowed` that ends with `*` permits all paths that begin like it.
        """
        self._connect = authentication, authorization or authentication
        self._times = times or CacheTimes()
        self._exact = frozenset(path for path in always_allowed if not path.endswith("*"))
        self._prefixes = tuple(path.removesuffix("*") for path in always_allowed if path.endswith("*"))
        self._below = tuple(f"{path}/" for path in ALWAYS_ALLOWED if path in self._exact)
        self._known: _Recent[tuple[User | None]] = _Recent(clock)
        self._decisions: _Recent[tuple[bool, str]] = _Recent(clock)
        self._transports: dict[web.Application, tuple[Transport, Transport]] = {}

    async def connected(self, app: web.Application) -> AsyncGenerator[None, None]:
        """Connect for an application, and disconnect at its end."""
        authentication, authorization = (connect() for connect in self._connect)
        self._transports[app] = authentication, authorization
        try:
            yield
        finally:
            del self._transports[app]
            await authentication.close()
            await authorization.close()

    async def check(self, request: web.Request) -> None:
        """Raise `Denied` unless the request is permitted."""
        path = request.path
        if path in self._exact or path.startswith((*self._prefixes, *self._below)):
            return
        authentication, authorization = self._transports[request.app]
        user = await self._user(request, authentication)
        allowed, reason = await self._authorized(user, request.method.lower(), path, authorization)
        if not allowed:
            why = f": {reason}" if reason else ""
            raise Denied(403, f'user "{user.name}" cannot {request.method.lower()} path "{path}"{why}')

    async def _user(self, request: web.Request, transport: Transport) -> User:
        certified = _of_certificate(request)
        if certified is not None:
            return certified
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return ANONYMOUS
        if len(token) > _LONGEST_TOKEN:
            raise Denied(401, "the token is too long", **_CHALLENGE)
        key = hashlib.sha256(token.encode()).digest()
        known = self._known.find(key)
        if known is None:
            found = await _reviewed(transport, _TOKEN_REVIEWS, {
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
            }, msgspec.json.Decoder(_TokenReview).decode)
            known = (_of_review(found.status) if found.status.authenticated else None,)
            self._known.add(key, known, self._times.authenticated)
        (user,) = known
        if user is None:
            raise Denied(401, "the API server does not accept the token", **_CHALLENGE)
        return user

    async def _authorized(self, user: User, verb: str, path: str, transport: Transport) -> tuple[bool, str]:
        key = user, verb, path
        known = self._decisions.find(key)
        if known is None:
            found = await _reviewed(transport, _ACCESS_REVIEWS, {
                "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {"user": user.name, "groups": user.groups, "uid": user.uid, "extra": dict(user.extra),
                         "nonResourceAttributes": {"path": path, "verb": verb}},
            }, msgspec.json.Decoder(_AccessReview).decode)
            known = found.status.allowed, found.status.reason
            seconds = self._times.authorized if known[0] else self._times.unauthorized
            self._decisions.add(key, known, seconds)
        return known


_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}


async def _reviewed(
    transport: Transport, path: str, review: Mapping[str, Any], decode: Callable[[bytes], T],
) -> T:
    """Return the API server's answer to a review; raises `Denied` if there is none."""
    request: Awaitable[bytes] = transport.request(
        "POST", path, body=json.dumps(review).encode(), timeout=_REVIEW_S, retries=0)
    try:
        return decode(await request)
    except (ApiError, ConnectionFailed, PolicyError, msgspec.DecodeError) as error:
        _LOG.warning("a request cannot be authorized: %s: %s", path, error)
        raise Denied(503, "the API server does not say now who may read this", **{"Retry-After": "5"}) from None


def _of_review(status: _TokenStatus) -> User:
    user = status.user
    return User(user.username, tuple(user.groups), user.uid,
                tuple((key, tuple(values)) for key, values in sorted(user.extra.items())))


def _of_certificate(request: web.Request) -> User | None:
    """Return the user of a client's certificate, which the listener has verified; None if there is none."""
    certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
    parts = [part for names in (certificate or {}).get("subject", ()) for part in names]
    name = next((value for key, value in parts if key == "commonName"), "")
    if not name:
        return None
    groups = (value for key, value in parts if key == "organizationName")
    return User(name, (*groups, _AUTHENTICATED))
