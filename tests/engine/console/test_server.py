"""The console's server: what it answers, to whom, and what it refuses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.console import views
from koordpolicy.engine.console.guard import Guard, RateLimit, is_loopback
from koordpolicy.engine.console.server import ConsoleServer, Static
from koordpolicy.engine.console.users import UserTokens
from koordpolicy.engine.reload.vet import VETTING
from koordpolicy.engine.source import PolicyError, Problem, Source

from .asking import Ask, asking
from .conftest import HOT, MARKUP, TEST

TOKEN = "0123456789abcdef"


class FakeVetter:
    """A worker that does not survive one text."""

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def vet(self, sources: list[Source]) -> None:
        if "crash" in sources[0].text:
            raise PolicyError([Problem("checking it took too long", sources[0].span(0), code=VETTING)])


@pytest.fixture
def static(tmp_path: Path) -> Static:
    (tmp_path / "index.html").write_text('<meta name="csp-nonce" content="{{nonce}}">', encoding="utf-8")
    (tmp_path / "main.js").write_text("1", encoding="utf-8")
    (tmp_path / "secret.pem").write_text("no part of the page", encoding="utf-8")
    return Static(tmp_path)


@pytest.fixture
def serve(state, static) -> Callable[..., None]:
    def run(scenario: Callable[[Ask], Awaitable[None]], guard: Guard | None = None, **more: Any) -> None:
        console = ConsoleServer(state, guard or Guard(), static, **more)

        async def main() -> None:
            async with asking(console) as ask:
                await scenario(ask)

        asyncio.run(main())

    return run


def test_the_page_permits_scripts_from_files_only_and_styles_of_a_nonce(serve):
    async def scenario(ask: Ask) -> None:
        status, page, headers = await ask("/")
        nonce = re.search('content="([^"]+)"', page)[1]
        assert (status, headers["Content-Security-Policy"]) == (200, (
            "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; font-src 'self'; "
            f"style-src 'self' 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"))
        _, other, _ = await ask("/")
        assert nonce not in other
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"], headers["X-Frame-Options"]) == (
            "nosniff", "no-store", "DENY")
        assert (await ask("/static/main.js"))[:2] == (200, "1")
        for path in ("/static/secret.pem", "/static/..%2Fconftest.py", "/static/nothing.js"):
            assert (await ask(path))[0] == 404

    serve(scenario)


def test_views_are_json_with_every_name_as_it_is(serve):
    async def scenario(ask: Ask) -> None:
        status, view, headers = await ask("/api/v1/map?group=pool")
        assert (status, view["groups"][0], headers["Content-Type"]) == (
            200, {"name": MARKUP, "nodes": 1}, "application/json; charset=utf-8")
        assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
        for path in ("overview", "colour?expression=usage.cpu", "node?name=hot", "pod?key=shop/web-2", "policies",
                     "pod-node?key=shop/web-2&node=hot", "evictions", "eviction?key=shop/web-1",
                     "node-policies?name=hot", "file?name=0.yaml", "search?text=web", "session"):
            assert (await ask(f"/api/v1/{path}"))[0] == 200, path

    serve(scenario)


def test_drafts_are_checked_evaluated_compared_tested_and_completed(serve):
    async def scenario(ask: Ask) -> None:
        draft = {"text": HOT + TEST, "pod": "shop/web-2", "offset": HOT.index("usage.cpu"),
                 "name": "load"}
        paths = ("check", "evaluate", "tests", "complete", "describe", "rename")
        answers = [await ask(f"/api/v1/draft/{path}", draft) for path in paths]
        assert [status for status, _, _ in answers] == [200] * 6
        assert answers[0][1]["tests"] == 1
        assert answers[1][1]["colours"]["numbers"] == [25, 75, None]
        status, found, _ = await ask("/api/v1/draft/evaluate", draft | {"text": HOT.replace("usage.cpu", "usage.x")})
        assert (status, found["error"], found["faults"][0]["line"]) == (200, found["faults"][0]["message"], 9)

    serve(scenario, vetter=FakeVetter())


def test_a_draft_that_a_worker_does_not_survive_goes_no_further(serve):
    async def scenario(ask: Ask) -> None:
        draft = {"text": "# crash\n" + HOT, "pod": "shop/web-2"}
        status, found, _ = await ask("/api/v1/draft/check", draft)
        assert (status, found["faults"][0]["message"]) == (200, "checking it took too long")
        for path in ("draft/evaluate", "draft/tests", "effect/start"):
            assert (await ask(f"/api/v1/{path}", draft))[1]["error"] == "checking it took too long"

    serve(scenario, vetter=FakeVetter())


@pytest.mark.parametrize(("path", "status", "error"), [
    ("/api/v1/node?name=nobody", 200, "there is no node `nobody` in the cluster: it has 3 nodes"),
    ("/api/v1/node", 400, "the query lacks `name`: ask for `/api/v1/node?name=NODE`"),
    ("/api/v1/pod?key=", 400, "the query lacks `key`: ask for `/api/v1/pod?key=NAMESPACE/POD`"),
    ("/api/v1/pod-node?at=2026-01-02T12:00:00Z", 400,
     "the query lacks `key` and `node`: ask for `/api/v1/pod-node?key=NAMESPACE/POD&node=NODE`"),
    ("/api/v1/colour?expression=1%20%2B", 200, "expected a value, found the end"),
    ("/api/v1/nothing", 404, "not found"),
    ("/api/v1/map?group=" + "x" * 20_000, 414, "the query has more than 16384 characters"),
    ("/api/v1/colour?expression=" + "(" * 3000, 200, "nested too deeply"),
])
def test_what_cannot_be_answered_is_refused_in_words(serve, path: str, status: int, error: str):
    async def scenario(ask: Ask) -> None:
        found = await ask(path)
        assert found[0] == status
        assert found[1]["error"].startswith(error)

    serve(scenario)


def test_a_long_expression_colours_the_map_as_a_body(serve):
    async def scenario(ask: Ask) -> None:
        expression = "usage.cpu" + " " * 20_000 + "+ 0"
        status, found, _ = await ask("/api/v1/colour", {"expression": expression})
        assert (status, found["numbers"]) == (200, [1000, 3000, None])
        status, found, _ = await ask("/api/v1/colour", {"pod": "shop/web-2"})
        assert (status, found["error"][:28]) == (400, "the query lacks `expression`")
        for body in (b"[]", b'{"expression": 1}', b"{"):
            assert (await ask("/api/v1/colour", body))[0] == 400
        assert (await ask("/api/v1/map", {}))[0] == 405

    serve(scenario)


@pytest.mark.parametrize(("body", "kind", "status"), [
    (b"{", "application/json", 400), (b"[]", "application/json", 400), (b'{"text": 1}', "application/json", 400),
    (b'{"text": "\xff"}', "application/json", 400), (b'{"text": ""}', "text/plain", 415),
    (b'{"text": "' + b"x" * 600_000 + b'"}', "application/json", 413),
])
def test_a_malformed_or_huge_body_is_refused(serve, body: bytes, kind: str, status: int):
    async def scenario(ask: Ask) -> None:
        found = await ask("/api/v1/draft/check", body, Content_Type=kind)
        assert found[0] == status
        assert found[1]["error"]

    serve(scenario)


def test_other_sites_cannot_use_the_console_through_a_browser(serve):
    async def scenario(ask: Ask) -> None:
        draft = {"text": ""}
        assert (await ask("/api/v1/overview", Host="evil.example:8890"))[0] == 421
        assert (await ask("/", Host="evil.example"))[0] == 421
        assert (await ask("/api/v1/overview", Origin="https://evil.example"))[0] == 403
        assert (await ask("/api/v1/draft/check", draft, Origin="null"))[0] == 403
        assert (await ask("/api/v1/overview", Sec_Fetch_Site="cross-site"))[0] == 403
        assert (await ask("/", Sec_Fetch_Site="cross-site"))[0] == 200  # a link from another page
        assert (await ask("/api/v1/overview", Host="localhost:1", Origin="http://localhost:1"))[0] == 200
        assert (await ask("/api/v1/overview", Host="[::1]:1"))[0] == 200
        assert (await ask("/api/v1/overview", Host="console.example"))[0] == 200

    serve(scenario, Guard(hosts=["Console.example"]))


def test_with_tokens_every_view_needs_one(serve, tmp_path: Path):
    file = tmp_path / "tokens.csv"
    file.write_text(f'# users\n{TOKEN},ana\n\n"{TOKEN}x", ben , operator\n', encoding="utf-8")

    async def scenario(ask: Ask) -> None:
        assert (await ask("/"))[0] == 200  # the page that the token is typed into
        status, found, headers = await ask("/api/v1/session")
        assert (status, found["error"], headers["WWW-Authenticate"]) == (
            401, "a token is needed (`Authorization: Bearer TOKEN`): one of the file that the console was started with",
            "Bearer")
        for wrong in ("Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", "Bearer \u00e9"):
            assert (await ask("/api/v1/session", Authorization=wrong))[0] == 401
        for token, user in ((TOKEN, "ana"), (f"{TOKEN}x", "ben")):
            status, found, _ = await ask("/api/v1/session", Authorization=f"Bearer {token}")
            assert (status, found["user"], found["protected"]) == (200, user, True)

    serve(scenario, Guard(users=UserTokens(file)))


@pytest.mark.parametrize(("content", "message"), [
    (b"", "holds no token"), (b"short,ana", "line 1: write TOKEN,USER"), (b"0123456789abcdef", "line 1: write"),
    (b"0123456789abcdef,ana\nx\n", "line 2"), (b"\xff\xfe", "is not UTF-8"), (b"x" * (1 << 20) + b"y", "is larger"),
])
def test_a_file_without_valid_tokens_is_refused(tmp_path: Path, content: bytes, message: str):
    file = tmp_path / "tokens.csv"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        UserTokens(file)


def test_too_many_requests_are_refused_for_a_while(serve):
    now = [0.0]

    async def scenario(ask: Ask) -> None:
        assert [(await ask("/api/v1/session"))[0] for _ in range(3)] == [200, 200, 429]
        now[0] = 0.5
        assert [(await ask("/api/v1/session"))[0] for _ in range(2)] == [200, 429]

    serve(scenario, Guard(rate=RateLimit(per_second=2, burst=2, clock=lambda: now[0])))


def test_a_view_that_takes_too_long_is_refused_and_the_next_one_is_answered(serve, monkeypatch):
    def slow(_state: Any, _expression: str, _pod: str) -> None:
        Deadline.current().cancel()
        Deadline.poll()

    monkeypatch.setattr(views, "colour", slow)

    async def scenario(ask: Ask) -> None:
        assert (await ask("/api/v1/colour?expression=1"))[:2] == (
            503, {"error": "it takes more than 5 s of processor time", "status": 503, "faults": []})
        assert (await ask("/api/v1/map"))[0] == 200

    serve(scenario)


def test_a_failure_is_logged_and_does_not_say_what_failed(serve, monkeypatch, caplog):
    def failing(_state: Any) -> None:
        raise RuntimeError("/srv/secret")

    monkeypatch.setattr(views.policies, "overview", failing)

    async def scenario(ask: Ask) -> None:
        assert (await ask("/api/v1/overview"))[:2] == (
            500, {"error": "the console failed to answer; its log says why", "status": 500, "faults": []})

    serve(scenario)
    assert "RuntimeError: /srv/secret" in caplog.text


def test_addresses_of_this_machine_are_known():
    assert [is_loopback(each) for each in ("127.0.0.1", "127.8.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "::",
                                           "example.org")] == [True] * 4 + [False] * 4


def test_pages_that_are_not_built_are_missed(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        Static(tmp_path)
