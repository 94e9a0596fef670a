"""Answers of the API server about users: asked once, for a bounded time, in bounded number."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from koordpolicy.engine.serving.reviews import (
    AccessDecision,
    Denied,
    PathAttributes,
    ResourceAttributes,
    Reviews,
    User,
    bearer_token,
)

MOST = 4096


class FakeTransport:
    """An API server that knows every token but `bad`, and permits lists."""

    def __init__(self) -> None:
        self.reviews: list[dict[str, Any]] = []

    async def request(self, _method: str, path: str, *, body: bytes, **_: Any) -> bytes:
        review = json.loads(body)
        self.reviews.append(review)
        if path.endswith("/tokenreviews"):
            token = review["spec"]["token"]
            status: dict[str, Any] = {"authenticated": token != "bad", "user": {"username": f"user of {token}"}}
        else:
            attributes = review["spec"].get("resourceAttributes") or {"verb": "get"}
            status = {"allowed": attributes["verb"] == "list", "reason": "no role"}
        return json.dumps({"status": status}).encode()

    async def close(self) -> None:
        pass


def reviewed(ask: Any) -> list[dict[str, Any]]:
    """Ask with reviews that never expire; return what the API server was sent."""
    transport: Any = FakeTransport()

    async def run() -> None:
        reviews, app = Reviews(lambda: transport, clock=lambda: 0.0), web.Application()
        connected = reviews.connected(app)
        await anext(connected)
        try:
            await ask(reviews, app)
        finally:
            await connected.aclose()

    asyncio.run(run())
    found: list[dict[str, Any]] = transport.reviews
    return found


def test_answers_are_bounded_in_number_and_the_oldest_is_asked_about_again():
    async def ask(reviews: Reviews, app: web.Application) -> None:
        for number in range(MOST):
            assert await reviews.user(app, f"token-{number}") == User(f"user of token-{number}")
        assert (reviews.known("token-0"), reviews.known("token-1")) == (True, True)
        await reviews.user(app, "one more")
        assert (reviews.known("token-0"), reviews.known("token-1"), reviews.known("one more")) == (False, True, True)
        await reviews.user(app, "token-1")
        await reviews.user(app, "token-0")

    assert [each["spec"]["token"] for each in reviewed(ask)[MOST:]] == ["one more", "token-0"]


def test_a_token_that_is_not_accepted_is_remembered_and_not_known():
    async def ask(reviews: Reviews, app: web.Application) -> None:
        for _ in range(3):
            with pytest.raises(Denied) as denied:
                await reviews.user(app, "bad")
            assert (denied.value.status, denied.value.headers) == (401, {"WWW-Authenticate": "Bearer"})
        assert not reviews.known("bad")

    assert len(reviewed(ask)) == 1


def test_requests_for_resources_and_paths_are_different_questions():
    ana = User("ana", ("developers",), "7", (("scopes", ("all",)),))

    async def ask(reviews: Reviews, app: web.Application) -> None:
        for _ in range(2):
            for attributes, decision in (
                    (ResourceAttributes("list", "", "pods"), AccessDecision(True, "no role")),
                    (ResourceAttributes("update", "policy.koordinator.sh", "schedulerplugins"),
                     AccessDecision(False, "no role")),
                    (PathAttributes("get", "/metrics"), AccessDecision(False, "no role"))):
                assert await reviews.decide(app, ana, attributes) == decision

    user = {"user": "ana", "groups": ["developers"], "uid": "7", "extra": {"scopes": ["all"]}}
    assert [each["spec"] for each in reviewed(ask)] == [
        {**user, "resourceAttributes": {"verb": "list", "group": "", "resource": "pods"}},
        {**user, "resourceAttributes": {"verb": "update", "group": "policy.koordinator.sh",
                                        "resource": "schedulerplugins"}},
        {**user, "nonResourceAttributes": {"verb": "get", "path": "/metrics"}}]


def test_a_token_is_that_of_the_scheme_bearer():
    assert [bearer_token(each) for each in ("Bearer a", "bearer  a ", "Basic a", "Bearer", "", "a")] == [
        "a", "a", "", "", "", ""]
