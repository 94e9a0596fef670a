"""An API server in this process for tests of leader elections: objects, one Lease, and the events about it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from aiohttp import web

from koordpolicy.engine.client.leader_election import Ended, LeaseSettings
from tests.waiting import until

from .fake_api_server import refusal
from .object_server import ObjectServer

LEASE = LeaseSettings("system", "the-lease", "me")
_REGARDING = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "namespace": "system", "name": "the-lease",
              "uid": "uid-of-lease"}


class LeaseServer(ObjectServer):
    """Also an API server with one Lease, which takes events."""

    lease: dict[str, Any] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[str, Any] = {}

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/apis/events.k8s.io/v1/namespaces/system/events":
            event = await request.json()
            self.events[event["metadata"]["name"]] = event  # one may be sent again at the end
            return web.json_response(event, status=201)
        if "/leases" not in request.path:
            return await super()._answer(request)
        if request.method != "GET":
            body = await request.json()
            self.lease = {**body, "metadata": {**body["metadata"], "uid": "uid-of-lease", "resourceVersion": "1"}}
        if self.lease is None:
            return web.json_response(refusal(404, "NotFound"), status=404)
        return web.json_response(self.lease)


class Leading(Protocol):
    """A server that works while it holds a Lease."""

    def run(self) -> Ended: ...
    def leads(self) -> bool: ...
    def stop(self) -> None: ...


def assert_the_lease_gets_events(make: Callable[[LeaseServer], Leading], controller: str) -> None:
    """Let a server with `LEASE` lead and stop, and compare the events of its Lease."""
    with LeaseServer() as api:
        server = make(api)
        ended: list[Ended] = []
        running = threading.Thread(target=lambda: ended.append(server.run()))
        running.start()
        until(server.leads)
        server.stop()
        running.join(60)
        lease = api.lease
    assert lease is not None
    assert (ended, lease["spec"]["holderIdentity"]) == ([Ended.STOPPED], "")
    fields = ("type", "reason", "action", "note", "reportingController", "regarding")
    assert [tuple(event[name] for name in fields) for event in api.events.values()] == [
        ("Normal", "LeaderElection", action, note, controller, _REGARDING) for action, note in (
            ("BecomeLeader", "me became leader"), ("StopLeading", "me stopped leading"))]
