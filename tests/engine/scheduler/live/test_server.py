"""A live scheduler follows what its policies read, also while others are tried."""

from __future__ import annotations

from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.live.server import LiveServer, ServerSettings
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec

from ...client.lease_server import LEASE, assert_the_lease_gets_events
from ...client.object_server import ObjectServer


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
    assert_the_lease_gets_events(lambda api: LiveServer(
        lambda: api.connection, Live(Registry.of((), generation=1)), Settings((ProfileSpec("koord-policy"),)),
        server=ServerSettings(lease=LEASE)), "koord-policy")
