from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.sources.trace import TraceNode, TracePod, Workload
from koordpolicy.engine.framework.points import Framework, Point, Scores
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.scheduler.extensions.fragmentation import TypicalPod
from koordpolicy.engine.scheduler.simulate import Allocation, ArrivalState, UnplacedPods, simulate

NODES = (
    TraceNode("0-a", 10_000, 1000, 2, "T4"), TraceNode("1-b", 10_000, 1000, 2, "P100"), TraceNode("2-c", 4000, 500, 0),
)


class Fullest:
    def score(self, state, pod, snapshot, rows):
        return Scores(np.minimum(snapshot.requested("cpu") // 100, 100))


FULLEST = Plugin("Fullest", Framework.SCHEDULER, (Point.SCORE,), lambda args, handle: Fullest(), "test", "1")


def replay(*pods, **rest):
    clock = itertools.count().__next__
    live = Live(Registry.of([*PLUGINS, FULLEST], generation=1))
    return simulate(Workload(NODES, pods), live, clock=clock, **rest)


def test_pods_are_placed_one_after_the_other_and_failed_ones_are_gone():
    result = replay(
        TracePod("p0", 1000, 100, 1, 600), TracePod("p1", 1000, 100, 1, 400), TracePod("p2", 1000, 100, 2, 1000),
        TracePod("p3", 1000, 100, 2, 1000), TracePod("p4", 5000, 100), TracePod("p5", 1000, 100, 1, 500, ("A10",)),
    )
    assert result.placed == {"p0": "0-a", "p1": "0-a", "p2": "1-b", "p4": "0-a"}
    assert result.records == [
        ArrivalState(600, 1000, 100, 600), ArrivalState(1000, 2000, 200, 1000), ArrivalState(3000, 3000, 300, 3000),
        ArrivalState(5000, 3000, 300, 3000), ArrivalState(5000, 8000, 400, 3000), ArrivalState(5500, 8000, 400, 3000),
    ]
    assert (result.arrivals, result.failed, result.capacity) == (6, 2, ArrivalState(5500, 24_000, 2500, 4000))
    assert result.failed_shapes == (
        UnplacedPods(1000, 100, 2, 1000, (), 1, "p3", {"Insufficient GPU": 2, "node(s) had no GPU": 1}),
        UnplacedPods(
            1000, 100, 1, 500, ("A10",), 1, "p5",
            {"node(s) had no GPU of a model that the pod accepts": 2, "node(s) had no GPU": 1},
        ),
    )
    assert result.reasons == {
        "node(s) had no GPU": 2, "Insufficient GPU": 1, "node(s) had no GPU of a model that the pod accepts": 1}
    assert result.errors == ()


def test_allocation_is_told_per_percent_of_the_load_that_has_arrived():
    result = replay(*(TracePod(f"p{number}", 1000, 10, 1, 500) for number in range(10)))
    assert result.allocations(25) == {25: Allocation(8.33, 0.8, 25.0), 50: Allocation(16.67, 1.6, 50.0),
                                      75: Allocation(25.0, 2.4, 75.0), 100: Allocation(33.33, 3.2, 100.0),
                                      125: Allocation(33.33, 3.2, 100.0)}
    assert result.allocation(13) == Allocation(4.17, 0.4, 12.5), "12.5 is rounded to 12: its neighbour is taken"
    assert result.allocation(5) is None


def test_the_mean_of_all_arrivals_at_a_load_counts():
    result = replay(TracePod("p0", 1200, 10, 1, 1000), TracePod("p1", 1200, 10), TracePod("p2", 1200, 10))
    assert result.allocation(25) == Allocation(10.0, 0.8, 25.0)


def test_a_result_as_json_has_the_figures_by_ten_percent_of_load():
    result = replay(
        TracePod("p0", 1000, 100, 1, 400), TracePod("p1", 1000, 100, 1, 1000), TracePod("p2", 1, 1, 3, 1000),
    )
    content = json.loads(json.dumps(result.to_json()))
    assert content["allocation"] == {
        "10": {"cpu": 4.17, "memory": 4.0, "gpu": 10.0},
        **{key: {"cpu": 8.33, "memory": 8.0, "gpu": 35.0} for key in ()},
        "110": {"cpu": 8.33, "memory": 8.0, "gpu": 35.0},
    }
    assert {key: content[key] for key in ("arrivals", "failed", "podsPerSecond", "final", "errors")} == {
        "arrivals": 3, "failed": 1, "podsPerSecond": 3.0, "final": {"cpu": 8.33, "memory": 8.0, "gpu": 35.0},
        "errors": [],
    }
    assert content["failedPods"][0]["first"] == "p2"


def test_progress_is_told_every_hundred_arrivals():
    told = []
    replay(*(TracePod(f"p{number}", 1, 1) for number in range(250)), progress=told.append)
    assert told == [100, 200]


def test_a_plugin_that_fails_all_the_time_is_reported_once():
    class Bad:
        def score(self, state, pod, snapshot, rows):
            raise RuntimeError("broken")

    bad = Plugin("Bad", Framework.SCHEDULER, (Point.SCORE,), lambda args, handle: Bad(), "test", "1")
    live = Live(Registry.of([*PLUGINS, bad], generation=1))
    result = simulate(Workload(NODES, tuple(TracePod(f"p{n}", 1, 1) for n in range(5))), live, clock=lambda: 0.0)
    assert [(each.plugin, each.message) for each in result.errors] == [("Bad", "RuntimeError: broken")]
    assert result.pods_per_second == 0.0


@pytest.mark.parametrize("pods", [(), (TracePod("p", 1, 1),)])
def test_a_cluster_without_gpus_has_a_load_of_nothing(pods):
    live = Live(Registry.of(PLUGINS, generation=1))
    result = simulate(Workload(NODES[2:], pods), live, clock=lambda: 0.0)
    assert (result.allocations(), result.failed) == ({}, 0)


def test_the_curves_hold_the_figures_of_every_whole_percent_of_load():
    pods = tuple(TracePod(f"p{number}", 1000, 10, 1, 500) for number in range(4))
    result = replay(*pods, typical=(TypicalPod(1000, 1000, 1, frozenset(), 1.0),))
    curves = result.curves()
    assert (result.highest_load, len(curves.gpu)) == (50, 51)
    for load in range(51):
        allocation, fragmented = result.allocation(load), result.fragmentation(load)
        if allocation is None or fragmented is None:
            assert np.isnan([curves.cpu[load], curves.gpu[load], curves.fragmented_of_idle[load]]).all(), load
        else:
            assert (curves.cpu[load], curves.memory[load], curves.gpu[load]) == (
                allocation.cpu, allocation.memory, allocation.gpu)
            assert (curves.fragmented_of_cluster[load], curves.fragmented_of_idle[load]) == fragmented
    assert replay(*pods).curves().fragmented_of_idle == ()


def test_pods_of_one_shape_are_read_as_their_own_objects_say():
    seen = []

    class Watching:
        def score(self, state, pod, snapshot, rows):
            seen.append(pod)
            return Scores(np.zeros(snapshot.size, np.int64))

    watching = Plugin("Watching", Framework.SCHEDULER, (Point.SCORE,), lambda args, handle: Watching(), "test", "1")
    pods = (
        TracePod("a", 1000, 10, 1, 500, ("T4", "P100")), TracePod("b", 1000, 10, 1, 500, ("T4", "P100")),
        TracePod("c", 2000, 10),
    )
    live = Live(Registry.of([*PLUGINS, watching], generation=1))
    simulate(Workload(NODES, pods), live, clock=itertools.count().__next__)
    for pod, info in zip(pods, seen, strict=True):
        read = PodInfo.of(pod.object())
        fields = [field.name for field in dataclasses.fields(PodInfo)]
        assert {name: getattr(info, name) for name in fields} == {name: getattr(read, name) for name in fields}
