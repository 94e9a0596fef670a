"""Promotions and rollbacks through the console: shown, confirmed, made on all servers, and logged."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.engine.client.server_calls import EndpointAnswer
from koordpolicy.engine.console.audit_file import AuditFile
from koordpolicy.engine.console.changes import ChangeableServers, ChangeRoutes
from koordpolicy.engine.console.guard import Guard
from koordpolicy.engine.console.server import ConsoleServer, Static
from koordpolicy.engine.console.state import ConsoleState
from koordpolicy.engine.console.users import UserTokens

from .asking import AskApi as Ask
from .asking import asking, of_api

ANA, BEN = "a-token-of-ana-00", "a-token-of-ben-00"
NEXT = "b" * 12
FIRST = "a" * 12


class FakeServer:
    """A server with a shadow; `directory` names one that several servers share."""

    def __init__(self, directory: list[str] | None = None, *, shadow: bool = True) -> None:
        self.shadow = shadow
        self.active, self.generation = FIRST, 1
        self.directory = [FIRST] if directory is None else directory
        self.late = 0
        """The number of looks at its status after which it has read its directory."""
        self.refuses: tuple[int, dict[str, Any]] | None = None
        self.earlier: list[str] = []
        self.down_at = ""

    def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        if path == "/status":
            if self.directory != [self.active] and self.late:
                self.late -= 1
            elif self.directory != [self.active]:
                self._activate(self.directory[0])
            return 200, {"policies": {"generation": self.generation, "digest": self.active, "restored": None,
                                      "history": [{"digest": each, "since": 1.0}
                                                  for each in (*self.earlier, self.active)]}}
        if path == "/promote" and not self.shadow:
            return 404, {"error": "it has no /promote"}
        assert body is not None
        if not body.get("dryRun") and self.refuses is not None:
            return self.refuses
        if body.get("active", self.active) != self.active:
            return 409, {"error": "another is active", "code": "other-active", "active": self.active}
        after = NEXT if path == "/promote" else body["to"] or "0" * 12
        if after == self.active:
            return 409, {"error": f"`{after}` is active already", "code": "in-force", "active": after, "hash": after}
        if not body.get("dryRun") and path == "/promote" and self.directory != [self.active]:
            return 409, {"error": "the directory has just been changed", "code": "changed", "active": self.active}
        if body.get("dryRun"):
            changes = [{"file": "p.yaml", "before": self.active, "after": after}]
            return 200, {"dryRun": True, "hash": after, "active": self.active, "changes": changes}
        if path == "/promote":
            assert body["hash"] == NEXT
            self.directory[0] = after
        self._activate(after)
        return 200, {"generation": self.generation, "hash": after}

    def _activate(self, digest: str) -> None:
        self.active, self.generation = digest, self.generation + 1


class FakeCaller:
    """Calls servers of this process. `calls` are those that change something."""

    def __init__(self, servers: dict[str, FakeServer]) -> None:
        self.servers = servers
        self.calls: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def ask(self, endpoint: str, path: str, body: Any = None) -> EndpointAnswer:
        server = self.servers[endpoint]
        with self._lock:
            if body is not None and not body.get("dryRun"):
                self.calls.append((endpoint, path))
            if server.down_at == path and (body is None or not body.get("dryRun")):
                return EndpointAnswer(endpoint, 0, {}, "no answer within 70 s")
            code, data = server.answer(path, body)
        return EndpointAnswer(endpoint, code, data, "" if code == 200 else data["error"])


@pytest.fixture
def serve(state: ConsoleState, tmp_path: Path) -> Callable[..., FakeCaller]:
    (tmp_path / "index.html").write_text("page", encoding="utf-8")
    (tmp_path / "tokens.csv").write_text(f"{ANA},ana,operator\n{BEN},ben\n", encoding="utf-8")
    static, guard = Static(tmp_path), Guard(users=UserTokens(tmp_path / "tokens.csv"))

    def run(scenario: Callable[[Ask], Awaitable[None]], *servers: FakeServer, audit: Path | None = None,
            changing: bool = True, comparing: bool = True, token: Callable[[], None] = lambda: None) -> FakeCaller:
        caller: Any = FakeCaller({f"http://server-{number}": each for number, each in enumerate(servers)})

        def with_token() -> Any:
            token()
            return caller

        async def pause(_: float) -> None:
            await asyncio.sleep(0)

        async def main() -> None:
            routes = ChangeRoutes(
                ChangeableServers(tuple(caller.servers), with_token, with_token if comparing else None),
                AuditFile(audit or tmp_path / "audit.log") if changing else None, now=lambda: 1.5, sleep=pause)
            console = ConsoleServer(state, guard, static, more=[routes] if caller.servers else [])
            async with asking(console) as ask:
                await scenario(of_api(ask, ANA))

        asyncio.run(main())
        found: FakeCaller = caller
        return found

    return run


async def applied(ask: Ask, action: str = "promote", **more: Any) -> tuple[int, Any]:
    _, plan = await ask("changes/plan", {"action": action, **more})
    return await ask("changes/apply", {"action": action, "confirm": plan["confirm"], **more})


def entries(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "audit.log").read_text(encoding="utf-8").splitlines()]


def results(answer: tuple[int, Any]) -> tuple[str, list[tuple[str, str]]]:
    status, found = answer
    assert status == 200
    return found["outcome"], [(each["state"], each["message"]) for each in found["servers"]]


def test_a_promotion_is_shown_confirmed_made_on_all_servers_and_logged(serve, tmp_path: Path):
    servers = FakeServer(), FakeServer(), FakeServer(shadow=False)

    async def scenario(ask: Ask) -> None:
        assert (await ask("session"))[1]["mayChange"] is True
        status, plan = await ask("changes/plan", {"action": "promote"})
        assert (status, [each["state"] for each in plan["servers"]]) == (200, ["changes", "changes", "unconcerned"])
        assert [line["text"] for line in plan["servers"][0]["files"][0]["lines"][1:]] == [FIRST, NEXT]
        assert [each.active for each in servers] == [FIRST] * 3
        answer = await ask("changes/apply", {"action": "promote", "confirm": plan["confirm"]})
        assert results(answer) == ("complete", [("changed", ""), ("changed", ""), ("unchanged", "it has no /promote")])
        assert answer[1]["audit"] == ""

    caller = serve(scenario, *servers)
    assert caller.calls == [("http://server-0", "/promote"), ("http://server-1", "/promote")]
    assert [each.active for each in servers] == [NEXT, NEXT, FIRST]
    begin, end = entries(tmp_path)
    shared = {"time": "1970-01-01T00:00:01Z", "id": begin["id"], "user": "ana", "groups": ["operator"],
              "address": "127.0.0.1", "action": "promote", "to": "", "confirm": begin["confirm"], "decisions": 1000,
              "maxDifferences": 0.001}
    assert begin == {**shared, "phase": "begin", "servers": [
        {"endpoint": f"http://server-{number}", "before": FIRST, "after": NEXT} for number in (0, 1)]}
    changed = {"state": "changed", "message": "", "generation": 2, "after": NEXT}
    assert end == {**shared, "phase": "end", "outcome": "complete", "servers": [
        {"endpoint": "http://server-0", **changed}, {"endpoint": "http://server-1", **changed},
        {"endpoint": "http://server-2", "state": "unchanged", "message": "it has no /promote", "generation": None,
         "after": ""}]}


def test_servers_that_share_a_directory_follow_the_first_one(serve):
    directory = [FIRST]
    servers = [FakeServer(directory), FakeServer(directory), FakeServer(directory, shadow=False)]
    servers[1].late = 3

    async def scenario(ask: Ask) -> None:
        read = "it has read the directory that another server wrote"
        assert results(await applied(ask)) == ("complete", [("changed", ""), ("changed", read), ("changed", read)])

    serve(scenario, *servers)
    assert [each.active for each in servers] == [NEXT] * 3


def test_a_promotion_ends_at_the_first_server_that_fails_and_says_which(serve, tmp_path: Path):
    servers = [FakeServer() for _ in range(3)]
    servers[1].refuses = 409, {"error": "read-only file system", "code": "read-only"}

    async def scenario(ask: Ask) -> None:
        assert results(await applied(ask)) == ("partial", [
            ("changed", ""), ("failed", "read-only file system"),
            ("skipped", "not tried, since a server before it failed")])

    serve(scenario, *servers)
    assert [each.active for each in servers] == [NEXT, FIRST, FIRST]
    assert entries(tmp_path)[-1]["outcome"] == "partial"


def test_a_rollback_goes_on_after_a_server_that_fails(serve):
    servers = [FakeServer() for _ in range(3)]
    servers[0].down_at = "/rollback"

    async def scenario(ask: Ask) -> None:
        assert results(await applied(ask, "rollback", to=NEXT)) == ("partial", [
            ("unknown", "no answer within 70 s"), ("changed", ""), ("changed", "")])

    serve(scenario, *servers)
    assert [each.active for each in servers] == [FIRST, NEXT, NEXT]


def test_a_change_that_is_not_what_was_shown_is_refused(serve, tmp_path: Path):
    server = FakeServer()

    async def scenario(ask: Ask) -> None:
        _, plan = await ask("changes/plan", {"action": "promote"})
        for body in ({"action": "promote", "confirm": "0" * 64}, {"action": "rollback", "confirm": plan["confirm"]}):
            status, found = await ask("changes/apply", body)
            assert (status, found["status"]) == (200, 409)
            assert found["error"].startswith("the servers, or what would change, are not as they were shown: nothing ")
        _, plan = await ask("changes/plan", {"action": "promote", "decisions": 1})
        assert (await ask("changes/apply", {"action": "promote", "decisions": 2, "confirm": plan["confirm"]}))[1][
            "status"] == 409
        assert (await ask("changes/apply", {"action": "promote", "decisions": 1, "maxDifferences": 0.5,
                                            "confirm": plan["confirm"]}))[1]["status"] == 409
        _, plan = await ask("changes/plan", {"action": "promote"})
        server.active = "c" * 12
        assert (await ask("changes/apply", {"action": "promote", "confirm": plan["confirm"]}))[1]["status"] == 409
        assert (await ask("changes/apply", {"action": "promote"}))[0] == 400

    caller = serve(scenario, server)
    assert (caller.calls, entries(tmp_path)) == ([], [])


def test_what_changes_after_the_last_look_is_refused_by_the_server(serve):
    class Server(FakeServer):
        looks = 0

        def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
            found = super().answer(path, body)
            self.looks += body is not None and bool(body.get("dryRun"))
            if self.looks == 2:  # that of the plan was the first one
                self.active = self.directory[0] = "c" * 12
            return found

    async def scenario(ask: Ask) -> None:
        assert results(await applied(ask)) == ("none", [("failed", "another is active")])

    server = Server()
    serve(scenario, server)
    assert server.active == "c" * 12


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the kernel has no /dev/full")
def test_nothing_is_changed_while_the_audit_log_cannot_be_written(serve):
    async def scenario(ask: Ask) -> None:
        assert await applied(ask) == (503, {
            "error": "the audit log cannot be written: no space left on device: nothing was changed", "status": 503,
            "faults": []})

    assert serve(scenario, FakeServer(), audit=Path("/dev/full")).calls == []


def test_a_result_that_cannot_be_logged_is_reported(serve, tmp_path: Path):
    class Server(FakeServer):
        def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
            if body is not None and not body.get("dryRun"):
                (tmp_path / "audit.log").unlink()
                (tmp_path / "audit.log").mkdir()
            return super().answer(path, body)

    async def scenario(ask: Ask) -> None:
        status, found = await applied(ask)
        assert (status, found["outcome"], found["audit"]) == (
            200, "complete", "the audit log cannot be written: is a directory: the change was made")

    serve(scenario, Server())


@pytest.mark.parametrize(("is_shared", "message"), [
    (False, ""), (True, "it has read the directory that another server wrote")])
def test_tokens_that_disappear_in_the_middle_hide_no_change(serve, tmp_path: Path, is_shared: bool, message: str):
    directory = [FIRST] if is_shared else None
    servers = FakeServer(directory), FakeServer(directory)
    servers[1].late = 3

    def token() -> None:
        if any(each.active == NEXT for each in servers):
            raise FileNotFoundError("no such file")

    async def scenario(ask: Ask) -> None:
        assert results(await applied(ask)) == ("complete", [("changed", ""), ("changed", message)])

    serve(scenario, *servers, token=token)
    assert [(each["phase"], each.get("outcome")) for each in entries(tmp_path)] == [
        ("begin", None), ("end", "complete")]


def test_a_server_with_another_token_names_that_of_the_console(serve):
    server = FakeServer()
    server.refuses = 401, {"error": "it has another token: name the file by `--token-file`"}

    async def scenario(ask: Ask) -> None:
        assert results(await applied(ask)) == ("none", [(
            "failed", "it rejects the console's token: start the console with its `--admin-token-file`")])

    serve(scenario, server)


def test_nothing_is_changed_while_the_token_cannot_be_read(serve, tmp_path: Path):
    def token() -> None:
        raise FileNotFoundError("no such file")

    async def scenario(ask: Ask) -> None:
        assert await ask("changes/apply", {"action": "promote", "confirm": "0" * 64}) == (503, {
            "error": "the token for the servers cannot be read: no such file", "status": 503, "faults": []})

    assert (serve(scenario, FakeServer(), token=token).calls, entries(tmp_path)) == ([], [])


def test_only_operators_make_changes(serve):
    async def scenario(ask: Ask) -> None:
        assert (await ask("session", token=BEN))[1]["mayChange"] is False
        for path, body in (("changes/plan", {"action": "promote"}),
                           ("changes/apply", {"action": "promote", "confirm": "0" * 64})):
            assert (await ask(path, body, BEN))[0] == 403
            assert (await ask(path, body, "no-token-of-anybody"))[0] == 401
            assert (await ask(path, body, ANA, Origin="https://evil.example"))[0] == 403

    assert serve(scenario, FakeServer()).calls == []


@pytest.mark.parametrize("changing", [True, False])
def test_viewers_see_generations_their_differences_and_the_shadow(serve, changing: bool):
    server = FakeServer()
    server.earlier = ["1" * 12]

    async def scenario(ask: Ask) -> None:
        assert (await ask("session", token=BEN))[1]["mayLookAtChanges"] is True
        status, view = await ask("changes", token=BEN)
        assert (status, view["comparable"], [each["hash"] for each in view["generations"]]) == (
            200, True, ["1" * 12, FIRST])
        status, found = await ask("changes/difference", {"before": "1" * 12, "after": FIRST}, BEN)
        assert (status, [each["file"] for each in found["files"]]) == (200, ["p.yaml"])
        assert (await ask("changes", token="no-token-of-anybody"))[0] == 401

    assert serve(scenario, server, changing=changing).calls == []


def test_without_a_token_for_the_servers_generations_are_not_compared(serve):
    async def scenario(ask: Ask) -> None:
        assert (await ask("changes"))[1]["comparable"] is False
        status, found = await ask("changes/difference", {"before": FIRST, "after": FIRST})
        assert (status, found["error"].partition("`")[2]) == (404, "--admin-token-file`")

    serve(scenario, FakeServer(), changing=False, comparing=False)


def test_without_permission_of_changes_there_are_no_routes_for_them(serve):
    async def scenario(ask: Ask) -> None:
        assert (await ask("session"))[1]["mayChange"] is False
        for path, body in (("changes/plan", {"action": "promote"}), ("changes/apply", {})):
            assert (await ask(path, body))[0] == 404

    serve(scenario, FakeServer(), changing=False)


def test_without_servers_there_are_no_generations_to_look_at(serve):
    async def scenario(ask: Ask) -> None:
        assert (await ask("session"))[1]["mayLookAtChanges"] is False
        assert (await ask("changes"))[0] == 404

    serve(scenario)


def test_viewers_at_one_time_share_the_calls_of_the_servers(serve):
    server = FakeServer()
    looks = []
    answer = server.answer
    server.answer = lambda path, body: (looks.append(path), answer(path, body))[1]  # type: ignore[method-assign]

    async def scenario(ask: Ask) -> None:
        found = await asyncio.gather(*(ask("changes", token=token) for token in (ANA, BEN) * 5))
        assert all(each == found[0] for each in found)
        assert looks == ["/status"]
        await applied(ask)
        _, view = await ask("changes", token=BEN)
        assert view["servers"][0]["hash"] == NEXT

    serve(scenario, server)


@pytest.mark.parametrize("body", [
    {}, {"action": "delete"}, {"action": "promote", "to": 1}, {"action": "promote", "decisions": "many"}, [], "promote",
])
def test_a_malformed_change_is_refused(serve, body: Any):
    async def scenario(ask: Ask) -> None:
        for path in ("plan", "apply"):
            status, found = await ask(f"changes/{path}", body)
            assert status == 400
            assert found["error"]

    assert serve(scenario, FakeServer()).calls == []


def test_servers_and_their_generations_are_listed(serve):
    async def scenario(ask: Ask) -> None:
        status, view = await ask("changes")
        assert (status, [(each["endpoint"], each["hash"], each["error"]) for each in view["servers"]]) == (200, [
            ("http://server-0", FIRST, ""), ("http://server-1", "", "no answer within 70 s")])
        assert [each["hash"] for each in view["generations"]] == [FIRST]

    away = FakeServer()
    away.down_at = "/status"
    serve(scenario, FakeServer(), away)


def test_generations_have_the_user_who_made_them_active(serve):
    async def scenario(ask: Ask) -> None:
        for made in ((FIRST, "", ""), (NEXT, "ana", "promote")):
            _, view = await ask("changes")
            assert [(each["hash"], each["by"], each["action"]) for each in view["generations"]] == [made]
            await applied(ask)

    serve(scenario, FakeServer())


def test_two_generations_are_compared_by_the_first_server_that_has_both(serve):
    older, other = FakeServer(), FakeServer()
    older.earlier = ["2" * 12, "1" * 12]

    async def scenario(ask: Ask) -> None:
        status, found = await ask("changes/difference", {"before": "1" * 12, "after": "2" * 12})
        assert (status, found["endpoint"], found["before"], found["after"]) == (
            200, "http://server-1", "1" * 12, "2" * 12)
        [file] = found["files"]
        assert (file["file"], file["state"], [line["text"] for line in file["lines"][1:]]) == (
            "p.yaml", "replaced", ["1" * 12, "2" * 12])
        _, found = await ask("changes/difference", {"before": FIRST, "after": "1" * 12})
        assert [line["text"] for line in found["files"][0]["lines"][1:]] == [FIRST, "1" * 12]
        _, found = await ask("changes/difference", {"before": FIRST, "after": FIRST})
        assert (found["endpoint"], found["files"]) == ("http://server-0", [])
        assert await ask("changes/difference", {"before": "1" * 12, "after": "3" * 12}) == (200, {
            "error": f"no server has both of {'1' * 12} and {'3' * 12} in its history", "status": 400, "faults": []})

    assert serve(scenario, other, older).calls == []
