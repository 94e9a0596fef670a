"""Users of the console: from a file of tokens, or of a cluster, with the rights that each of them has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.console.guard import Guard, RateLimit
from koordpolicy.engine.console.models.model import RefusalView
from koordpolicy.engine.console.rights import CLUSTER, EVERYTHING, READING, Right
from koordpolicy.engine.console.routes import USER, Route, json_answer
from koordpolicy.engine.console.server import ConsoleServer, Static
from koordpolicy.engine.console.state import ConsoleState
from koordpolicy.engine.console.users import ClusterUsers, Users, UserTokens
from koordpolicy.engine.serving.listeners import serving
from koordpolicy.engine.serving.reviews import Reviews

from .asking import AskApi as Ask
from .asking import asking, of_api

TOKENS = {"ana": "a-token-of-ana-00", "ben": "a-token-of-ben-00", "eve": "a-token-of-eve-00"}
MAY = {"ana": {"nodes", "pods", "schedulerplugins", "qosplugins", "deschedulerplugins", "policyparams"},
       "ben": {"nodes", "pods"}, "eve": set()}
"""The resources that each user may list; ana may update them, too."""


class Changing:
    """A route for users with all rights, which answers with the user's name."""

    def routes(self) -> tuple[Route, ...]:
        return (Route("POST", "change", self._change, EVERYTHING),)

    def close(self) -> None:
        pass

    async def _change(self, _: web.Request) -> web.Response:
        return json_answer(RefusalView(error=f"changed by {USER.get().name}", status=200))


class FakeCluster:
    """An API server that knows the users above; `reviews` are the questions that it was sent."""

    def __init__(self) -> None:
        self.reviews: list[tuple[str, str]] = []
        self.down = False

    async def answer(self, request: web.Request) -> web.Response:
        body = json.loads(await request.text())
        if self.down:
            return web.json_response({"kind": "Status", "code": 500}, status=500)
        if body["kind"] == "TokenReview":
            token = body["spec"]["token"]
            self.reviews.append(("token", token))
            user = next((name for name, each in TOKENS.items() if each == token), None)
            status: dict[str, Any] = {"authenticated": user is not None, "user": {"username": user or ""}}
        else:
            user, attributes = body["spec"]["user"], body["spec"]["resourceAttributes"]
            assert attributes["group"] == ("" if attributes["resource"] in ("nodes", "pods") else
                                           "policy.koordinator.sh")
            self.reviews.append((user, f"{attributes['verb']} {attributes['resource']}"))
            status = {"allowed": attributes["resource"] in MAY[user] and (
                attributes["verb"] == "list" or user == "ana")}
        return web.json_response(body | {"status": status}, status=201)


@pytest.fixture
def serve(state: ConsoleState, tmp_path: Path) -> Callable[..., None]:
    """Run a scenario with a console whose users are those of a cluster, and of which ana may change policies."""
    (tmp_path / "index.html").write_text("page", encoding="utf-8")
    static = Static(tmp_path)

    def run(scenario: Callable[[Ask], Awaitable[None]], cluster: FakeCluster | None = None,
            guard: Callable[[Users], Guard] = lambda users: Guard(users=users),
            clock: Callable[[], float] = lambda: 0.0) -> None:
        async def main() -> None:
            api = web.Application()
            if cluster is not None:
                for path in ("authentication.k8s.io/v1/tokenreviews", "authorization.k8s.io/v1/subjectaccessreviews"):
                    api.router.add_post(f"/apis/{path}", cluster.answer)
            async with serving(api, "127.0.0.1", 0, None) as address:
                users = ClusterUsers(Reviews(lambda: Transport(Connection(address), rate=0), clock=clock))
                console = ConsoleServer(state, guard(users), static, more=[Changing()])
                async with asking(console) as asked:
                    send = of_api(asked)

                    async def ask(path: str, token: str | None = None, body: Any = None,
                                  **headers: str) -> tuple[int, Any]:
                        return await send(path, body, token or "", **headers)

                    await scenario(ask)

        asyncio.run(main())

    return run


def test_a_user_of_the_cluster_sees_and_does_what_its_roles_permit(serve):
    async def scenario(ask: Ask) -> None:
        expected = {"ana": (200, 200, 200), "ben": (200, 403, 403), "eve": (403, 403, 403)}
        for user, token in TOKENS.items():
            assert ((await ask("map", token))[0], (await ask("policies", token))[0],
                    (await ask("change", token, {}))[0]) == expected[user], user
        assert (await ask("change", TOKENS["ana"], {}))[1]["error"] == "changed by ana"
        assert (await ask("policies", TOKENS["ben"]))[1]["error"] == (
            "user `ben` cannot list schedulerplugins.policy.koordinator.sh in all namespaces")
        assert (await ask("map", TOKENS["eve"]))[1]["error"] == "user `eve` cannot list nodes in all namespaces"

    serve(scenario, FakeCluster())


def test_a_session_says_what_its_user_lacks(serve):
    async def scenario(ask: Ask) -> None:
        for user, lacks in {"ana": [], "ben": ["changes", "policies"],
                            "eve": ["changes", "nodes", "pods", "policies"]}.items():
            status, session = await ask("session", TOKENS[user])
            assert (status, session["user"], session["mayChange"], sorted(session["refused"])) == (
                200, user, not lacks, lacks)

    serve(scenario, FakeCluster())


def test_reviews_are_repeated_when_they_expire_and_not_before(serve):
    cluster, now = FakeCluster(), [0.0]

    async def scenario(ask: Ask) -> None:
        for now[0] in (0.0, 9.9, 10.0):
            assert (await ask("map", TOKENS["ben"]))[0] == 200

    serve(scenario, cluster, clock=lambda: now[0])
    assert cluster.reviews == [("token", TOKENS["ben"]), ("ben", "list nodes"), ("ben", "list pods")] * 2


def test_a_right_that_was_taken_away_is_gone_once_the_answer_expires(serve, monkeypatch):
    now = [0.0]

    async def scenario(ask: Ask) -> None:
        assert (await ask("change", TOKENS["ana"], {}))[0] == 200
        monkeypatch.setitem(MAY, "ana", {"nodes", "pods"})
        now[0] = 10.0
        assert (await ask("change", TOKENS["ana"], {}))[0] == 403

    serve(scenario, FakeCluster(), clock=lambda: now[0])


def test_while_the_api_server_does_not_answer_nobody_is_let_in(serve):
    cluster = FakeCluster()
    cluster.down = True

    async def scenario(ask: Ask) -> None:
        for _ in range(30):  # more than the invalid tokens that an address may send
            assert await ask("map", TOKENS["ana"]) == (
                503, {"error": "the API server does not say now who may read this", "status": 503, "faults": []})

    serve(scenario, cluster)


@pytest.mark.parametrize("token", ["x", "x" * 7000, "null", '{"kind":"TokenReview"}', "%00", "../../etc/passwd",
                                   f"{TOKENS['ana']}, {TOKENS['ana']}", f"Bearer {TOKENS['ana']}"])
def test_a_hostile_token_is_nobodys(serve, token: str):
    async def scenario(ask: Ask) -> None:
        assert await ask("map", token) == (
            401, {"error": "the API server does not accept the token", "status": 401, "faults": []})

    serve(scenario, FakeCluster())


def test_an_address_may_send_few_invalid_tokens_and_users_who_are_known_are_not_shut_out(serve):
    cluster, now = FakeCluster(), [0.0]

    async def scenario(ask: Ask) -> None:
        assert (await ask("map", TOKENS["ana"]))[0] == 200
        assert [(await ask("map", f"guess-{number}"))[0] for number in range(4)] == [401, 401, 429, 429]
        assert (await ask("map", TOKENS["ana"]))[0] == 200
        assert (await ask("map", TOKENS["ben"]))[0] == 429
        now[0] = 1.0
        assert [(await ask("map", TOKENS["ben"]))[0] for _ in range(5)] == [200] * 5

    failed = RateLimit(per_second=1, burst=2, clock=lambda: now[0])
    serve(scenario, cluster, lambda users: Guard(users=users, failed=failed))
    assert [token for kind, token in cluster.reviews if kind == "token"] == [
        TOKENS["ana"], "guess-0", "guess-1", TOKENS["ben"]]


def test_users_are_limited_one_by_one(serve, tmp_path: Path):
    guard = Guard(users=users_of(tmp_path, "".join(f"{token},{user}\n" for user, token in TOKENS.items())),
                  rate=RateLimit(per_second=1, burst=2, clock=lambda: 0.0))

    async def scenario(ask: Ask) -> None:
        for user in ("ana", "ben"):
            assert [(await ask("session", TOKENS[user]))[0] for _ in range(3)] == [200, 200, 429], user

    serve(scenario, guard=lambda _: guard)


def users_of(tmp_path: Path, text: str) -> UserTokens:
    file = tmp_path / "tokens.csv"
    file.write_text(text, encoding="utf-8")
    return UserTokens(file)


def test_the_role_of_a_token_decides_about_changes(serve, tmp_path: Path):
    guard = Guard(users=users_of(tmp_path, (
        f"{TOKENS['ana']},ana,operator\n{TOKENS['ben']},ben,viewer\n{TOKENS['eve']},eve\n")))

    async def scenario(ask: Ask) -> None:
        for user, status in (("ana", 200), ("ben", 403), ("eve", 403)):
            assert (await ask("map", TOKENS[user]))[0] == (await ask("policies", TOKENS[user]))[0] == 200
            assert (await ask("change", TOKENS[user], {}))[0] == status, user
        assert (await ask("change", TOKENS["ben"], {}))[1]["error"] == (
            "user `ben` is a viewer, and changes are for the role `operator`")

    serve(scenario, guard=lambda _: guard)


def test_without_users_everybody_reads_and_nobody_changes(serve):
    async def scenario(ask: Ask) -> None:
        assert (await ask("map"))[0] == 200
        assert await ask("change", None, {}) == (
            403, {"error": "user `local` has no token", "status": 403, "faults": []})

    serve(scenario, guard=lambda _: Guard())


def test_other_sites_cannot_change_anything_through_a_browser(serve):
    async def scenario(ask: Ask) -> None:
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"},
                        {"Sec_Fetch_Site": "same-site"}, {"Host": "evil.example"}, {"Content_Type": "text/plain"}):
            status, _ = await ask("change", TOKENS["ana"], {}, **headers)
            assert status in (403, 415, 421), headers
        # A form or an image of another site sends no token: there are no cookies.
        assert (await ask("change", None, {}))[0] == 401
        assert (await ask("change", None, {}, Cookie=f"token={TOKENS['ana']}"))[0] == 401
        assert (await ask("change", TOKENS["ana"], {}))[0] == 200
        assert (await ask("change", TOKENS["ana"]))[0] == 405  # a link is a GET

    serve(scenario, FakeCluster())


@pytest.mark.parametrize(("line", "message"), [
    ("0123456789abcdef,ana,admin", "line 1: write TOKEN,USER,ROLE with one of the roles viewer, operator"),
    ("0123456789abcdef,ana,viewer,more", "line 1: write TOKEN,USER,ROLE"),
    ("0123456789abcdef,ana,", "line 1: write TOKEN,USER,ROLE"),
    ("0123456789abcdef,,operator", "line 1: write TOKEN,USER with"),
    ('"0123456789abcdef,ana', "line 1: write TOKEN,USER with"),
    ("0123456789abcdef,ana\n0123456789abcdef,ben,operator", "line 2: the token is that of line 1"),
])
def test_a_malformed_line_of_a_file_of_tokens_is_refused(tmp_path: Path, line: str, message: str):
    with pytest.raises(ValueError, match=message):
        users_of(tmp_path, line)


def test_rights_are_the_words_of_roles():
    assert {right.name: sorted(map(str, right.value)) for right in Right} == {
        "NODES": ["list nodes"], "PODS": ["list pods"],
        "POLICIES": [f"list {kind}.policy.koordinator.sh" for kind in (
            "deschedulerplugins", "policyparams", "qosplugins", "schedulerplugins")],
        "CHANGES": [f"update {kind}.policy.koordinator.sh" for kind in (
            "deschedulerplugins", "policyparams", "qosplugins", "schedulerplugins")]}
    assert CLUSTER < READING < EVERYTHING
