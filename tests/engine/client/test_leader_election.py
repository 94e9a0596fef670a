"""One of several processes leads: it takes over by its own clock, renews, releases, and gives up in time."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from koordpolicy.engine.client.leader_election import LeaderElection, LeaderElector, LeaseSettings, new_identity
from koordpolicy.engine.client.transport import Transport

from .fake_api_server import FakeApiServer, api_server, recorded, refusal, refused

PATH = "/apis/coordination.k8s.io/v1/namespaces/system/leases/scheduler"


def settings(identity: str = "a", **more: Any) -> LeaseSettings:
    return LeaseSettings("system", "scheduler", identity, **more)


@dataclass
class Leases:
    """A Lease with the rules of the API server, and the specs that were written."""

    spec: dict[str, Any] | None = None
    version: int = 1
    written: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    broken: int = 0
    """Requests that are answered with 500 from now on."""
    labels: dict[str, str] = field(default_factory=dict)

    def held(self, holder: str, seconds: int = 15, transitions: int = 3) -> Leases:
        self.version += 1
        self.spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": transitions,
                     "acquireTime": "then", "renewTime": f"at {self.version}"}
        return self

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.broken > 0:
            self.broken -= 1
            return web.json_response(refusal(500, "InternalError"), status=500)
        if request.method == "GET":
            return self._lease() if self.spec is not None else web.json_response(refusal(404, "NotFound"), status=404)
        body = await request.json()
        if request.method == "PUT" and (self.spec is None or body["metadata"]["resourceVersion"] != str(self.version)):
            return web.json_response(refusal(409, "Conflict"), status=409)
        if request.method == "POST" and self.spec is not None:
            return web.json_response(refusal(409, "AlreadyExists"), status=409)
        self.version, self.spec = self.version + 1, body["spec"]
        self.labels = body["metadata"].get("labels", {})
        self.written.append((request.method, body["spec"]))
        return self._lease()

    def _lease(self) -> web.Response:
        return web.json_response({"metadata": {"name": "scheduler", "resourceVersion": str(self.version),
                                               "labels": self.labels}, "spec": self.spec})


@dataclass
class Scene:
    """An elector with a clock that its sleeps move, and a script of what happens at which time."""

    leases: Leases
    fake: FakeApiServer
    time: float = 1000.0
    said: list[str] = field(default_factory=list)
    script: dict[float, Callable[[], object]] = field(default_factory=dict)
    """The calls that run at the end of the first sleep that reaches a time after the start."""
    elector: LeaderElector = field(init=False)
    task: asyncio.Task[None] = field(init=False)
    waits: list[float] = field(default_factory=list)

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        self.script[1000.0 + seconds] = action

    def stop_at(self, seconds: float) -> None:
        self.at(seconds, lambda: self.task.cancel())  # noqa: PLW0108 - the task comes later

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.waits.append(seconds)
        for due in [due for due in self.script if due <= self.time]:
            self.script.pop(due)()
        await asyncio.sleep(0)

    async def run(self) -> None:
        self.task = asyncio.current_task()  # type: ignore[assignment]
        try:
            await self.elector.run()
        except asyncio.CancelledError:
            self.task.uncancel()
            self.said.append("cancelled")


def scene(leases: Leases, play: Callable[[Scene], Awaitable[object]], configured: LeaseSettings | None = None,
          clock: Callable[[Scene], float] = lambda scene: scene.time, jitter: float = 0.5) -> Scene:
    async def run() -> Scene:
        async with api_server(leases.answer) as fake, Transport(fake.connection, rate=0) as transport:
            one = Scene(leases, fake)
            one.elector = LeaderElector(
                transport, configured or settings(),
                on_started=lambda: one.said.append(f"started at {one.time - 1000:g}"),
                on_stopped=lambda: one.said.append(f"stopped, leads: {one.elector.leads()}, holder: "
                                                   f"{(leases.spec or {}).get('holderIdentity')}"),
                on_new_leader=lambda name: one.said.append(f"new leader {name}"),
                clock=lambda: clock(one), now=lambda: one.time * 1000, sleep=one.sleep, jitter=lambda: jitter)
            await play(one)
            return one

    return asyncio.run(run())


async def run_for_three_seconds(one: Scene) -> None:
    one.stop_at(3)
    await one.run()


def test_l18_a_missing_lease_is_created_and_renewed_every_two_seconds():
    one = scene(Leases(), run_for_three_seconds)
    first = {"holderIdentity": "a", "leaseDurationSeconds": 15, "acquireTime": "1970-01-12T13:46:40.000000Z",
             "renewTime": "1970-01-12T13:46:40.000000Z", "leaseTransitions": 0}
    renewal = {**first, "renewTime": "1970-01-12T14:20:00.000000Z"}
    assert one.leases.written[:2] == [("POST", first), ("PUT", renewal)]
    assert [method for method, _, _ in one.fake.requests] == ["GET", "POST", "PUT", "GET", "PUT"]
    assert {path for method, path, _ in one.fake.requests if method != "POST"} == {PATH}


def test_l19_a_leader_that_is_stopped_first_stops_its_work_and_then_releases_the_lease():
    one = scene(Leases(), run_for_three_seconds)
    assert one.said == ["new leader a", "started at 0", "stopped, leads: False, holder: a", "cancelled"]
    assert one.leases.written[-1] == ("PUT", {
        "holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": "1970-01-12T14:53:20.000000Z",
        "renewTime": "1970-01-12T14:53:20.000000Z", "leaseTransitions": 0})
    state = one.elector.state
    assert (state.leading, state.since, state.holder, state.gave_up, state.fault) == (False, 1004000.0, "", False, "")


def test_l18_the_lease_of_another_is_taken_over_once_it_has_not_changed_for_its_duration():
    async def play(one: Scene) -> None:
        one.at(9, lambda: one.leases.held("b"))
        one.stop_at(30)
        await one.run()

    one = scene(Leases().held("b"), play)
    # Attempts are 3.2 s apart: the renewal after 9 s is seen at 9.6 s, and has lasted 15 s at 25.6 s.
    assert one.said[:3] == ["new leader b", "new leader a", "started at 25.6"]
    taken = one.leases.written[0][1]
    assert (taken["holderIdentity"], taken["leaseTransitions"], taken["acquireTime"] == taken["renewTime"]) == (
        "a", 4, True)


@pytest.mark.parametrize("shift", [-3600.0, 3600.0])
def test_l21_the_time_of_day_does_not_count(shift: float):
    leases = Leases().held("b")
    assert leases.spec is not None
    leases.spec["renewTime"] = f"1970-01-12T{13 + int(shift // 3600):02}:46:40.000000Z"

    async def play(one: Scene) -> None:
        one.stop_at(20)
        await one.run()

    assert scene(leases, play).said[1:3] == ["new leader a", "started at 16"]


def test_the_duration_in_the_lease_counts_and_not_the_own_one():
    async def play(one: Scene) -> None:
        one.stop_at(60)
        await one.run()

    assert scene(Leases().held("b", 40), play).said[2] == "started at 41.6"


def test_a_released_lease_is_taken_at_once_and_other_fields_stay():
    async def play(one: Scene) -> None:
        one.stop_at(1)
        await one.run()

    leases = Leases(labels={"team": "x"}).held("", 1)
    assert leases.spec is not None
    leases.spec["strategy"] = "OldestEmulationVersion"
    one = scene(leases, play)
    assert one.said[1] == "started at 0"
    assert one.leases.labels == {"team": "x"}
    assert one.leases.written[0][1] == {
        "holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 4, "strategy": "OldestEmulationVersion",
        "acquireTime": "1970-01-12T13:46:40.000000Z", "renewTime": "1970-01-12T13:46:40.000000Z"}


@pytest.mark.parametrize(("jitter", "wait"), [(0.0, 2.0), (0.5, 3.2), (1.0, 4.4)])
def test_attempts_to_become_the_leader_are_2_to_4_4_seconds_apart(jitter: float, wait: float):
    async def play(one: Scene) -> None:
        one.stop_at(8)
        await one.run()

    one = scene(Leases().held("b"), play, jitter=jitter)
    assert one.waits == [wait] * len(one.waits)
    assert len(one.fake.requests) == len(one.waits)


def test_l20_a_leader_that_cannot_renew_gives_up_after_the_renew_deadline():
    async def play(one: Scene) -> None:
        one.at(5, lambda: setattr(one.leases, "broken", 1000))
        await one.run()

    one = scene(Leases(), play)
    # Renewed at 2 and 4; the renewal of 6 fails until 16, which is less than 15 s after the last success.
    assert one.time - 1000 == 16
    assert one.said == ["new leader a", "started at 0", "stopped, leads: False, holder: a"]
    state = one.elector.state
    assert (state.leading, state.gave_up, state.renewed_at) == (False, True, 1004.0)
    assert state.fault == "the Lease was not renewed in time: 500 InternalError: "
    assert one.leases.spec is not None
    assert one.leases.spec["holderIdentity"] == "a"


def test_a_leader_gives_up_before_its_lease_can_be_taken_over_whatever_the_times():
    async def play(one: Scene) -> None:
        one.at(1, lambda: setattr(one.leases, "broken", 1000))
        await one.run()

    one = scene(Leases(), play, settings(lease_s=11, renew_s=10, retry_s=2))
    assert one.time - 1000 == 11


def test_failures_within_the_deadline_do_no_harm():
    async def play(one: Scene) -> None:
        one.at(1, lambda: setattr(one.leases, "broken", 4))
        one.stop_at(11)
        await one.run()

    one = scene(Leases(), play)
    assert one.said == ["new leader a", "started at 0", "stopped, leads: False, holder: a", "cancelled"]
    assert (one.elector.state.gave_up, one.elector.state.fault, one.time - 1000) == (False, "", 12)


def test_a_leader_whose_lease_another_holds_gives_up_at_once():
    async def play(one: Scene) -> None:
        one.at(3, lambda: one.leases.held("b"))
        await one.run()

    one = scene(Leases(), play)
    assert one.time - 1000 == 4
    assert one.said == ["new leader a", "started at 0", "new leader b", "stopped, leads: False, holder: b"]
    assert (one.elector.state.gave_up, one.elector.state.fault) == (True, "b holds the Lease")


@pytest.mark.parametrize("change", ["touched", "deleted"])
def test_a_leader_goes_on_if_its_lease_was_touched_or_deleted(change: str):
    async def play(one: Scene) -> None:
        def touch() -> None:
            one.leases.version += 1
            if change == "deleted":
                one.leases.spec = None

        one.at(3, touch)
        one.stop_at(5)
        await one.run()

    one = scene(Leases(), play)
    assert one.said == ["new leader a", "started at 0", "stopped, leads: False, holder: a", "cancelled"]
    assert (one.elector.state.renewals, one.elector.state.slow_paths) == (3, 2)


def test_a_process_that_was_paused_does_not_lead_although_its_loop_has_not_run():
    paused = [0.0]

    async def play(one: Scene) -> None:
        def pause() -> None:
            assert one.elector.leads()
            paused[0] = 14.9 - 2
            assert one.elector.leads()
            paused[0] = 15.0 - 2
            assert one.elector.state.leading
            assert not one.elector.leads()
            one.said.append("paused")
            one.task.cancel()

        one.at(1, pause)
        await one.run()

    assert "paused" in scene(Leases(), play, clock=lambda one: one.time + paused[0]).said


def test_a_waiting_process_that_is_stopped_leaves_the_lease_alone():
    async def play(one: Scene) -> None:
        one.stop_at(1)
        await one.run()

    one = scene(Leases().held("b"), play)
    assert (one.said, one.leases.written) == (["new leader b", "cancelled"], [])


def test_a_leader_that_is_stopped_leaves_the_lease_that_another_holds_by_now():
    async def play(one: Scene) -> None:
        one.at(3, lambda: (one.leases.held("b"), one.task.cancel()))
        await one.run()

    one = scene(Leases(), play)
    assert one.said[-1] == "cancelled"
    assert one.leases.spec is not None
    assert (one.leases.spec["holderIdentity"], one.elector.state.holder) == ("b", "b")


def test_an_attempt_does_not_wait_as_the_server_asks():
    leases = Leases()

    async def run() -> tuple[list[float], list[float]]:
        (waits, sleep), (others, other_sleep) = recorded(), recorded()
        async with (api_server(refused(503, headers={"Retry-After": "30"}), leases.answer) as fake,
                    Transport(fake.connection, rate=0, sleep=other_sleep) as transport):
            elector = LeaderElector(transport, settings(), sleep=sleep, jitter=lambda: 0.5)
            task = asyncio.create_task(elector.run())
            async with asyncio.timeout(60):
                while not elector.leads():
                    await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return waits[:1], others

    assert asyncio.run(run()) == ([3.2], [])


def test_an_acquisition_that_is_cut_off_by_a_stop_is_released():
    leases = Leases().held("")

    async def run() -> None:
        async def hang(request: web.Request) -> web.StreamResponse:
            await leases.answer(request)
            await asyncio.sleep(3600)
            raise AssertionError

        async with (api_server(leases.answer, hang, leases.answer) as fake,
                    Transport(fake.connection, rate=0) as transport):
            elector = LeaderElector(transport, settings())
            task = asyncio.create_task(elector.run())
            while not leases.written:
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not elector.state.leading

    asyncio.run(run())
    assert [spec["holderIdentity"] for _, spec in leases.written] == ["a", ""]


def test_a_stop_before_there_is_a_lease_is_no_failure(caplog: pytest.LogCaptureFixture):
    missing = refused(404, "NotFound")

    async def run() -> None:
        sent = asyncio.Event()

        async def hang(_request: web.Request) -> web.StreamResponse:
            sent.set()
            await asyncio.sleep(3600)
            raise AssertionError

        async with (api_server(missing, hang, missing) as fake, Transport(fake.connection, rate=0) as transport):
            elector = LeaderElector(transport, settings())
            task = asyncio.create_task(elector.run())
            await sent.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert len(fake.requests) == 3  # it did look for the Lease that it may have created
            assert elector.state.fault == ""

    asyncio.run(run())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_answer_that_is_no_lease_is_a_failed_attempt():
    async def run() -> None:
        async def odd(_request: web.Request) -> web.StreamResponse:
            return web.Response(text="[1]")

        async def sleep(_seconds: float) -> None:
            task.cancel()
            await asyncio.sleep(0)

        async with api_server(odd) as fake, Transport(fake.connection) as transport:
            elector = LeaderElector(transport, settings(), sleep=sleep)
            task = asyncio.create_task(elector.run())
            await asyncio.gather(task, return_exceptions=True)
            assert (elector.state.leading, elector.state.fault) == (False, "the server's answer is no Lease")

    asyncio.run(run())


def test_an_election_on_its_thread_leads_and_releases():
    leases, said = Leases(), list[str]()
    started = threading.Event()

    async def run() -> None:
        async with api_server(leases.answer) as fake:
            election = LeaderElection(
                lambda: fake.connection, settings(), on_started=started.set,
                on_stopped=lambda: said.append(threading.current_thread().name))
            assert election.stop()
            election.start()
            assert await asyncio.to_thread(started.wait, 60)
            assert election.leads()
            assert election.state.leading
            assert await asyncio.to_thread(election.stop, 60)
            assert not election.leads()
            assert election.stop()

    asyncio.run(run())
    assert said == ["leader-election"]
    assert leases.spec is not None
    assert leases.spec["holderIdentity"] == ""


@pytest.mark.parametrize(("times", "message"), [
    ({"lease_s": 10}, "leaseDuration must be greater than renewDeadline"),
    ({"renew_s": 2.4}, "renewDeadline must be greater than retryPeriod*JitterFactor"),
    ({"retry_s": 0}, "retryPeriod must be greater than zero"),
    ({"lease_s": 0.5, "renew_s": 0.3, "retry_s": 0.1}, "leaseDuration must be one second at least"),
])
def test_times_that_contradict_each_other_are_refused(times: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        settings(**times)


def test_a_lease_has_a_namespace_a_name_and_an_identity():
    with pytest.raises(ValueError, match="must not be empty"):
        settings("")


@pytest.mark.parametrize(("renew", "timeout"), [(10.0, 5.0), (1.5, 1.0)])
def test_a_request_may_take_half_of_the_renew_deadline_and_a_second_at_least(renew: float, timeout: float):
    assert settings(renew_s=renew, retry_s=1).request_s == timeout


def test_identities_differ():
    first, second = new_identity(), new_identity()
    assert first != second
    assert first.rpartition("_")[0] == second.rpartition("_")[0]
    assert len(first.rpartition("_")[2]) == 36
    assert json.dumps(first)
