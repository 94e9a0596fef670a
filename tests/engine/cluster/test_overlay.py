
import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange

from .cluster_objects import answers, info, node, pod


def test_an_overlay_differs_in_its_rows_only_and_leaves_no_trace():
    cluster = Cluster([node(f"n{number:02}", gpus=1) for number in range(40)] + [pod("p", on="n01", gpus=1)])
    snapshot = cluster.snapshot()
    asking = info("asking", cpu="7600m")
    text = "allocatable.cpu - requested.cpu >= requests.cpu"
    assert [row for row, fits in enumerate(answers(snapshot, text, asking)) if not fits] == [1]
    overlay = snapshot.overlay({"n01": NodeChange(remove=["shop/p"]), "n02": NodeChange(add=[info("x")])})
    nested = overlay.overlay({"n03": NodeChange(node=node("n03", cpu="1")), "n01": NodeChange(add=[info("p", gpus=1)])})
    assert [row for row, fits in enumerate(answers(overlay, text, asking)) if not fits] == [2]
    assert [row for row, fits in enumerate(answers(nested, text, asking)) if not fits] == [1, 2, 3]
    assert (overlay.devices.free[1].tolist(), nested.devices.free[1].tolist()) == ([1000], [0])
    assert overlay.frame({}).numbers(("nodeInfo", "gpuFree")).values[1] == 1000
    assert [row for row, fits in enumerate(answers(snapshot, text, asking)) if not fits] == [1]
    with pytest.raises(ValueError, match="no pod `shop/p` on node `n05`"):
        snapshot.overlay({"n05": NodeChange(remove=["shop/p"])})


def test_expressions_see_what_kubernetes_counts_for_pods_that_request_nothing():
    silent = pod("silent", on="a")
    silent["spec"]["containers"] = [{"name": "c"}]
    cluster = Cluster([node("a"), node("b"), silent, pod("p", on="a", cpu="2")])
    snapshot = cluster.snapshot()
    texts = [f"nonZeroRequested{each}" for each in (".cpu", ".memory", "['ephemeral-storage']")]

    def seen(of):
        return [answers(of, text, info("asking")) for text in texts]

    counted = 2000 + 100, 200 * 2**20 + int(snapshot.requested("memory")[0])
    assert seen(snapshot) == [[counted[0], 0], [counted[1], 0], [0, 0]]
    moved = snapshot.overlay({"a": NodeChange(remove=["shop/silent"]), "b": NodeChange(add=[PodInfo.of(silent)])})
    assert seen(moved) == [[2000, 100], [counted[1] - 200 * 2**20, 200 * 2**20], [0, 0]]
    assert seen(snapshot) == [[counted[0], 0], [counted[1], 0], [0, 0]]
    cluster.delete("Pod", "shop/silent")
    assert seen(cluster.snapshot()) == [[2000, 0], [counted[1] - 200 * 2**20, 0], [0, 0]]


@pytest.mark.parametrize(("change", "paths"), [
    (NodeChange(node=node("b", cpu="1")), {"node", "allocatable", "requested", "nonZeroRequested"}),
    (NodeChange(metric={"kind": "NodeMetric", "metadata": {"name": "b"}, "status": {}}),
     {"nodeMetric", "requested", "nonZeroRequested"}),
    (NodeChange(add=[info("x")]), {"requested", "nonZeroRequested"}),
])
def test_a_row_of_an_overlay_differs_at_what_its_change_may_change(change, paths):
    overlay = Cluster([node("a"), node("b")]).snapshot().overlay({"b": change})
    found = {path for path in ("node", "allocatable", "nodeMetric", "objects", "requested", "nonZeroRequested")
             if overlay.overridden_at(frozenset({(path,)})).tolist() == [1]}
    assert found == paths


def test_overlays_know_the_pods_and_the_amounts_that_their_changes_left():
    snapshot = Cluster([node("a"), node("b"), pod("p", on="a", cpu="2"), pod("q", on="b", cpu="1")]).snapshot()
    first = snapshot.overlay({"a": NodeChange(remove=["shop/p"], add=[info("x", cpu="3")])})

    def changes(overlay):
        return sorted((row, each.name, change) for row, each, change in overlay.pod_changes())

    def amounts(overlay):
        return [overlay.requested("cpu").tolist(), overlay.pod_count.tolist()]

    assert (changes(first), amounts(first)) == ([(0, "p", -1), (0, "x", 1)], [[3000, 1000], [1, 1]])
    second = first.overlay({"b": NodeChange(add=[info("y", cpu="4")])})
    third = second.overlay({"a": NodeChange(remove=["shop/x"])})
    assert (changes(second), amounts(second)) == ([(0, "p", -1), (0, "x", 1), (1, "y", 1)], [[3000, 5000], [1, 2]])
    assert (changes(third), amounts(third)) == ([(0, "p", -1), (1, "y", 1)], [[0, 5000], [0, 2]])
    assert (changes(first), amounts(first)) == ([(0, "p", -1), (0, "x", 1)], [[3000, 1000], [1, 1]])
    assert amounts(snapshot) == [[2000, 1000], [1, 1]]
