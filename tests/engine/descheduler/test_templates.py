from __future__ import annotations

import json

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.descheduler.pod_columns import PodColumns
from koordpolicy.engine.descheduler.pods import AssignedPods
from koordpolicy.engine.descheduler.templates import fact_of, template_of

from .conftest import NOW, node, pod

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web"}


def made(name, on="a", **changes):
    """A pod with parts of its own; keys of `changes` are paths such as `metadata.labels`."""
    item = pod(name, on)
    item["metadata"] |= {"uid": name, "labels": {"app": "web"}, "ownerReferences": [OWNER]}
    for path, value in changes.items():
        section, field = path.split("__")
        item.setdefault(section, {})[field] = value
    return PodInfo.of(json.loads(json.dumps(item)))


def test_pods_that_differ_in_what_is_their_own_have_one_template():
    first = template_of(made("w1"))
    alike = [
        made("w2"), made("w3", "b"), made("w4", metadata__creationTimestamp="2026-01-01T00:00:00Z"),
        made("w6", metadata__annotations={"example.com/ip": "10.0.0.1"}),
        made("w7", spec__volumes=[{"name": "kube-api-access-x", "projected": {}}]),
    ]
    assert [template_of(each) for each in alike] == [first] * len(alike)
    assert template_of(alike[0]) is first


@pytest.mark.parametrize("changes", [
    {"metadata__labels": {"app": "api"}},
    {"metadata__deletionTimestamp": "2026-01-01T00:00:00Z"},
    {"status__phase": "Failed"},
    {"metadata__namespace": "other"},
    {"metadata__ownerReferences": [{**OWNER, "kind": "DaemonSet"}]},
    {"metadata__annotations": {"descheduler.alpha.kubernetes.io/evict": ""}},
    {"metadata__annotations": {"kubernetes.io/config.mirror": ""}},
    {"spec__priority": 5},
    {"spec__tolerations": [{"operator": "Exists"}]},
    {"spec__nodeSelector": {"disk": "ssd"}},
    {"spec__affinity": {"podAntiAffinity": {}}},
    {"spec__topologySpreadConstraints": [{"maxSkew": 1}]},
    {"spec__resourceClaims": [{"name": "gpu"}]},
    {"spec__volumes": [{"name": "scratch", "emptyDir": {}}]},
    {"spec__volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "d"}}]},
    {"spec__containers": [{"name": "c", "image": "other"}]},
    {"spec__containers": [{"name": "c", "resources": {"requests": {"cpu": "7"}}}]},
], ids=repr)
def test_each_part_that_is_read_makes_another_template(changes):
    assert template_of(made("w2", **changes)) is not template_of(made("w1"))


def test_a_fact_is_found_once_for_a_template():
    looked = []

    def name(pod):
        looked.append(pod.name)
        return len(looked)

    pods = [made(f"f{number}", metadata__labels={"app": "facts"}) for number in range(3)]
    assert [fact_of(each, name) for each in pods] == [1, 1, 1]
    assert looked == ["f0"]


def test_columns_name_the_node_and_the_template_of_each_pod():
    cluster = Cluster([node("a"), node("b"), node("c")])
    web, api = {"app": "web"}, {"app": "api"}
    for name, on, labels in (("1", "c", web), ("2", "a", api), ("3", "c", api), ("4", "a", web), ("5", "c", web)):
        cluster.upsert(made(name, on, metadata__labels=labels).object)
    columns = PodColumns.of(cluster.snapshot(NOW))
    assert columns is PodColumns.of(cluster.snapshot(NOW))
    assert [each.name for each in columns.pods] == ["2", "4", "1", "3", "5"]
    assert columns.rows.tolist() == [0, 0, 2, 2, 2]
    labels = [columns.templates[code].pod.object["metadata"]["labels"] for code in columns.codes.tolist()]
    assert labels == [api, web, web, api, web]

    def names(positions):
        return [each.name for each in columns.listed(positions)]

    assert names(columns.having(lambda each: each.pod.object["metadata"]["labels"] == web)) == ["4", "1", "5"]
    assert names(columns.having(lambda _: True)) == ["2", "4", "1", "3", "5"]
    assert names(columns.having(lambda _: False)) == []
    assert columns.on(columns.rows[:1]).tolist() == [True, True, False, False, False]
    overlay = cluster.snapshot(NOW).overlay({"c": NodeChange(remove=("d/3",))})
    assert [each.name for each in PodColumns.of(overlay).pods] == ["2", "4", "1", "5"]
    assert [each.name for each in PodColumns.of(cluster.snapshot(NOW)).pods] == ["2", "4", "1", "3", "5"]


def test_an_empty_cluster_has_empty_columns():
    columns = PodColumns.of(Cluster().snapshot(NOW))
    assert (list(columns.pods), columns.rows.tolist(), columns.counts.tolist()) == ([], [], [])


def test_replicas_are_counted_in_any_phase_and_on_any_node():
    cluster = Cluster([node("a"), node("b")])
    for name, on in (("1", "a"), ("2", "b"), ("3", "unknown"), ("4", "")):
        cluster.upsert(made(name, on).object)
    cluster.upsert(made("5", "a", status__phase="Failed").object)
    assert AssignedPods(cluster.snapshot(NOW)).replicas("web") == 5
    assert [each.name for each in AssignedPods(cluster.snapshot(NOW)).finished(0)] == ["5"]
    cluster.delete("Pod", "d/5")
    cluster.delete("Node", "b")
    assert AssignedPods(cluster.snapshot(NOW)).replicas("web") == 4
    assert AssignedPods(cluster.snapshot(NOW)).finished(0) == ()
