from __future__ import annotations

import pytest


def test_a_node_scores_by_the_share_of_what_is_not_scarce_among_what_the_pod_leaves(kit):
    plugin = kit.make("ScarceResourceAvoidance", resources=["nvidia.com/gpu"])
    cluster = kit.cluster(kit.node("plain"), kit.node("gpu", gpus=2))
    assert kit.scores(plugin, kit.pod(requests={"cpu": "1"}), cluster) == {"plain": 100, "gpu": 50}
    assert kit.scores(plugin, kit.pod(requests={"cpu": "1", "memory": "1Gi"}), cluster) == {"plain": 100, "gpu": 0}
    assert kit.scores(plugin, kit.pod(requests={"cpu": "0"}), cluster) == {"plain": 100, "gpu": 66}


def test_a_pod_that_requests_the_scarce_resource_is_kept_off_nowhere(kit):
    plugin = kit.make("ScarceResourceAvoidance", resources=["nvidia.com/gpu", "pods"])
    cluster = kit.cluster(kit.node("plain"), kit.node("gpu", gpus=2))
    assert kit.scores(plugin, kit.pod(requests={"nvidia.com/gpu": "1"}), cluster) == {"plain": 100, "gpu": 100}


def test_a_node_that_changes_is_counted_anew(kit):
    plugin = kit.make("ScarceResourceAvoidance", resources=["nvidia.com/gpu"])
    cluster = kit.cluster(kit.node("a"))
    assert kit.scores(plugin, kit.pod(), cluster) == {"a": 100}
    cluster.upsert(kit.node("a", gpus=1))
    assert kit.scores(plugin, kit.pod(), cluster) == {"a": 66}


def test_without_scarce_resources_every_node_scores_100(kit):
    assert kit.scores(
        kit.make("ScarceResourceAvoidance"), kit.pod(), kit.cluster(kit.node("gpu", gpus=1)),
    ) == {"gpu": 100}


def test_arguments_that_cannot_be_read_are_refused(kit):
    with pytest.raises(ValueError, match="`resources` must be a list of strings"):
        kit.make("ScarceResourceAvoidance", resources="gpu")
