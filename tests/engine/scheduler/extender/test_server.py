from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.scheduler.extender import explain_endpoint
from koordpolicy.engine.scheduler.extender import server as serving
from koordpolicy.engine.scheduler.extender.blocks import BLOCK
from koordpolicy.engine.scheduler.extender.decision_record import Verb
from koordpolicy.engine.scheduler.extender.loaded_extender import Loaded
from koordpolicy.engine.scheduler.extender.responses import send
from koordpolicy.engine.scheduler.extender.server import Server


class Arriving:
    """A request whose body comes when the server has just begun to end."""

    content_length = 2
    headers: ClassVar = {}

    def __init__(self, server):
        self.server, self.content, self.chunks = server, self, [b"", b"{}"]

    async def readany(self):
        self.server._loaded = None
        return self.chunks.pop()


def test_a_call_whose_body_comes_while_the_server_ends_is_told_so():
    class Extender:
        def answer(self, verb, body):
            raise AssertionError("what was closed must not decide")

    server = Server(lambda: None)
    server._loaded = Loaded(Extender(), None)
    answer = asyncio.run(server._answer(Verb.FILTER, Arriving(server)))
    assert (answer.status, json.loads(answer.body)) == (503, {"error": "the server ends"})


class Whole:
    """A request whose body is there."""

    headers: ClassVar = {}

    def __init__(self, data):
        body = json.dumps(data).encode()
        self.content, self.content_length, self.chunks = self, len(body), [b"", body]

    async def readany(self):
        return self.chunks.pop()


BINDING = {"PodNamespace": "shop", "PodName": "p", "PodUID": "u1", "Node": "two"}


def binding_server(bind, noted=lambda *_: None):
    server = Server(lambda: None, binds=True, decision_seconds=0.01)
    server._loaded = Loaded(SimpleNamespace(placements=SimpleNamespace(bound=noted, refused=noted)), None, bind=bind)
    return server


def test_a_pod_that_was_bound_is_said_to_be_bound_while_no_decision_can_be_made():
    bound, noted, go_on = [], [], threading.Event()
    server = binding_server(bound.append, lambda *told: noted.append(told))
    stuck = server._decider.assign("filter", 0.0, go_on.wait, 60)
    while server._watchdog.look() is None:
        time.sleep(0.001)
    answer = asyncio.run(server._bind(Whole(BINDING)))
    assert (answer.status, json.loads(answer.body), len(bound), noted) == (200, {"Error": ""}, 1, [])
    go_on.set()
    stuck.result(60)
    server._decider.shutdown()
    assert noted == [("shop", "p", "u1", "two")]


def test_a_pod_that_was_bound_is_said_to_be_bound_while_the_server_ends():
    server = binding_server(lambda _: server._decider.shutdown())
    answer = asyncio.run(server._bind(Whole(BINDING)))
    assert (answer.status, json.loads(answer.body)) == (200, {"Error": ""})


def test_what_is_known_of_a_bound_pod_may_fail_and_the_answer_is_the_same(caplog):
    def fail(*_):
        raise KeyError("p")

    server = binding_server(lambda _: None, fail)
    answer = asyncio.run(server._bind(Whole(BINDING)))
    server._decider.shutdown()
    assert (answer.status, json.loads(answer.body)) == (200, {"Error": ""})
    assert [record.getMessage() for record in caplog.records] == ["recording `bind` failed: 'p'"]


def test_a_binding_that_never_returns_keeps_neither_the_server_nor_the_process_from_ending():
    begun, go_on, threads = threading.Event(), threading.Event(), []

    def hang(binding):
        threads.append(threading.current_thread())
        begun.set()
        go_on.wait(60)

    server = binding_server(hang)

    async def serve():
        server._load = lambda: server._loaded
        stop = asyncio.Event()
        ending = SimpleNamespace(close=lambda: None, profiles=[SimpleNamespace(generation=1, made=())])
        server._loaded.extender.cluster = Cluster()
        server._loaded.extender.close, server._loaded.extender.scheduler = ending.close, ending
        object.__setattr__(server._loaded, "reloader", ending)
        running = asyncio.create_task(server.run("127.0.0.1", 0, stop))
        while server.metrics.loaded is None:
            await asyncio.sleep(0.001)
        binding = asyncio.create_task(server._bind(Whole(BINDING)))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        stop.set()
        await running
        binding.cancel()
        with suppress(asyncio.CancelledError):
            await binding

    asyncio.run(serve())
    go_on.set()
    assert (server.abandoned, [thread.daemon for thread in threads]) == ("binding a pod", [True])


def test_metrics_and_status_are_answered_while_explanations_hang(monkeypatch):
    hanging, go_on = threading.Semaphore(0), threading.Event()

    def hang(*_):
        hanging.release()
        go_on.wait(60)
        raise serving.MalformedBody("it was only to hang")

    monkeypatch.setattr(serving, "read_explain_request", hang)
    monkeypatch.setattr(serving, "status_of", lambda *_, **__: {"ready": True})
    server = Server(lambda: None)

    async def ask():
        server._loaded = Loaded(None, None)
        asked = SimpleNamespace(method="GET", query={})
        explanations = [asyncio.create_task(server._explain(asked)) for _ in range(3)]
        for _ in range(2):
            while not hanging.acquire(blocking=False):
                await asyncio.sleep(0.001)
        try:
            answers = [await asyncio.wait_for(answer, 60) for answer in (
                server._operations._metrics(server.metrics.registry.blocks, asked), server._status(asked))]
        finally:
            go_on.set()
        return [answer.status for answer in (*answers, *await asyncio.gather(*explanations))]

    assert asyncio.run(ask()) == [200, 200, 400, 400, 400]


def test_an_explanation_ends_before_the_calls_that_wait_for_it_do(monkeypatch):
    def explain(*_):
        while True:
            Deadline.poll()

    monkeypatch.setattr(explain_endpoint, "_explained", explain)
    server = Server(lambda: None, decision_seconds=1.5)
    reports = []
    server._report = server._watchdog._report = reports.append

    async def ask():
        server._loaded = Loaded(None, None)
        watching = asyncio.create_task(server._watch())
        explaining = asyncio.create_task(server._explain(SimpleNamespace(method="GET", query={"pod": "shop/p"})))
        while server._decider.task is None:
            await asyncio.sleep(0.001)
        call = server._decider.assign("filter", 1.5, lambda: "decided")
        decided = await asyncio.wait_for(asyncio.wrap_future(call), server._decision_seconds)
        watching.cancel()
        return decided, await explaining

    decided, answer = asyncio.run(ask())
    server._decider.shutdown()
    assert (decided, reports, answer.status) == ("decided", [], 503)
    assert json.loads(answer.body)["error"] == (
        "the explanation exceeds 0.5 s, for which it may delay decisions: name one node with `node`, or "
        "run `koord-policy explain`, which delays none")


class Slow(Cluster):
    """A cluster whose changes wait for somebody."""

    def __init__(self):
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def upsert(self, item):
        self.begun.set()
        self.go_on.wait(60)
        return super().upsert(item)


def following(server, cluster):
    """Return a follower of a cluster in which a node is new, and its changes."""
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1"}}}
    changes, compared = [node], []

    def apply(_budget):
        cluster.upsert(changes[-1])
        changes.pop()
        return False

    watched = SimpleNamespace(views={}, apply=apply, listen=lambda wake: wake(), heard_ago=lambda _: 2.0)
    placements = SimpleNamespace(now=100.0, listed=compared.append)
    loaded = Loaded(SimpleNamespace(cluster=cluster, placements=placements), None)
    return server._follow(loaded, watched), changes, compared


def test_placements_are_compared_with_what_was_heard_before_once_changes_are_applied():
    server, cluster = Server(lambda: None, decision_seconds=0.001), Slow()
    follow, _, compared = following(server, cluster)

    async def serve():
        task = asyncio.create_task(follow)
        while not cluster.begun.is_set():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)  # far more than it may take
        during = list(compared)
        cluster.go_on.set()
        while not compared:
            await asyncio.sleep(0.001)
        await serving._ended(task)
        return during

    assert asyncio.run(serve()) == []
    server._decider.shutdown()
    assert (cluster.names, compared[0]) == (["n"], 97.0)


def test_changes_whose_turn_does_not_come_are_applied_later(monkeypatch):
    monkeypatch.setattr(serving, "_LOOK_SECONDS", 0.01)
    server, cluster, go_on = Server(lambda: None, decision_seconds=0.001), Slow(), threading.Event()
    follow, changes, compared = following(server, cluster)
    cluster.go_on.set()
    before = server._decider.assign("filter", 60.0, go_on.wait, 60)

    async def serve():
        task = asyncio.create_task(follow)
        await asyncio.sleep(0.1)  # its turn does not come within 0.01 s
        during = (list(changes), cluster.begun.is_set())
        go_on.set()
        while not compared:
            await asyncio.sleep(0.001)
        await serving._ended(task)
        return during

    assert asyncio.run(serve()) == ([{"kind": "Node", "metadata": {"name": "n"},
                                      "status": {"allocatable": {"cpu": "1"}}}], False)
    before.result(60)
    server._decider.shutdown()
    assert (cluster.names, changes) == (["n"], [])


def test_a_response_in_parts_arrives_as_one():
    parts = [bytes([65 + number]) * (BLOCK + number) for number in range(20)]
    whole = b"".join(parts)

    async def ask():
        app = web.Application()
        app.router.add_get("/", partial(send, parts=parts))
        async with TestServer(app) as server, ClientSession() as session, session.get(server.make_url("/")) as response:
            return response.status, response.content_type, response.content_length, await response.read()

    assert asyncio.run(ask()) == (200, "application/json", len(whole), whole)
    assert parts == []
