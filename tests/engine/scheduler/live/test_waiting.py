"""The pods that wait in a live scheduler, as `/waiting` reports them."""

from __future__ import annotations

from typing import Any

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import Attempt, SchedulingLoop
from koordpolicy.engine.scheduler.live.waiting import MOST_PODS, WaitReasons, waiting_status
from koordpolicy.testing import node, pod

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND


def looped(*pods: dict[str, Any], reasons: WaitReasons | None = None) -> SchedulingLoop:
    """A loop that has tried each of these pods once; of 1 node with 4 cpu."""
    found = reasons or WaitReasons()

    def observe(attempt: Attempt) -> None:
        if attempt.pod is not None:
            found.failed(attempt.pod, attempt.verdict, attempt.verdict.message())

    cluster = Cluster()
    cluster.upsert_all([node("one", cpu="4"), *pods])
    registry = Registry.of(builtins(), generation=1)
    loop = SchedulingLoop(cluster, Live(registry), clock=lambda: NOW, observe=observe)
    list(loop.schedule_all())
    return loop


def test_a_refused_pod_has_its_reason_and_the_plugin_that_refused_it():
    reasons = WaitReasons()
    large = pod("large", requests={"cpu": "8"})
    large["metadata"]["labels"] = {"quota.scheduling.koordinator.sh/name": "team-a"}
    loop = looped(large, reasons=reasons)
    assert waiting_status(loop, reasons, NOW + 7 * SECOND) == {
        "parts": {"active": 0, "backoff": 0, "unschedulable": 1, "gated": 0, "permit": 0, "binding": 0}, "leftOut": 0,
        "pods": [{
            "pod": "default/large", "part": "unschedulable", "priority": 0,
            "reason": "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: "
                          "1 Preemption is not helpful for scheduling.",
            "plugins": ["NodeResourcesFit"], "pluginsLeftOut": 0, "gates": [], "gatesLeftOut": 0,
            "quota": "team-a", "gang": "", "attempts": 1,
            "seconds": 7.0, "backoffSeconds": None, "nominatedNode": None}]}


def test_a_gated_pod_has_its_gates_and_one_that_an_event_may_help_the_rest_of_its_backoff():
    reasons = WaitReasons()
    loop = looped(pod("held", schedulingGates=[{"name": "quota"}]), pod("large", requests={"cpu": "8"}),
                  reasons=reasons)
    loop.scheduler.cluster.upsert(node("two", cpu="6"))
    found = {each["pod"]: each for each in waiting_status(loop, reasons, NOW + SECOND // 4)["pods"]}
    held, large = found["default/held"], found["default/large"]
    assert (held["part"], held["gates"], held["plugins"], held["attempts"]) == (
        "gated", ["quota"], ["SchedulingGates"], 0)
    assert (large["part"], large["backoffSeconds"]) == ("backoff", 0.75)


def test_of_many_gates_the_number_of_the_others_is_told():
    reasons = WaitReasons()
    loop = looped(pod("held", schedulingGates=[{"name": f"g{number:02}"} for number in range(13)]), reasons=reasons)
    (held,) = waiting_status(loop, reasons, NOW)["pods"]
    assert (held["gates"], held["gatesLeftOut"]) == ([f"g{number:02}" for number in range(10)], 3)


def test_answers_are_bounded_and_the_pods_of_the_highest_priority_come_first():
    reasons = WaitReasons()
    loop = looped(*(pod(f"p{number:03}", requests={"cpu": "8"}, priority=number % 3) for number in range(250)),
                  reasons=reasons)
    found = waiting_status(loop, reasons, NOW)
    assert (len(found["pods"]), found["leftOut"]) == (MOST_PODS, 50)
    assert [each["priority"] for each in found["pods"]] == sorted(
        (each["priority"] for each in found["pods"]), reverse=True)
    (one,) = waiting_status(loop, reasons, NOW, pod="default/p249")["pods"]
    assert one["pod"] == "default/p249"
    assert waiting_status(loop, reasons, NOW, pod="default/none")["pods"] == []


def test_the_reason_of_another_pod_of_the_same_name_is_not_its_own():
    reasons = WaitReasons()
    loop = looped(pod("large", requests={"cpu": "8"}), reasons=reasons)
    (former,) = loop.queue.pods()
    later = pod("large", requests={"cpu": "8"})
    later["metadata"]["uid"] = "another"
    loop.queue.update(type(former).of(later))
    assert waiting_status(loop, reasons, NOW)["pods"][0]["reason"] == ""
