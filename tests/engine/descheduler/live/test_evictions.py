"""Evictions of a live descheduler: the meaning of every answer, and what is not sent because of earlier ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult, WriteStatus
from koordpolicy.engine.descheduler.live.client import DeschedulerClient
from koordpolicy.engine.descheduler.live.evictions import AttemptedEviction, EvictionRequest, LiveEvictions, Silence
from koordpolicy.engine.framework.descheduler import EvictionMode, EvictionResult
from koordpolicy.engine.framework.handle import EvictionRefusedError

from ...client.fake_api_server import FakeApiServer, json_answer, refusal, text_answer

NOWHERE = Transport(Connection("http://127.0.0.1:9"))
NOW = 1_767_268_800_000_000_000
FINE = json_answer({"kind": "Status", "status": "Success"}, 201)
VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."
PATH = "/api/v1/namespaces/shop/pods/web-1"


def by_budget(message: str, headers: dict[str, str] | None = None) -> Any:
    return json_answer({**refusal(429, "TooManyRequests", VIOLATES), "details": {
        "causes": [{"reason": "DisruptionBudget", "message": message}]}}, 429, headers)


EXHAUSTED = by_budget("The disruption budget web needs 2 healthy pods and has 2 currently")


def pod(name: str = "web-1", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}", **metadata},
            "spec": {"nodeName": "one"}}


@dataclass
class World:
    """Evictions against a server that gives the answers of a test."""

    evictions: LiveEvictions
    server: FakeApiServer
    bodies: list[Any]
    now: float = 0.0
    leads: bool = True
    events: list[tuple[Any, ...]] = field(default_factory=list)
    attempts: list[AttemptedEviction] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def evict(self, item: dict[str, Any] | None = None, mode: EvictionMode = EvictionMode.EVICTION, **more: Any) -> str:
        """Evict; return the result, or the rule of the refusal."""
        request = EvictionRequest(item or pod(), mode, "it is old", strategy="PodLifeTime", controller="p", **more)
        try:
            return str(self.evictions.evict(request))
        except EvictionRefusedError as refused:
            return refused.rule

    def record(self, regarding: Any, **event: str) -> bool:
        self.events.append((regarding.name, *event.values()))
        return True


@contextmanager
def world(*answers: Any, budgets: Callable[[Any], Any] = lambda _: ("web",)) -> Iterator[World]:
    bodies: list[Any] = []
    attempts: list[AttemptedEviction] = []
    fake = FakeApiServer(list(answers) or [FINE])

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return await fake.answer(request)

    async def serve() -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(application, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        io.on_close(runner.cleanup)
        fake.server = f"http://127.0.0.1:{runner.addresses[0][1]}"

    with IoThread() as io:
        io.submit(serve()).result(10)
        transport = Transport(Connection(fake.server), rate=0)
        io.on_close(transport.close)
        made: World
        evictions = LiveEvictions(
            io, ClusterWriter(transport), events=_Events(lambda: made), budgets=budgets,
            may_write=lambda: made.leads, observers=[attempts.append],
            clock=lambda: made.now, now=lambda: NOW, on_evicted=lambda item: made.left.append(item["metadata"]["name"]))
        made = World(evictions, fake, bodies, attempts=attempts)
        yield made


class _Events:
    def __init__(self, of: Callable[[], World]) -> None:
        self._of = of

    def record(self, regarding: Any, **event: str) -> bool:
        return self._of().record(regarding, **event)


def test_a_pod_is_evicted_once_by_its_uid_with_an_event():
    with world() as it:
        assert [it.evict(), it.evict()] == [EvictionResult.EVICTED, "leaving"]
        assert [(method, path) for method, path, _ in it.server.requests] == [("POST", f"{PATH}/eviction")]
        assert it.bodies == [{
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": "shop", "name": "web-1"},
            "deleteOptions": {"preconditions": {"uid": "uid-web-1"}}}]
        assert it.events == [
            ("web-1", "Normal", "Descheduled", "Evicting", "p", "pod evicted by PodLifeTime: it is old")]
        assert it.left == ["web-1"]
        assert [(each.result, each.sent, each.node) for each in it.attempts] == [
            ("success", True, "one"), ("leaving", False, "one")]
        it.now = 120.0
        assert it.evict() == EvictionResult.EVICTED  # it is still there, so it is requested again


@pytest.mark.parametrize(("answer", "rule"), [
    (EXHAUSTED, "pdb-blocked"),
    (by_budget("The disruption budget web is still being processed by the server.", {"Retry-After": "10"}),
     "pdb-stale"),
    (json_answer({"kind": "Status", "status": "Failure", "code": 500, "message": (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")}, 201),
     "multi-pdb"),
    (json_answer(refusal(403, "Forbidden", 'poddisruptionbudgets.policy "web" is forbidden: pdb disruptions allowed is '
                         "negative"), 403), "pdb-blocked"),
    (json_answer(refusal(504, "Timeout", 'couldn\'t update PodDisruptionBudget "web" due to conflicts'), 504,
                 {"Retry-After": "10"}), "pdb-stale"),
    (text_answer("Too many requests, please try again later.", 429, {"Retry-After": "1"}), "throttled"),
    (json_answer(refusal(403, "Forbidden", 'User "x" cannot create resource "pods/eviction"'), 403), "forbidden"),
    (json_answer(refusal(409, "Conflict", "the object has been modified"), 409), "conflict"),
    (json_answer(refusal(422, "Invalid", "gracePeriodSeconds: Invalid value"), 422), "refused"),
    (json_answer(refusal(503, "ServiceUnavailable", "down"), 503, {"Retry-After": "5"}), "refused"),
], ids=["exhausted", "behind", "several", "negative", "contended", "apf", "no-right", "conflict", "invalid", "down"])
def test_a_refusal_is_sent_once_and_held_for_its_time(answer: Any, rule: str):
    with world(answer) as it:
        assert [it.evict(), it.evict()] == [rule, rule]
        assert len(it.bodies) == 1
        assert it.left == it.events == []
        (first, second) = it.attempts
        assert (first.result, first.sent, second.sent) == (rule, True, False)
        assert "it is tried again in" in second.message
        it.now = 301.0
        it.evict()
        assert len(it.bodies) == 2


def test_a_refusal_is_an_event_where_the_profile_says_so():
    with world(EXHAUSTED) as it:
        assert [it.evict(reports_failure=True), it.evict(reports_failure=True)] == ["pdb-blocked", "pdb-blocked"]
        ((name, kind, reason, action, controller, note),) = it.events  # of the request, not of what is held back
        assert (name, kind, reason, action, controller) == ("web-1", "Warning", "EvictionFailed", "Evicting", "p")
        assert note.startswith(f"eviction by PodLifeTime failed: {VIOLATES}")


@pytest.mark.parametrize("answer", [
    json_answer(refusal(404, "NotFound", 'pods "web-1" not found'), 404),
    json_answer(refusal(409, "Conflict", "Precondition failed: UID in precondition: a, UID in object meta: b"), 409),
], ids=["gone", "replaced"])
def test_a_pod_that_is_gone_or_replaced_is_no_success_and_not_evicted_again(answer: Any):
    with world(answer) as it:
        assert [it.evict(), it.evict()] == ["gone", "leaving"]
        assert (it.events, it.left) == ([], [])
        assert [(each.result, each.message, each.sent) for each in it.attempts] == [
            ("gone", "it was gone already", True), ("leaving", "its eviction was requested before", False)]


def test_the_other_pods_of_a_budget_that_refused_are_refused_with_its_reason():
    with world(EXHAUSTED, FINE, budgets=lambda item: () if item["metadata"]["name"] == "other" else ("web",)) as it:
        assert [it.evict(), it.evict(pod("web-2")), it.evict(pod("other"))] == [
            "pdb-blocked", "pdb-blocked", EvictionResult.EVICTED]
        assert VIOLATES in it.attempts[1].message
        assert it.evictions.holds() == {"shop/web": (
            f"{VIOLATES}; The disruption budget web needs 2 healthy pods and has 2 currently", 10.0)}
        it.now = 10.0
        assert it.evict(pod("web-2")) == EvictionResult.EVICTED


def test_a_deletion_passes_a_budget_that_holds_the_pod():
    with world(EXHAUSTED, FINE) as it:
        assert [it.evict(), it.evict(mode=EvictionMode.DELETE, delete_options={"gracePeriodSeconds": 5})] == [
            "pdb-blocked", EvictionResult.EVICTED]
        assert (it.server.requests[1][:2], it.bodies[1]) == (("DELETE", PATH), {
            "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "uid-web-1"},
            "gracePeriodSeconds": 5})


def test_a_soft_eviction_annotates_the_pod_which_stays_until_others_remove_it():
    with world(json_answer({})) as it:
        assert it.evict(mode=EvictionMode.SOFT_EVICTION) == EvictionResult.REQUESTED
        assert it.left == []
        (body,) = it.bodies
        assert body["metadata"]["uid"] == "uid-web-1"
        assert json.loads(body["metadata"]["annotations"]["scheduling.koordinator.sh/soft-eviction"]) == {
            "timestamp": "2026-01-01T12:00:00Z", "deleteOptions": {}, "initiator": "PodLifeTime", "reason": "it is old"}


def test_a_pod_that_another_component_moves_is_requested():
    answer = json_answer(refusal(429, "TooManyRequests", 'admission webhook "vm" denied the request: Eviction '
                                 "triggered evacuation of VMI"), 429)
    asks = {"descheduler.alpha.kubernetes.io/request-evict-only": ""}
    with world(answer) as it:
        assert it.evict(pod(annotations=asks)) == EvictionResult.REQUESTED
        assert it.evict(pod("plain")) == "throttled"
        assert it.evictions.holds() == {}  # it was about that pod
        assert [each.result for each in it.attempts] == ["requested", "throttled"]


def test_nothing_is_sent_without_leadership_and_without_a_uid():
    with world() as it:
        assert it.evict(pod(uid="")) == "uid"
        it.leads = False
        assert it.evict() == "not-leading"
        assert it.bodies == []


def test_a_refusal_says_when_to_try_again_and_a_budget_that_permits_evictions_ends_it():
    def budget(allowed: int) -> dict[str, Any]:
        return {"metadata": {"name": "web", "namespace": "shop"}, "status": {"disruptionsAllowed": allowed}}

    def seconds() -> float:
        with pytest.raises(EvictionRefusedError) as caught:
            it.evictions.evict(EvictionRequest(pod(), EvictionMode.EVICTION, "it is old", "PodLifeTime", "p"))
        return caught.value.retry_after_s

    with world(EXHAUSTED, EXHAUSTED, FINE) as it:
        first = seconds()
        it.now = 4.0
        assert (first, seconds()) == (10.0, 6.0)
        it.evictions.budget_changed(budget(0))
        assert (seconds(), len(it.bodies)) == (6.0, 1)
        it.evictions.budget_changed(budget(1))
        assert (seconds(), len(it.bodies)) == (10.0, 2)
        it.evictions.budget_changed(budget(1))
        assert it.evict() == EvictionResult.EVICTED


def test_patches_without_an_answer_hold_back_all_writes_for_a_while():
    now, silence = [0.0], Silence(lambda: now[0])
    io = Unanswering()
    evictions = LiveEvictions(io, ClusterWriter(NOWHERE), clock=lambda: now[0], silence=silence)
    client = DeschedulerClient(
        io, ClusterWriter(NOWHERE), evictions, clock=lambda: NOW, migrations=None, identity="me", silence=silence,
        patch_s=0.0)
    node = {"kind": "Node", "metadata": {"name": "a"}, "spec": {}}
    said = []
    for _ in range(5):
        with pytest.raises(OSError, match=r"answer") as caught:
            client.patch(node, {**node, "spec": {"unschedulable": True}})
        said.append(str(caught.value))
    assert said == [*["the API server has not answered within 0 s"] * 3, *["the last writes had no answer"] * 2]
    assert (io.sent, evictions.holds()) == (3, {"*": ("the last writes had no answer", 15.0)})
    now[0] = 15.0
    with pytest.raises(OSError, match="has not answered"):
        client.patch(node, {**node, "spec": {"unschedulable": True}})
    assert io.sent == 4


class Unanswering:
    """Runs no request, so that none has an answer."""

    sent = 0

    def submit(self, coroutine: Any) -> Future[Any]:
        coroutine.close()
        self.sent += 1
        return Future()


class Silent:
    """Runs no request, and gives the results of a test in its place."""

    def __init__(self, *results: WriteStatus) -> None:
        self.results = list(results)

    def submit(self, coroutine: Any) -> Future[Any]:
        coroutine.close()
        future: Future[Any] = Future()
        future.set_result(WriteResult(self.results.pop(0)))
        return future


def test_three_evictions_without_an_answer_hold_back_all_for_a_while():
    unknown, now = WriteStatus.UNKNOWN, [0.0]
    io = Silent(unknown, unknown, WriteStatus.DONE, unknown, unknown, unknown, WriteStatus.DONE)
    evictions = LiveEvictions(io, ClusterWriter(NOWHERE), clock=lambda: now[0])

    def evict(name: str, mode: EvictionMode = EvictionMode.EVICTION) -> Any:
        try:
            return evictions.evict(EvictionRequest(pod(name), mode, "", strategy="s", controller="p"))
        except EvictionRefusedError as refused:
            return refused.rule, refused.may_leave, refused.retry_after_s

    assert [evict(name) for name in "abcdef"] == [
        *[("unknown", True, 0.0)] * 2, EvictionResult.EVICTED, *[("unknown", True, 0.0)] * 2, ("unknown", True, 15.0)]
    now[0] = 5.0
    assert (evict("g"), evict("g", EvictionMode.DELETE)) == (("unknown", False, 10.0),) * 2
    assert evictions.holds() == {"*": ("the last writes had no answer", 10.0)}
    now[0] = 15.0
    assert (evict("g"), io.results, evictions.holds()) == (EvictionResult.EVICTED, [], {})
