"""From what a fixture says to what expressions see."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.documents import Fixtures
from koordpolicy.engine.testing.fixtures import FixtureError, Worlds, merged

NOW = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z


def world(nodes=None, pods=None, overlay=None, chosen=None, **more):
    fixtures = Fixtures(nodes=nodes or {}, pods=pods or {}, **more)
    return Worlds(fixtures, Path()).world(NOW, overlay or {}, chosen)


def test_a_merge_patch_changes_what_it_names():
    assert merged({"a": {"b": 1, "c": 2}, "d": [1, 2]}, {"a": {"b": None, "e": 3}, "d": [3]}) == {
        "a": {"c": 2, "e": 3}, "d": [3],
    }


def test_a_pod_is_an_object_as_the_api_serves_it():
    built = world({"n": {"usage": {"cpu": 2}}}, {"shop/web": {
        "cpu": 1, "limits": {"memory": "1Gi"}, "labels": {"app": "web"}, "node": "n", "priorityClass": "koord-prod",
        "qosClass": "LS", "owner": "ReplicaSet/web", "age": "2h", "usage": {"cpu": "500m"},
        "object": {"spec": {"hostNetwork": True}},
    }})
    assert built.cluster.objects("Pod")["shop/web"] == {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "shop/web", "creationTimestamp": "2025-12-31T22:00:00Z",
            "labels": {"app": "web", "koordinator.sh/qosClass": "LS"},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "ReplicaSet/web",
                "controller": True,
            }],
        },
        "spec": {
            "containers": [{"name": "main", "image": "app", "resources": {
                "requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"},
            }}],
            "nodeName": "n", "priorityClassName": "koord-prod", "priority": 9500, "hostNetwork": True,
        },
        "status": {"phase": "Running"},
    }
    assert built.cluster.objects("NodeMetric")["n"]["status"] == {
        "updateTime": "2025-12-31T23:59:50Z", "nodeMetric": {"nodeUsage": {"resources": {"cpu": "2"}}},
        "podsMetric": [{"namespace": "shop", "name": "web", "podUsage": {"resources": {"cpu": "500m"}}}],
    }


def test_a_node_is_an_object_as_the_api_serves_it():
    built = world({"n": {"cpu": 4, "zone": "a", "taints": ["team=x:NoSchedule", "odd:NoExecute"], "gpus": 2,
                         "images": ["app"], "unschedulable": True}})
    item = built.cluster.objects("Node")["n"]
    assert item["metadata"]["labels"] == {"kubernetes.io/hostname": "n", "topology.kubernetes.io/zone": "a"}
    assert item["spec"] == {"unschedulable": True, "taints": [
        {"key": "team", "value": "x", "effect": "NoSchedule"}, {"key": "odd", "effect": "NoExecute"},
    ]}
    assert item["status"]["allocatable"] == {"cpu": "4", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "2"}


def test_one_fixture_is_made_of_another_and_an_overlay_says_what_differs():
    pods = {"web": {"labels": {"app": "web", "tier": "front"}, "cpu": 1, "object": {"spec": {"hostPID": True}}},
            "big": {"from": "web", "cpu": 8, "labels": {"tier": None}}}
    built = world(pods=pods, overlay={"pods": {"big": {"labels": {"app": None, "x": "y"},
                                                       "object": {"spec": {"hostPID": None}, "status": None}}}})
    item = built.cluster.objects("Pod")["default/big"]
    assert item["metadata"]["labels"] == {"x": "y"}
    assert item["spec"] == {"containers": [
        {"name": "main", "image": "app", "resources": {"requests": {"cpu": "8"}}},
    ]}
    assert "status" not in item


def test_a_fixture_counts_as_many_and_null_takes_one_away():
    built = world({"n": {"count": 2}, "m": {}}, {"p": {"count": 2, "node": "n-*"}, "q": {"node": "m"}},
                  {"nodes": {"m": None}, "pods": {"q": None}})
    assert built.cluster.names == ["n-0", "n-1"]
    assert {key: item["spec"]["nodeName"] for key, item in built.cluster.objects("Pod").items()} == {
        "default/p-0": "n-0", "default/p-1": "n-1",
    }


def test_worlds_that_are_alike_are_built_once():
    worlds = Worlds(Fixtures(nodes={"n": {}}), Path())
    assert worlds.world(NOW, {}, None) is worlds.world(NOW, {}, None, {"cpu": 1})
    assert worlds.world(NOW, {}, None) is not worlds.world(NOW, {}, None, {"cpu": 1, "node": "n"})


@pytest.mark.parametrize(("arguments", "complaint"), [
    ({"pods": {"p": {"node": "x"}}, "nodes": {"n": {}}}, "the pod `p`: there is no node `x`: there are `n`"),
    ({"pods": {"p": {"usage": {"cpu": 1}}}}, "the pod `p` has a usage and is on no node"),
    ({"pods": {"p": {"usage": {"cpu": 1}, "node": "n"}}, "nodes": {"n": {}}},
     "the pod `p` has a usage, and its node `n` has none"),
    ({"pods": {"p": {"from": "q"}, "q": {"from": "p"}}}, "the pod `p` is based on itself: q -> p -> q"),
    ({"nodes": {"n": {"object": {"spec": {"unschedulabel": True}}}}},
     "Node `n` has no field `spec.unschedulabel`: did you mean `unschedulable`?"),
    ({"nodes": {"n": {"cpu": "many"}}}, "Node `n`: `status.allocatable.cpu`"),
    ({"nodes": {"n": {}}, "chosen": ("m",)}, "there is no node `m`: there are `n`"),
    ({"files": ("nowhere.yaml",)}, "there is no file or directory `nowhere.yaml` beside the suite"),
])
def test_what_is_wrong_with_a_fixture_is_said(arguments, complaint):
    with pytest.raises(FixtureError) as caught:
        world(**arguments)
    assert complaint in str(caught.value)


def test_a_node_has_statistics_of_its_usage_by_duration():
    (metric,) = world({"n": {"usage": {"cpu": 2}, "usageOver": {"5m": {"p95": {"cpu": 3}}}}}).cluster.objects(
        "NodeMetric").values()
    assert metric["status"]["nodeMetric"] == {
        "nodeUsage": {"resources": {"cpu": "2"}},
        "aggregatedNodeUsages": [{"duration": "5m", "usage": {"p95": {"resources": {"cpu": "3"}}}}],
    }
    with pytest.raises(FixtureError, match="the node `n` has a `usageOver` and no `usage`"):
        world({"n": {"usageOver": {"5m": {"p95": {"cpu": 3}}}}})
    with pytest.raises(FixtureError, match="`usageOver` of the node `n`: `long`"):
        world({"n": {"usage": {"cpu": 1}, "usageOver": {"long": {"p95": {"cpu": 3}}}}})
