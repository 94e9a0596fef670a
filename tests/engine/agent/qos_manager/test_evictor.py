"""The evictor sends each eviction once, with the pod's UID, and remembers what became of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import pytest
from aiohttp import web

from koordpolicy.engine.agent.qos_manager.evictor import (
    CONTROLLER,
    AttemptOutcome,
    EvictionAttempt,
    EvictorOptions,
    PodEvictor,
)
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.client.writes import ClusterWriter
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Adjustment, Evictions
from tests.engine.client.fake_api_server import api_server, json_answer, refusal, text_answer

FINE = json_answer({"kind": "Status", "status": "Success"}, 201)
REASON = "trigger by koordlet feature BEMemoryEvict"
NEEDS = "The disruption budget web needs 2 healthy pods and has 2 currently"
VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."


def pod(name: str, *, controller: str = "", **metadata: Any) -> PodInfo:
    owners = [{"kind": "ReplicaSet", "name": "r", "uid": controller, "controller": True}] if controller else []
    return PodInfo.of({
        "metadata": {"namespace": "shop", "name": name, "uid": f"uid-{name}", "ownerReferences": owners, **metadata},
        "spec": {"containers": [{"name": "main"}]}})


def eviction(of: PodInfo, *, past_budget: bool = False) -> Adjustment:
    return Adjustment("evict", of.key, f"{REASON}, kill pod: {of.name}", "BEMemoryEvict", past_budget=past_budget)


def by_budget(message: str = NEEDS, headers: dict[str, str] | None = None) -> Any:
    body = refusal(429, "TooManyRequests", VIOLATES)
    body["details"] = {"causes": [{"reason": "DisruptionBudget", "message": message}]}
    return json_answer(body, 429, headers)


SEVERAL = json_answer(refusal(500, "InternalError", (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")), 201)


class World:
    """An evictor with an API server, a clock, and what it tells."""

    def __init__(self, writer: ClusterWriter, sent: list[tuple[str, str, Any]], options: EvictorOptions) -> None:
        self.now = 0.0
        self.age = 0.0
        self.pods: tuple[PodInfo, ...] = ()
        self.sent = sent
        self.events: list[tuple[str, str]] = []
        self.attempts: list[EvictionAttempt] = []
        self.tasks: list[asyncio.Task[object]] = []
        self.evictor = PodEvictor(
            self, writer, pods=lambda: self.pods, pods_age_s=lambda: self.age, events=self, options=options,
            on_attempt=[self.attempts.append], clock=lambda: self.now)

    def spawn(self, coroutine: Coroutine[Any, Any, object], what: str) -> Future[object]:
        assert what.startswith("to evict ")
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))
        return Future()

    def record(self, regarding: Any, *, type: str, reason: str, action: str, note: str, controller: str) -> bool:  # noqa: A002 - the field's name
        assert (type, action, controller) == ("Warning", "Evict", CONTROLLER)
        assert regarding.uid in ("", f"uid-{regarding.name}")
        self.events.append((reason, note))
        return True

    async def evict(self, *pods: PodInfo, past_budget: bool = False, age: float = 0.0) -> list[str]:
        """Request evictions, await them, and return their outcomes."""
        before = len(self.attempts)
        self.age = age
        for each in pods:
            self.evictor.evict(each, eviction(each, past_budget=past_budget))
        await asyncio.gather(*self.tasks)
        return [each.outcome.value for each in self.attempts[before:]]

    def view(self, *pods: PodInfo, age: float = 0.0) -> Evictions:
        self.pods, self.age = pods, age
        return self.evictor.evictions


def live(
    check: Callable[[World], Awaitable[None]], *answers: Any, options: EvictorOptions | None = None,
) -> World:
    """Run a check in a world whose API server gives these answers."""
    sent: list[tuple[str, str, Any]] = []

    def recording(answer: Any) -> Any:
        async def record(request: web.Request) -> web.StreamResponse:
            sent.append((request.method, request.path, await request.json()))
            result: web.StreamResponse = await answer(request)
            return result

        return record

    async def run() -> World:
        async with (api_server(*map(recording, answers or [FINE])) as fake,
                    Transport(fake.connection, rate=0) as transport):
            world = World(ClusterWriter(transport), sent, options or EvictorOptions())
            await check(world)
            return world

    return asyncio.run(run())


WEB = pod("web-1")
PATH = "/api/v1/namespaces/shop/pods/web-1"


def test_an_eviction_is_sent_once_with_the_uid_and_remembered_for_two_minutes():
    async def check(world: World) -> None:
        assert await world.evict(WEB) == ["evicted"]
        assert await world.evict(WEB) == []
        assert world.view(WEB) == Evictions(frozenset({"uid-web-1"}))
        world.now = 119.9
        assert world.view(WEB).leaving == {"uid-web-1"}
        world.now = 120.0
        assert world.view(WEB) == Evictions()

    world = live(check)
    assert world.sent == [("POST", f"{PATH}/eviction", {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": "shop", "name": "web-1"},
        "deleteOptions": {"preconditions": {"uid": "uid-web-1"}}})]
    assert world.events == [("evictPodSuccess", (
        f"evict Pod:shop/web-1, reason: {REASON}, message: {REASON}, kill pod: web-1"))]
    assert world.attempts == [EvictionAttempt(
        "BEMemoryEvict", "shop", "web-1", "uid-web-1", REASON, f"{REASON}, kill pod: web-1", AttemptOutcome.EVICTED)]


@pytest.mark.parametrize("answer", [
    json_answer(refusal(404, "NotFound", 'pods "web-1" not found'), 404),
    json_answer(refusal(409, "Conflict", "Precondition failed: UID in precondition: a, UID in object meta: b"), 409),
])
def test_a_pod_that_is_gone_or_replaced_counts_as_leaving_without_an_event(answer):
    async def check(world: World) -> None:
        assert await world.evict(WEB) == ["gone"]
        assert world.view(WEB).leaving == {"uid-web-1"}

    assert live(check, answer).events == []


def test_a_budget_protects_the_whole_workload_for_ever_longer():
    one, two, other = pod("a", controller="rs"), pod("b", controller="rs"), pod("c", controller="another")

    async def check(world: World) -> None:
        lengths = []
        for _ in range(7):
            assert await world.evict(one) == ["blocked"]
            reason = f"{VIOLATES}; {NEEDS}"
            assert world.view(one, two, other) == Evictions(
                protected={"uid-a": reason, "uid-b": reason})
            begun = world.now
            while world.view(two).protected:
                world.now += 5
            lengths.append(world.now - begun)
        assert lengths == [10, 20, 40, 80, 160, 300, 300]
        assert world.attempts[0].budget == "web"
        assert world.events[0] == ("evictPodFail", (
            f"evict Pod:shop/a, reason: {REASON}, message: {REASON}, kill pod: a, error {VIOLATES}; {NEEDS}"))

    assert len(live(check, by_budget()).sent) == 7


def test_a_budget_whose_status_is_not_up_to_date_protects_as_long_as_the_server_says():
    async def check(world: World) -> None:
        assert await world.evict(WEB) == ["blocked"]
        world.now = 11.9
        assert world.view(WEB).protected.keys() == {"uid-web-1"}
        world.now = 12.0
        assert world.view(WEB) == Evictions()

    stale = by_budget("The disruption budget web is still being processed by the server.", {"Retry-After": "12"})
    assert len(live(check, stale).sent) == 1


def test_a_created_answer_with_a_failure_is_a_refusal_by_several_budgets():
    async def check(world: World) -> None:
        assert await world.evict(WEB) == ["blocked"]
        world.now = 299.0
        assert world.view(WEB).protected.keys() == {"uid-web-1"}

    assert live(check, SEVERAL).events[0][0] == "evictPodFail"


@pytest.mark.parametrize("answer", [by_budget(), SEVERAL, by_budget(headers={"Retry-After": "10"})])
def test_past_a_hard_threshold_the_pod_is_deleted_after_the_budget_refused_and_the_event_says_so(answer):
    async def check(world: World) -> None:
        assert await world.evict(WEB, past_budget=True) == ["deleted"]
        assert world.view(WEB) == Evictions(frozenset({"uid-web-1"}))

    world = live(check, answer, json_answer({"kind": "Pod"}))
    assert [(method, path) for method, path, _ in world.sent] == [("POST", f"{PATH}/eviction"), ("DELETE", PATH)]
    assert world.sent[1][2] == {
        "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "uid-web-1"}}
    ((reason, note),) = world.events
    assert reason == "evictPodSuccess"
    assert ", deleted past PodDisruptionBudget " in note
    assert note.endswith(world.attempts[0].error)


def test_past_a_hard_threshold_an_eviction_that_the_budget_permits_is_no_deletion():
    async def check(world: World) -> None:
        assert await world.evict(WEB, past_budget=True) == ["evicted"]

    assert [method for method, _, _ in live(check).sent] == ["POST"]


@pytest.mark.parametrize(("answer", "seconds"), [
    (text_answer("Too many requests, please try again later.", 429, {"Retry-After": "7"}), 7),
    (text_answer("Too many requests, please try again later.", 429), 1),
    (json_answer(refusal(403, "Forbidden", 'pods "web-1" is forbidden: User "a" cannot create resource '
                         '"pods/eviction" in API group ""'), 403), 30),
])
def test_while_the_server_refuses_everything_nothing_else_is_sent(answer, seconds):
    other = pod("other")

    async def check(world: World) -> None:
        assert await world.evict(WEB) == ["paused"]
        assert await world.evict(other) == ["paused"]
        assert world.view(WEB, other).refused.keys() == {"uid-web-1", "uid-other"}
        world.now = seconds - 0.1
        assert world.view(WEB).refused
        world.now = float(seconds)
        assert world.view(WEB, other) == Evictions()
        assert await world.evict(other) == ["evicted"]

    world = live(check, answer, FINE)
    assert len(world.sent) == 2


@pytest.mark.parametrize("answer", [
    json_answer(refusal(403, "Forbidden", 'admission webhook "guard" denied the request'), 403),
    json_answer(refusal(500, "InternalError", "a webhook failed"), 500),
    json_answer(refusal(409, "Conflict", "the object has been modified"), 409),
])
def test_a_refusal_of_one_pod_leaves_the_others_candidates(answer):
    async def check(world: World) -> None:
        assert await world.evict(WEB) == ["failed"]
        assert world.view(WEB, pod("other")).refused.keys() == {"uid-web-1"}
        world.now = 1.0
        assert world.view(WEB) == Evictions()
        assert await world.evict(WEB) == ["failed"]
        world.now = 2.9
        assert world.view(WEB).refused
        world.now = 3.0
        assert not world.view(WEB).refused

    assert [reason for reason, _ in live(check, answer).events] == ["evictPodFail"] * 2


async def reset(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def silent(_request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    return web.Response()


@pytest.mark.parametrize("answer", [reset, silent])
def test_without_an_answer_the_pod_counts_as_leaving_for_a_while_and_may_be_evicted_again(answer):
    async def check(world: World) -> None:
        assert await world.evict(WEB) == ["unknown"]
        assert world.view(WEB).leaving == {"uid-web-1"}
        world.now = 15.0
        assert world.view(WEB) == Evictions()
        assert await world.evict(WEB) == ["evicted"]

    live(check, answer, FINE, options=EvictorOptions(timeout_s=0.3))


def test_a_request_that_is_under_way_counts_as_leaving_and_is_not_repeated():
    async def check(world: World) -> None:
        for _ in range(2):
            world.evictor.evict(WEB, eviction(WEB))
        assert world.view(WEB).leaving == {"uid-web-1"}
        await asyncio.gather(*world.tasks)

    assert len(live(check).sent) == 1


def test_an_old_list_of_pods_evicts_nobody():
    async def check(world: World) -> None:
        assert await world.evict(WEB, age=61) == ["stale"]
        assert world.view(WEB, age=61).refused == {
            "uid-web-1": "the list of pods is 61 s old, more than 60 s"}
        assert await world.evict(WEB, age=60) == ["evicted"]

    world = live(check)
    assert world.attempts[0].error == "the list of pods is 61 s old, more than 60 s"
    assert len(world.sent) == 1


def test_too_many_evictions_at_once_are_limited():
    pods = [pod(f"p{number}") for number in range(4)]

    async def check(world: World) -> None:
        assert sorted(await world.evict(*pods)) == ["evicted", "evicted", "limited", "limited"]
        assert world.view(*pods).refused.keys() == {"uid-p2", "uid-p3"}
        world.now = 0.5
        assert sorted(await world.evict(*pods)) == ["evicted", "limited"]

    live(check, options=EvictorOptions(rate=2, burst=2))


def test_a_dry_run_sends_nothing_and_remembers():
    async def check(world: World) -> None:
        assert await world.evict(WEB) == ["dryRun"]
        assert await world.evict(WEB) == []
        assert world.view(WEB).leaving == {"uid-web-1"}

    world = live(check, options=EvictorOptions(dry_run=True))
    assert (world.sent, world.events) == ([], [])


def test_static_pods_and_pods_without_a_uid_stay():
    static = pod("static", annotations={"kubernetes.io/config.mirror": "x"})

    async def check(world: World) -> None:
        assert await world.evict(static, pod("nameless", uid="")) == ["failed", "failed"]
        assert world.view(static).refused == {"uid-static": "its kubelet would start it again: it is a static pod"}

    assert live(check).sent == []


def test_the_eviction_of_a_document_is_told_by_its_action():
    async def check(world: World) -> None:
        world.evictor.evict(WEB, Adjustment("evict", WEB.key, "evicted by idle to release 7 of memory", "relieve"))
        await asyncio.gather(*world.tasks)

    assert live(check).events == [("evictPodSuccess", (
        "evict Pod:shop/web-1, reason: relieve, message: evicted by idle to release 7 of memory"))]


def test_the_thread_of_the_rounds_does_not_wait_for_the_server():
    """The server answers only after the round has returned from its request."""
    returned, answered, told = threading.Event(), threading.Event(), []

    async def late(_request: web.Request) -> web.StreamResponse:
        assert await asyncio.to_thread(returned.wait, 60)
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    def tell(attempt: EvictionAttempt) -> None:
        told.append(attempt.outcome)
        answered.set()

    with IoThread() as io:
        holder: list[Any] = []
        ready, stop = threading.Event(), threading.Event()

        async def serve() -> None:
            async with api_server(late) as fake, Transport(fake.connection, rate=0) as transport:
                holder.append(ClusterWriter(transport))
                ready.set()
                await asyncio.to_thread(stop.wait, 60)

        serving = io.submit(serve())
        assert ready.wait(60)
        evictor = PodEvictor(io, holder[0], pods=lambda: [WEB], on_attempt=[tell])
        evictor.evict(WEB, eviction(WEB))
        assert evictor.evictions == Evictions(frozenset({"uid-web-1"}))
        returned.set()
        assert answered.wait(60)
        stop.set()
        serving.result(60)
    evictor.evict(pod("later"), eviction(pod("later")))
    assert told == ["evicted", "paused"]
