"""The views of running servers, and requests that wait for changes."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koordpolicy.engine.client.server_calls import Caller, EndpointAnswer
from koordpolicy.engine.console.guard import Guard, RateLimit
from koordpolicy.engine.console.models.model import Fault
from koordpolicy.engine.console.models.search import SearchView
from koordpolicy.engine.console.models.servers import (
    KindAge,
    QueuedPodLine,
    RuleRate,
    RuleRatesView,
    ServerChart,
    ServerLine,
    WaitingView,
)
from koordpolicy.engine.console.server import ConsoleServer, Static
from koordpolicy.engine.console.server_views import disagreeing, rule_rates_view, servers_view, waiting_view
from koordpolicy.engine.console.views import View
from koordpolicy.engine.monitoring.monitor import (
    EvaluationCounts,
    FigurePoint,
    MonitorView,
    ServerMonitor,
    ServerState,
)
from koordpolicy.engine.serving.listeners import serving

from ..client.fake_server import FakeServer, serve  # noqa: F401 - a fixture

MARKUP = '"><img src=x onerror=alert(1)>'
HOSTILE: list[Any] = [None, 7, -1, "x", [], {}, [[]], {"a": 1}, True, 1e300, math.inf, math.nan, MARKUP,
                      [None], [{}], {"Pod": 7}]


def state(endpoint: str = "http://a:1", kind: str = "scheduler", **data: Any) -> ServerState:
    return ServerState(endpoint, kind, EndpointAnswer(endpoint, 200, data), heard=90.0)


def policies(**more: Any) -> dict[str, Any]:
    return {"generation": 3, "digest": "abc", "healthy": True, "sources": [], "warnings": [], **more}


def test_a_server_has_its_state_the_ages_of_kinds_and_what_is_refused_with_its_place():
    problem = {"severity": "error", "code": "c", "message": "m", "help": "h", "file": "p.yaml", "line": 7, "column": 2,
               "endLine": 7, "endColumn": 9, "rendered": "…"}
    found = servers_view(MonitorView(1, 100.0, (state(
        ready=True, leading=True, cluster={"nodes": 5, "kinds": {
            "Pod": {"age": 2.5, "fault": None}, "Node": {"age": 300.0, "fault": "is forbidden"}}},
        policies=policies(healthy=False, warnings=["w"], sources=[{"problems": [problem], "warnings": ["unused"]}]),
        trouble=["t"]),)), 5.0)
    assert found.servers == [ServerLine(
        endpoint="http://a:1", kind="scheduler", state="unhealthy", silent=10.0, generation=3, hash="abc", leading=True,
        nodes=5, kinds=[KindAge(kind="Node", age=300.0, fault="is forbidden"), KindAge(kind="Pod", age=2.5)],
        refused=[Fault(severity="error", code="c", message="m", help="h", file="p.yaml", line=7, column=2, end_line=7,
                       end_column=9)], problems=["w", "unused", "t"])]


def test_an_invalid_shadow_is_shown_though_its_server_is_healthy():
    problem = {"severity": "error", "message": "no field `x`", "file": "s.yaml", "line": 3}
    shadow = {"ready": False, "policies": policies(sources=[{"problems": [problem], "warnings": ["unused"]}],
                                                   warnings=["w"])}
    [line] = servers_view(MonitorView(1, 100.0, (state(ready=True, policies=policies(), shadow=shadow),)), 5.0).servers
    assert (line.state, [(each.message, each.file, each.line) for each in line.refused], line.problems) == (
        "healthy", [("in the shadow: no field `x`", "s.yaml", 3)],
        ["in the shadow: w", "in the shadow: unused",
         "in the shadow: no valid policies, so that nothing is compared"])
    for valid in (None, {"ready": True, "policies": policies()}):
        view = MonitorView(1, 100.0, (state(ready=True, policies=policies(), shadow=valid),))
        assert (servers_view(view, 5.0).servers[0].refused, servers_view(view, 5.0).servers[0].problems) == ([], [])


def test_a_server_that_is_away_is_shown_with_its_last_answer_and_one_that_never_answered_as_such():
    away = ServerState("http://a:1", "scheduler", EndpointAnswer("", 200, {"ready": True, "policies": policies()}),
                       heard=40.0, error="no answer within 3 s", restarts=2)
    view = MonitorView(1, 100.0, (away, ServerState("http://b:1", error="cannot be reached: x"), ServerState("http://c:1")))
    assert [(each.state, each.error, each.silent, each.hash, each.restarts)
            for each in servers_view(view, 5.0).servers] == [
        ("away", "no answer within 3 s", 60.0, "abc", 2), ("away", "cannot be reached: x", None, "", 0),
        ("pending", "", None, "", 0)]


def test_replicas_disagree_by_the_hashes_of_those_that_answer():
    one, same, other = (state(f"http://{name}:1", policies=policies(digest=digest))
                        for name, digest in (("a", "x"), ("b", "x"), ("c", "y")))
    assert disagreeing([one, same]) == []
    assert disagreeing([one, same, other]) == ["scheduler"]
    assert disagreeing([one, ServerState("http://c:1", "scheduler", other.answer, error="away")]) == []
    assert disagreeing([one, state("http://d:1", "descheduler", policies=policies(digest="y"))]) == []


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(
    "key", ["policies", "cluster", "ready", "leading", "fault", "trouble", "configuration", "nodes", "shadow"])
def test_hostile_statuses_are_shown_without_what_cannot_be_meant(key: str, value: Any):
    for data in ({key: value}, {"policies": policies(sources=value)}, {"policies": policies(warnings=value)},
                 {"policies": policies(sources=[{"problems": value}])}, {"policies": policies(digest=value)},
                 {"policies": policies(generation=value)}, {"cluster": {"kinds": value}},
                 {"cluster": {"kinds": {"Pod": value}}}, {"shadow": {"policies": value, "ready": value}},
                 {"shadow": {"policies": policies(sources=value)}}):
        view = MonitorView(1, 100.0, (state(**data),))
        line = servers_view(view, 5.0).servers[0]
        assert json.loads(json.dumps(line.generation)) == line.generation


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_waiting_pods_are_shown_without_what_cannot_be_meant(value: Any):
    for data in ({"pods": value}, {"parts": value}, {"leftOut": value}, {"pods": [value]}, {"pods": [dict.fromkeys((
            "pod", "part", "reason", "plugins", "gates", "quota", "gang", "priority", "attempts", "seconds",
            "backoffSeconds", "nominatedNode"), value)]}):
        view = MonitorView(1, 100.0, (ServerState("http://a:1", "scheduler", heard=100.0, waiting=data),))
        assert waiting_view(view).known


def test_huge_answers_are_cut():
    sources = [{"problems": [{"message": "x" * 10_000}] * 1000}]
    line = servers_view(MonitorView(1, 100.0, (state(policies=policies(sources=sources)),)), 5.0).servers[0]
    assert (len(line.refused), len(line.refused[0].message)) == (50, 2000)


def test_waiting_pods_of_all_leading_schedulers_are_together():
    waiting = {"parts": {"active": 1, "backoff": 1}, "leftOut": 3, "pods": [
        {"pod": "a/low", "part": "backoff", "reason": "r", "plugins": ["P"], "gates": ["g"], "quota": "q", "gang": "n",
         "priority": 1, "attempts": 2, "seconds": 5.0, "backoffSeconds": 4.0, "nominatedNode": "one"}]}
    other = {"parts": {"active": 2}, "leftOut": 0, "pods": [{"pod": "a/high", "part": "active", "priority": 9}]}
    view = MonitorView(1, 101.0, (
        ServerState("http://a:1", "scheduler", heard=100.0, waiting=waiting),
        ServerState("http://b:1", "scheduler", heard=101.0, waiting=other),
        ServerState("http://c:1", "scheduler", heard=101.0, waiting=other, error="away")))
    high = QueuedPodLine(pod="a/high", server="http://b:1", part="active", priority=9)
    low = QueuedPodLine(pod="a/low", server="http://a:1", part="backoff", reason="r", plugins=["P"], gates=["g"],
                        quota="q", gang="n", priority=1, attempts=2, seconds=6.0, backoff_seconds=3.0, nominated="one")
    assert waiting_view(view) == WaitingView(
        known=True, parts={"active": 3, "backoff": 1}, pods=[high, low], left_out=3)
    assert waiting_view(view, "a/low").pods == [low]
    assert waiting_view(MonitorView()) == WaitingView(known=False, parts={}, pods=[], left_out=0)


def test_charts_have_the_figures_that_some_server_has():
    view = MonitorView(1, 100.0, points=(FigurePoint(95.0, waiting=2.0), FigurePoint(100.0, bound=1.5, waiting=3.0)))
    found = servers_view(view, 5.0)
    assert found.times == [-5.0, 0.0]
    assert found.charts == [ServerChart(name="bound", unit="per-second", points=[None, 1.5]),
                            ServerChart(name="waiting", unit="pods", points=[2.0, 3.0])]


def test_rates_of_rules_are_of_all_policies_or_of_one():
    view = MonitorView(rules=(EvaluationCounts("p", "filter", "r", 7200.0, 3.0, 40.0, 2.00049),
                              EvaluationCounts("q", "score", "", 1.0, 0.0, 0.0, 0.0)), rules_s=3600.0)
    rate = RuleRate(plugin="p", point="filter", rule="r", evaluations=7200, errors=3, refusals=40, per_second=2.0)
    assert rule_rates_view(view, "p") == RuleRatesView(known=True, seconds=3600.0, rules=[rate], rules_left_out=0)
    assert len(rule_rates_view(view).rules) == 2


# Over HTTP


@pytest.fixture
def static(tmp_path: Path) -> Static:
    (tmp_path / "index.html").write_text("", encoding="utf-8")
    return Static(tmp_path)


@dataclass(frozen=True)
class Visitor:
    """A page without a browser."""

    session: aiohttp.ClientSession
    url: str

    async def get(self, path: str, **query: str) -> Any:
        async with self.session.get(f"{self.url}/api/v1/{path}", params=query) as answer:
            return await answer.json()


Scenario = Callable[[Visitor], Awaitable[None]]


@pytest.fixture
def visit(state, static) -> Callable[..., None]:
    """Runs a scenario against a console over these servers; rounds are made by the test."""
    def run(scenario: Scenario, monitor: ServerMonitor | None = None) -> None:
        console = ConsoleServer(state, Guard(rate=RateLimit(burst=1000)), static, monitor=monitor)

        async def main() -> None:
            # The server ends before its clients do.
            async with (aiohttp.ClientSession() as session,
                        serving(console.application(), "127.0.0.1", 0, None) as url):
                await scenario(Visitor(session, url))

        try:
            asyncio.run(main())
        finally:
            console.close()

    return run


def test_servers_are_called_once_for_all_viewers(serve, visit):  # noqa: F811 - the fixture
    fake: FakeServer = serve()
    fake.scheduler(placed=1)
    monitor = ServerMonitor([fake.url], Caller, interval=60)
    monitor.poll()
    calls = len(fake.requests)

    async def scenario(visitor: Visitor) -> None:
        found = await asyncio.gather(*(visitor.get("servers") for _ in range(50)))
        assert all(each == found[0] for each in found)
        assert found[0]["servers"][0]["kind"] == "scheduler"

    visit(scenario, monitor)
    assert len(fake.requests) == calls


def test_equal_views_are_computed_once(visit, monkeypatch):
    computed: list[str] = []

    def view(_: object, query: Any) -> SearchView:
        computed.append(query.get("text", ""))
        return SearchView(found=[], left_out=0)

    monkeypatch.setattr("koordpolicy.engine.console.server.VIEWS", (View("search", view),))

    async def scenario(visitor: Visitor) -> None:
        await asyncio.gather(*(visitor.get("search", text="a") for _ in range(50)))
        await visitor.get("search", text="b")

    visit(scenario)
    assert computed == ["a", "b"]


def test_a_request_for_changes_is_answered_by_the_next_round(serve, visit):  # noqa: F811 - the fixture
    fake: FakeServer = serve()
    fake.scheduler()
    monitor = ServerMonitor([fake.url], Caller, interval=60)

    async def scenario(visitor: Visitor) -> None:
        first = await visitor.get("versions")
        query = {name: str(value) for name, value in first.items()}
        assert await visitor.get("versions", **query | {"boot": "another"}) == first
        waiting = asyncio.create_task(visitor.get("versions", **query))
        await asyncio.to_thread(monitor.poll)  # an answer before it waits is one, too
        assert await waiting == first | {"servers": first["servers"] + 1}

    visit(scenario, monitor)


def test_requests_for_changes_are_bounded_for_each_client_and_end_with_the_server(visit, monkeypatch):
    monkeypatch.setattr("koordpolicy.engine.console.servers.MOST_POLLS_OF_ONE", 1)
    ended: list[Any] = []

    async def scenario(visitor: Visitor) -> None:
        query = {name: str(value) for name, value in (await visitor.get("versions")).items()}
        tasks = [asyncio.create_task(visitor.get("versions", **query)) for _ in range(2)]
        refused, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result()["error"] for each in refused] == ["too many pages wait for changes: try again"]
        ended.extend(each for each in tasks if each not in refused)

    visit(scenario)  # it returns: no request holds the end of the server
    assert [each.result()["servers"] for each in ended] == [0]


def test_without_servers_nothing_is_known(visit):
    async def scenario(visitor: Visitor) -> None:
        assert (await visitor.get("servers"))["servers"] == []
        assert not (await visitor.get("waiting"))["known"]
        assert not (await visitor.get("rule-rates"))["known"]

    visit(scenario)
