"""Questions to an API server about users: TokenReview says who has a token, SubjectAccessReview what a user may do.

Answers are cached for a bounded time and in bounded number; tokens by their digest only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec
from aiohttp import web

from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.source import PolicyError

T = TypeVar("T")

CACHE_S: Final = 10.0
"""Seconds for which an answer of the API server is valid: kube-scheduler's default of all three times."""
LONGEST_TOKEN: Final = 16 * 1024
"""The maximum length of a token, in characters."""
_MOST_CACHED: Final = 4096
_REVIEW_S: Final = 10.0
_LOG: Final = logging.getLogger(__name__)
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}


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


@dataclass(frozen=True, slots=True)
class CacheTimes:
    """For how many seconds answers of the API server are valid."""

    authenticated: float = CACHE_S
    authorized: float = CACHE_S
    unauthorized: float = CACHE_S


@dataclass(frozen=True, slots=True)
class PathAttributes:
    """A request for a path of a server (`nonResourceURLs` in roles)."""

    verb: str
    path: str

    def to_json(self) -> dict[str, Any]:
        """Return the attributes as part of a review's spec."""
        return {"nonResourceAttributes": {"path": self.path, "verb": self.verb}}


@dataclass(frozen=True, slots=True)
class ResourceAttributes:
    """A request for a resource of the API: of all objects, in all namespaces."""

    verb: str
    group: str
    """Empty for the core group."""
    resource: str

    def to_json(self) -> dict[str, Any]:
        """Return the attributes as part of a review's spec."""
        return {"resourceAttributes": {"verb": self.verb, "group": self.group, "resource": self.resource}}

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}"


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """An answer about a user's request, and its reason; empty if the API server gives none."""

    allowed: bool
    reason: str = ""


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


class Reviews:
    """Reviews by API servers, for applications that are `connected`.

    While the API server cannot be reached they raise `Denied` with 503: a user who is not known is not let in, and a
    known one is not blamed.
    """

    def __init__(
        self, authentication: Callable[[], Transport], authorization: Callable[[], Transport] | None = None, *,
        times: CacheTimes | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`authentication` and `authorization` (None: the same) make a transport in the event loop that uses it."""
        self._connect = authentication, authorization or authentication
        self._times = times or CacheTimes()
        self._known: _Recent[tuple[User | None]] = _Recent(clock)
        self._decisions: _Recent[AccessDecision] = _Recent(clock)
        self._transports: dict[web.Application, tuple[Transport, Transport]] = {}

    async def connected(self, app: web.Application) -> AsyncGenerator[None, None]:
        """Connect for an application, and disconnect at its end (for `cleanup_ctx`)."""
        authentication, authorization = (connect() for connect in self._connect)
        self._transports[app] = authentication, authorization
        try:
            yield
        finally:
            del self._transports[app]
            await authentication.close()
            await authorization.close()

    def known(self, token: str) -> bool:
        """Return whether the API server has accepted a token a short time ago."""
        found = self._known.find(_key(token))
        return found is not None and found[0] is not None

    async def user(self, app: web.Application, token: str) -> User:
        """Return the user of a token.

        Raises:
            Denied: 401 if the API server does not accept it, 503 if it does not answer.
        """
        if len(token) > LONGEST_TOKEN:
            raise Denied(401, "the token is too long", **_CHALLENGE)
        key = _key(token)
        known = self._known.find(key)
        if known is None:
            found = await _reviewed(self._transports[app][0], _TOKEN_REVIEWS, {
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
            }, msgspec.json.Decoder(_TokenReview).decode)
            known = (_of_review(found.status) if found.status.authenticated else None,)
            self._known.add(key, known, self._times.authenticated)
        (user,) = known
        if user is None:
            raise Denied(401, "the API server does not accept the token", **_CHALLENGE)
        return user

    async def decide(
        self, app: web.Application, user: User, attributes: PathAttributes | ResourceAttributes,
    ) -> AccessDecision:
        """Return whether a user's request is permitted; raises `Denied` with 503 if the API server does not answer."""
        key = user, attributes
        known = self._decisions.find(key)
        if known is None:
            found = await _reviewed(self._transports[app][1], _ACCESS_REVIEWS, {
                "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {"user": user.name, "groups": user.groups, "uid": user.uid, "extra": dict(user.extra),
                         **attributes.to_json()},
            }, msgspec.json.Decoder(_AccessReview).decode)
            known = AccessDecision(found.status.allowed, found.status.reason)
            self._decisions.add(key, known, self._times.authorized if known.allowed else self._times.unauthorized)
        return known


def bearer_token(header: str) -> str:
    """Return the token of an Authorization header; empty if it has none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


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
