"""The users of the console: whose token a request has, and what that user may do.

Users come from a file of tokens, or are those of a cluster, whose API server knows them and their roles.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
from collections.abc import AsyncGenerator, Collection, Mapping
from pathlib import Path
from typing import Final, Protocol

from aiohttp import web

from koordpolicy.engine.serving.reviews import Denied, Reviews, User

from .rights import EVERYTHING, READING, Right

SHORTEST_TOKEN: Final = 16
"""The minimum length of a token, in characters."""
LONGEST_TOKEN: Final = 4096
"""The maximum length of a token in a file, in characters."""
OPERATOR: Final = "operator"
"""The role of users who may change policies."""
VIEWER: Final = "viewer"
"""The role of users who may look at everything; the default."""
_LARGEST_FILE: Final = 1 << 20
_ROLES: Final[Mapping[str, frozenset[Right]]] = {VIEWER: READING, OPERATOR: EVERYTHING}


class Users(Protocol):
    """Knows users by their tokens, and their rights."""

    hint: str
    """Advice for somebody who signs in, for the page."""

    def known(self, token: str) -> bool:
        """Return whether a token is known to be valid without asking anybody."""
        ...

    async def user(self, request: web.Request, token: str, /) -> User:
        """Return the user of a token; raises `Denied` (401) for any other text."""
        ...

    async def refusal(self, request: web.Request, user: User, right: Right, /) -> str:
        """Return the reason why a user does not have a right; empty for one who has. Raises `Denied` (503)."""
        ...

    def connected(self, app: web.Application, /) -> AsyncGenerator[None, None]:
        """Connect in the application's event loop, and disconnect at its end (for `cleanup_ctx`)."""
        ...


class UserTokens:
    """The users of a file with lines `TOKEN,USER` or `TOKEN,USER,ROLE`; a role is `viewer` or `operator`.

    Blank lines and lines that begin with `#` are skipped. Only digests are held in memory.
    """

    hint = "one of the file that the console was started with"

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
        self._users: dict[bytes, User] = {}
        places: dict[bytes, int] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.startswith("#"):
                continue
            token, user = _of_line(line, f"`{path}`, line {number}")
            digest = _digest(token)
            if digest in places:
                raise ValueError(f"`{path}`, line {number}: the token is that of line {places[digest]}")
            places[digest], self._users[digest] = number, user
        if not self._users:
            raise ValueError(f"`{path}` holds no token: write lines TOKEN,USER")

    def known(self, token: str) -> bool:
        """Return whether a token is one of the file."""
        return self._find(token) is not None

    async def user(self, _: web.Request, token: str) -> User:
        """Return the user of a token; raises `Denied` for any other text."""
        found = self._find(token)
        if found is None:
            raise Denied(401, "the token is not one of this console's", **{"WWW-Authenticate": "Bearer"})
        return found

    async def refusal(self, _: web.Request, user: User, right: Right) -> str:
        """Return the reason why a user does not have a right; empty for one who has."""
        [role] = user.groups
        return "" if right in _ROLES[role] else f"is a {role}, and changes are for the role `{OPERATOR}`"

    async def connected(self, _: web.Application) -> AsyncGenerator[None, None]:
        """Connect to nothing."""
        yield

    def _find(self, token: str) -> User | None:
        shown = _digest(token)
        found = None
        for digest, user in self._users.items():  # all, so that the time says nothing
            if hmac.compare_digest(digest, shown):
                found = user
        return found


class ClusterUsers:
    """The users of a cluster: its API server knows them by their tokens (TokenReview), and says what each of them may
    do (SubjectAccessReview).
    """

    hint = "one of the cluster, as `kubectl create token` prints it"

    def __init__(self, reviews: Reviews) -> None:
        self._reviews = reviews

    def known(self, token: str) -> bool:
        """Return whether the API server has accepted a token a short time ago."""
        return self._reviews.known(token)

    async def user(self, request: web.Request, token: str) -> User:
        """Return the user of a token; raises `Denied`, also if the API server does not answer (503)."""
        return await self._reviews.user(request.app, token)

    async def refusal(self, request: web.Request, user: User, right: Right) -> str:
        """Return the first thing that a user may not do; empty if nothing lacks. Raises `Denied` (503)."""
        for attributes in right.value:
            decision = await self._reviews.decide(request.app, user, attributes)
            if not decision.allowed:
                why = f" ({decision.reason})" if decision.reason else ""
                return f"cannot {attributes} in all namespaces{why}"
        return ""

    def connected(self, app: web.Application) -> AsyncGenerator[None, None]:
        """Connect for an application, and disconnect at its end."""
        return self._reviews.connected(app)


async def refusals(
    users: Users, request: web.Request, user: User, rights: Collection[Right],
) -> dict[Right, str]:
    """Return the reasons why a user does not have some rights, by right; raises `Denied` (503)."""
    found = {right: await users.refusal(request, user, right) for right in sorted(rights, key=lambda each: each.name)}
    return {right: why for right, why in found.items() if why}


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _of_line(line: str, place: str) -> tuple[str, User]:
    try:
        columns = [each.strip() for each in next(csv.reader([line], strict=True))]
    except (csv.Error, StopIteration):
        columns = []
    token, user, role = (*columns, *("", "", VIEWER)[len(columns):])[:3]
    if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN or not user:
        raise ValueError(f"{place}: write TOKEN,USER with a token of {SHORTEST_TOKEN} to {LONGEST_TOKEN} characters")
    if role not in _ROLES or len(columns) > 3:
        raise ValueError(f"{place}: write TOKEN,USER,ROLE with one of the roles {', '.join(_ROLES)}")
    return token, User(user, (role,))
