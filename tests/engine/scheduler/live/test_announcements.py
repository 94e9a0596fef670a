from __future__ import annotations

from types import SimpleNamespace

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.scheduler.live.announcements import ANNOUNCED_S, Announcements
from koordpolicy.testing import FakeClock, pod


class World:
    """Pods that wait, and what is written about them."""

    def __init__(self):
        self.clock, self.written, self.held = FakeClock(), [], {}
        self.announcements = Announcements(self, self.clock)
        self.scheduler = SimpleNamespace(
            waiting=SimpleNamespace(keys=lambda: tuple(self.held), get=self.held.get), awaiting=())

    def write(self, pod, *, nominated_node):
        self.written.append((pod.name, nominated_node))

    def look(self, seconds=0.0):
        self.clock.advance(seconds)
        self.announcements.look(self)
        found, self.written = self.written, []
        return found


class Binding:
    """A pod with its node."""

    def __init__(self, name, node, **annotations):
        self.pod, self.node = PodInfo.of(pod(name, annotations=annotations)), node


def test_the_node_of_a_pod_that_waits_is_announced_once():
    world = World()
    permitted, bound = Binding("permitted", "a"), Binding("bound", "b")
    world.held["default/permitted"] = SimpleNamespace(binding=permitted)
    world.scheduler.awaiting = (bound,)
    assert world.look() == []
    assert world.look(ANNOUNCED_S) == [("permitted", "a"), ("bound", "b")]
    assert [world.look(1) for _ in range(3)] == [[], [], []]


def test_a_pod_that_waits_shortly_is_not_announced_and_each_attempt_counts_anew():
    world = World()
    world.scheduler.awaiting = (Binding("web", "a"),)
    world.look()
    world.scheduler.awaiting = (Binding("web", "b"),)
    assert world.look(ANNOUNCED_S) == []
    assert world.look(ANNOUNCED_S) == [("web", "b")]


def test_reservations_are_not_announced():
    world = World()
    world.scheduler.awaiting = (Binding("r", "a", **{"scheduling.koordinator.sh/reserve-pod": "true"}),)
    world.look()
    assert world.look(ANNOUNCED_S) == []
