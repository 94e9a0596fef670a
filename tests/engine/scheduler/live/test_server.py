"""A live scheduler follows what its policies read, also while others are tried."""

from __future__ import annotations

import threading

from aiohttp import web

from koordpolicy.engine.client.leader_election import Ended, LeaseSettings
from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.live.server import LiveServer, ServerSettings
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec
from tests.waiting import until

from ...client.fake_api_server import refusal
from ...client.object_server import ObjectServer


class WithLease(ObjectServer):
    """An API server with one Lease, which takes events."""

    lease = None

    def __init__(self):
        super().__init__()
        self.events = {}

    async def _answer(self, request):
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


def reading(generation, *kinds):
    plugin = Plugin("Reads", Framework.SCHEDULER, (Point.SCORE,), lambda args, handle: None, "r", "r",
                    reads=tuple(Read(kind) for kind in kinds))
    return Registry.of([plugin], generation=generation)


def test_what_the_active_policies_read_is_followed_until_others_are_active():
    def kinds():
        server.io.submit(nothing()).result(60)  # all calls before are made
        return set(server.feed.views)

    async def nothing():
        pass

    with ObjectServer() as api:
        live = Live(reading(1, "NodeMetric"))
        server = LiveServer(lambda: api.connection, live, Settings((ProfileSpec("koord-policy"),)))
        try:
            assert kinds() == {"Node", "Pod", "NodeMetric"}
            for generation, kind in enumerate(("Device", "Reservation", "PodGroup"), 2):
                server.stage(reading(generation, kind))  # refused: another one follows, and 1 is still active
                assert kinds() >= {"Node", "Pod", "NodeMetric", kind}
            live.activate(reading(5, "PodGroup"))
            for _ in range(2):
                server.stage(live.registry)
            assert kinds() == {"Node", "Pod", "PodGroup", "FinishedMember"}
        finally:
            server.io.close()


def test_the_lease_gets_an_event_when_this_process_becomes_the_leader_and_when_it_stops():
    lease = LeaseSettings("system", "scheduler", "me")
    with WithLease() as api:
        server = LiveServer(lambda: api.connection, Live(Registry.of((), generation=1)),
                            Settings((ProfileSpec("koord-policy"),)), server=ServerSettings(lease=lease))
        ended = []
        running = threading.Thread(target=lambda: ended.append(server.run()))
        running.start()
        until(server.leads)
        server.stop()
        running.join(60)
        holder = api.lease["spec"]["holderIdentity"]
    assert (ended, holder) == ([Ended.STOPPED], "")
    fields = ("type", "reason", "action", "note", "reportingController", "regarding")
    regarding = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "namespace": "system", "name": "scheduler",
                 "uid": "uid-of-lease"}
    assert [tuple(event[name] for name in fields) for event in api.events.values()] == [
        ("Normal", "LeaderElection", action, note, "koord-policy", regarding) for action, note in (
            ("BecomeLeader", "me became leader"), ("StopLeading", "me stopped leading"))]
