from __future__ import annotations

import pytest


@pytest.fixture
def cluster(kit):
    return kit.cluster(*(kit.node(name, gpus=4) for name in "abcd"))


def test_gpu_pods_of_one_kind_are_kept_together(kit, cluster):
    plugin = kit.make("GpuClustering")
    share, whole = kit.gpu_pod("p", 1, 500), kit.gpu_pod("q", 2, 1000)
    # Half of the largest node's eight devices are not there: 12 points for that.
    assert kit.scores(plugin, share, cluster) == {"a": 37, "b": 37, "c": 37, "d": 37}
    cluster.assume(kit.gpu_pod("1", 1, 500), "a", (0,))
    cluster.assume(kit.gpu_pod("2", 1, 500), "b", (0,))
    cluster.assume(kit.gpu_pod("3", 2, 1000), "b", (1, 2))
    cluster.assume(kit.gpu_pod("4", 2, 1000), "c", (1, 2))
    assert kit.scores(plugin, share, cluster) == {"a": 75 + 14, "b": 50 + 20, "c": 0 + 18, "d": 25 + 12}
    assert kit.scores(plugin, whole, cluster) == {"a": 0 + 14, "b": 50 + 20, "c": 75 + 18, "d": 25 + 12}
    cluster.delete("Pod", "default/3")
    assert kit.scores(plugin, share, cluster) == {"a": 89, "b": 89, "c": 18, "d": 37}


def test_clustering_has_no_opinion_about_pods_without_gpus(kit, cluster):
    assert set(kit.scores(kit.make("GpuClustering"), kit.pod(), cluster).values()) == {0}


def test_one_node_of_those_that_are_left_is_drawn(kit, cluster):
    plugin = kit.make("RandomScore", seed=1)
    drawn = [kit.scores(plugin, kit.pod(), cluster, "bcd") for _ in range(40)]
    assert {tuple(sorted(scores.values())) for scores in drawn} == {(0, 0, 100)}
    assert {name for scores in drawn for name, score in scores.items() if score} == {"b", "c", "d"}


def test_the_draw_follows_from_the_seed_of_the_run_or_from_its_own(kit, cluster):
    def draw(**args):
        plugin = kit.make("RandomScore", **args)
        return [kit.scores(plugin, kit.pod(), cluster) for _ in range(10)]

    assert draw(seed=1) == draw(seed=1) != draw(seed=2)
