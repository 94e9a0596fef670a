"""Access to a server's endpoints: the API server authenticates and authorizes requests, as for kube-scheduler.

A bearer token is authenticated by a TokenReview, a client certificate by the listener's authority; then a
SubjectAccessReview says whether the user may `get` the path. A role for it has `nonResourceURLs: [/metrics]`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Final, Protocol

from aiohttp import web

from .reviews import Denied, PathAttributes, Reviews, User, bearer_token

ALWAYS_ALLOWED: Final = ("/healthz", "/livez", "/readyz")
"""kube-scheduler's default of `--authorization-always-allow-paths`; the checks below these paths are included."""
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


class DelegatedAccess:
    """Leaves authentication and authorization to API servers (`Reviews`)."""

    def __init__(self, reviews: Reviews, *, always_allowed: Collection[str] = ALWAYS_ALLOWED) -> None:
        """A path of `always_allowed` that ends with `*` permits all paths that begin like it."""
        self._reviews = reviews
        self._exact = frozenset(path for path in always_allowed if not path.endswith("*"))
        self._prefixes = tuple(path.removesuffix("*") for path in always_allowed if path.endswith("*"))
        self._below = tuple(f"{path}/" for path in ALWAYS_ALLOWED if path in self._exact)

    def connected(self, app: web.Application) -> AsyncGenerator[None, None]:
        """Connect for an application, and disconnect at its end."""
        return self._reviews.connected(app)

    async def check(self, request: web.Request) -> None:
        """Raise `Denied` unless the request is permitted."""
        path, verb = request.path, request.method.lower()
        if path in self._exact or path.startswith((*self._prefixes, *self._below)):
            return
        user = await self._user(request)
        decision = await self._reviews.decide(request.app, user, PathAttributes(verb, path))
        if not decision.allowed:
            why = f": {decision.reason}" if decision.reason else ""
            raise Denied(403, f'user "{user.name}" cannot {verb} path "{path}"{why}')

    async def _user(self, request: web.Request) -> User:
        certified = _of_certificate(request)
        if certified is not None:
            return certified
        token = bearer_token(request.headers.get("Authorization", ""))
        return await self._reviews.user(request.app, token) if token else ANONYMOUS


def _of_certificate(request: web.Request) -> User | None:
    """Return the user of a client's certificate, which the listener has verified; None if there is none."""
    certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
    parts = [part for names in (certificate or {}).get("subject", ()) for part in names]
    name = next((value for key, value in parts if key == "commonName"), "")
    if not name:
        return None
    groups = (value for key, value in parts if key == "organizationName")
    return User(name, (*groups, _AUTHENTICATED))
