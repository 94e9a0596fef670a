from __future__ import annotations

import math

import pytest

from koordpolicy.engine.scheduler.cycle.schedule_one import ReservedDevices
from koordpolicy.plugin import CycleState

TYPICAL = [{"cpuMilli": 1000, "gpuMilli": 500, "gpus": 1, "models": [], "probability": 1.0}]


def expected(change):
    """The score of a change of fragmentation, in thousandths of a device."""
    return int(100 / (1 + math.exp(-change / 1000)))


@pytest.fixture
def cluster(kit):
    """a: two idle devices; b: 500 and 700 free."""
    cluster = kit.cluster(kit.node("a", gpus=2), kit.node("b", gpus=2))
    cluster.assume(kit.gpu_pod("one", 1, 500), "b", (0,))
    cluster.assume(kit.gpu_pod("two", 1, 300), "b", (1,))
    return cluster


def test_what_wastes_less_scores_higher(kit, cluster):
    plugin = kit.make("FragmentationGradient", typicalPods=TYPICAL)
    # On a 700 are left, which is enough for a typical pod; on b 200 or 400, which is not.
    assert kit.scores(plugin, kit.gpu_pod("p", 1, 300), cluster) == {"a": 50, "b": expected(-200)}
    assert kit.scores(plugin, kit.gpu_pod("p", 1, 500), cluster) == {"a": 50, "b": 50}
    assert kit.scores(plugin, kit.gpu_pod("p", 1, 1000), cluster, "a") == {"a": 50}
    assert kit.scores(plugin, kit.pod(requests={"cpu": "3500m"}), cluster) == {
        "a": expected(-2000), "b": expected(-1200),
    }


def test_scores_follow_the_cluster(kit, cluster):
    plugin, pod = kit.make("FragmentationGradient", typicalPods=TYPICAL), kit.gpu_pod("p", 1, 300)
    assert kit.scores(plugin, pod, cluster)["b"] == expected(-200)
    cluster.delete("Pod", "default/two")
    assert kit.scores(plugin, pod, cluster)["b"] == 50


def reserved(plugin, pod, cluster, name):
    state, snapshot = CycleState(), cluster.snapshot()
    assert plugin.reserve(state, pod, snapshot, snapshot.index[name]) is None
    return state.get(ReservedDevices)


def test_a_share_goes_to_the_device_where_it_wastes_least(kit, cluster):
    plugin = kit.make("FragmentationGradient", typicalPods=TYPICAL)
    # 500 - 300 wastes 200, 700 - 300 wastes 400.
    assert reserved(plugin, kit.gpu_pod("p", 1, 300), cluster, "b") == (0,)
    # 500 - 200 wastes 300, 700 - 200 wastes nothing.
    assert reserved(plugin, kit.gpu_pod("p", 1, 200), cluster, "b") == (1,)
    assert reserved(plugin, kit.gpu_pod("p", 1, 200), cluster, "a") == (0,)


def test_whole_devices_are_left_to_gpu_share_which_keeps_what_was_chosen_before(kit, cluster):
    plugin, pod = kit.make("FragmentationGradient", typicalPods=TYPICAL), kit.gpu_pod("p", 1, 200)
    assert reserved(plugin, kit.gpu_pod("p", 2, 1000), cluster, "a") is None
    assert reserved(plugin, kit.pod(), cluster, "a") is None
    state, snapshot = CycleState(), cluster.snapshot()
    plugin.reserve(state, pod, snapshot, 1)
    assert kit.make("GpuShare").reserve(state, pod, snapshot, 1) is None
    assert state[ReservedDevices] == (1,)
    plugin.unreserve(state, pod, snapshot, 1)
    assert state == {}


@pytest.mark.parametrize(("args", "message"), [
    ({}, "`typicalPods` must list at least one pod"),
    ({"typicalPods": "x"}, "`typicalPods` must list at least one pod"),
    ({"typicalPods": [{"cpuMilli": 1}]}, r"`typicalPods\[0\]` must have"),
    ({"typicalPods": [{**TYPICAL[0], "gpus": -1}]}, r"`typicalPods\[0\]`: .* must be whole numbers from 0"),
    (
        {"typicalPods": [{**TYPICAL[0], "probability": 2}]},
        r"`typicalPods\[0\]`: `probability` must be a number from 0 to 1",
    ),
])
def test_typical_pods_that_are_none_are_refused(kit, args, message):
    with pytest.raises(ValueError, match=message):
        kit.make("FragmentationGradient", **args)
