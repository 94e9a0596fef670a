from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.cluster import Cluster

from ..deschedule import cycle, evicted, faults, node, pod

NODES = node("a"), node("b")
NAME = "RemovePodsHavingTooManyRestarts"


def restarted(name, *counts, on="a", init=(), waiting="", **status):
    state = {"state": {"waiting": {"reason": waiting}}} if waiting else {}
    return pod(name, on, status={
        "containerStatuses": [{"name": f"c{place}", "restartCount": count, **state}
                              for place, count in enumerate(counts)],
        "initContainerStatuses": [{"name": f"i{place}", "restartCount": count} for place, count in enumerate(init)],
        **status,
    })


def of(args, *pods, **given):
    return evicted(NAME, args, *NODES, *pods, **given)


def test_on_each_node_the_pod_with_the_most_restarts_of_all_containers_goes_first():
    pods = [
        restarted("three", 1, 2), restarted("nine", 9, on="b"), restarted("five", 5), restarted("two", 2),
        restarted("four-finished", 4, phase="Succeeded"), pod("none"),
    ]
    assert of({"podRestartThreshold": 3}, *pods) == ["five", "four-finished", "three", "nine"]


def test_restarts_of_init_containers_count_with_the_flag_only():
    pods = restarted("init", 1, init=(4,)), restarted("plain", 4)
    assert of({"podRestartThreshold": 4}, *pods) == ["plain"]
    assert of({"podRestartThreshold": 4, "includingInitContainers": True}, *pods) == ["init", "plain"]


@pytest.mark.parametrize(("states", "gone"), [
    (["Running"], ["running"]), (["CrashLoopBackOff"], ["crashing"]),
    (["CrashLoopBackOff", "Running"], ["running", "crashing"]), ([], ["running", "crashing", "pending"]),
])
def test_the_phase_or_why_a_container_waits_must_be_among_the_states(states, gone):
    pods = [
        restarted("running", 5), restarted("crashing", 5, waiting="CrashLoopBackOff", phase="Pending"),
        restarted("pending", 5, waiting="Other", phase="Pending"),
    ]
    assert of({"podRestartThreshold": 5, "states": states}, *pods) == gone


def test_a_pod_that_restarts_between_cycles_is_seen():
    cluster = Cluster([*NODES, restarted("it", 1)])
    assert evicted(NAME, {"podRestartThreshold": 2}, cluster=cluster) == []
    cluster.upsert(restarted("it", 2))
    found = cycle(NAME, {"podRestartThreshold": 2}, cluster=cluster)
    assert [(pod, of.reason) for pod, _, of in found.evicted] == [("d/it", "its containers restarted 2 times")]


@pytest.mark.parametrize(("args", "wanted"), [
    ({}, ["podRestartThreshold: invalid PodsHavingTooManyRestarts threshold: it must be at least 1"]),
    ({"podRestartThreshold": 0, "states": ["Failed"]}, [
        "podRestartThreshold: invalid PodsHavingTooManyRestarts threshold: it must be at least 1",
        "states: states must be one of [CrashLoopBackOff Running]",
    ]),
    ({"podRestartThreshold": 1, "states": ["Running"]}, []),
])
def test_faults_of_arguments_are_reported(args, wanted):
    assert faults(NAME, args) == wanted
