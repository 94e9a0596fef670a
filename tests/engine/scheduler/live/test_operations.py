"""The health checks of a live scheduler, and the configuration that it shows."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.client.leader_election import Leadership, LeaseSettings
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.sources.changes import KindView
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.live.operations import Operations
from koordpolicy.engine.scheduler.live.owner import LiveView
from koordpolicy.engine.scheduler.live.server import ServerSettings
from koordpolicy.engine.scheduler.observe.counters import Counters

LEASE = LeaseSettings("kube-system", "the-lease", "me")


def server(*, leadership: Leadership | None = None, loop: Any = None, **view: Any) -> Any:
    """A stand-in for a LiveServer in some state."""
    elects = leadership is not None
    return SimpleNamespace(
        scheduler=SimpleNamespace(view=LiveView(**{"synced": True, "looked_at": time.monotonic()} | view), loop=loop),
        election=SimpleNamespace(state=leadership) if elects else None,
        settings=ServerSettings(lease=LEASE if elects else None))


def operations(state: Any, *, clock: float = 0.0, emptied: tuple[str, ...] = ()) -> Operations:
    made = Operations(counters=Counters(), clock=lambda: clock)
    if state is not None:
        reloader: Any = SimpleNamespace(status=lambda: SimpleNamespace(emptied=emptied))
        made.follow(state, reloader)
    return made


def failing(made: Operations, endpoint: str) -> list[str]:
    """The checks of an endpoint that fail, with their reasons."""
    lines = made.endpoints._health.report(endpoint, verbose=True).text.splitlines()
    return [line.removeprefix("[-]") for line in lines if line.startswith("[-]")]


def test_l43_it_is_alive_and_not_ready_until_the_first_lists_are_applied():
    for state in (None, server(synced=False)):
        made = operations(state)
        assert (failing(made, "livez"), failing(made, "healthz")) == ([], [])
        assert failing(made, "readyz") == ["sched-handler-sync failed: handlers are not fully synchronized"]
    assert failing(operations(server()), "readyz") == []


def test_a_standby_is_ready():
    assert failing(operations(server(leadership=Leadership())), "readyz") == []


@pytest.mark.parametrize(("clock", "found"), [
    (34.9, []), (36.0, ["leaderElection failed: failed election to renew leadership on lease the-lease for 21 s"]),
])
def test_a_leader_whose_lease_expired_more_than_20_seconds_ago_is_not_healthy(clock: float, found: list[str]):
    made = operations(server(leadership=Leadership(leading=True, renewed_at=0.0)), clock=clock)
    assert failing(made, "healthz") == failing(made, "readyz") == found
    assert failing(made, "livez") == []


def test_a_process_that_ends_is_not_ready_and_still_alive():
    made = operations(server(stopping=True, looked_at=0.0))
    assert failing(made, "readyz") == ["shutdown failed: process is shutting down"]
    assert failing(made, "livez") == []


def test_a_deciding_thread_that_hangs_is_not_alive():
    (found,) = failing(operations(server(looked_at=time.monotonic() - 100)), "livez")
    assert found.startswith("deciding failed: no decision has ended for 100 s")


def test_emptied_policies_make_it_not_ready():
    assert failing(operations(server(), emptied=("policies/a",)), "readyz") == [
        "policies failed: `policies/a` holds no policy, and the last good set decides"]


def test_the_configuration_is_that_of_kube_scheduler():
    loop = SchedulingLoop(Cluster(), Live(Registry.of(builtins(), generation=1)), clock=lambda: 0)
    made = operations(server(leadership=Leadership(), loop=loop))
    found = made._configuration()
    assert (found["kind"], found["clientConnection"]) == (
        "KubeSchedulerConfiguration", {"qps": 50.0, "burst": 100})
    assert found["leaderElection"] == {
        "leaderElect": True, "leaseDuration": "15s", "renewDeadline": "10s", "retryPeriod": "2s",
        "resourceLock": "leases", "resourceName": "the-lease", "resourceNamespace": "kube-system"}
    (profile,) = found["profiles"]
    scores = {each["name"]: each["weight"] for each in profile["plugins"]["score"]["enabled"]}
    assert (profile["schedulerName"], scores["TaintToleration"]) == ("default-scheduler", 3)
    assert made.generation == 1


def test_a_closed_scheduler_has_no_generation():
    loop = SchedulingLoop(Cluster(), Live(Registry.of(builtins(), generation=1)), clock=lambda: 0)
    made = operations(server(loop=loop))
    loop.close()
    assert made.generation is None  # the last lines of its log name the generation


def test_the_metrics_of_the_election_are_those_of_client_go():
    state = server(leadership=Leadership(leading=True, slow_paths=3))
    feed = SimpleNamespace(views={}, mismatches={}, kinds={}, absent=set(), faulty=0)
    state.feed = SimpleNamespace(view=feed, lags=[], lag_sum_s=0.0, oldest_view_age=lambda: 0.0)
    found = {each.spec.name: list(each.series) for each in operations(state).collect()}
    assert {name: series for name, series in found.items() if name.startswith("leader_election_")} == {
        "leader_election_master_status": [(("the-lease",), 1)],
        "leader_election_slowpath_total": [(("the-lease",), 3)]}


def test_the_status_names_policies_kinds_and_who_leads():
    loop = SchedulingLoop(Cluster(), Live(Registry.of(builtins(), generation=1)), clock=lambda: 0)
    state = server(loop=loop, lost_pods=1, oldest_unscheduled_s=2.5)
    state.leads = lambda: False
    state.scheduler.cluster = loop.scheduler.cluster
    state.feed = SimpleNamespace(lag_s=0.25, view=SimpleNamespace(
        kinds={"Node": KindView(listed=1.0, fault="gone"), "Device": KindView()}, absent={"Device"}))
    made = Operations(counters=Counters())
    assert made._status() == {"ready": False}
    policies: Any = SimpleNamespace(emptied=(), to_json=lambda: {"healthy": True})
    reloader: Any = SimpleNamespace(status=lambda: policies, seconds_at_work=0.0)
    made.follow(state, reloader)
    found = made._status()
    cluster = found["cluster"]
    assert {key: found[key] for key in ("ready", "generation", "leading", "lostPods", "oldestUnscheduledSeconds")} == {
        "ready": True, "generation": 1, "leading": False, "lostPods": 1, "oldestUnscheduledSeconds": 2.5}
    assert (cluster["nodes"], cluster["lagSeconds"], cluster["stale"], list(cluster["kinds"])) == (
        0, 0.25, ["Node"], ["Node"])
    assert found["policies"] == {"healthy": True, "reloadSeconds": 0.0}
