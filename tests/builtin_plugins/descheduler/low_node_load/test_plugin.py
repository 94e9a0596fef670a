from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from koordpolicy.builtin_plugins.descheduler.low_node_load.plugin import (
    LowNodeLoad,
    NodeLoad,
    PoolThresholds,
    raw_allocatable,
    reserve,
    usage_preference,
)
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.descheduler.argument_faults import ArgumentError
from koordpolicy.engine.descheduler.arguments import NodePool, complete, read_low_node_load
from koordpolicy.engine.framework.points import Refusal

NOW = 1_767_268_800_000_000_000
ONE_OBSERVATION = {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1}


class Evictor:
    """Lets everything go that is not in `kept`, and remembers what it was told."""

    def __init__(self, *kept: str, evicts: bool = True, interval: int = 0, not_now: Collection[str] = ()) -> None:
        self.evicts = evicts
        self.interval = interval
        self.not_now = not_now
        self.vetoed = kept
        self.evicted: list[tuple[str, str]] = []
        self.kept: dict[str, str] = {}
        self.roles: dict[str, str] = {}

    def filter(self, pod: PodInfo) -> Refusal | None:
        return Refusal("veto", "no") if pod.name in self.vetoed else None

    def pre_eviction_filter(self, pod: PodInfo) -> Refusal | None:
        return Refusal("nodeFit", "not now") if pod.name in self.not_now else None

    def evict(self, pod: PodInfo, reason: str, *, rule: str = "") -> bool:
        if self.evicts:
            self.evicted.append((pod.name, rule))
        return self.evicts

    def keep(self, pod: PodInfo, refusal: Refusal, *, rule: str = "") -> None:
        self.kept[pod.name] = refusal.rule

    def observe(self, node: str, role: str, message: str = "") -> None:
        self.roles[node] = role


def node(name: str, *pods: tuple[str, int], system: int = 0, **spec: Any) -> list[dict[str, Any]]:
    """A node of 10 cores with pods that use and request so many milli-cores."""
    amounts = {"cpu": "10", "memory": "10Gi", "pods": "20"}
    found: list[dict[str, Any]] = [{
        "kind": "Node", "metadata": {"name": name, "labels": {"pool": name[0]}}, "spec": spec,
        "status": {"allocatable": amounts},
    }]
    for pod, milli in pods:
        container = {"name": "c", "resources": {"requests": {"cpu": f"{milli}m"}}}
        found.append({
            "kind": "Pod", "metadata": {"name": pod, "namespace": "d", "labels": {"app": pod}},
            "spec": {"nodeName": name, "containers": [container]},
        })
    found.append({
        "kind": "NodeMetric", "metadata": {"name": name},
        "status": {
            "updateTime": "2026-01-01T12:00:00Z",
            "nodeMetric": {"systemUsage": {"resources": {"cpu": f"{system}m"}}},
            "podsMetric": [
                {"namespace": "d", "name": pod, "podUsage": {"resources": {"cpu": f"{milli}m"}}} for pod, milli in pods
            ],
        },
    })
    return found


def balance(objects: list[list[dict[str, Any]]], evictor: Evictor, cycles: int = 1, **args: Any) -> Evictor:
    given = {"lowThresholds": {"cpu": 30}, "highThresholds": {"cpu": 60}, "anomalyCondition": ONE_OBSERVATION, **args}
    plugin = LowNodeLoad(read_low_node_load(complete("LowNodeLoad", given)))
    cluster = Cluster([each for of_node in objects for each in of_node])
    for cycle in range(cycles):
        snapshot = cluster.snapshot(NOW + cycle * 10**9)
        plugin.balance(snapshot, np.arange(snapshot.size, dtype=np.intp), evictor)
    return evictor


HOT = node("hot", ("a", 4000), ("b", 2500), ("c", 2000))
COLD = node("cold", ("x", 1000))
SPARE = node("spare")


def test_pods_leave_a_hot_node_until_it_is_not_above_its_threshold_any_more():
    evictor = balance([HOT, COLD, SPARE], Evictor())
    # 2500 is what best removes the excess of 2500.
    assert (evictor.evicted, evictor.kept) == (
        [("b", "highThresholds")], {"a": "highThresholds", "c": "highThresholds"},
    )
    assert evictor.roles == {"hot": "source", "cold": "target", "spare": "target"}


def test_room_on_a_target_is_given_away_once_in_the_order_of_the_pods():
    evictor = balance([HOT, COLD], Evictor())
    assert (evictor.evicted, evictor.kept) == ([("a", "highThresholds")], {"b": "nodeFit", "c": "nodeFit"})


@pytest.mark.parametrize("args", [
    {"paused": True}, {"numberOfNodes": 1}, {"highThresholds": {"cpu": 90}}, {"lowThresholds": {"cpu": 5}},
    {"podSelectors": [{"name": "n", "selector": {"matchLabels": {"app": "z"}}}]},
    {"evictableNamespaces": {"exclude": ["d"]}}, {"evictableNamespaces": {"include": ["e"]}}, {"dryRun": True},
])
def test_arguments_that_say_so_keep_everything_in_place(args):
    assert balance([HOT, COLD], Evictor(), **args).evicted == []


def test_an_eviction_that_fails_is_followed_by_the_next_candidate_and_frees_nothing():
    assert balance([HOT, COLD], Evictor(evicts=False)).evicted == []
    assert [name for name, _ in balance([HOT, COLD], Evictor("b")).evicted] == ["a"]


def test_a_cordoned_node_is_no_target_and_one_without_a_metric_is_nothing():
    assert balance([HOT, node("cold", unschedulable=True)], Evictor()).evicted == []
    unmeasured = balance([HOT, COLD, node("never")[:1]], Evictor())
    assert unmeasured.roles == {"hot": "source", "cold": "target", "never": "unmeasured"}


def test_a_node_must_be_found_hot_once_more_than_asked_for():
    condition = {"anomalyCondition": {"consecutiveAbnormalities": 2, "consecutiveNormalities": 1}}
    assert balance([HOT, COLD], Evictor(), cycles=2, **condition).evicted == []
    assert balance([HOT, COLD], Evictor(), cycles=3, **condition).evicted == [("a", "highThresholds")]


@pytest.mark.parametrize(("interval", "evicted"), [(0, []), (10**9, [("a", "highThresholds")])])
def test_a_detector_lives_until_the_next_cycle_though_its_time_is_shorter(interval: int, evicted: list[Any]):
    condition = {"anomalyCondition": {"consecutiveAbnormalities": 2, "consecutiveNormalities": 1},
                 "detectorCacheTimeout": "500ms"}
    assert balance([HOT, COLD], Evictor(interval=interval), cycles=3, **condition).evicted == evicted


def test_a_pod_that_may_not_leave_now_is_passed_over_and_gives_up_nothing():
    evictor = balance([HOT, COLD, SPARE], Evictor(not_now=["b"]))
    assert evictor.evicted == [("a", "highThresholds")]


@pytest.mark.parametrize(("args", "fault"), [
    ({"lowThresholds": {"cpu": 30, "memory": 30}, "highThresholds": {"cpu": 60}},
     "lowThresholds.memory: `memory` has no threshold in `highThresholds`: give both"),
    ({"nodePools": [{"name": "p", "prodLowThresholds": {"cpu": 5}}]},
     "nodePools[1].prodLowThresholds.cpu: `cpu` has no threshold in `prodHighThresholds`: give both"),
])
def test_a_low_threshold_without_a_high_one_is_refused_as_all_nodes_would_be_sources(args: dict[str, Any], fault: str):
    with pytest.raises(ArgumentError) as refused:
        complete("LowNodeLoad", args)
    assert fault in str(refused.value)


def test_prod_pods_have_thresholds_of_their_own():
    evictor = balance(
        [HOT, COLD, SPARE], Evictor(), lowThresholds={"cpu": 0}, highThresholds={"cpu": 100},
        prodLowThresholds={"cpu": 30}, prodHighThresholds={"cpu": 60},
    )
    assert evictor.evicted == [("b", "prodHighThresholds")]


def test_pools_balance_among_themselves_and_inherit_what_they_leave_out():
    objects = [HOT, COLD, node("gpu-1", ("g", 3800), ("h", 500)), node("gpu-2")]
    pool = {"name": "gpu", "nodeSelector": {"matchLabels": {"pool": "g"}}, "highThresholds": {"cpu": 40}}
    evictor = balance(objects, Evictor("a", "b", "c"), nodePools=[pool])
    assert evictor.evicted == [("g", "highThresholds")]


def test_thresholds_as_deviations_are_counted_from_the_average_and_clamped():
    thresholds = PoolThresholds.of(NodePool(deviation=True, low={"cpu": 10}, high={"cpu": 60}))
    load = NodeLoad(0, HOT[0], raw_allocatable(HOT[0]), {}, {}, (), {})
    bounds = thresholds.bounds(load, {"cpu": 50.0}, {})
    assert (bounds.low["cpu"], bounds.high["cpu"], bounds.low["memory"]) == (4000, 10_000, 10 * 2**30)


def test_a_raw_allocatable_that_cannot_be_read_is_left_aside():
    annotated = {
        "metadata": {"annotations": {"node.koordinator.sh/raw-allocatable": "{"}},
        "status": {"allocatable": {"cpu": "3"}},
    }
    assert raw_allocatable(annotated) == {"cpu": 3000}


def test_what_is_reserved_on_a_target_stays_and_what_does_not_fit_is_taken_back():
    load = NodeLoad(0, COLD[0], raw_allocatable(COLD[0]), {"cpu": 1000, "memory": 0}, {}, (), {})
    load.bounds = PoolThresholds.of(NodePool(low={"cpu": 30}, high={"cpu": 60})).bounds(load, {}, {})
    assert [reserve(load, {"cpu": 3000}, prod=False) for _ in range(2)] == [True, False]
    assert load.usage["cpu"] == 4000


def test_the_pod_that_just_removes_the_excess_is_preferred_and_unmeasured_ones_come_last():
    pods = [PodInfo.of(each) for each in HOT[1:4]]
    metrics = {pod.key: ResourceList(cpu=milli) for pod, milli in zip(pods[:2], (9000, 2000), strict=True)}
    load = NodeLoad(0, HOT[0], raw_allocatable(HOT[0]), {"cpu": 8500}, {}, tuple(pods), metrics)
    load.bounds = PoolThresholds.of(NodePool(low={"cpu": 30}, high={"cpu": 60})).bounds(load, {}, {})
    ordered = sorted(pods, key=usage_preference(load, {"cpu": 1}, prod=False))
    assert [pod.name for pod in ordered] == ["a", "b", "c"]
