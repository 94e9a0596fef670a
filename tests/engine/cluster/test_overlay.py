
import pytest

from koordpolicy.engine.cluster.cluster import Cluster
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


@pytest.mark.parametrize(("change", "paths"), [
    (NodeChange(node=node("b", cpu="1")), {"node", "allocatable", "requested"}),
    (NodeChange(metric={"kind": "NodeMetric", "metadata": {"name": "b"}, "status": {}}), {"nodeMetric", "requested"}),
    (NodeChange(add=[info("x")]), {"requested"}),
])
def test_a_row_of_an_overlay_differs_at_what_its_change_may_change(change, paths):
    overlay = Cluster([node("a"), node("b")]).snapshot().overlay({"b": change})
    found = {path for path in ("node", "allocatable", "nodeMetric", "objects", "requested")
             if overlay.overridden_at(frozenset({(path,)})).tolist() == [1]}
    assert found == paths
