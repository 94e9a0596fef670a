from __future__ import annotations

import pytest

from koordpolicy.engine.cel.explain.clauses import ABSENT, ClauseChange
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.edits import (
    allocatable_edits,
    edits_of,
    eviction_edits,
    may_vary,
    request_edits,
    toleration_edit,
    uncordon_edit,
    usage_edits,
)
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange

NODE = {
    "kind": "Node", "metadata": {"name": "n", "labels": {"disk": "ssd"}},
    "spec": {"unschedulable": True, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
    "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
}
METRIC = {"kind": "NodeMetric", "metadata": {"name": "n"}, "status": {
    "updateTime": "2026-01-02T12:00:00Z",
    "nodeMetric": {
        "nodeUsage": {"resources": {"cpu": "2", "memory": "1Gi"}},
        "aggregatedNodeUsages": [{"duration": "5m", "usage": {"p90": {"resources": {"cpu": "3", "memory": "1Gi"}}}}],
    },
    "podsMetric": [{"namespace": "shop", "name": "a", "podUsage": {"resources": {"cpu": "1"}}}],
}}


def pod(name="p", *requests, on="", **spec):
    containers = [
        {"name": f"c{place}", "resources": {"requests": each}} for place, each in enumerate(requests or ({"cpu": "1"},))
    ]
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "shop"},
            "spec": {"containers": containers, **({"nodeName": on} if on else {}), **spec}}


@pytest.fixture
def snapshot():
    return Cluster([NODE, METRIC, pod("a", {"cpu": "1"}, on="n"), pod("b", {"cpu": "500m"}, on="n")],
                   metric_expiry_seconds=0).snapshot(1)


def edited(change, snapshot, asked=None):
    """Return the texts of the edits of a change, and the pod and the node's row after the first."""
    info = PodInfo.of(asked or pod())
    edits = list(edits_of(change, info, snapshot, 0))
    if not edits:
        return [], None, None
    changed, view = edits[0].apply(info, snapshot, "n")
    return [edit.text for edit in edits], changed, view.row(0)


def test_a_request_shrinks_in_the_container_that_has_most_of_it():
    info = PodInfo.of(pod("p", {"cpu": "1"}, {"cpu": "2500m", "memory": "1Gi"}))
    (edit,) = request_edits(info, "cpu", 2000)
    assert edit.text == "requested 1.5 cores less cpu (2 instead of 3.5 cores)"
    assert [each["resources"]["requests"] for each in edit.pod["spec"]["containers"]] == [
        {"cpu": "1"}, {"cpu": "1", "memory": "1Gi"},
    ]
    assert info.requests["cpu"] == 3500


def test_a_request_that_no_single_container_can_give_is_no_edit():
    info = PodInfo.of(pod("p", {"cpu": "1"}, {"cpu": "1"}, initContainers=[
        {"name": "i", "resources": {"requests": {"cpu": "4"}}}]))
    assert list(request_edits(info, "cpu", 1000)) == []
    assert list(request_edits(PodInfo.of(pod()), "cpu", -1)) == []
    assert list(request_edits(PodInfo.of(pod()), "cpu", True)) == []


def test_less_use_shrinks_all_that_the_metric_says_of_the_resource(snapshot):
    (edit,) = usage_edits(snapshot.row(0), "cpu", 500)
    assert edit.text == "used 1.5 cores less cpu (0.5 instead of 2 cores)"
    view = snapshot.overlay({"n": edit.node})
    metric = view.row(0).metric
    assert (metric.usage["cpu"], metric.usage["memory"], metric.usage["p90"]["cpu"], metric.pods["shop/a"]["cpu"]) == (
        500, 1024**3, 750, 250)
    assert (int(view.usage("cpu").values[0]), int(snapshot.usage("cpu").values[0])) == (500, 2000)
    assert snapshot.row(0).metric.object == METRIC


def test_more_use_and_what_nobody_measured_is_no_edit(snapshot):
    row = snapshot.row(0)
    assert list(usage_edits(row, "cpu", 2000)) == list(usage_edits(row, "nvidia.com/gpu", 0)) == []
    bare = Cluster([NODE]).snapshot(1).row(0)
    assert list(usage_edits(bare, "cpu", 1)) == []


def test_the_fewest_and_smallest_pods_are_given_up(snapshot):
    row = snapshot.row(0)
    assert [edit.text for amount in (100, 600, 1200, 2000, 0) for edit in eviction_edits(row, "cpu", amount)] == [
        "gave up shop/b, which requests 0.5 cores cpu", "gave up shop/a, which requests 1 core cpu",
        "gave up shop/a, shop/b, which together request 1.5 cores cpu",
    ]
    (edit,) = eviction_edits(row, "pods", 1)
    assert (edit.text, len(snapshot.overlay({"n": edit.node}).pods(0))) == ("gave up shop/a", 1)


def test_a_larger_node_has_more_and_never_less(snapshot):
    (edit,) = allocatable_edits(snapshot.row(0), "cpu", 4250)
    assert snapshot.overlay({"n": edit.node}).row(0).allocatable["cpu"] == 4250
    assert list(allocatable_edits(snapshot.row(0), "cpu", 1000)) == []


def test_uncordoning_takes_the_mark_and_its_taint(snapshot):
    assert snapshot.overlay({"n": uncordon_edit(NODE).node}).node(0)["spec"] == {}
    assert NODE["spec"]["unschedulable"] is True


def test_a_toleration_is_as_narrow_as_the_taint():
    edit = toleration_edit(
        PodInfo.of(pod(tolerations=[{"key": "a", "operator": "Exists"}])),
        {"key": "b", "value": "c", "effect": "NoExecute"},
    )
    assert edit.pod["spec"]["tolerations"] == [
        {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Equal", "value": "c", "effect": "NoExecute"},
    ]


@pytest.mark.parametrize(("path", "before", "after", "texts"), [
    (("node", "metadata", "labels", "disk"), "ssd", "hdd", ["had the label disk=hdd"]),
    (("node", "metadata", "labels", "disk"), "ssd", ABSENT, ["had no label disk"]),
    (("node", "metadata", "annotations", "x"), ABSENT, "y", ["had the annotation x=y"]),
    (("node", "metadata", "labels", "topology.kubernetes.io/zone"), "a", "b", []),
    (("node", "metadata", "name"), "n", "m", []),
    (("node", "status", "phase"), "a", "b", []),
    (("nodeInfo", "unschedulable"), True, False, ["were not cordoned"]),
    (("nodeInfo", "pods"), 2, 1, ["gave up shop/a"]),
    (("requested", "cpu"), 1500, 900, ["gave up shop/a, which requests 1 core cpu"]),
    (("requested", "cpu"), 1500, 1600, []),
    (("usage", "p90", "cpu"), 3000, 1500, ["used 1.5 cores less cpu (1.5 instead of 3 cores), as p90"]),
    (("metricAge",), 9, 1, []),
    (("podInfo", "qosClass"), "LS", "BE", ["had the label koordinator.sh/qosClass=BE"]),
    (("podInfo", "qosClass"), "LS", "none", []),
    (("podInfo", "priorityBand"), "koord-prod", "koord-batch", ["were of the priority class koord-batch"]),
    (("podInfo", "priority"), 0, 5, ["had spec.priority: 5 instead of 0"]),
    (("pod", "metadata", "labels", "team"), ABSENT, "web", ["had metadata.labels.team: 'web'"]),
    (("pod", "spec", "hostNetwork"), True, ABSENT, ["had no spec.hostNetwork"]),
    (("pod", "metadata", "namespace"), "shop", "x", []),
    (("pod", "status", "phase"), "Pending", "x", []),
    (("params", "x"), 1, 2, []),
])
def test_what_people_can_change_has_an_edit_and_nothing_else(snapshot, path, before, after, texts):
    assert edited(ClauseChange(path, before, after), snapshot)[0] == texts
    if texts:
        assert may_vary(path)


def test_edits_bring_what_was_asked_for(snapshot):
    assert edited(
        ClauseChange(("podInfo", "priorityBand"), "koord-prod", "koord-batch"), snapshot,
    )[1].priority_band == "koord-batch"
    assert edited(ClauseChange(("podInfo", "qosClass"), "LS", "BE"), snapshot)[1].qos_class == "BE"
    assert edited(
        ClauseChange(("pod", "metadata", "labels", "a.b/c"), ABSENT, "d"), snapshot,
    )[1].object["metadata"]["labels"] == {"a.b/c": "d"}
    assert edited(ClauseChange(("requested", "cpu"), 1500, 900), snapshot)[2].requested["cpu"] == 500


def test_a_malformed_metric_is_refused_and_changes_nothing(snapshot):
    with pytest.raises(ValueError, match="nodeUsage"):
        snapshot.overlay({"n": NodeChange(metric={"status": {"nodeMetric": {"nodeUsage": []}}})})
