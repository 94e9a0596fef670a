from __future__ import annotations

import pytest

from koordpolicy.builtin_plugins.scheduler.node_resources_fit_plus.plugin import pod_request
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.plugin import CycleState

PACK_CPU = {"cpu": {"type": "MostAllocated", "weight": 2}, "memory": {"type": "LeastAllocated", "weight": 1}}
MIB = 1024 * 1024


def test_each_requested_resource_is_scored_by_its_own_strategy(kit):
    plugin = kit.make("NodeResourcesFitPlus", resources=PACK_CPU)
    # cpu: 2 of 4 cores are 50; memory: 6 of 8 GiB are left, 75.
    assert kit.scores(
        plugin, kit.pod(requests={"cpu": "2", "memory": "2Gi"}), kit.cluster(kit.node("a")),
    ) == {"a": (50 * 2 + 75) // 3}


def test_a_pod_that_requests_nothing_configured_scores_100(kit):
    plugin = kit.make("NodeResourcesFitPlus", resources={"nvidia.com/gpu": {"type": "MostAllocated", "weight": 1}})
    assert kit.scores(plugin, kit.pod(requests={"cpu": "2"}), kit.cluster(kit.node("a"))) == {"a": 100}


def test_a_resource_that_the_node_lacks_scores_0_with_its_full_weight(kit):
    plugin = kit.make("NodeResourcesFitPlus", resources={
        "nvidia.com/gpu": {"type": "MostAllocated", "weight": 1}, "cpu": {"type": "LeastAllocated", "weight": 1},
    })
    pod = kit.pod(requests={"cpu": "2", "nvidia.com/gpu": "1"})
    assert kit.scores(plugin, pod, kit.cluster(kit.node("a"), kit.node("b", gpus=2))) == {"a": 25, "b": 50}


def test_an_unknown_strategy_scores_0(kit):
    plugin = kit.make("NodeResourcesFitPlus", resources={"cpu": {"type": "Balanced", "weight": 1}})
    assert kit.scores(plugin, kit.pod(requests={"cpu": "2"}), kit.cluster(kit.node("a"))) == {"a": 0}


def test_pods_on_the_node_count_with_defaults_for_what_they_do_not_request(kit):
    plugin = kit.make("NodeResourcesFitPlus", resources={"cpu": {"type": "MostAllocated", "weight": 1}})
    cluster = kit.cluster(kit.node("a"))
    pod = kit.pod(requests={"cpu": "300m"})
    assert kit.scores(plugin, pod, cluster) == {"a": 7}
    for number in range(3):
        cluster.assume(kit.pod(f"idle-{number}"), "a")
    assert kit.scores(plugin, pod, cluster) == {"a": 15}
    cluster.forget("default/idle-0")
    assert kit.scores(plugin, pod, cluster) == {"a": 12}


def test_an_overlay_is_scored_by_its_own_pods_and_leaves_no_trace(kit):
    plugin = kit.make("NodeResourcesFitPlus", resources={"cpu": {"type": "MostAllocated", "weight": 1}})
    cluster, pod = kit.cluster(kit.node("a"), kit.node("b")), kit.pod(requests={"cpu": "1"})
    overlay = cluster.snapshot().overlay({"b": NodeChange(add=[kit.pod("other", requests={"cpu": "2"})])})
    assert plugin.score(CycleState(), pod, overlay, kit.rows(overlay)).values.tolist() == [25, 75]
    assert kit.scores(plugin, pod, cluster) == {"a": 25, "b": 25}


def test_the_pod_counts_by_its_own_sum_and_not_by_its_effective_requests():
    pod = {"spec": {
        "containers": [{"resources": {"requests": {"cpu": "0"}}}, {}],
        "initContainers": [
            {"resources": {"requests": {"cpu": "250m"}}},
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}}},
        ],
        "overhead": {"cpu": "5"},
    }}
    assert pod_request(pod, "cpu") == 1250
    assert pod_request(pod, "memory") == 600 * MIB
    assert pod_request(pod, "nvidia.com/gpu") == 1


def test_the_effective_requests_get_defaults_per_container(kit):
    assert kit.pod(requests={"cpu": "0"}).nonzero == (0, 200 * MIB)
    assert kit.pod(overhead={"cpu": "1"}).nonzero == (1100, 200 * MIB)


@pytest.mark.parametrize(("resources", "message"), [
    ([], "`resources` must be an object"),
    ({"cpu": 1}, r"`resources\[cpu\]` must be an object"),
    ({"cpu": {"wieght": 1}}, r"`resources\[cpu\]`: there is no argument `wieght`: did you mean `weight`"),
    ({"cpu": {"weight": -1}}, r"`resources\[cpu\].weight` must not be negative"),
])
def test_arguments_that_cannot_be_read_are_refused_with_their_place(kit, resources, message):
    with pytest.raises(ValueError, match=message):
        kit.make("NodeResourcesFitPlus", resources=resources)
