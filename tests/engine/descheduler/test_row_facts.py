from __future__ import annotations

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.descheduler.row_facts import facts_by_row

from .conftest import NOW, node, pod


def test_only_nodes_whose_pods_changed_are_looked_at_again():
    looked = []

    def names(pods):
        looked.append([each.name for each in pods])
        return [each.name for each in pods]

    def facts():
        looked.clear()
        return list(facts_by_row(cluster.snapshot(NOW), "names", names))

    cluster = Cluster([node("a"), node("b"), pod("x", "a")])
    assert (facts(), looked) == ([["x"], []], [["x"], []])
    assert (facts(), looked) == ([["x"], []], [])
    cluster.upsert(pod("y", "b"))
    assert (facts(), looked) == ([["x"], ["y"]], [["y"]])
    cluster.upsert(pod("x", "a", phase="Failed"))
    assert (facts(), looked) == ([[], ["y"]], [[]])
    cluster.upsert(node("c"))
    assert (facts(), looked) == ([[], ["y"], []], [[]])


def test_an_overlay_is_computed_anew_and_leaves_no_trace():
    cluster = Cluster([node("a"), node("b")])
    snapshot = cluster.snapshot(NOW)
    overlay = snapshot.overlay({"a": NodeChange(add=(PodInfo.of(pod("x", "a")),))})
    assert list(facts_by_row(overlay, "number", len)) == [1, 0]
    assert list(facts_by_row(snapshot, "number", len)) == [0, 0]
