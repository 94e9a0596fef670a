from __future__ import annotations

from types import SimpleNamespace

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.scheduler.live.gates import GATED_S, GateReporter
from koordpolicy.testing import FakeClock, pod


class World:
    """Gated pods, and what is written about them."""

    def __init__(self):
        self.clock, self.written, self.pods, self.gated = FakeClock(), [], {}, {}
        self.reporter = GateReporter(self, self.clock)
        self.queue = SimpleNamespace(gated=lambda key: PodInfo.of(self.pods[key]))

    def write(self, pod, *, condition):
        self.written.append((pod.name, condition.type, condition.status, condition.reason, condition.message))

    def gate(self, name, message, reported="", **spec):
        conditions = [{"type": "PodScheduled", "status": "False", "message": reported}] if reported else []
        self.pods[f"default/{name}"] = {**pod(name, **spec), "status": {"conditions": conditions}}
        self.gated[f"default/{name}"] = "Coscheduling", Refusal("gang", message)

    def look(self, seconds=0.0):
        self.clock.advance(seconds)
        self.reporter.look(self)
        found, self.written = [(name, message) for name, _, _, _, message in self.written], []
        return found


def test_the_reason_of_a_gate_is_written_once_when_it_has_lasted():
    world = World()
    world.gate("a", "too few members")
    assert world.look() == []
    assert world.look(GATED_S - 1) == []
    world.reporter.look(world)
    world.clock.advance(1)
    world.reporter.look(world)
    assert world.written == [("a", "PodScheduled", "False", "Unschedulable", "too few members")]
    world.written = []
    assert [world.look(1) for _ in range(5)] == [[]] * 5


def test_another_reason_of_a_gate_replaces_the_first_one_and_no_other():
    world = World()
    world.gate("a", "too few members")
    world.look()
    assert world.look(GATED_S) == [("a", "too few members")]
    world.gate("a", "no quota", reported="too few members")
    assert world.look(1) == []
    assert world.look(GATED_S) == [("a", "no quota")]
    world.gate("a", "too few members", reported="0/3 nodes are available: 3 Insufficient cpu.")
    world.look(1)
    assert world.look(GATED_S) == []


def test_a_pod_that_was_created_again_is_reported_too():
    world = World()
    world.gate("a", "too few members")
    world.look()
    assert world.look(GATED_S) == [("a", "too few members")]
    world.pods["default/a"]["metadata"] = {**world.pods["default/a"]["metadata"], "uid": "another"}
    assert world.look(1) == [("a", "too few members")]
    assert world.look(1) == []


def test_a_pod_that_left_its_gate_in_time_is_not_reported():
    world = World()
    world.gate("a", "too few members")
    world.look()
    world.gated.clear()
    world.look(1)
    world.gate("a", "too few members")
    assert world.look(GATED_S) == []
    assert world.look(GATED_S) == [("a", "too few members")]


def test_scheduling_gates_are_left_to_the_api_server():
    world = World()
    world.gate("a", "waiting for scheduling gates: [x]", schedulingGates=[{"name": "x"}])
    world.look()
    assert world.look(GATED_S) == []
