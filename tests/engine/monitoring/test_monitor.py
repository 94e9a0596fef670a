"""The monitor of running servers, with fake ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koordpolicy.engine.client.server_calls import Caller
from koordpolicy.engine.monitoring.exposition import read_exposition
from koordpolicy.engine.monitoring.monitor import FigurePoint, ServerMonitor, kind_of


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def monitor(clock: Clock, *words: str) -> ServerMonitor:
    return ServerMonitor(words, lambda: Caller(seconds=5, largest=1_000_000), clock=clock, now=lambda: 1_700_000_000.0)


def test_rates_are_those_between_two_rounds(serve, clock: Clock):
    server = serve()
    server.scheduler(placed=100, waiting=3)
    found = monitor(clock, server.url)
    found.poll()
    assert found.view.points == (FigurePoint(100.0, waiting=6.0),)
    clock.now += 10
    server.scheduler(placed=150, waiting=1)
    found.poll()
    assert found.view.points[-1] == FigurePoint(110.0, bound=5.0, waiting=2.0, decision_s=0.01)
    (state,) = found.view.servers
    assert (state.kind, state.leading, state.restarts, state.error) == ("scheduler", True, 0, "")
    (rule,) = found.view.rules
    assert (rule.plugin, rule.point, rule.rule, rule.evaluations, rule.refusals, rule.per_second,
            found.view.rules_s) == ("q", "filter", "r", 500.0, 100.0, 50.0, 10.0)


def test_a_standby_adds_nothing_to_the_figures(serve, clock: Clock):
    leader, standby = serve(), serve()
    leader.scheduler(waiting=1)
    standby.scheduler(waiting=1, leading=False)
    found = monitor(clock, f"{leader.url}", standby.url)
    found.poll()
    assert found.view.points[-1].waiting == 2.0


def test_a_leading_scheduler_reports_the_pods_that_wait(serve, clock: Clock):
    leader, standby = serve(), serve()
    leader.scheduler()
    standby.scheduler(leading=False)
    leader.pages["/waiting"] = {"parts": {"active": 1}, "leftOut": 0, "pods": []}
    found = monitor(clock, leader.url, standby.url)
    found.poll()
    assert [each.waiting for each in found.view.servers] == [{"parts": {"active": 1}, "leftOut": 0, "pods": []}, {}]
    assert "/waiting" not in standby.requests


def test_a_restart_is_seen_and_counts_begin_at_zero_again(serve, clock: Clock):
    server = serve()
    server.scheduler(placed=1000)
    found = monitor(clock, server.url)
    found.poll()
    clock.now += 10
    server.scheduler(placed=20, started=2000.0)
    found.poll()
    assert found.view.servers[0].restarts == 1
    assert found.view.points[-1].bound == 2.0
    clock.now += 10
    found.poll()
    assert found.view.servers[0].restarts == 1


def test_a_server_that_is_away_is_called_less_and_less_and_is_there_again_when_it_answers(serve, clock: Clock):
    server = serve()
    server.scheduler(placed=10)
    found = monitor(clock, server.url)
    found.poll()
    pages, server.pages = server.pages, {"/status": "<html>"}
    called = []
    for _ in range(20):
        clock.now += 5
        before = len(server.requests)
        found.poll()
        called.append(len(server.requests) > before)
    assert called == [number in (0, 1, 3, 7, 15) for number in range(20)]
    (state,) = found.view.servers
    assert (state.error, state.heard, state.kind) == ("what answers there is no koord-policy", 100.0, "scheduler")
    assert found.view.points[-1] == FigurePoint(clock.now)
    server.pages = pages
    clock.now += 120
    found.poll()
    assert (found.view.servers[0].error, found.view.servers[0].failures) == ("", 0)


def test_a_huge_or_malformed_answer_is_an_error_of_that_server_alone(serve, clock: Clock):
    huge, odd, good = serve(), serve(), serve()
    huge.pages["/status"] = "x" * 2_000_000
    odd.scheduler(leading="yes", policies=7, cluster=[], started="now")
    good.scheduler()
    found = monitor(clock, huge.url, odd.url, good.url)
    found.poll()
    assert [(each.kind, each.error) for each in found.view.servers] == [
        ("", "its answer has more than 1,000,000 bytes"), ("scheduler", ""), ("scheduler", "")]


@pytest.mark.parametrize("started", [10**400, True, float("inf"), float("nan")])
def test_a_start_that_is_no_time_is_no_error_of_the_others(serve, clock: Clock, started: object):
    odd, good = serve(), serve()
    odd.scheduler(started=started)
    good.scheduler(started=7.0)
    found = monitor(clock, odd.url, good.url)
    found.poll()
    assert [(each.kind, each.error, each.started) for each in found.view.servers] == [
        ("scheduler", "", None), ("scheduler", "", 7.0)]


def test_agents_and_managers_are_known_by_their_metrics(serve, clock: Clock):
    agent, manager, other = serve(), serve(), serve()
    agent.pages["/metrics"] = 'koord_policy_agent_ready 1\nkoordlet_start_time{node="n"} 5\n'
    manager.pages["/metrics"] = "koord_policy_manager_leader 0\n"
    other.pages["/metrics"] = "up 1\n"
    found = monitor(clock, agent.url, manager.url, other.url)
    found.poll()
    assert [(each.kind, each.leading, each.started, each.error) for each in found.view.servers] == [
        ("agent", None, 5.0, ""), ("manager", False, None, ""),
        ("", None, None, "what answers there is no koord-policy")]


@pytest.mark.parametrize(("status", "kind"), [
    ({"cycles": 1, "leading": True}, "descheduler"), ({"leading": False}, "scheduler"),
    ({"ready": False, "started": 1.0}, "scheduler"), ({"decisions": [], "assumedPods": 0}, "extender"), ({}, ""),
])
def test_the_kind_of_a_server_is_that_of_its_status(status: dict[str, object], kind: str):
    assert kind_of(status, read_exposition("", ())) == kind


def test_a_name_without_an_address_is_reported_and_other_servers_are_called(serve, clock: Clock):
    server = serve()
    server.scheduler()
    found = monitor(clock, "dns+http://nobody.invalid:1", server.url)
    found.poll()
    assert [each.kind for each in found.view.servers] == ["scheduler"]
    (why,) = found.view.unresolved
    assert why.startswith("`nobody.invalid` has no address: ")


def test_readings_of_an_hour_are_stored_one_a_minute(serve, clock: Clock):
    server = serve()
    found = monitor(clock, server.url)
    for placed in range(0, 8000, 10):
        server.scheduler(placed=placed)
        found.poll()
        clock.now += 10
    assert len(found._hours[server.url]) <= 62
    assert 3500 <= found.view.rules_s <= 3660
    assert found.view.rules[0].per_second == pytest.approx(10.0)
    assert len(found.view.points) == 180
    assert replace(found.view.points[-1], decision_s=None) == FigurePoint(clock.now - 10, bound=1.0, waiting=0.0)


def test_a_token_that_was_replaced_is_used_in_the_next_round(serve, clock: Clock, caplog):
    server = serve()
    server.scheduler()
    tokens: list[str] = ["first"]
    made: list[str] = []

    def caller() -> Caller:
        if not tokens:
            raise FileNotFoundError("token")
        made.append(tokens.pop())
        return Caller(made[-1], seconds=5, largest=1_000_000)

    found = ServerMonitor([server.url], caller, clock=clock)
    tokens.append("second")
    found.poll()
    assert made == ["first", "second"]
    found.poll()
    assert "the token for the servers cannot be read: token" in caplog.text
    assert [each.error for each in found.view.servers] == [""]
