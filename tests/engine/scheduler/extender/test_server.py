from __future__ import annotations

import asyncio
import json
import threading
import time
from types import SimpleNamespace
from typing import ClassVar

from koordpolicy.engine.cluster.snapshot import Cluster
from koordpolicy.engine.cluster.sources.listing import Listed, Listing
from koordpolicy.engine.scheduler.extender.protocol import Verb
from koordpolicy.engine.scheduler.extender.server import Loaded, Refresh, Server


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
    stuck = server._decider.assign("filter", 0.0, go_on.wait, 30)
    while server._watchdog.look() is None:
        pass
    answer = asyncio.run(server._bind(Whole(BINDING)))
    assert (answer.status, json.loads(answer.body), len(bound), noted) == (200, {"Error": ""}, 1, [])
    go_on.set()
    stuck.result(10)
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
    assert [record.getMessage() for record in caplog.records] == ["taking note of `bind` failed: 'p'"]


def test_the_server_ends_while_a_listing_does_not_return():
    listing, go_on = threading.Event(), threading.Event()

    def relist():
        listing.set()
        go_on.wait(30)
        return Listed(())

    def load():
        reloader = SimpleNamespace(close=lambda: None)
        scheduler = SimpleNamespace(close=lambda: None)
        extender = SimpleNamespace(
            cluster=Cluster(), placements=SimpleNamespace(now=0.0), close=lambda: None, scheduler=scheduler,
        )
        return Loaded(extender, reloader, refresh=Refresh(relist, Listing(), 0.001))

    server = Server(load)

    async def serve():
        stop = asyncio.Event()
        running = asyncio.create_task(server.run("127.0.0.1", 0, stop))
        while not listing.is_set():
            await asyncio.sleep(0.001)
        stop.set()
        await running

    began = time.monotonic()
    try:
        asyncio.run(serve())
    finally:
        took = time.monotonic() - began
        go_on.set()
    assert (server.abandoned, took < 10) == ("listing the cluster", True)
