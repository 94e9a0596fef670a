from __future__ import annotations

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Cluster, NodeChange
from koordpolicy.engine.scheduler.result_cache.kept import KeptColumns, KeptRows


def node(name):
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": "1"}}}


def pod(name):
    return PodInfo.of({"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "main"}]}})


def kept_pod_counts():
    asked = []

    def compute(row, now, kept):
        asked.append((row.name, now, kept))
        return len(row.pods), now

    return KeptColumns(frozenset({("nodeInfo", "pods")}), 2, compute), asked


def test_only_rows_that_changed_are_computed_again():
    columns, asked = kept_pod_counts()
    cluster = Cluster([node("a"), node("b")])
    assert columns.of(cluster.snapshot(1)).T.tolist() == [[0, 1], [0, 1]]
    assert columns.of(cluster.snapshot(2)).T.tolist() == [[0, 1], [0, 1]]
    cluster.assume(pod("p"), "b")
    assert columns.of(cluster.snapshot(3)).T.tolist() == [[0, 1], [1, 3]]
    assert asked == [("a", 1, True), ("b", 1, True), ("b", 3, True)]


def test_nodes_that_come_or_go_begin_everything_anew():
    columns, _ = kept_pod_counts()
    cluster = Cluster([node("a")])
    columns.of(cluster.snapshot(1))
    cluster.upsert(node("b"))
    assert columns.of(cluster.snapshot(2)).T.tolist() == [[0, 2], [0, 2]]


def test_an_overlay_is_computed_for_its_own_rows_and_kept_nowhere():
    columns, asked = kept_pod_counts()
    cluster = Cluster([node("a"), node("b")])
    overlay = cluster.snapshot(1).overlay({"b": NodeChange(add=[pod("p")])})
    assert columns.of(overlay).T.tolist() == [[0, 1], [1, 1]]
    assert columns.of(cluster.snapshot(1)).T.tolist() == [[0, 1], [0, 1]]
    assert asked == [("a", 1, True), ("b", 1, True), ("b", 1, False)]


def test_clusters_do_not_share_columns():
    columns, _ = kept_pod_counts()
    columns.of(Cluster([node("a")]).snapshot(1))
    assert columns.of(Cluster([node("a"), node("b")]).snapshot(2)).T.tolist() == [[0, 2], [0, 2]]


def kept_topologies():
    asked = []

    def compute(snapshot, row):
        asked.append(snapshot.names[row])
        return (snapshot.object("Topology", snapshot.names[row]) or {}).get("zones", 0), len(snapshot.pods(row))

    rows = KeptRows(frozenset({("objects", "Topology"), ("requested",)}), compute, lambda value: value, 2)
    return rows, asked


def test_values_follow_the_objects_that_are_named_like_nodes():
    rows, asked = kept_topologies()
    cluster = Cluster([node("a"), node("b")])
    assert rows.of(cluster.snapshot()).values == [(0, 0), (0, 0)]
    cluster.upsert({"kind": "Topology", "metadata": {"name": "b"}, "zones": 2})
    cluster.upsert({"kind": "Other", "metadata": {"name": "a"}})
    assert rows.of(cluster.snapshot()).facts.tolist() == [[0, 0], [2, 0]]
    cluster.delete("Topology", "b")
    cluster.assume(pod("p"), "a")
    assert rows.of(cluster.snapshot()).values == [(0, 1), (0, 0)]
    assert (asked[:3], sorted(asked[3:])) == (["a", "b", "b"], ["a", "b"])


def test_values_of_an_overlay_are_its_own_and_are_kept_while_it_is():
    rows, asked = kept_topologies()
    cluster = Cluster([node("a"), node("b")])
    overlay = cluster.snapshot().overlay({"b": NodeChange(add=(pod("p"),))})
    assert rows.of(overlay).values == [(0, 0), (0, 1)]
    assert (rows.at(overlay, 1), rows.at(overlay, 0)) == ((0, 1), (0, 0))
    assert rows.of(cluster.snapshot()).facts.tolist() == [[0, 0], [0, 0]]
    assert asked == ["a", "b", "b"]


def test_a_value_that_was_forgotten_is_computed_again():
    rows, asked = kept_topologies()
    cluster = Cluster([node("a"), node("b")])
    rows.of(cluster.snapshot())
    rows.forget("b")
    rows.forget("gone")
    assert rows.at(cluster.snapshot(), 0) == (0, 0)
    assert asked == ["a", "b", "b"]
