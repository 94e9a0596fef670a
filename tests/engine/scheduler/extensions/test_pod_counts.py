from __future__ import annotations

import numpy as np

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.derived import all_rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.scheduler.extensions.domains import domains
from koordpolicy.engine.scheduler.extensions.pod_counts import PodCounts, pod_counts


def node(name, **labels):
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"allocatable": {}}}


def labelled(name, node="", **labels):
    return {"kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [{"name": "main"}], **({"nodeName": node} if node else {})}}


def webs(kind):
    return int(kind.labels.get("app") == "web")


def test_columns_follow_pods_of_thousands_of_kinds_and_through_other_nodes():
    cluster = Cluster([{"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {}}} for name in "ab"])

    def count(app="web"):
        return pod_counts(cluster.snapshot()).column(app, lambda kind: int(kind.labels.get("app") == app)).tolist()

    assert count() == [0, 0]
    for turn in range(3):
        cluster.upsert(labelled(f"w{turn}", "a", app="web"))
        cluster.upsert(labelled(f"d{turn}", "b", app="db"))
    cluster.upsert(labelled("w0", "a", app="db"))
    assert count() == [2, 0]
    for turn in range(4_200):
        cluster.upsert(labelled("x", "ab"[turn % 2], app="web", version=str(turn)))
        if turn % 1000 == 0:
            assert count() == [3, 0]
        pod_counts(cluster.snapshot())
    assert (count(), count("db")) == ([2, 1], [1, 3])
    cluster.delete("Pod", "default/x")
    assert (count(), count("db")) == ([2, 0], [1, 3])
    cluster.upsert({"kind": "Node", "metadata": {"name": "0"}, "status": {"allocatable": {}}})
    assert count() == [0, 2, 0]


def test_columns_that_nobody_asks_for_give_way():
    cluster = Cluster([{"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {}}} for name in "ab"])
    counts = PodCounts(2, most_bytes=1)

    def count(question):
        counts.refresh(cluster.snapshot(), all_rows(2))
        return counts.column(question, lambda kind: int(kind.labels.get("app") == "web")).tolist()

    for turn in range(100):
        assert count(turn) == count("always") == [turn, 0]
        cluster.upsert(labelled(f"p{turn}", "a", app="web"))
    assert count(0) == [100, 0]


def test_pods_that_agree_are_of_one_kind_whatever_their_names():
    pods = pod_counts(Cluster([node("a")]).snapshot())
    one, two, other = (PodInfo.of(labelled(name, app=app)) for name, app in (("1", "web"), ("2", "web"), ("3", "db")))
    assert pods.kind_of(one) is pods.kind_of(two)
    assert pods.kind_of(one) is not pods.kind_of(other)
    leaving = labelled("4", app="web")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert pods.kind_of(PodInfo.of(leaving)).terminating


def test_an_overlay_counts_its_own_pods_and_changes_nothing_of_its_base():
    cluster = Cluster([node("a", zone="x"), node("b", zone="x"), node("c"), labelled("one", "a", app="web")])
    snapshot = cluster.snapshot()
    view = snapshot.overlay({"a": NodeChange(remove=["default/one"]), "b": NodeChange(add=[
        PodInfo.of(labelled("two", app="web")), PodInfo.of(labelled("three", app="web"))])})
    zones = domains(snapshot, "zone")
    for _ in range(2):
        assert pod_counts(view).column("web", webs).tolist() == [0, 2, 0]
        assert pod_counts(view).sums("web", webs, zones).tolist() == [2]
        assert pod_counts(snapshot).column("web", webs).tolist() == [1, 0, 0]
        assert pod_counts(snapshot).near("web", webs, zones).tolist() == [1, 1, 0]


def test_domains_follow_the_labels_of_nodes():
    cluster = Cluster([node("a", zone="x"), node("b", zone="y"), node("c")])
    zones = domains(cluster.snapshot(), "zone")
    assert (zones.codes.tolist(), zones.count, zones.complete, zones.unique) == ([0, 1, -1], 2, False, True)
    view = cluster.snapshot().overlay({"c": NodeChange(node=node("c", zone="x"))})
    seen = domains(view, "zone")
    assert (seen.codes.tolist(), seen.complete, seen.unique, seen.overlaid) == ([0, 1, 0], True, False, True)
    cluster.upsert(node("c", zone="y"))
    zones = domains(cluster.snapshot(), "zone")
    assert (zones.codes.tolist(), zones.complete, zones.in_use().tolist()) == ([0, 1, 1], True, [True, True])
    cluster.upsert(node("a", zone="y"))
    assert domains(cluster.snapshot(), "zone").in_use().tolist() == [False, True]
    assert [
        domains(cluster.snapshot(), "zone").number(np.array(rows, np.intp)) for rows in ([0, 1, 2], [0, 2], [1], [])
    ] == [1, 1, 1, 0]


def test_sums_per_domain_are_made_anew_when_a_node_moves_to_another():
    cluster = Cluster([node("a", zone="x"), node("b", zone="y"), labelled("one", "a", app="web")])

    def sums():
        snapshot = cluster.snapshot()
        zones = domains(snapshot, "zone")
        return pod_counts(snapshot).near("web", webs, zones).tolist()

    assert sums() == [1, 0]
    cluster.upsert(node("b", zone="x"))
    assert sums() == [1, 1]
    cluster.upsert(labelled("two", "b", app="web"))
    assert sums() == [2, 2]
